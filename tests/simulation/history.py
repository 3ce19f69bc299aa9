"""History: the answers that clients got, and what must therefore be true; the judge of a run.

A record's value names who sent it, over which connection, to which topic (its id) and partition, and its number, so
that wherever it turns up it says whether it belongs there. Per partition the history knows which offsets were given
out, to what, and how durable the promise was: `acks=all` survives a power loss, `acks=1` the death of any role. A
record that was sent with acks=all and was read is promised like one that was answered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.simulation.member_history import MemberHistory
from tests.simulation.share_history import ShareHistory
from tests.simulation.transaction_history import MARKER, TransactionHistory

Key = tuple[bytes, int]  # (topic id, partition)
# After this time without a heartbeat the session of a member has ended, or may have: it is 45 s for consumers.
CONSUMER_SESSION_NS: Final = 40 * 10**9
STREAMS_SESSION_NS: Final = 2 * 10**9


@dataclass
class Promise:
    """One acknowledged record."""

    value: bytes
    is_durable: bool


@dataclass
class PartitionHistory:
    """What is known of one partition of one topic."""

    acknowledged: dict[int, Promise] = field(default_factory=dict)
    seen: dict[int, bytes] = field(default_factory=dict)  # What was read, by offset.
    log_start: int = 0
    deleted_below: int = 0  # By an answered DeleteRecords.
    high_watermark: int = 0
    trimming_to: int = 0  # By a DeleteRecords that was sent.
    dates: dict[int, int] = field(default_factory=dict)  # Of records whose topic has a retention, by offset.
    deleted: set[bytes] = field(default_factory=set)  # What was acknowledged below that when the power went.
    # A failed disk: what was promised before is kept, nothing is promised any more. None: it has not failed.
    kept: dict[int, Promise] | None = None


@dataclass
class TopicHistory:
    """One topic from its creation to its deletion."""

    name: str
    topic_id: bytes
    partitions: int
    is_compacted: bool
    retention_ms: int | None = None  # None: retention keeps all records.
    is_deleted: bool = False  # Somebody asked for it.


@dataclass
class CommitHistory:
    """One group's offset of one partition: what a fetch may show."""

    settled: int = -1
    open: set[int] = field(default_factory=set)  # Sent and not known to have failed or worked.
    adrift: set[int] = field(default_factory=set)  # Of those, sent by a connection that is gone.


class Floor(NamedTuple):
    """What was known of a partition when a request was sent, and how often the broker had been restarted."""

    high_watermark: int
    log_start: int
    restarts: int


