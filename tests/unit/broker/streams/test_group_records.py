"""The records that changes of a streams group write, before the group appends them."""

from __future__ import annotations

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.streams.group_records import absence_of_member, removal_records, target_records
from kproc.broker.streams.records import StreamsRecordType, StreamsTargetEpoch
from kproc.broker.streams.tasks import MemberTasks
from tests.support.streams_groups import HonestStreamsMember, StreamsRig, tasks


def key(record_type: StreamsRecordType, name: str = "") -> RecordKey:
    return RecordKey(record_type, "g", name)


def test_target_records_leave_out_absent_and_equal_targets(rig: StreamsRig) -> None:
    """A new member gets a record even for an empty target, because the record says that it has one."""
    HonestStreamsMember(rig, "a").heartbeat()
    state = rig.group.state
    HonestStreamsMember(rig, "b").heartbeat()
    state.apply(key(StreamsRecordType.MEMBER_TARGET, "b"), None)
    epoch, moved = StreamsTargetEpoch(9, 1), MemberTasks(tasks(0))
    same = {"a": state.target_of("a"), "b": MemberTasks(), "gone": moved}
    assert [*target_records(state, same, epoch)] == [
        (key(StreamsRecordType.MEMBER_TARGET, "b"), MemberTasks()),
        (key(StreamsRecordType.TARGET), epoch),
    ]
    written = [*target_records(state, {"a": moved}, epoch)]
    assert written[0] == (key(StreamsRecordType.MEMBER_TARGET, "a"), moved)


def test_removal_writes_tombstones_and_the_next_epoch(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a").heartbeat()
    state = rig.group.state
    *tombstones, (epoch_key, epoch) = removal_records(state, state.members.values())
    kinds = StreamsRecordType
    assert tombstones == [
        (key(each, "a"), None) for each in (kinds.MEMBER_STATE, kinds.MEMBER_TARGET, kinds.MEMBER)
    ]
    assert (epoch_key, epoch.epoch) == (key(kinds.GROUP), state.epoch.epoch + 1)


def test_absent_static_member_keeps_its_tasks_by_a_record(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a", instance_id="i").heartbeat()
    member = rig.group.state.members["a"]
    record_key, state = absence_of_member("g", member)
    assert (record_key, state.epoch) == (key(StreamsRecordType.MEMBER_STATE, "a"), -2)
    assert state.owned.active.keys() == member.state.owned.active.keys() != set()
