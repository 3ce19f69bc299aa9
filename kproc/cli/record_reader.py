"""Reads records of topics with librdkafka's consumer, up to the ends that the logs had at the start, or for ever.

`RecordReader` returns the records. Its source chooses the partitions: all requested ones (`Assigned`), or those that a
group's coordinator assigns to this member (`group_member.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kproc.cli.common import Failure
from kproc.cli.connection import client_id, connect, librdkafka_security
from kproc.cli.lines import print_note
from kproc.cli.record_json import Consumed

if TYPE_CHECKING:
    from kproc.cli.batch_check import CheckedBatch
    from kproc.client import Client

Partition = tuple[str, int]

logger = logging.getLogger(__name__)

# After this many empty polls (1 s), check if a batch that librdkafka cannot read is the cause.
_QUIET_POLLS: Final = 4
WAIT_S: Final = 0.25
"""Time that `read` waits for the first record before it returns to the loop."""
LEAVE_WITHIN_S: Final = 10.0
"""Time for the last commit and for leaving the group."""


class OffsetRange(NamedTuple):
    """The range to read of each partition: its first offset, and the offset before which it ends."""

    starts: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    # Offline partitions with their errors. They are in neither `starts` nor `ends`, but a group can assign them to this
    # member.
    unserved: Mapping[Partition, str] = MappingProxyType({})
    # Partitions whose end, or whose last record's time, is before the requested start, with their end offsets.
    beyond: Mapping[Partition, int] = MappingProxyType({})


class Progress:
    """The partitions assigned to this reader, and which of them have been read to their end.

    `ends` are the end offsets to stop at, or None to follow the partitions without an end.
    """

    def __init__(self, ends: Mapping[Partition, int] | None) -> None:
        self.ends = ends
        self._open: set[Partition] = set()
        self._mine: set[Partition] = set()
        self._finished: set[Partition] = set()
        self._is_given = False

    @property
    def is_done(self) -> bool:
        """True if every assigned partition was read to its end. Never True if the reader follows without an end."""
        return self.ends is not None and self._is_given and not self._open

    @property
    def is_endless(self) -> bool:
        """True if the reader follows the partitions without an end."""
        return self.ends is None

    def add(self, partitions: Iterable[Partition]) -> None:
        """Add partitions that are assigned to this reader."""
        self._is_given = True
        self._mine.update(partitions)
        if self.ends is not None:
            # A partition created after the start is not in `ends`. None of its records is wanted, so it counts as
            # finished.
            self._finished.update(self._mine - self.ends.keys())
        self._open = self._mine - self._finished

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Remove partitions that were reassigned to another member.

        That member prints the records that we have only fetched.
        """
        self._mine.difference_update(partitions)
        self._open = self._mine - self._finished

    def finish(self, partition: Partition) -> None:
        """Mark a partition as read to its end. Do nothing if the reader follows without an end."""
        if self.ends is not None:
            self._finished.add(partition)
            self._open.discard(partition)

    @property
    def waiting(self) -> list[Partition]:
        """The sorted partitions that have not been read to their end, or all if the reader follows without an end."""
        return sorted(self._mine if self.ends is None else self._open)

    def skip(self, partition: Partition, offset: int) -> None:
        """Finish the partition if the records before `offset`, which cannot be read, were the last ones to read."""
        if self.ends is not None and offset >= self.ends.get(partition, 0):
            self.finish(partition)

    def wants(self, partition: Partition, offset: int) -> bool:
        """Return True if a record is in the range to read. Mark its partition as finished at the end of the range."""
        if partition not in self._mine:
            return False
        if self.ends is None:
            return True
        end = self.ends.get(partition, 0)
        # Finish at the last offset of the range, because a record beyond the range may never arrive.
        if offset >= end - 1:
            self.finish(partition)
        return offset < end


class RecordSource(Protocol):
    """Chooses the partitions that a RecordReader reads. The source of a group member also commits offsets."""

    settings: Mapping[str, Any]
    progress: Progress

    def start(self, consumer: Any) -> None:
        """Let the consumer read the partitions of this source."""

    def on_printed(self, records: Sequence[Consumed]) -> None:
        """Record that these records were printed. From then on their offsets may be committed."""

    def permanent_error(self, error: Any) -> str | None:
        """Return the message for an error that concerns no single partition, or None to ignore the error."""

    def start_of(self, partition: Partition) -> int:
        """Return the offset at which reading of a partition began, or -1 if it is unknown."""

    def on_skipped(self, partition: Partition, offset: int) -> None:
        """Record that the records before this offset are skipped, so that the offset may be committed."""

    def finish(self, *, is_away: bool) -> None:
        """Finish before the consumer closes, for example by a commit.

        `is_away` is True if the broker cannot be reached.
        """


