"""`kproc consume --group`: a member of a group, which reads its assigned partitions from their committed offsets.

The offsets of printed records are committed once a second, before a partition goes to another member, and at the end.
If a member is killed, the member that gets its partitions prints at most the records of the last second again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kproc.cli.common import Failure
from kproc.cli.lines import print_note
from kproc.cli.record_json import Consumed
from kproc.cli.record_reader import OffsetRange, Partition, Progress

COMMIT_EVERY_MS: Final = 1_000
SESSION_MS: Final = 10_000
"""Time after which the group removes a killed member, and librdkafka abandons a commit without a coordinator."""
_COMMITTED_WITHIN_S: Final = 10.0
_NUMBERS_SHOWN: Final = 8


class GroupMember:
    """A member of the group that `kproc consume --group` joins.

    Reading of a partition without a committed offset begins at the start offset of `span`.
    """

    def __init__(
        self,
        group: str,
        topics: Sequence[str],
        span: OffsetRange,
        progress: Progress,
        *,
        tells: bool,
        has_consumer_protocol: bool = False,
    ) -> None:
        self._group = group
        self._topics = list(topics)
        self._starts = span.starts
        self._tells = tells
        self._has_consumer_protocol = has_consumer_protocol
        self._refusal: str | None = None
        self._assigned: dict[Partition, int] = {}  # The offsets at which reading began.
        self._consumer: Any = None
        self._is_ending = False
        self.progress = progress
        self.settings: Mapping[str, Any] = {
            "group.id": group,
            # Set no session timeout for the consumer protocol: it is a config of the group on the broker, and
            # librdkafka rejects it in the client.
            **(
                {"group.protocol": "consumer"}
                if has_consumer_protocol
                else {"session.timeout.ms": SESSION_MS}
            ),
            "enable.auto.commit": True,
            "auto.commit.interval.ms": COMMIT_EVERY_MS,
            "on_commit": self._on_commit,
        }

    def start(self, consumer: Any) -> None:
        """Join the group."""
        self._consumer = consumer
        consumer.subscribe(self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke)

    def on_printed(self, records: Sequence[Consumed]) -> None:
        """Store the offsets after these printed records, so that librdkafka commits them."""
        after = {(record.topic, record.partition): record.offset + 1 for record in records}
        for partition, offset in after.items():
            self.on_skipped(partition, offset)

    def start_of(self, partition: Partition) -> int:
        return self._assigned.get(partition, -1)

    def on_skipped(self, partition: Partition, offset: int) -> None:
        """Store the offset after printed or skipped records of a partition, so that librdkafka commits it."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        try:
            self._consumer.store_offsets(offsets=[TopicPartition(*partition, offset)])
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise Failure(
                    f"group {self._group}: cannot store offsets for the next commit: {_words(error)}"
                ) from error
            # Ignore _STATE: the partition was reassigned to another member while we printed, and that member prints the
            # records again.

    def permanent_error(self, error: Any) -> str | None:
        """Return the message for a permanent error of the group, or None for an error that librdkafka retries."""
        from confluent_kafka import KafkaError

        from kproc.cli.record_sender import describe_error

        if error.code() == KafkaError._MAX_POLL_EXCEEDED:
            self._print_note("nothing was read for so long that other members took over; joining again")
            return None
        passing = (
            KafkaError._TRANSPORT,
            KafkaError._TIMED_OUT,
            KafkaError.COORDINATOR_NOT_AVAILABLE,
            KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            KafkaError.NOT_COORDINATOR,
            KafkaError.REBALANCE_IN_PROGRESS,
            KafkaError.ILLEGAL_GENERATION,
            KafkaError.UNKNOWN_MEMBER_ID,
            KafkaError.FENCED_MEMBER_EPOCH,
            KafkaError.STALE_MEMBER_EPOCH,
        )
        is_passing = error.retriable() or error.code() in passing
        return None if is_passing and not error.fatal() else f"group {self._group}: {describe_error(error)}"

    def finish(self, *, is_away: bool) -> None:
        """Commit the offsets of the last printed records. The consumer leaves the group when it closes.

        is_away: the broker does not respond. Then only print that the last offsets may not be committed.
        """
        from confluent_kafka import KafkaError, KafkaException

        self._is_ending = True
        if is_away:
            print_note(
                f"kproc: group {self._group}: the broker is away, the last second's records may not be committed"
            )
            return
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                raise Failure(f"group {self._group}: offsets not committed: {_words(error)}") from error

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        from confluent_kafka import OFFSET_BEGINNING, KafkaException

        from kproc.cli.record_sender import describe_error

        if self._is_ending:
            return  # The group rebalanced while this member leaves it.
        try:
            known = consumer.committed(partitions, timeout=_COMMITTED_WITHIN_S) if partitions else []
        except KafkaException as error:
            raise Failure(f"group {self._group}: cannot read committed offsets: {_words(error)}") from error
        begun = []
        for each, committed in zip(partitions, known, strict=True):
            if committed.error is not None:
                raise Failure(
                    f"group {self._group}: cannot read committed offsets: {describe_error(committed.error)}"
                )
            each.offset = committed.offset
            if committed.offset < 0:
                each.offset = self._starts.get((each.topic, each.partition), OFFSET_BEGINNING)
                begun += [each] if each.offset >= 0 else []
        assigned = {(each.topic, each.partition): each.offset for each in partitions}
        if self._has_consumer_protocol:
            # In the consumer protocol the member keeps its other partitions during the rebalance, so add the new ones.
            # After a revocation librdkafka calls this with no partition.
            self._assigned |= assigned
            consumer.incremental_assign(partitions)
        else:
            self._assigned = assigned
            consumer.assign(partitions)
        self.progress.add(_pairs(partitions))
        if begun:
            # Commit the start position of partitions without a committed offset, as Java's consumer does. The next
            # member then begins there even if no record was read.
            consumer.commit(offsets=begun, asynchronous=True)
        self._print_partitions(self._assigned)

    def _on_revoke(self, _consumer: Any, partitions: list[Any]) -> None:
        revoked = _pairs(partitions)
        self.progress.remove(revoked)
        for partition in revoked:
            self._assigned.pop(partition, None)

    def _on_commit(self, error: Any, partitions: list[Any]) -> None:
        """Report a failed commit, once for each reason.

        The failure is harmless: a later commit includes these offsets, or the next owner prints some records again.
        """
        from confluent_kafka import KafkaError

        from kproc.cli.record_sender import describe_error

        wrong = [each for each in (error, *(each.error for each in partitions)) if each is not None]
        usual = (
            KafkaError._NO_OFFSET,
            KafkaError.REBALANCE_IN_PROGRESS,
            KafkaError.ILLEGAL_GENERATION,
            KafkaError.UNKNOWN_MEMBER_ID,
            KafkaError.FENCED_MEMBER_EPOCH,
            KafkaError.STALE_MEMBER_EPOCH,
        )
        refusal = next((describe_error(each) for each in wrong if each.code() not in usual), None)
        if refusal is not None and refusal != self._refusal:
            print_note(f"kproc: group {self._group}: offsets not committed yet: {refusal}")
        self._refusal = refusal

    def _print_partitions(self, partitions: Iterable[Partition]) -> None:
        from kproc.client.requests import numbers_by_topic

        shown = ", ".join(
            f"{topic} [{','.join(map(str, numbers))}]"
            if len(numbers) <= _NUMBERS_SHOWN
            else f"{len(numbers)} partitions of {topic}"
            for topic, numbers in numbers_by_topic(sorted(partitions)).items()
        )
        self._print_note(
            f"reads {shown}" if shown else "has no partition for this member, because others read all of them"
        )

    def _print_note(self, words: str) -> None:
        """Print a note about the group if output and standard error are terminals."""
        if self._tells:
            print_note(f"kproc: group {self._group} {words}")


def _pairs(partitions: list[Any]) -> list[Partition]:
    return [(each.topic, each.partition) for each in partitions]


def _words(error: Any) -> str:
    from kproc.cli.record_sender import describe_error

    return describe_error(error.args[0])
