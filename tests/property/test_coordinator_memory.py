"""A coordinator's memory equals a replay of its log, whatever fails beside what.

A real shard on a real log, whose writes and syncs fail at random while others are gathered, appended or wait for their
sync. After every step a second coordinator replays the log; its state must be that of the first one.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kproc.broker.config import Config
from kproc.broker.coordinator.coordinator_log import C, CoordinatorKind, CoordinatorLog
from kproc.broker.coordinator.memory_limit import MemoryLimit
from kproc.broker.coordinator.rules import DueOf, Marker, Producer, Timing
from kproc.broker.group.classic.members import NEVER_MS
from kproc.broker.group.classic.state import GroupState
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.group.messages import CommitRequest, JoinRequest, JoinResult, LeavingMember, SyncRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.broker.share.state.coordinator import ShareCoordinator, ShareEnvironment
from kproc.broker.share.state.messages import (
    DeleteState,
    InitializeState,
    ReadState,
    RecordState,
    StateBatch,
    WriteState,
    state_key,
)
from kproc.broker.share.state.records import base_key_of
from kproc.broker.storage.log import LogConfig
from kproc.broker.transaction.coordinator import TransactionCoordinator
from kproc.broker.transaction.entry import Environment
from kproc.broker.transaction.messages import AddRequest, EndRequest, Granted, InitRequest
from kproc.broker.transaction.records import decode_record
from kproc.broker.transaction.state import COMPLETED, NO_EPOCH, PREPARED, PartitionKey
from kproc.common.clock import NS_PER_MS, ManualClock
from kproc.common.deadlines import Deadlines
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.record_batch import decode_records, parse_header
from tests.support.consumer_groups import NO_TOPICS
from tests.support.coordinators import ALL_TOPICS, UNGUARDED, run_steps
from tests.support.failing_fs import FailingFs
from tests.support.logs import NOW_MS, TOPIC_ID, LogRig
from tests.support.owned_log import OwnedLog

pytestmark = pytest.mark.long

# A batch has room for a few records, and a segment for a few batches. A write of several batches then takes several
# system calls, and the second can fail after the first.
LOG = LogConfig(max_message_bytes=400, segment_bytes=900)
CONFIG = Config.build(
    {
        "group.initial.rebalance.delay.ms": "0",
        "transactional.id.expiration.ms": "50000",
        "share.coordinator.snapshot.update.records.per.snapshot": "3",
        "share.coordinator.cold.partition.snapshot.interval.ms": "1000",
    }
)
STORAGE_ERROR = int(ErrorCode.KAFKA_STORAGE_ERROR)

faults = st.one_of(
    st.tuples(st.just("flush")),
    st.tuples(st.just("sync"), st.sampled_from([0, 0, 0, STORAGE_ERROR])),
    st.tuples(st.just("fail_write"), st.sampled_from([1, 1, 2]), st.sampled_from([0, 70])),
    st.tuples(st.just("pass_ms"), st.sampled_from([100, 1_000, 60_000])),
    st.tuples(st.just("reload")),
)


class Scene(Generic[C]):
    """A coordinator on a log that fails."""

    def __init__(self, directory: Path) -> None:
        self.fs = FailingFs()
        self.owned = OwnedLog(LogRig(directory, config=LOG, fs=self.fs).open())
        self.durable_end = 0
        self.clock = ManualClock(wall_ms=NOW_MS)
        self.timing = Timing(self.now_ms, self.clock.wall_ms, iter(map(str, range(1_000_000))).__next__)
        self.reload()

    def kind(self) -> CoordinatorKind[C]:
        raise NotImplementedError

    def state_of(self, coordinator: C) -> Any:
        """Everything that the log says."""
        raise NotImplementedError

    def now_ms(self) -> int:
        return self.clock.now_ns() // NS_PER_MS

    def load(self) -> CoordinatorLog[C]:
        self.deadlines_of_load: Deadlines[DueOf] = Deadlines()
        shard = CoordinatorLog(
            self.kind(), self.owned, CONFIG, self.clock, self.deadlines_of_load, {}, 1, UNGUARDED
        )
        while not shard.is_loaded:
            shard.load_some(ALL_TOPICS)
            assert not shard.is_damaged
        return shard

    def reload(self) -> None:
        """The Handler dies with what it had gathered; the page cache keeps what was appended."""
        self.owned.waiting.clear()
        self.shard = self.load()
        self.deadlines = self.deadlines_of_load

    def flush(self) -> None:
        self.shard.flush()

    def sync(self, code: int) -> None:
        if not code:
            self.durable_end = self.owned.log.state.end_offset
        self.owned.sync(code)

    def fail_write(self, nth: int, after_bytes: int) -> None:
        self.fs.fail_write(nth=nth, after_bytes=after_bytes, error=errno.ENOSPC)

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        for coordinator, name in self.deadlines.pop_due(self.now_ms()):
            coordinator.tick(name)

    def check(self) -> None:
        assert self.state_of(self.shard.coordinator) == self.state_of(self.load().coordinator)

    def run(self, steps: list[tuple[Any, ...]]) -> None:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)
            self.check()
        self.fs.heal()
        for _ in range(5):
            self.flush()
            self.sync(0)
            self.pass_ms(1_000)
        self.check()


@contextmanager
def scene_of(make: Callable[[Path], Scene[C]]) -> Iterator[Scene[C]]:
    with tempfile.TemporaryDirectory(prefix="coordinator-") as directory:
        scene = make(Path(directory) / "t-0")
        yield scene
        scene.owned.log.close(clean=True)


# -- transactions ---------------------------------------------------------------------------------------------


class Transactions(Scene[TransactionCoordinator]):
    """Two producers, each with several requests in work, as a client with several connections has."""

    def __init__(self, directory: Path) -> None:
        self.ids = 1_000
        self.producers: dict[str, Granted] = {}
        self.sent: list[tuple[int, Callable[[int, int], None]]] = []
        super().__init__(directory)

    def kind(self) -> CoordinatorKind[TransactionCoordinator]:
        environment = Environment(
            CONFIG,
            self.timing,
            lambda: 2,
            lambda on_id, _: on_id(self.next_id()),
            self.send_markers,
            MemoryLimit("kproc.transactional.ids.max.bytes", 1 << 30),
        )
        return CoordinatorKind(
            topic="__transaction_state",
            make=lambda log, deadlines, epoch: TransactionCoordinator(environment, log, deadlines, epoch),
            codec=0,
            sweep_interval_ms=1,
        )

    def state_of(self, coordinator: TransactionCoordinator) -> Any:
        entries = coordinator._entries.values()
        # `last_epoch` is not stored, as in Kafka.
        return {
            each.name: replace(each.appended, last_epoch=NO_EPOCH)
            for each in entries
            if each.appended is not None
        }

    def send_markers(
        self, parts: Sequence[tuple[PartitionKey, Marker]], on_code: Callable[[int, int], None]
    ) -> None:
        """Markers leave after their decision is durable."""
        for _, marker in parts:
            assert self.decided_at[marker.producer_id, marker.epoch] < self.durable_end, marker
        self.sent.append((len(parts), on_code))

    @property
    def decided_at(self) -> dict[tuple[int, int], int]:
        """By producer id and epoch, the offset of the decision in the log."""
        view = memoryview(self.owned.log.reader.read_bytes(0, 1 << 20))
        found: dict[tuple[int, int], int] = {}
        while view:
            header = parse_header(view)
            for record in decode_records(view[: header.total_bytes]):
                _, transaction = decode_record(record.key, record.value)
                if transaction is not None and transaction.state in PREPARED:
                    found[transaction.producer_id, transaction.epoch] = record.offset
            view = view[header.total_bytes :]
        return found

    def next_id(self) -> int:
        self.ids += 1
        return self.ids

    def reload(self) -> None:
        self.sent.clear()
        super().reload()
        self.sent.clear()

    def init(self, name: str) -> None:
        def on_granted(granted: Granted) -> None:
            if not granted.error_code:
                self.producers[name] = granted

        self.shard.coordinator.init(name, InitRequest(30_000), on_granted)

    def add(self, name: str, *indexes: int) -> None:
        producer = self.producers.get(name)
        if producer is None:
            return
        keys = tuple(("orders", index) for index in indexes)
        request = AddRequest(producer.producer_id, producer.epoch, keys, 2)
        self.shard.coordinator.add(name, request, partial(self.on_added, name, request))

    def on_added(self, name: str, request: AddRequest, code: int) -> None:
        """An add that is answered NONE is in the log, unless its transaction has ended since."""
        if code:
            return
        stored = self.shard.coordinator._entries[name].appended
        assert stored is not None
        known: frozenset[PartitionKey] = stored.partitions
        assert stored.state in COMPLETED or known.issuperset(request.partitions), (request, stored)

    def end(self, name: str, is_commit: bool) -> None:
        producer = self.producers.get(name)
        if producer is None:
            return

        def on_granted(granted: Granted) -> None:
            if not granted.error_code:
                self.producers[name] = granted

        request = EndRequest(producer.producer_id, producer.epoch, is_commit, 2)
        self.shard.coordinator.end(name, request, on_granted)

    def deliver(self, code: int) -> None:
        sent, self.sent = self.sent, []
        for count, on_code in sent:
            for at in range(count):
                on_code(at, code)

    def sweep(self) -> None:
        coordinator = self.shard.coordinator
        coordinator.start_sweep()
        run_steps(coordinator)


names = st.sampled_from(["x", "y"])
transaction_steps = st.lists(
    st.one_of(
        st.tuples(st.just("init"), names),
        st.tuples(st.just("add"), names, st.integers(0, 3)),
        st.tuples(st.just("add"), names, st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("end"), names, st.booleans()),
        st.tuples(st.just("deliver"), st.sampled_from([0, 0, int(ErrorCode.NOT_LEADER_OR_FOLLOWER)])),
        st.tuples(st.just("sweep")),
        faults,
    ),
    max_size=40,
)
BEGUN = [("init", "x"), ("flush",), ("sync", 0)]
NO_ROOM = ("fail_write", 1, 0)
DONE = [("flush",), ("sync", 0)]


# A failed add beside one that waits for its sync, then the failed one again.
@example([*BEGUN, ("add", "x", 0), ("flush",), NO_ROOM, ("add", "x", 1), ("flush",), ("add", "x", 1), *DONE])
# A repeated add waits for a write that then fails.
@example([*BEGUN, ("add", "x", 0), ("add", "x", 0), NO_ROOM, *DONE, *DONE])
# The decision is in the log, and its sync fails: it ends all the same.
@example(
    [
        *BEGUN,
        ("add", "x", 0),
        *DONE,
        ("end", "x", True),
        ("flush",),
        ("sync", STORAGE_ERROR),
        ("pass_ms", 100),
    ]
)
@settings(deadline=None, max_examples=75)
@given(transaction_steps)
def test_transaction_memory_equals_log_after_any_failure(steps: list[tuple[Any, ...]]) -> None:
    with scene_of(Transactions) as scene:
        assert isinstance(scene, Transactions)
        scene.run(steps)
        for _ in range(5):
            scene.deliver(0)
            scene.flush()
            scene.sync(0)
            scene.pass_ms(1_000)
        states = [each.state for each in scene.state_of(scene.shard.coordinator).values()]
        assert not PREPARED.intersection(states)


# -- groups ---------------------------------------------------------------------------------------------------


class Groups(Scene[GroupCoordinator]):
    """Groups whose offsets and members change."""

    def __init__(self, directory: Path) -> None:
        self.count = 0
        self.members: dict[str, JoinResult] = {}  # By instance id.
        super().__init__(directory)

    def kind(self) -> CoordinatorKind[GroupCoordinator]:
        return CoordinatorKind(
            topic="__consumer_offsets",
            make=lambda log, deadlines, _epoch: GroupCoordinator(
                CONFIG, NO_TOPICS, self.timing, deadlines, log
            ),
            codec=0,
            sweep_interval_ms=1,
            end_transaction=GroupCoordinator.end_transaction,
        )

    def state_of(self, coordinator: GroupCoordinator) -> Any:
        offsets = coordinator.offsets
        committed = {
            (group_id, topic, partition): value
            for group_id in offsets.group_ids()
            for topic, partitions in offsets.of_group(group_id).items()
            for partition, value in partitions.items()
        }
        pending = sorted(
            (key.group_id, key.topic, key.partition, value.record_offset)
            for group_id in offsets.pending.group_ids()
            for key in offsets.pending.keys_of(group_id)
            for value in offsets.pending.values_of(key)
        )
        return committed, pending

    def check(self) -> None:
        super().check()
        replayed = self.load().coordinator
        for group_id, group in self.shard.coordinator._groups.items():
            state = group.state
            is_written = not state._writes and group._rebalance._rewrite_ms == NEVER_MS
            if state.current in (GroupState.STABLE, GroupState.EMPTY) and is_written and state.generation:
                mine = replace(group.state.snapshot(), current_state_timestamp_ms=0)
                assert mine == replace(replayed._groups[group_id].state.snapshot(), current_state_timestamp_ms=0)

    def commit(self, group_id: str, partitions: int, producer_id: int | None) -> None:
        self.count += 1
        offsets = [
            (
                OffsetKey(group_id, "t", partition),
                CommittedOffset(offset=self.count, commit_timestamp_ms=NOW_MS, topic_id=TOPIC_ID),
            )
            for partition in range(partitions)
        ]
        request = CommitRequest(
            group_id=group_id,
            member_id="",
            group_instance_id=None,
            generation=-1,
            knows_unknown_group=False,
            offsets=offsets,
            producer=None if producer_id is None else Producer(producer_id, 0),
        )
        self.shard.coordinator.offset_requests.commit(request, lambda code: None)

    def end(self, producer_id: int, is_commit: bool) -> None:
        self.shard.append_marker(Marker(producer_id, 0, 0, is_commit, 0))

    def delete(self, group_id: str, partition: int) -> None:
        key = OffsetKey(group_id, "t", partition)
        self.shard.coordinator.offset_requests.delete_offsets(group_id, [key], lambda code, subscribed: None)

    def delete_group(self, group_id: str) -> None:
        self.shard.coordinator.deletion.delete(group_id, lambda code: None)

    def join(self, instance_id: str) -> None:
        """A static member joins, or comes back after a restart."""
        request = JoinRequest(
            member_id="",
            client_id="c",
            client_host="/h",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=(("range", b""),),
            group_instance_id=instance_id,
        )

        def on_joined(result: JoinResult) -> None:
            if not result.error_code:
                self.members[instance_id] = result

        self.shard.coordinator.join("static", request, on_joined)

    def sync_group(self, instance_id: str) -> None:
        member = self.members.get(instance_id)
        if member is not None:
            assignments = tuple((each.member_id, b"%d" % self.count) for each in member.members)
            request = SyncRequest(
                member_id=member.member_id,
                generation=member.generation,
                assignments=assignments,
                group_instance_id=instance_id,
            )
            self.shard.coordinator.sync("static", request, lambda result: None)

    def leave(self, instance_id: str) -> None:
        self.shard.coordinator.leave("static", [LeavingMember("", instance_id)], lambda result: None)


group_ids = st.sampled_from(["g", "h"])
instances = st.sampled_from(["a", "b"])
group_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("commit"), group_ids, st.sampled_from([1, 3, 8]), st.sampled_from([None, None, 1, 2])
        ),
        st.tuples(st.just("end"), st.sampled_from([1, 2]), st.booleans()),
        st.tuples(st.just("delete"), group_ids, st.integers(0, 7)),
        st.tuples(st.just("delete_group"), group_ids),
        st.tuples(st.just("join"), instances),
        st.tuples(st.just("sync_group"), instances),
        st.tuples(st.just("sync_group"), instances),
        st.tuples(st.just("leave"), instances),
        faults,
    ),
    max_size=40,
)
STABLE = [("join", "a"), ("sync_group", "a"), ("sync", 0)]


# A commit of several batches, of which the second segment finds no room.
@example([("commit", "g", 8, None), ("fail_write", 2, 0), ("flush",), ("sync", 0)])
# A static member that comes back: its record finds no room, or is appended and not synced.
@example([*STABLE, ("fail_write", 1, 0), ("join", "a"), ("sync", 0)])
@example([*STABLE, ("join", "a"), ("sync", STORAGE_ERROR)])
@example([*STABLE, ("fail_write", 1, 0), ("leave", "a"), ("pass_ms", 1_000), ("sync", 0)])
@settings(deadline=None, max_examples=75)
@given(group_steps)
def test_group_memory_equals_log_after_any_failure(steps: list[tuple[Any, ...]]) -> None:
    with scene_of(Groups) as scene:
        scene.run(steps)


# -- states of share partitions -------------------------------------------------------------------------------


class ShareStates(Scene[ShareCoordinator]):
    """Share partitions whose states change while sweeps delete old records."""

    def kind(self) -> CoordinatorKind[ShareCoordinator]:
        environment = ShareEnvironment(
            CONFIG, self.timing, lambda _topic_id, _index: True, MemoryLimit("kproc.share.states.max.bytes", 1 << 30)
        )
        return CoordinatorKind(
            topic="__share_group_state",
            make=lambda log, _deadlines, _epoch: ShareCoordinator(environment, log),
            codec=0,
            sweep_interval_ms=1,
            base_key_of=base_key_of,
        )

    def state_of(self, coordinator: ShareCoordinator) -> Any:
        return {name: (part.state, part.snapshot_offset) for name, part in coordinator._parts.items()}

    def request(self, operation: str, index: int, *arguments: Any) -> None:
        with suppress(KafkaError):  # Not initialized, or fenced.
            getattr(self.shard.coordinator, operation)(
                state_key("g", TOPIC_ID, index), *arguments, lambda outcome: None
            )

    def sweep(self) -> None:
        self.shard.coordinator.start_sweep()
        run_steps(self.shard.coordinator)


share_indexes = st.integers(0, 2)
share_writes = st.builds(
    lambda epoch, start, first, size, count: WriteState(
        epoch, 5, start, 0, (StateBatch(first, first + size, RecordState.ACKNOWLEDGED, count),)
    ),
    st.sampled_from([0, 1]),
    st.sampled_from([-1, 0, 3]),
    st.integers(0, 9),
    st.integers(0, 3),
    st.integers(1, 2),
)
share_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("request"),
            st.just("initialize"),
            share_indexes,
            st.builds(InitializeState, st.integers(0, 1)),
        ),
        st.tuples(st.just("request"), st.just("write"), share_indexes, share_writes),
        st.tuples(st.just("request"), st.just("write"), share_indexes, share_writes),
        st.tuples(
            st.just("request"), st.just("read"), share_indexes, st.builds(ReadState, st.integers(0, 5))
        ),
        st.tuples(st.just("request"), st.just("delete"), share_indexes, st.just(DeleteState())),
        st.tuples(st.just("sweep")),
        faults,
    ),
    max_size=40,
)
WRITE = WriteState(0, 5, 0, 0, (StateBatch(0, 3, RecordState.ACKNOWLEDGED, 1),))
INITIALIZED = [("request", "initialize", 0, InitializeState(0)), ("sync", 0)]


# A write finds no room, and the next one builds on the state without it.
@example(
    [*INITIALIZED, ("fail_write", 1, 0), ("request", "write", 0, WRITE), ("request", "read", 0, ReadState(5))]
)
# A sweep finds no room for a snapshot, so it must not delete what that would replace.
@example([*INITIALIZED, ("pass_ms", 1_000), ("fail_write", 1, 70), ("sweep",), ("sync", 0)])
@settings(deadline=None, max_examples=60)
@given(share_steps)
def test_share_memory_equals_log_after_any_failure(steps: list[tuple[Any, ...]]) -> None:
    with scene_of(ShareStates) as scene:
        scene.run(steps)
