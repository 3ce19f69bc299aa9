"""The state of a streams group: replay of partial records in any order, and the holders of tasks (KIP-1071)."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.streams.reconciliation import StreamsMemberState
from kproc.broker.streams.records import (
    StreamsGroupEpoch,
    StreamsMember,
    StreamsRecordType,
    StreamsTargetEpoch,
)
from kproc.broker.streams.state import StreamsGroupState
from kproc.broker.streams.tasks import MemberTasks, OwnedTasks, Task
from tests.support.streams_groups import COUNT, tasks

FOO, BAR = ("foo", 0), ("bar", 0)


def key(record_type: StreamsRecordType, name: str = "") -> RecordKey:
    return RecordKey(record_type, "g", name)


def owning(epoch: int, *owned: Task) -> StreamsMemberState:
    return StreamsMemberState(epoch, epoch - 1, owned=OwnedTasks(dict.fromkeys(owned, epoch)))


def group_of(**processes: str) -> StreamsGroupState:
    """Return a group with these members, each with its process."""
    state = StreamsGroupState("g")
    for member_id, process_id in processes.items():
        state.apply(key(StreamsRecordType.MEMBER, member_id), StreamsMember(process_id=process_id))
    return state


def replay_states(state: StreamsGroupState, *records: tuple[str, StreamsMemberState]) -> None:
    for member_id, value in records:
        state.apply(key(StreamsRecordType.MEMBER_STATE, member_id), value)
    state.drop_incomplete_members()


def test_members_tombstones_remove_it() -> None:
    state = group_of(m="p")
    state.apply(key(StreamsRecordType.MEMBER_TARGET, "m"), MemberTasks(tasks(0)))
    replay_states(state, ("m", owning(3, FOO)))
    assert state.holders.active == {FOO: "p"}
    state.apply(key(StreamsRecordType.MEMBER_STATE, "m"), None)
    state.apply(key(StreamsRecordType.MEMBER_TARGET, "m"), None)
    state.apply(key(StreamsRecordType.MEMBER, "m"), None)
    assert (state.members, state.targets, state.holders.active) == ({}, {}, {})


def test_state_before_its_member_counts_with_the_members_process() -> None:
    state = StreamsGroupState("g")
    state.apply(key(StreamsRecordType.MEMBER_STATE, "m"), owning(3, FOO))
    state.apply(key(StreamsRecordType.MEMBER, "m"), StreamsMember(process_id="p"))
    assert state.holders.active == {FOO: "p"}


def test_state_without_its_member_is_dropped() -> None:
    state = StreamsGroupState("g")
    replay_states(state, ("m", owning(3, FOO)))
    assert (state.members, state.holders.active) == ({}, {})


def test_tombstone_of_a_members_state_frees_its_tasks() -> None:
    state = group_of(m="p")
    replay_states(state, ("m", owning(3, FOO)))
    state.apply(key(StreamsRecordType.MEMBER_STATE, "m"), None)
    assert state.members["m"].state == StreamsMemberState(0)
    assert state.holders.active == {}


@pytest.mark.parametrize("processes", [{"a": "p", "b": "q"}, {"a": "p", "b": "p"}])
def test_task_stays_with_its_owner_if_a_record_was_compacted(processes: dict[str, str]) -> None:
    """The record by which `a` gave the task up is missing, but an earlier one is still there."""
    state = group_of(**processes)
    replay_states(state, ("a", owning(11, FOO)), ("b", owning(12, FOO)), ("a", owning(13, BAR)))
    assert state.holders.active == {FOO: processes["b"], BAR: processes["a"]}


def test_replay_with_compacted_record_frees_unowned_task() -> None:
    state = group_of(a="p", b="q")
    replay_states(
        state, ("a", owning(11, FOO)), ("b", owning(12, FOO)), ("b", owning(13)), ("a", owning(14, BAR))
    )
    assert state.holders.active == {BAR: "p"}


def test_standby_of_a_process_stays_if_a_record_was_compacted() -> None:
    state = group_of(a="p", b="p")
    copy = StreamsMemberState(12, 11, owned=OwnedTasks({}, frozenset({FOO})))
    replay_states(state, ("a", copy), ("b", copy), ("a", owning(13, BAR)))
    assert (state.holders.active, state.holders.standby) == ({BAR: "p"}, {FOO: {"p"}})


def test_state_names_follow_the_records() -> None:
    state = StreamsGroupState("g")
    names = [state.state_name]
    active = OwnedTasks({("0", 1): 11})
    for record_type, name, value in (
        (StreamsRecordType.TOPOLOGY, "", COUNT),
        (StreamsRecordType.MEMBER, "m", StreamsMember(process_id="p")),
        (StreamsRecordType.GROUP, "", StreamsGroupEpoch(11)),
        (StreamsRecordType.GROUP, "", StreamsGroupEpoch(11, validated_topology_epoch=COUNT.epoch)),
        (StreamsRecordType.TARGET, "", StreamsTargetEpoch(11)),
        (
            StreamsRecordType.MEMBER_STATE,
            "m",
            StreamsMemberState(11, 10, MemberPhase.UNREVOKED, active),
        ),
        (StreamsRecordType.MEMBER_STATE, "m", StreamsMemberState(11, 10, owned=active)),
    ):
        state.apply(key(record_type, name), value)
        names.append(state.state_name)
    assert names == [
        "Empty",
        "Empty",
        "NotReady",
        "NotReady",
        "Assigning",
        "Reconciling",
        "Reconciling",
        "Stable",
    ]