class Assigned:
    """The source of `kproc consume` without --group: every requested partition. It commits nothing."""

    def __init__(self, span: OffsetRange, progress: Progress) -> None:
        self._span = span
        self.progress = progress
        # confluent_kafka requires a group id, but partitions that are assigned with known offsets never use it.
        self.settings: Mapping[str, Any] = {"group.id": "kproc-consume", "enable.auto.commit": False}

    def start(self, consumer: Any) -> None:
        """Assign the partitions that have records to read, or all partitions if the reader follows without an end."""
        from confluent_kafka import TopicPartition

        starts, ends = self._span.starts, self._span.ends
        partitions = [each for each in starts if self.progress.is_endless or starts[each] < ends[each]]
        consumer.assign([TopicPartition(*each, starts[each]) for each in partitions])
        self.progress.add(partitions)

    def on_printed(self, records: Sequence[Consumed]) -> None:
        """Do nothing, because without a group no position is stored."""

    def permanent_error(self, error: Any) -> str | None:
        """Ignore all errors except fatal ones.

        Because of the group id librdkafka looks for a coordinator, and a broker without groups answers with an error.
        The assigned partitions need no coordinator.
        """
        from kproc.cli.record_sender import describe_error

        return describe_error(error) if error.fatal() else None

    def start_of(self, partition: Partition) -> int:
        return self._span.starts.get(partition, -1)

    def on_skipped(self, partition: Partition, offset: int) -> None:
        """Do nothing, because without a group no position is stored."""

    def finish(self, *, is_away: bool) -> None:
        """Do nothing, because there is nothing to commit."""