class History:
    """Of one run."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self.topics: dict[bytes, TopicHistory] = {}
        self.partitions: dict[Key, PartitionHistory] = {}
        self.awaited: set[bytes] = set()  # Values that were sent with acks=all.
        self.on_unanswered_read: Callable[[], None] | None = None
        self.commits: dict[tuple[str, str, int], CommitHistory] = {}
        self.consumers = MemberHistory(violate, CONSUMER_SESSION_NS)
        self.streams = MemberHistory(violate, STREAMS_SESSION_NS)
        # True if a log of coordinators may stay offline until the broker starts again, or a power loss may have brought
        # members back that had left.
        self.has_unsettled_groups = False
        self.counts = {
            "acknowledged": 0,
            "read": 0,
            "commits": 0,
            "heartbeats of consumers": 0,
            "shared": 0,
            "shared again": 0,
            "accepted": 0,
            "dead letters": 0,
            "settled consumers": 0,
            "heartbeats of streams": 0,
            "settled streams": 0,
            "answers": 0,
            "power": 0,
            "deaths": 0,
            "rights": 0,
            "operations": 0,
            "cycles": 0,
            "write cycles": 0,
            "jumps": 0,
            "retained": 0,
            "expired": 0,
            "expired tokens": 0,
            "silent": 0,
        }
        self.transactions = TransactionHistory(violate)
        self.shares = ShareHistory(violate, self.counts)
        self.power_losses = self.restarts = 0
        self._excused_losses = 0  # Power losses after which `miss_share_group` was called.
        self.is_synced = True  # Whether acks=all and committed offsets wait for the disk (kproc.flush=group).

    # -- topics ------------------------------------------------------------------------------------------------

    def created(self, topic: TopicHistory) -> None:
        if topic.topic_id in self.topics:
            self._violate(f"topic id of {topic.name} was given twice")
        self.topics[topic.topic_id] = topic

    def alive(self, *, is_compacted: bool | None = None) -> list[TopicHistory]:
        return [
            each
            for each in self.topics.values()
            if not each.is_deleted and is_compacted in (None, each.is_compacted)
        ]

    def of(self, topic_id: bytes, partition: int) -> PartitionHistory:
        key = (topic_id, partition)
        found = self.partitions.get(key)
        if found is None:
            found = self.partitions[key] = PartitionHistory()
        return found

    def _name(self, topic_id: bytes, partition: int) -> str:
        topic = self.topics.get(topic_id)
        return f"{topic.name if topic else topic_id.hex()}-{partition}"

    # -- records -----------------------------------------------------------------------------------------------

    def acknowledge(
        self,
        topic_id: bytes,
        partition: int,
        base_offset: int,
        values: list[bytes],
        *,
        is_durable: bool,
        losses: int,
    ) -> None:
        """A Produce was answered without an error; `losses` of power had happened when it was sent."""
        if losses != self.power_losses and not (is_durable and self.is_synced):
            return  # The answer outlived what it speaks of.
        known = self.of(topic_id, partition)
        for offset, value in enumerate(values, base_offset):
            self.counts["acknowledged"] += 1
            before = known.acknowledged.get(offset)
            if before is not None and before.value != value:
                self._violate(
                    f"{self._name(topic_id, partition)}: offset {offset} was given twice: {before.value!r}, {value!r}"
                )
            read = known.seen.get(offset)
            if read is not None and read != value:
                self._violate(
                    f"{self._name(topic_id, partition)}: offset {offset} was read as {read!r}, then given to {value!r}"
                )
            known.acknowledged[offset] = Promise(
                value, (is_durable and self.is_synced) or (before is not None and before.is_durable)
            )

    def read(self, topic_id: bytes, partition: int, records: list[tuple[int, bytes | None]]) -> None:
        """Records came in an answer to a Fetch."""
        known = self.of(topic_id, partition)
        topic = self.topics.get(topic_id)
        last = -1
        for offset, value in records:
            self.counts["read"] += 1
            if offset <= last:
                self._violate(f"{self._name(topic_id, partition)}: offset {offset} came after {last}")
            last = offset
            value = value or b""
            before = known.seen.setdefault(offset, value)
            promised = known.acknowledged.get(offset)
            if before != value:
                self._violate(
                    f"{self._name(topic_id, partition)}: offset {offset} was {before!r}, now it is {value!r}"
                )
            if promised is not None and promised.value != value:
                self._violate(
                    f"{self._name(topic_id, partition)}: offset {offset} was given to {promised.value!r} "
                    f"and is {value!r}"
                )
            if promised is None and self.is_synced and value in self.awaited:
                known.acknowledged[offset] = Promise(value, is_durable=True)
                if self.on_unanswered_read is not None:
                    self.on_unanswered_read()
            owner = value.split(b"|")[0]
            if value.startswith(MARKER):
                continue
            if topic is not None and owner != topic_id.hex()[:8].encode() + b"-%d" % partition:
                self._violate(f"{self._name(topic_id, partition)}: a foreign record at {offset}: {value!r}")

    def floor(self, topic_id: bytes, partition: int) -> Floor:
        """What no answer to a request that is sent now may fall below."""
        known = self.of(topic_id, partition)
        return Floor(known.high_watermark, known.log_start, self.restarts)

    def watermarks(
        self, topic_id: bytes, partition: int, high_watermark: int, log_start: int, floor: Floor
    ) -> None:
        """As an answer without an error says; `log_start` -1 if it does not."""
        known = self.of(topic_id, partition)
        name = self._name(topic_id, partition)
        if high_watermark < floor.high_watermark:
            self._violate(f"{name}: the high watermark went from {floor.high_watermark} to {high_watermark}")
        known.high_watermark = max(known.high_watermark, high_watermark)
        if log_start < 0:
            return
        topic = self.topics.get(topic_id)
        if topic is not None and not topic.is_compacted and topic.retention_ms is None:
            self._judge_start(name, known, log_start)
        if floor.restarts != self.restarts:
            return  # What was known then may be undone, and the answer may be one of before: see `restarted`.
        if log_start < floor.log_start:
            self._violate(f"{name}: the log start went from {floor.log_start} to {log_start}")
        known.log_start = max(known.log_start, log_start)

    def _judge_start(self, name: str, known: PartitionHistory, log_start: int) -> None:
        """Nothing but a DeleteRecords moves the start of a log that is not compacted."""
        if log_start > max(known.deleted_below, known.trimming_to):
            self._violate(f"{name}: starts at {log_start}, deleted was below {known.deleted_below}")

    def judge_retention(self, topic: TopicHistory, partition: int, log_start: int, now_ms: int) -> None:
        """Compare the start of a log with the dates of its records."""
        assert topic.retention_ms is not None
        dates = self.of(topic.topic_id, partition).dates
        kept = [at for at, date_ms in dates.items() if date_ms + topic.retention_ms >= now_ms]
        if kept and log_start > min(kept):
            self._violate(f"{topic.name}-{partition}: starts at {log_start}, {min(kept)} is younger than its retention")

    def deleted_records(self, topic_id: bytes, partition: int, low_watermark: int) -> None:
        known = self.of(topic_id, partition)
        known.deleted_below = max(known.deleted_below, low_watermark)
        if known.log_start < low_watermark:
            known.log_start = low_watermark

    def may_be_trimming(self, topic_id: bytes, partition: int) -> bool:
        """Return True if a DeleteRecords may take what was there a moment ago."""
        known = self.of(topic_id, partition)
        return known.trimming_to > known.deleted_below

    # -- committed offsets -------------------------------------------------------------------------------------

    def commit_of(self, group: str, topic: str, partition: int) -> CommitHistory:
        return self.commits.setdefault((group, topic, partition), CommitHistory())

    def fetched_commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        known = self.commit_of(group, topic, partition)
        if not self.is_synced and self.power_losses:
            return
        if offset != known.settled and offset not in known.open:
            self._violate(
                f"group {group}, {topic}-{partition}: committed offset {known.settled}, fetched {offset} "
                f"(open: {sorted(known.open)})"
            )

    # -- disasters ---------------------------------------------------------------------------------------------

    def disk_failed(self, topic_id_of: Callable[[str], bytes | None], directory: str) -> None:
        """A write to that partition failed: after a power loss nothing is promised of it."""
        name, _, index = directory.rpartition("-")
        topic_id = topic_id_of(name)
        if topic_id is not None and index.isdigit():
            known = self.of(topic_id, int(index))
            if known.kept is None:
                known.kept = {} if self.topics[topic_id].is_compacted else dict(known.acknowledged)

    def restarted(self) -> None:
        """A DeleteRecords that had no answer yet may be undone: until then it is not on the disk."""
        self.restarts += 1
        for known in self.partitions.values():
            if known.trimming_to > known.deleted_below:
                known.log_start = min(known.log_start, known.deleted_below)

    def lost_power(self) -> None:
        """What was not promised to survive may be gone, and its offsets may be given again."""
        self.power_losses += 1
        self.counts["power"] += 1
        self.transactions.lost_power()
        if not self.is_synced:
            self.commits.clear()
            self.has_unsettled_groups = True
        for known in self.partitions.values():
            below = known.deleted_below
            known.deleted |= {each.value for at, each in known.acknowledged.items() if at < below}
            promised = known.acknowledged if known.kept is None else known.kept
            known.acknowledged = {offset: each for offset, each in promised.items() if each.is_durable}
            last = max(known.acknowledged, default=-1)
            known.seen = {offset: value for offset, value in known.seen.items() if offset <= last}
            known.high_watermark = last + 1
            known.log_start = min(known.deleted_below, last + 1) if known.acknowledged else 0
            if not known.acknowledged:  # A log that was lost as a whole may begin anew.
                known.deleted_below = 0
        self.shares.lost_power(
            lambda topic_id, partition: max(self.of(topic_id, partition).acknowledged, default=-1),
            is_synced=self.is_synced,
        )

    def miss_share_group(self) -> None:
        """A member of the share group was told to join again.

        An unsynced power loss can take the group although the states of its partitions survive. Members settle records
        until their next heartbeat. The group that they create then replaces the states. Until it assigns partitions,
        members that have not noticed yet settle records, and may get these again.
        """
        if not self.is_synced and self._excused_losses < self.power_losses:
            self._excused_losses = self.power_losses
            self.shares.is_group_missing = True

    def assign_share_group(self) -> None:
        """A member of the share group was assigned partitions, so a missing group has replaced its states."""
        if self.shares.is_group_missing:
            self.shares.is_group_missing = False
            self.shares.lost_power(lambda _topic_id, _partition: -1, is_synced=False)

    # -- the end -----------------------------------------------------------------------------------------------

    def judge(
        self, topic: TopicHistory, partition: int, log_start: int, end: int, got: dict[int, bytes]
    ) -> None:
        """A whole partition was read after everything had come to rest."""
        known = self.of(topic.topic_id, partition)
        name = f"{topic.name}-{partition}"
        if log_start < known.deleted_below and known.kept is None:
            self._violate(
                f"{name}: records were deleted below {known.deleted_below}, it starts at {log_start}"
            )
        back = [offset for offset, value in got.items() if value in known.deleted]
        if back and known.kept is None:
            self._violate(f"{name}: {len(back)} deleted records are there again, at {back[:5]}")
        if not topic.is_compacted:
            missing = [offset for offset in range(log_start, end) if offset not in got]
            if missing:
                self._violate(f"{name}: offsets {missing[:5]} of {log_start} to {end} are not there")
            if topic.retention_ms is None:
                self._judge_start(name, known, log_start)
        got = {offset: value for offset, value in got.items() if not value.startswith(MARKER)}
        newest: dict[bytes, int] = {}
        for offset, value in got.items():
            newest[key_of(value)] = offset
        for offset, promise in known.acknowledged.items():
            if offset < log_start:
                continue
            is_replaced = topic.is_compacted and newest.get(key_of(promise.value), -1) > offset
            if got.get(offset) != promise.value and not is_replaced:
                self._violate(f"{name}: lost: {promise.value!r} at {offset}, there is {got.get(offset)!r}")
        self._judge_order(name, got)

    def check(self) -> None:
        """Check the history of all transactions, after the last partition was judged."""
        acknowledged = {
            key: {offset: each.value for offset, each in known.acknowledged.items()}
            for key, known in self.partitions.items()
            if known.kept is None
        }
        # Offsets of records with acks=1 may be given again after a power loss, below a group's committed offset.
        checks_groups = not self.power_losses
        report = self.transactions.check_history(acknowledged, checks_groups=checks_groups)
        for anomaly in report.anomalies:
            self._violate(f"history: {anomaly}")
        self.counts["operations"] += report.operations
        self.counts["cycles"] += report.cycles
        self.counts["write cycles"] += report.write_cycles

    def _judge_order(self, name: str, got: dict[int, bytes]) -> None:
        """Nothing twice, and what one connection (an idempotent producer: all of its) sent is in order."""
        last: dict[bytes, int] = {}
        seen: set[bytes] = set()
        for offset in sorted(got):
            value = got[offset]
            if value in seen:
                self._violate(f"{name}: doubled: {value!r} is at {offset}, too")
            seen.add(value)
            _, source, number, _ = value.split(b"|")
            if int(number) <= last.get(source, -1):
                self._violate(f"{name}: reordered: {value!r} at {offset} comes after number {last[source]}")
            last[source] = int(number)


def value_of(topic_id: bytes, partition: int, source: str, number: int, key: int) -> bytes:
    """The value of a record: where it belongs | who sent it, over which connection | its number | its key."""
    return b"%s-%d|%s|%d|%d" % (topic_id.hex()[:8].encode(), partition, source.encode(), number, key)


def key_of(value: bytes) -> bytes:
    """The key that goes with such a value."""
    return value.rsplit(b"|", 1)[1]
