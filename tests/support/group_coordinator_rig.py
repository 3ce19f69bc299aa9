"""GroupCoordinator on a log in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kproc.broker.config import Config
from kproc.broker.coordinator.rules import DueOf, KnownTopics, Producer, Timing, Write
from kproc.broker.group.consumer.topics import ConsumerCluster
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.group.messages import CommitRequest, JoinRequest, SyncRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.common.clock import NS_PER_MS, ManualClock
from kproc.common.deadlines import Deadlines
from kproc.common.errors import ErrorCode
from tests.support.consumer_groups import NO_TOPICS
from tests.support.coordinators import run_steps

TOPIC_ID = bytes(range(16))


class LoggedRecord(NamedTuple):
    """A record, and in whose transaction it is."""

    key: bytes
    value: bytes | None
    producer: Producer | None


class LoggedMarker(NamedTuple):
    """The end of a transaction."""

    producer_id: int
    is_commit: bool


class MemoryLog:
    """Appends at flush; durable at sync, as with kproc.flush=group."""

    def __init__(self) -> None:
        self.entries: dict[int, LoggedRecord | LoggedMarker] = {}  # By offset; compaction may have left gaps.
        self.end_offset = 0
        self.waiting: list[Write] = []
        self.unsynced: list[Write] = []
        self.error = 0
        self.records_left: int | None = None  # The number of records after which an append fails.
        self.writes_left: int | None = None  # The number of writes with records after which all others fail.

    def write(self, write: Write) -> None:
        self.waiting.append(write)

    def guarded(self, callback: Callable[..., object]) -> Callable[..., None]:
        return callback  # A surprise is to end the test.

    def flush(self) -> None:
        writes, self.waiting = self.waiting, []
        for write in writes:
            if self.error or (self.writes_left == 0 and write.records):
                write.on_done(self.error or ErrorCode.KAFKA_STORAGE_ERROR)
                continue
            if self.writes_left is not None and write.records:
                self.writes_left -= 1
            first = self.end_offset
            records = write.records[: self.records_left]
            for key, value in records:
                self.append(LoggedRecord(key, value, write.producer))
            for number in range(len(records) if write.apply is not None else 0):
                write.apply(number, first + number)
            if len(records) < len(write.records):
                write.on_done(ErrorCode.KAFKA_STORAGE_ERROR)
                continue
            self.unsynced.append(write)

    def append(self, entry: LoggedRecord | LoggedMarker) -> None:
        self.entries[self.end_offset] = entry
        self.end_offset += 1

    @property
    def records(self) -> list[tuple[bytes, bytes | None]]:
        return [(each.key, each.value) for each in self.entries.values() if isinstance(each, LoggedRecord)]

    def sync(self) -> None:
        self.flush()
        writes, self.unsynced = self.unsynced, []
        for write in writes:
            write.on_done(0)


# The arguments of `Rig.offset_row` besides those of the request.
_ROW = {"leader_epoch", "topic_id", "expires", "metadata"}


class Rig:
    """A coordinator that may be lost and loaded again from its log."""

    def __init__(self, cluster: ConsumerCluster = NO_TOPICS) -> None:
        self.cluster = cluster
        self.clock = ManualClock()
        self.topics = {"t": TOPIC_ID, "u": bytes(15) + b"u"}
        self.deleted: dict[bytes, str] = {}
        self.leader_epoch = 5  # Of every partition.
        self.log = MemoryLog()
        self.settings: dict[str, object] = {
            "group.initial.rebalance.delay.ms": 0,
            "offsets.retention.minutes": 60,
        }
        self.make()

    def make(self) -> None:
        self.deadlines: Deadlines[DueOf] = Deadlines()
        timing = Timing(self._now_ms, self.clock.wall_ms, iter(map(str, range(1000))).__next__)
        config = Config.build(self.settings)
        self.coordinator = GroupCoordinator(config, self.cluster, timing, self.deadlines, self.log)
        entries = self.log.entries.items()
        # As in CoordinatorReplay, neither tombstones nor the records before them are replayed.
        deleted = {
            entry.key: offset
            for offset, entry in entries
            if not isinstance(entry, LoggedMarker) and entry.value is None
        }
        for offset, entry in entries:
            if isinstance(entry, LoggedMarker):
                self.coordinator.end_transaction(*entry)
            elif offset > deleted.get(entry.key, -1):
                self.coordinator.replay(entry.key, entry.value, offset, entry.producer)
        self.coordinator.finish_loading(self.known_topics())
        run_steps(self.coordinator)

    def known_topics(self) -> KnownTopics:
        return KnownTopics(self.topics.get, self.deleted, lambda _name, _index: self.leader_epoch)

    def delete_topic(self, name: str, new_id: bytes | None = None) -> None:
        """Delete a topic, and create it anew if there is an id. The coordinator is not told."""
        self.deleted[self.topics.pop(name)] = name
        if new_id is not None:
            self.topics[name] = new_id

    def _now_ms(self) -> int:
        return self.clock.now_ns() // NS_PER_MS

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        for coordinator, group_id in self.deadlines.pop_due(self._now_ms()):
            coordinator.tick(group_id)

    def commit(self, offset: int, *, topic: str = "t", group: str = "g", **more: Any) -> list[int]:
        row = self.offset_row(topic, group, offset=offset, **{name: more.pop(name) for name in _ROW & set(more)})
        return self.commit_rows([row], group, **more)

    def offset_row(
        self, topic: str = "t", group: str = "g", *, offset: int = 1, **more: Any
    ) -> tuple[OffsetKey, CommittedOffset]:
        value = CommittedOffset(
            offset=offset,
            commit_timestamp_ms=self.clock.wall_ms(),
            leader_epoch=more.pop("leader_epoch", -1),
            topic_id=more.pop("topic_id", self.topics.get(topic, TOPIC_ID)),
            expire_timestamp_ms=more.pop("expires", -1),
            metadata=more.pop("metadata", ""),
        )
        return OffsetKey(group, topic, 0), value

    def commit_rows(
        self, rows: Sequence[tuple[OffsetKey, CommittedOffset]], group: str = "g", **more: Any
    ) -> list[int]:
        codes: list[int] = []
        fields = {"member_id": "", "group_instance_id": None, "generation": -1, "knows_unknown_group": True}
        request = CommitRequest(group_id=group, offsets=list(rows), **{**fields, **more})
        self.coordinator.offset_requests.commit(request, codes.append)
        return codes

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        """What the runtime does with a marker."""
        self.log.flush()
        self.log.append(LoggedMarker(producer_id, is_commit))
        self.coordinator.end_transaction(producer_id, is_commit)

    def offset(self, topic: str = "t", group: str = "g") -> int | None:
        found = self.coordinator.offsets.get(group, topic, 0)
        return found.offset if found is not None else None

    def join(self, group: str = "g", member_id: str = "") -> Any:
        results: list[Any] = []
        request = JoinRequest(
            member_id=member_id,
            client_id="c",
            client_host="/h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=(("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"),),
        )
        self.coordinator.join(group, request, results.append)
        return results

    def settle(self) -> str:
        """One member in a stable group, durable; its id."""
        (joined,) = self.join()
        sync = SyncRequest(member_id=joined.member_id, generation=1, assignments=((joined.member_id, b"a"),))
        results: list[Any] = []
        self.coordinator.sync("g", sync, results.append)
        assert not results  # Not before it is written.
        self.log.sync()
        assert results[0].assignment == b"a"
        return str(joined.member_id)

    def sweep(self) -> None:
        self.coordinator.start_sweep()
        run_steps(self.coordinator)
        self.log.sync()

    def states(self) -> dict[str, str]:
        return {row.group_id: row.state for row in self.coordinator.overviews()}
