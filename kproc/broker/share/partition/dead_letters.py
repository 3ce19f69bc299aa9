"""Dead letters (KIP-1191): records of a share group that were rejected, or delivered too often, go to another topic.

A record's state ARCHIVING is persisted first. Then the record is written to the group's dead letter topic, and then
archived. The next batch of a share partition is written only after the records of the former one are archived. So after
the death of an owner, only the last batch of a share partition can have letters whose records are still in the state
ARCHIVING. Before the next owner writes, it requests these letters from the owner of the dead letter log
(letter_log.py), and archives their records. A record that cannot be written is archived nevertheless, as in Kafka, and
the log says why.

Differs from Kafka: with errors.deadletterqueue.copy.record.enable the headers of the record are copied, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import CHANGE, Change, Changed
from kproc.broker.cluster.dynamic_settings import current_value
from kproc.broker.fetch.fetch_read import partition_now
from kproc.broker.peers.forwarding import Answer, gather
from kproc.broker.share.partition.in_flight import DeadLetters
from kproc.broker.share.partition.letter_log import (
    APPEND_LETTERS,
    LAST_LETTERS,
    LetterSource,
    letter_producer_id,
)
from kproc.broker.share.partition.letter_queue import LetterQueue
from kproc.broker.share.partition.original_records import OriginalRecords
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from kproc.wire.record_batch import encode_batch

if TYPE_CHECKING:
    from kproc.broker.cluster.image import TopicImage
    from kproc.broker.request.context import Services
    from kproc.broker.share.partition.share_counters import ShareCounters
    from kproc.broker.share.partition.share_partition import SharePartition
    from kproc.broker.share.state.messages import SharePartitionKey

logger = logging.getLogger(__name__)

_ENABLE: Final = "errors.deadletterqueue.group.enable"
_AUTO_CREATE: Final = "errors.deadletterqueue.auto.create.topics.enable"
_PREFIX: Final = "errors.deadletterqueue.topic.name.prefix"
# A share partition that was dropped and loaded again waits for this time (ms) while a call from before the drop is in
# flight.
_PREDECESSOR_PAUSE_MS: Final = 100
# Attempts for one batch, and the pause (ms) after the first of them, as in Kafka. Each further pause is twice as long.
_ATTEMPTS: Final = 5
_PAUSE_MS: Final = 1_000
_RETRIED: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


class _Unwritable(Exception):
    """The group's dead letters cannot be written. The exception's text says why."""


class DeadLetterWriter:
    """Writes the dead letters of a Handler's share partitions, one batch at a time for each of them.

    archive: called with a share partition, the first and last offset of records that can be archived, because their
    dead letters were written or cannot be written, and a callback for the time when this is persisted or has failed.
    """

    def __init__(
        self,
        services: Services,
        counters: ShareCounters,
        archive: Callable[[SharePartition, int, int, Callable[[], None]], None],
    ) -> None:
        self._services = services
        self._counters = counters
        self._archive = archive
        self._queues: dict[SharePartition, LetterQueue] = {}
        # The share partitions with a call in flight. One that was dropped can be loaded again before the answer. The
        # late call must not append behind a batch of its successor.
        self._calling: set[SharePartitionKey] = set()
        # The share partition whose records were copied last, and its reader. There is only one, because it can hold
        # the decompressed records of a batch.
        self._originals: tuple[SharePartition, OriginalRecords] | None = None

    def write(self, partition: SharePartition, letters: Sequence[DeadLetters]) -> None:
        """Write records as dead letters. Archive them when they are written or cannot be written."""
        if letters:
            self._queues.setdefault(partition, LetterQueue()).letters.extend(letters)
            self._write_next(partition)

    def write_again(self, partition: SharePartition, letters: Sequence[DeadLetters]) -> None:
        """Write the records that a former owner was about to write, except those that it has written."""
        if letters:
            self._queues.setdefault(partition, LetterQueue()).is_unsure = True
            self.write(partition, letters)

    def _resume(self, partition: SharePartition) -> None:
        """Continue with the dead letters of a share partition after a pause."""
        self._queues[partition].is_waiting = False
        self._write_next(partition, can_copy=True)

    def _write_next(self, partition: SharePartition, *, can_copy: bool = False) -> None:
        """Write the next batches of a share partition, until it must wait for an answer or a pause.

        can_copy: True in a slow operation of the purgatory, which may read the originals of one batch.
        """
        queue = self._queues[partition]
        # Write no batch before the records of the former one are archived. If this Handler died, its successor would
        # find only the letters of the last batch, and write those of an earlier batch again.
        while not (queue.is_waiting or queue.archiving):
            # A dropped share partition is loaded again from its stored state, and then its records in the
            # state ARCHIVING are found or written again.
            if partition.is_dropped or not (queue.batch or queue.letters):
                del self._queues[partition]
                if self._originals is not None and self._originals[0] is partition:
                    self._originals = None
                return
            try:
                topic = self._find_topic(partition)
            except _Unwritable as problem:
                self._archive_unwritten(partition, queue, str(problem))
                continue
            if topic is None:
                self._create_topic(partition, queue)
            elif partition.key in self._calling:
                self._wait(partition, queue, _PREDECESSOR_PAUSE_MS)
            elif queue.is_unsure:
                self._find_written(partition, queue, topic)
            elif can_copy or not partition.settings.copies_dead_letters:
                can_copy = False
                self._write_batch(partition, queue, topic)
            else:
                self._wait(partition, queue, 0)

    # -- the topic ---------------------------------------------------------------------------------------------

    def _find_topic(self, partition: SharePartition) -> TopicImage | None:
        """Return the group's dead letter topic, or None if it must be created. Raises _Unwritable."""
        name, services = partition.settings.dead_letter_topic, self._services
        if not name:
            raise _Unwritable("the group has no dead letter topic any more")
        topic = services.image.topic(name)
        # KIP-1191: the owner of the topic must agree. Otherwise any group could be configured to write into
        # any topic.
        if topic is not None and topic.configs.get(_ENABLE, "false") != "true":
            raise _Unwritable(f"topic {name} does not allow dead letters: set its {_ENABLE} to true")
        if topic is None and self._setting(_AUTO_CREATE) != "true":
            raise _Unwritable(f"topic {name} does not exist: create it, or set {_AUTO_CREATE} to true")
        prefix = self._setting(_PREFIX)
        if not name.startswith(prefix):
            raise _Unwritable(f"the name of topic {name} does not begin with {prefix!r}, the {_PREFIX}")
        return topic

    def _setting(self, name: str) -> str:
        return current_value(self._services.image, self._services.config, name) or ""

    def _create_topic(self, partition: SharePartition, queue: LetterQueue) -> None:
        name = partition.settings.dead_letter_topic
        configs = {_ENABLE: "true", "message.timestamp.type": "CreateTime"}
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }

        def on_reply(reply: Changed | Lost) -> None:
            queue.is_waiting = False
            code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if isinstance(reply, Changed):
                rows = reply.fields.get("topics") or [{"error_code": ErrorCode.UNKNOWN_SERVER_ERROR}]
                code = int(rows[0]["error_code"])
                if not code:
                    logger.info("created topic %s for dead letters of group %s", name, partition.key.group_id)
            # Another share partition of the group may have created the topic in the meantime.
            if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS) and not self._pause(
                partition, queue, code
            ):
                self._archive_unwritten(partition, queue, f"topic {name} cannot be created: error {code}")
            self._write_next(partition)

        queue.is_waiting = True
        body = Change("create_topics", {"topics": [topic], "validate_only": False})
        self._services.peers.ask_controller(CHANGE, body, on_reply)

    # -- the records -------------------------------------------------------------------------------------------

    def _write_batch(self, partition: SharePartition, queue: LetterQueue, topic: TopicImage) -> None:
        size_max = int(topic.configs.get("max.message.bytes") or self._setting("message.max.bytes"))
        originals = self._find_originals(partition) if partition.settings.copies_dead_letters else None
        records = queue.fill_batch(partition, originals, size_max, self._services.clock.wall_ms())
        producer_id = letter_producer_id(partition.name, partition.state_epoch)

        def on_answer(answer: Answer) -> None:
            if not answer["error_code"]:
                self._finish(partition, queue, None)
                return
            queue.is_unsure = True
            self._fail_attempt(partition, queue, topic, answer["error_code"])

        batch = bytes(encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0))
        self._call(partition, queue, topic, APPEND_LETTERS, batch, on_answer)

    def _find_written(self, partition: SharePartition, queue: LetterQueue, topic: TopicImage) -> None:
        """Archive the records whose letters are in the topic already. Then write the other letters."""

        def on_answer(answer: Answer) -> None:
            if answer["error_code"]:
                if not queue.batch:
                    queue.batch.append(queue.letters.popleft())
                self._fail_attempt(partition, queue, topic, answer["error_code"])
                return
            queue.is_unsure = False
            queue.separate_written(sorted(answer["offsets"]))
            # If the topic has none of the letters, keep the number of failed attempts. `_finish` would reset it, and
            # the attempts would never end.
            if queue.batch:
                self._finish(partition, queue, None)

        self._call(partition, queue, topic, LAST_LETTERS, b"", on_answer)

    def _call(
        self,
        partition: SharePartition,
        queue: LetterQueue,
        topic: TopicImage,
        operation: str,
        batch: bytes,
        on_answer: Callable[[Answer], None],
    ) -> None:
        """Call the owner of the dead letter log, and continue with the share partition after the answer."""
        key, services = partition.key, self._services
        source = LetterSource(
            services.handler_index,
            key.topic_id,
            key.partition,
            letter_producer_id(partition.name, partition.state_epoch),
            batch,
        )
        is_sent = False

        def on_answers(answers: list[Answer]) -> None:
            self._calling.discard(key)
            queue.is_waiting = False
            on_answer(answers[0])
            if is_sent:
                self._write_next(partition)

        queue.is_waiting = True
        self._calling.add(key)
        index = key.partition % len(topic.partitions)
        gather(services, operation, [(topic.name, index, source)], on_answers)
        is_sent = True

    def _find_originals(self, partition: SharePartition) -> OriginalRecords | None:
        """Return the reader of a share partition's log with a new budget, or None if the log cannot be opened."""
        if self._originals is not None and self._originals[0] is partition:
            self._originals[1].renew_budget()
            return self._originals[1]
        self._originals = None
        key = partition.key
        image = partition_now(self._services.image, key.topic_id, key.partition)
        assert image is not None, "a deleted topic drops its share partitions"
        try:
            log = self._services.owner.partitions.get(partition.topic, image).log
        except (KafkaError, Corrupt, OSError) as error:
            logger.warning(
                "cannot read the records of share partition %s of topic %s, so their dead letters have headers only: "
                "%s",
                partition.name,
                partition.topic,
                error,
            )
            return None
        self._originals = partition, OriginalRecords(log)
        return self._originals[1]

    # -- the outcome -------------------------------------------------------------------------------------------

    def _fail_attempt(
        self, partition: SharePartition, queue: LetterQueue, topic: TopicImage, code: int
    ) -> None:
        """Schedule another attempt for the batch, or archive its records without dead letters."""
        if not self._pause(partition, queue, code):
            self._finish(partition, queue, f"cannot append to topic {topic.name}: error {code}")

    def _pause(self, partition: SharePartition, queue: LetterQueue, code: int) -> bool:
        """Schedule another attempt after a pause.

        Return False if this error does not permit another attempt, or if there were too many attempts.
        """
        queue.attempts += 1
        # The records stay in the state ARCHIVING while they wait, and keep the start offset where it is. So
        # the attempts must end.
        if code not in _RETRIED or queue.attempts >= _ATTEMPTS:
            return False
        self._wait(partition, queue, _PAUSE_MS << queue.attempts - 1)
        return True

    def _wait(self, partition: SharePartition, queue: LetterQueue, pause_ms: int) -> None:
        """Continue with a share partition after a pause.

        In each duty cycle, at most one share partition that copies records continues.
        """
        due_ns = self._services.clock.now_ns() + pause_ms * NS_PER_MS
        is_slow = partition.settings.copies_dead_letters
        # Pauses that end early, in a row, would use up the attempts, and the letters would be lost.
        # A Handler that leaves waits until nothing is parked, so a pause of a dropped share partition ends then.
        self._services.owner.purgatory.call_at(
            due_ns,
            partial(self._resume, partition),
            is_slow=is_slow,
            is_over=lambda: partition.is_dropped,
        )
        queue.is_waiting = True

    def _archive_unwritten(self, partition: SharePartition, queue: LetterQueue, problem: str) -> None:
        """Archive all dead letters of a share partition, because none of them can be written."""
        queue.drain()
        self._finish(partition, queue, problem)

    def _finish(self, partition: SharePartition, queue: LetterQueue, problem: str | None) -> None:
        """Count the batch's dead letters as written, or as lost because of `problem`, and archive their records."""
        batch, queue.batch, queue.attempts = queue.batch, [], 0
        count = sum(letters.last - letters.first + 1 for letters in batch)
        if problem is None:
            self._counters.dead_letters += count
        else:
            self._counters.lost_letters += count
            logger.warning(
                "%d dead letters of share partition %s are lost, of records between the offsets %d and %d of topic %s: "
                "%s",
                *(count, partition.name, min(each.first for each in batch), max(each.last for each in batch)),
                partition.topic,
                problem,
            )

        def on_archived() -> None:
            queue.archiving -= 1
            if not queue.archiving and not is_starting:
                self._write_next(partition)

        is_starting = True
        queue.archiving += len(batch)
        for letters in batch:
            self._archive(partition, letters.first, letters.last, on_archived)
        is_starting = False
