"""The records that changes of a consumer group write, before the group appends them (KIP-848)."""

from __future__ import annotations

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.group.consumer.group_records import (
    absence_of_member,
    successor_records,
    target_records,
)
from kproc.broker.group.consumer.records import ConsumerRecordType, MemberTarget, TargetEpoch
from kproc.broker.group.consumer.state import ConsumerGroupState
from tests.support.consumer_groups import GroupRig, HonestMember, settle, topic_id

T = topic_id("t")
KINDS = ConsumerRecordType
TOMBSTONES = [
    (RecordKey(each, "g", "a"), None) for each in (KINDS.MEMBER_STATE, KINDS.MEMBER_TARGET, KINDS.MEMBER)
]


def test_tombstones_are_in_the_order_of_kafka() -> None:
    state = ConsumerGroupState("g")
    assert [*state.member_tombstones(["a"])] == TOMBSTONES
    assert [key.name for key, _value in state.member_tombstones(["a", "b"])] == ["a"] * 3 + ["b"] * 3


def test_successor_gets_partitions_and_target_at_epoch_0(rig: GroupRig) -> None:
    settle([HonestMember(rig, "a", instance_id="i")])
    state = rig.group.state
    member = state.members["a"]
    *tombstones, metadata, target, member_state = successor_records(state, member, "b")
    assert tombstones == TOMBSTONES
    assert metadata == (RecordKey(KINDS.MEMBER, "g", "b"), member.metadata)
    assert target == (RecordKey(KINDS.MEMBER_TARGET, "g", "b"), MemberTarget({T: frozenset(range(4))}))
    assert (member_state[1].epoch, member_state[1].owned) == (0, member.state.owned)


def test_absent_static_member_keeps_its_partitions(rig: GroupRig) -> None:
    settle([HonestMember(rig, "a", instance_id="i")])
    key, state = absence_of_member("g", rig.group.state.members["a"])
    assert (key, state.epoch) == (RecordKey(KINDS.MEMBER_STATE, "g", "a"), -2)
    assert state.owned == {T: dict.fromkeys(range(4), 0)}


def test_target_records_leave_out_absent_and_equal_targets(rig: GroupRig) -> None:
    settle([HonestMember(rig, "a")])
    state, epoch = rig.group.state, TargetEpoch(9, 1)
    less = {T: frozenset({0})}
    last = RecordKey(KINDS.TARGET, "g"), epoch
    assert [*target_records(state, {"a": state.target_of("a"), "gone": less}, epoch)] == [last]
    changed = RecordKey(KINDS.MEMBER_TARGET, "g", "a"), MemberTarget(less)
    assert [*target_records(state, {"a": less}, epoch)] == [changed, last]
