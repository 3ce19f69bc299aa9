"""Target assignments of large groups: computed in steps, while members come, leave and are replaced (KIP-1263)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.coordinator import steps, target_computation
from kproc.broker.coordinator.member_deadlines import TRY_AGAIN_MS
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.coordinator.steps import Work
from kproc.broker.group.consumer.assignors import ASSIGNORS, AssignorMember
from kproc.broker.group.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatResult
from kproc.broker.group.consumer.records import CONSUMER_RECORDS, ConsumerRecordType
from kproc.broker.share.membership.assignor import ShareAssignorMember, assign_simple
from kproc.broker.streams.assignor import SubtopologyTasks, TaskMember, assign_sticky
from kproc.broker.streams.statuses import COMPUTING
from kproc.broker.streams.topology import Subtopology, Topology
from kproc.common.errors import ErrorCode
from tests.support.bytecodes import count_bytecodes
from tests.support.consumer_groups import GroupRig, HonestMember, topic_id
from tests.support.group_coordinator_rig import run_steps
from tests.support.mixed_groups import classic_group, consumer, mixed_rig
from tests.support.share_groups import ShareRig

T = topic_id("t")
PARTITIONS = 2_000  # Enough for several steps.
ALL = {T: frozenset(range(PARTITIONS))}


class LargeRig(ShareRig):
    """A coordinator whose topic `t` has many partitions, with members that obey at once."""

    def __init__(self) -> None:
        super().__init__({"t": PARTITIONS})
        for kind in ("consumer", "streams"):
            self.configs[f"{kind}.assignment.interval.ms"] = "0"
        self.configs["streams.initial.rebalance.delay.ms"] = "0"
        self.epochs: dict[str, int] = {}

    def consumer(self, member_id: str, **fields: Any) -> ConsumerHeartbeatResult:
        """Send the next heartbeat of a consumer, which joins by its first one."""
        epoch = fields.pop("epoch", self.epochs.get(member_id, 0))
        if epoch == 0:
            fields |= {"rebalance_timeout_ms": 60_000, "topic_names": ("t",), "owned": {}}
        request = ConsumerHeartbeat(member_id=member_id, member_epoch=epoch, **fields)
        results: list[ConsumerHeartbeatResult] = []
        self.coordinator.consumer_heartbeat("g", request, results.append)
        self.log.sync()
        assert results[0].error_code == ErrorCode.NONE
        self.epochs[member_id] = results[0].member_epoch
        return results[0]

    def finish(self) -> None:
        """Run all steps, and then the timers that are due."""
        run_steps(self.coordinator)
        self.pass_ms(0)
        run_steps(self.coordinator)


def states(rig: LargeRig) -> dict[str, str]:
    return {row.group_id: row.state for row in rig.coordinator.overviews()}


@pytest.fixture
def rig() -> LargeRig:
    return LargeRig()


def test_member_gets_a_large_target_by_its_next_heartbeat(rig: LargeRig) -> None:
    first = rig.consumer("a")
    assert (first.assignment, first.heartbeat_interval_ms) == ({}, 500)
    assert states(rig) == {"g": "Assigning"}
    assert rig.consumer("a").assignment is None
    run_steps(rig.coordinator)
    second = rig.consumer("a")
    assert (second.assignment, second.heartbeat_interval_ms) == (ALL, 5_000)
    assert states(rig) == {"g": "Stable"}


def test_member_that_joins_meanwhile_gets_its_part_next(rig: LargeRig) -> None:
    rig.consumer("a")
    rig.consumer("b")
    run_steps(rig.coordinator)
    assert rig.consumer("a").assignment == ALL  # The target of the epoch before it came.
    rig.pass_ms(0)
    run_steps(rig.coordinator)
    kept = rig.consumer("a").assignment
    assert kept is not None
    assert len(kept[T]) == PARTITIONS // 2
    rig.consumer("a", owned=kept)
    assert rig.consumer("b").assignment == {T: ALL[T] - kept[T]}


def test_group_that_becomes_empty_keeps_no_target(rig: LargeRig) -> None:
    rig.consumer("a")
    rig.consumer("a", epoch=-1)
    before = len(rig.log.entries)
    rig.finish()
    assert (len(rig.log.entries), states(rig)) == (before, {"g": "Empty"})
    rig.consumer("b")
    rig.finish()
    assert rig.consumer("b").assignment == ALL


def test_successor_of_a_static_member_gets_the_target(rig: LargeRig) -> None:
    rig.consumer("a", instance_id="seat")
    rig.consumer("a", epoch=-2, instance_id="seat")
    rig.consumer("b", instance_id="seat")
    rig.finish()
    assert rig.consumer("b", instance_id="seat").assignment == ALL


def test_member_that_leaves_meanwhile_gets_no_target(rig: LargeRig) -> None:
    rig.consumer("a")
    rig.consumer("b")
    rig.consumer("a", epoch=-1)
    rig.finish()
    key, _ = CONSUMER_RECORDS.encode(RecordKey(ConsumerRecordType.MEMBER_TARGET, "g", "a"), None)
    assert dict(rig.log.records)[key] is None
    assert rig.consumer("b").assignment == ALL


def test_group_that_becomes_classic_gets_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_computation, "FIRST_COST", 1)
    rig = mixed_rig()
    classic_group(rig)
    consumer(rig, "n")
    consumer(rig, "o")
    consumer(rig, "n", -1)
    consumer(rig, "o", -1)
    before = len(rig.log.records)
    run_steps(rig.coordinator)
    assert (len(rig.log.records), rig.states()) == (before, {"g": "PreparingRebalance"})


def test_deleted_group_stays_deleted(rig: LargeRig) -> None:
    rig.consumer("a")
    rig.consumer("a", epoch=-1)
    codes: list[int] = []
    rig.coordinator.deletion.delete("g", codes.append)
    rig.finish()
    rig.log.sync()
    assert (codes, states(rig)) == ([ErrorCode.NONE], {})
    rig.make()
    assert states(rig) == {}


def test_target_that_was_not_written_is_computed_again() -> None:
    rig = GroupRig()
    rig.set_topics({"t": PARTITIONS})
    member = HonestMember(rig, "a")
    member.heartbeat()
    rig.broken_after = len(rig.log)
    work = rig.group.computation.pop_unscheduled()
    assert work is not None
    assert sum(work) > 0
    rig.broken_after = None
    assert rig.group.next_deadline_ms() == rig.now_ms + TRY_AGAIN_MS
    rig.advance(TRY_AGAIN_MS)
    work = rig.group.computation.pop_unscheduled()
    assert work is not None
    assert sum(work) > 0
    assert member.heartbeat().assignment == ALL


def test_share_group_gets_partitions_that_appear_meanwhile(rig: LargeRig) -> None:
    rig.heartbeat("a", 0)
    rig.finish()
    epoch = rig.heartbeat("a", 2).member_epoch
    assert len(rig.group().state.members["a"].state.assigned[T]) == PARTITIONS
    rig.set_topics({"t": PARTITIONS + 1})
    rig.heartbeat("a", epoch)  # The computation has begun when the share coordinator answers.
    rig.finish()
    assert len(rig.group().state.target_of("a")[T]) == PARTITIONS + 1


def test_streams_member_gets_a_large_target_next(rig: LargeRig) -> None:
    topology = Topology(1, (Subtopology(subtopology_id="0", source_topics=("t",)),))
    first = rig.streams_heartbeat("m", 0, topology=topology, process_id="p", rebalance_timeout_ms=60_000)
    assert COMPUTING in first.statuses
    assert COMPUTING in rig.streams_heartbeat("m", first.member_epoch).statuses
    run_steps(rig.coordinator)
    second = rig.streams_heartbeat("m", first.member_epoch)
    assert second.tasks is not None
    assert len(second.tasks.active) == PARTITIONS
    assert second.statuses == ()


def uniform_work(count: int) -> Work:
    """A member leaves a group of 60 with different subscriptions, so that all three parts of the balance run."""
    topics = [number.to_bytes(16, "big") for number in range(20)]
    partitions = frozenset(range(count // 20))
    members = {f"m{number}": AssignorMember(frozenset(topics[number % 7 :]), {}) for number in range(60)}
    members["m0"] = AssignorMember(frozenset(topics), dict.fromkeys(topics, partitions))
    return ASSIGNORS["uniform"](members, dict.fromkeys(topics, len(partitions)))


def range_work(count: int) -> Work:
    members = {f"m{number}": AssignorMember(frozenset({T}), {}) for number in range(60)}
    return ASSIGNORS["range"](members, {T: count})


def share_work(count: int) -> Work:
    members = {f"m{number}": ShareAssignorMember(frozenset({T}), {}) for number in range(60)}
    members["m0"] = ShareAssignorMember(frozenset({T}), {T: frozenset(range(count))})
    return assign_simple(members, {T: frozenset(range(count))})


def streams_work(count: int) -> Work:
    active = frozenset(("0", number) for number in range(count))
    members = {f"m{number}": TaskMember(f"p{number % 7}") for number in range(60)}
    members["m0"] = TaskMember("p0", active)
    return assign_sticky(members, {"0": SubtopologyTasks(count, is_stateful=True)}, 1)


@pytest.mark.long
@pytest.mark.parametrize("work_of", [uniform_work, range_work, share_work, streams_work])
def test_steps_of_a_large_target_are_short(work_of: Callable[[int], Work]) -> None:
    coordinator_steps = steps.Steps()
    coordinator_steps.add(work_of(10_000))
    sizes: list[int] = []
    while coordinator_steps:
        sizes.append(count_bytecodes(coordinator_steps.run, unless_in="test_target_computation.py"))
    # 10,000 bytecodes take about 0.1 ms.
    assert max(sizes) < 500_000, sizes