class AbsenceCheck:
    """Checks a broker that librdkafka reports as down. librdkafka does so after a single closed connection."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.is_away = False

    def check(self, *, follow: bool) -> None:
        """Connect to the broker. If that fails, raise the error, or with `follow` print it once, until a later success.

        Always raise the error of a rejected login or certificate. As for Kafka's clients, no retry would change it.
        """
        from kproc.client import AuthenticationFailed, ClientError

        try:
            connect(self._bootstrap).close()
        except AuthenticationFailed:
            raise
        except ClientError as error:
            if not follow:
                raise
            if not self.is_away:
                print_note(f"kproc: {error}; trying again until it is back")
            self.is_away = True
        else:
            if self.is_away:
                print_note(f"kproc: {self._bootstrap} is back")
            self.is_away = False


class RecordReader:
    """Reads the partitions of its source with librdkafka's consumer."""

    def __init__(
        self,
        bootstrap: str,
        topics: Sequence[str],
        source: RecordSource,
        *,
        isolation: str = "read_uncommitted",
        skips_unreadable: bool = False,
        unserved: frozenset[Partition] = frozenset(),
    ) -> None:
        from confluent_kafka import Consumer

        self._topics = ", ".join(topics)
        self._source = source
        self._progress = source.progress
        self._unserved = unserved
        self._fatal: str | None = None
        self._skips_unreadable = skips_unreadable
        self._quiet_polls = 0  # Consecutive empty polls.
        self._is_down = False
        self._watch = AbsenceCheck(bootstrap)
        self._behind: dict[Partition, int] = {}  # The offset after the last skipped batch.
        self._told: set[str] = set()  # Problems that were printed while following.
        self._bootstrap = bootstrap
        # The connection that searches for unreadable batches. Keep it, because a topic with a record every other second
        # is searched in every pause, and a new connection can cost a TLS handshake and a login.
        self._searcher: Client | None = None
        self._consumer = Consumer(self._consumer_settings(isolation))
        source.start(self._consumer)

    def _consumer_settings(self, isolation: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._bootstrap,
            "client.id": client_id(),
            "isolation.level": isolation,  # librdkafka's own default is read_committed, unlike Kafka's.
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
            "reconnect.backoff.max.ms": 1000,
            "fetch.queue.backoff.ms": 10,  # librdkafka's default of 1 s halves the speed of a short read.
            "log_level": 0,
            "error_cb": self._on_error,
            **librdkafka_security(),
            **self._source.settings,
        }

    @property
    def is_done(self) -> bool:
        """True if every assigned partition was read to its end. Never True if the reader follows without an end."""
        return self._progress.is_done

    def read(self, limit: int) -> list[Consumed]:
        """Return up to `limit` records, or none if none has come within WAIT_S."""
        records = []
        first = self._consumer.poll(WAIT_S)
        # Compare with None: the length of a message is that of its value, so an empty message is false.
        messages: list[Any] = [first] if first is not None else []
        if messages and limit > 1:
            # Add only messages that have already arrived (timeout 0). With a timeout, consume() would wait for all
            # `limit` messages.
            messages += self._consumer.consume(limit - 1, 0)
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_message_error(message, error)
                continue
            topic, number, offset = message.topic(), message.partition(), message.offset()
            if self._progress.wants((topic, number), offset):
                records.append(
                    Consumed(
                        topic=topic,
                        partition=number,
                        offset=offset,
                        timestamp_ms=message.timestamp()[1],
                        key=message.key(),
                        value=message.value(),
                        headers=message.headers() or (),
                    )
                )
        if (self._is_down or self._watch.is_away) and not records:
            self._is_down = False
            self._watch.check(follow=self._progress.is_endless)
        self._quiet_polls = 0 if records else self._quiet_polls + 1
        if not records and (self._fatal is not None or self._is_check_due()):
            self._find_unreadable()
        if self._fatal is not None and not records:
            raise Failure(f"{self._topics}: {self._fatal}")
        return records

    def printed(self, records: Sequence[Consumed]) -> None:
        """Report to the source that these records were printed, so that a group member commits their offsets."""
        self._source.on_printed(records)

    def close(self) -> None:
        """Close the consumer in a daemon thread, and wait for it at most LEAVE_WITHIN_S.

        librdkafka can wait for ever for a broker that hangs, and Ctrl-C would have no effect. The daemon thread ends
        with this process.
        """
        self._close_searcher()
        raised: list[Exception] = []

        def close_consumer() -> None:
            try:
                self._source.finish(is_away=self._watch.is_away)
            except (Failure, RuntimeError) as error:
                raised.append(error)  # The waiting thread raises it.
            self._consumer.close()

        thread = threading.Thread(target=close_consumer, daemon=True)
        thread.start()
        thread.join(LEAVE_WITHIN_S)
        if raised:
            raise raised[0]
        if thread.is_alive():
            raise Failure(f"{self._bootstrap} does not respond: ended without closing the consumer")

    def _is_check_due(self) -> bool:
        """Return True after 1, 2, 4, ... s without records: ever more rarely, as a topic can be quiet for hours."""
        polls = self._quiet_polls
        return polls >= _QUIET_POLLS and polls & (polls - 1) == 0

    def _find_unreadable(self) -> None:
        """Search the present positions for unreadable batches. Raise a Failure, or skip them if so configured."""
        from confluent_kafka import TopicPartition

        from kproc.client import ClientError

        waiting = self._progress.waiting
        if not waiting:
            return
        at = self._consumer.position([TopicPartition(*each) for each in waiting])
        is_new = self._searcher is None
        try:
            try:
                self._search(at)
            except ClientError:
                self._close_searcher()
                if is_new:
                    raise
                # The broker has restarted, or has closed the idle connection. Search by a new one.
                self._search(at)
        except ClientError as error:  # AbsenceCheck reports a broker that is down.
            logger.debug("cannot search for unreadable batches: %s", error)

    def _search(self, positions: Sequence[Any]) -> None:
        """Search these positions for an unreadable batch by the kept connection, which is opened if necessary."""
        from kproc.cli.batch_check import find_unreadable

        if self._searcher is None:
            self._searcher = connect(self._bootstrap)
        for each in positions:
            partition = each.topic, each.partition
            offset = max(each.offset, self._behind.get(partition, each.offset))
            if offset < 0:  # librdkafka has not read any record of the partition.
                offset = self._source.start_of(partition)
            found = None
            try:
                if offset >= 0:
                    found = find_unreadable(self._searcher, *partition, offset)
            except Failure as error:
                self._on_failed_search(error)
            if found is not None:
                self._on_unreadable(*partition, found)

    def _on_failed_search(self, error: Failure) -> None:
        """Raise the error of unreadable files, because librdkafka fetches again for ever and reports nothing.

        A reader that follows prints the error once, because the shortage of a resource may end. Log other errors.
        """
        from kproc.cli.batch_check import FilesUnreadable

        if not isinstance(error, FilesUnreadable):
            logger.debug("cannot search for unreadable batches: %s", error)
        elif not self._progress.is_endless:
            raise error
        elif str(error) not in self._told:
            self._told.add(str(error))
            print_note(f"kproc: {error}")

    def _close_searcher(self) -> None:
        if self._searcher is not None:
            self._searcher.close()
            self._searcher = None

    def _on_unreadable(self, topic: str, partition: int, batch: CheckedBatch) -> None:
        from confluent_kafka import TopicPartition

        words = (
            f"{topic}-{partition}: the batch at offsets {batch.offset} to {batch.next_offset - 1} cannot be read: "
            f"{batch.problem}"
        )
        if not self._skips_unreadable:
            raise Failure(f"{words}; skip it with --skip-unreadable")
        print_note(f"kproc: {words}; skipped")
        self._behind[topic, partition] = batch.next_offset
        self._consumer.seek(TopicPartition(topic, partition, batch.next_offset))
        self._progress.skip((topic, partition), batch.next_offset)
        self._source.on_skipped((topic, partition), batch.next_offset)
        self._fatal = None
        self._quiet_polls = 0

    def _on_message_error(self, message: Any, error: Any) -> None:
        from confluent_kafka import KafkaError

        from kproc.cli.record_sender import describe_error

        if error.code() == KafkaError._PARTITION_EOF:
            # The consumer has reached the end of the partition. The last offsets can be of records that are never
            # delivered, such as a transaction's marker.
            self._progress.finish((message.topic(), message.partition()))
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True
        # An error without a topic concerns the whole client, so do not finish a partition because of it.
        elif message.topic() is None:
            self._fatal = self._fatal or self._source.permanent_error(error)
        elif (partition := (message.topic(), message.partition())) in self._unserved:
            self._progress.finish(partition)
        else:
            self._fatal = self._fatal or describe_error(error)

    def _on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        from kproc.cli.record_sender import describe_error

        if error.fatal():
            self._fatal = self._fatal or describe_error(error)
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True
