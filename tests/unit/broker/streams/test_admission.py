"""Members that join a streams group, return to it, and are fenced or rejected (KIP-1071)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kproc.broker.config import Config
from kproc.broker.streams.records import STREAMS_RECORDS, StreamsRecordType
from kproc.broker.streams.tasks import MemberTasks
from kproc.broker.streams.topology import KeyValue, StreamsTopic, Topology
from kproc.common.errors import ErrorCode
from tests.support.streams_groups import (
    ALL_TOPICS,
    COUNT,
    HonestStreamsMember,
    StreamsRig,
    rejected,
    settle,
    tasks,
)


def test_topology_cannot_change(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a").heartbeat()
    before = len(rig.log)
    with rejected(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet."):
        HonestStreamsMember(rig, "b", Topology(2, COUNT.subtopologies)).heartbeat()
    assert len(rig.log) == before


@pytest.mark.parametrize(
    ("owned", "text"),
    [
        pytest.param(
            MemberTasks(tasks(0, subtopology="9")), "Subtopology 9 does not exist", id="subtopology"
        ),
        pytest.param(
            MemberTasks(frozenset(), tasks(4)), "Task 4 for subtopology 0 is invalid", id="partition"
        ),
    ],
)
def test_unknown_tasks_are_rejected(rig: StreamsRig, owned: MemberTasks, text: str) -> None:
    member = HonestStreamsMember(rig, "a")
    member.heartbeat()
    with rejected(ErrorCode.INVALID_REQUEST, text):
        member.heartbeat(owned=owned)


@pytest.mark.parametrize("epoch", [1, 3, 9])
def test_wrong_epoch_is_fenced(rig: StreamsRig, epoch: int) -> None:
    HonestStreamsMember(rig, "a").heartbeat()
    with rejected(ErrorCode.FENCED_MEMBER_EPOCH, "must abandon all its partitions and rejoin"):
        HonestStreamsMember(rig, "a", epoch=epoch).heartbeat()


def test_previous_epoch_is_accepted_with_tasks_of_the_member(rig: StreamsRig) -> None:
    """The response with the new epoch was lost."""
    first = HonestStreamsMember(rig, "a")
    settle([first, HonestStreamsMember(rig, "b")])
    first.epoch, first.told = rig.group.state.members["a"].state.previous_epoch, None
    assert first.heartbeat().member_epoch == rig.group.state.members["a"].state.epoch


def test_unknown_member(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a").heartbeat()
    with rejected(ErrorCode.UNKNOWN_MEMBER_ID, "Member b is not a member of group g."):
        HonestStreamsMember(rig, "b", epoch=1).heartbeat()


def test_full_group() -> None:
    rig = StreamsRig(config=Config.build({"group.streams.max.size": 1}))
    rig.set_topics(ALL_TOPICS)
    HonestStreamsMember(rig, "a").heartbeat()
    with rejected(ErrorCode.GROUP_MAX_SIZE_REACHED):
        HonestStreamsMember(rig, "b").heartbeat()


def test_static_member_returns_without_a_rebalance(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", instance_id="seat", process_id="p")
    second = HonestStreamsMember(rig, "b")
    settle([first, second])
    epoch = rig.group.state.epoch.epoch
    assert first.leave(-2).member_epoch == -2
    with rejected(ErrorCode.FENCED_INSTANCE_ID):
        HonestStreamsMember(rig, "c", instance_id="seat", epoch=2).heartbeat()
    successor = HonestStreamsMember(rig, "c", instance_id="seat", process_id="p")
    assert successor.heartbeat().tasks == MemberTasks(tasks(0, 1))
    assert (rig.group.state.epoch.epoch, rig.group.state_name) == (epoch, "Stable")
    assert "a" not in rig.group.state.members


def test_static_member_in_a_new_process_causes_a_new_assignment(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", instance_id="seat", process_id="p")
    settle([first])
    epoch = rig.group.state.epoch.epoch
    first.leave(-2)
    HonestStreamsMember(rig, "c", instance_id="seat", process_id="q").heartbeat()
    assert rig.group.state.epoch.epoch == epoch + 1


def test_instance_id_of_a_living_member_is_unreleased(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a", instance_id="seat").heartbeat()
    with rejected(ErrorCode.UNRELEASED_INSTANCE_ID):
        HonestStreamsMember(rig, "b", instance_id="seat").heartbeat()
    with rejected(ErrorCode.UNKNOWN_MEMBER_ID, "Instance id other is unknown."):
        HonestStreamsMember(rig, "b", instance_id="other", epoch=4).heartbeat()


@pytest.mark.parametrize(
    "owned",
    [
        pytest.param(None, id="not reported"),
        pytest.param(MemberTasks(tasks(0, 2)), id="a task of the other member"),
    ],
)
def test_previous_epoch_without_own_tasks_is_fenced(rig: StreamsRig, owned: MemberTasks | None) -> None:
    first = HonestStreamsMember(rig, "a")
    settle([first, HonestStreamsMember(rig, "b")])
    state = rig.group.state.members["a"].state
    assert (state.previous_epoch, state.owned.plain) == (2, MemberTasks(tasks(0, 1)))
    with rejected(ErrorCode.FENCED_MEMBER_EPOCH, r"smaller member epoch \(2\)"):
        first.heartbeat(member_epoch=2, owned=owned)


@pytest.mark.parametrize("instance_id", [None, "seat"])
def test_member_joins_again_with_its_epoch_and_tasks(rig: StreamsRig, instance_id: str | None) -> None:
    """The response to its first request to join was lost."""
    member = HonestStreamsMember(rig, "a", instance_id=instance_id)
    settle([member])
    before = len(rig.log)
    result = member.heartbeat(member_epoch=0, topology=COUNT, owned=MemberTasks())
    assert (result.member_epoch, result.tasks) == (2, MemberTasks(tasks(0, 1, 2, 3)))
    assert len(rig.log) == before


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"process_id": "q"}, id="process"),
        pytest.param({"rack_id": "r"}, id="rack"),
        pytest.param({"client_tags": (KeyValue("zone", "z"),)}, id="tags"),
    ],
)
def test_change_of_a_member_raises_the_epoch(rig: StreamsRig, changes: dict[str, Any]) -> None:
    member = HonestStreamsMember(rig, "a", instance_id="seat")
    settle([member])
    assert member.heartbeat(**changes).member_epoch == 3
    assert rig.group.state.target_epoch.epoch == 3


def test_other_client_of_a_static_member_keeps_the_epoch(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", instance_id="seat", process_id="p")
    settle([first])
    first.leave(-2)
    successor = HonestStreamsMember(rig, "b", instance_id="seat", process_id="p")
    result = successor.heartbeat(client_id="other", client_host="/127.0.0.2")
    assert (result.member_epoch, rig.group.state.epoch.epoch) == (2, 2)
    metadata = rig.group.state.members["b"].metadata
    assert metadata is not None
    assert (metadata.client_id, metadata.client_host) == ("other", "/127.0.0.2")


def test_static_member_returns_with_its_own_member_id(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a", instance_id="seat")
    settle([member])
    member.leave(-2)
    member.leave(-2)
    assert rig.group.state.members["a"].state.epoch == -2
    before = len(rig.log)
    result = HonestStreamsMember(rig, "a", instance_id="seat").heartbeat(owned=MemberTasks())
    assert (result.member_epoch, result.tasks) == (2, MemberTasks(tasks(0, 1, 2, 3)))
    assert (len(rig.log) - before, rig.group.state_name) == (1, "Stable")


def test_replacement_of_a_static_member_writes_its_tombstones(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", instance_id="seat", process_id="p")
    settle([first])
    first.leave(-2)
    before = len(rig.log)
    HonestStreamsMember(rig, "b", instance_id="seat", process_id="p").heartbeat()
    written = [(STREAMS_RECORDS.decode(*record)[0], record[1]) for record in rig.log[before:]]
    kinds = StreamsRecordType
    assert [(key.record_type, key.name, value is None) for key, value in written] == [
        (kinds.MEMBER_STATE, "a", True),
        (kinds.MEMBER_TARGET, "a", True),
        (kinds.MEMBER, "a", True),
        (kinds.MEMBER, "b", False),
        (kinds.MEMBER_TARGET, "b", False),
        (kinds.MEMBER_STATE, "b", False),
        (kinds.MEMBER_STATE, "b", False),
    ]
    assert rig.group.state.instance_ids == {"seat": "b"}


def test_leaving_static_member_gives_up_tasks_to_revoke(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", instance_id="seat")
    second = HonestStreamsMember(rig, "b")
    first.heartbeat()
    second.heartbeat()
    first.heartbeat()
    assert rig.group.state.members["a"].state.pending_revocation.plain == MemberTasks(tasks(2, 3))
    first.leave(-2)
    assert second.heartbeat().tasks == MemberTasks(tasks(2, 3))
    back = HonestStreamsMember(rig, "c", instance_id="seat").heartbeat(owned=MemberTasks(), process_id="a")
    assert back.tasks == MemberTasks(tasks(0, 1))
    assert rig.group.state_name == "Stable"


def test_static_member_that_waits_for_tasks_returns(rig: StreamsRig) -> None:
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b", instance_id="seat")
    first.heartbeat()
    second.heartbeat()
    second.leave(-2)
    back = HonestStreamsMember(rig, "c", instance_id="seat", process_id="b")
    assert back.heartbeat(owned=MemberTasks()).tasks == MemberTasks()
    settle([first, back])
    assert back.owned == MemberTasks(tasks(2, 3))


def test_static_member_that_leaves_for_good_raises_the_epoch(rig: StreamsRig) -> None:
    first = HonestStreamsMember(rig, "a", instance_id="seat")
    settle([first])
    assert first.leave(-1).member_epoch == -1
    state = rig.group.state
    assert (state.epoch.epoch, state.instance_ids, rig.group.state_name) == (3, {}, "Empty")


@pytest.mark.parametrize("epoch", [-1, -2, 1_000])
def test_instance_id_with_another_member_id_is_fenced(rig: StreamsRig, epoch: int) -> None:
    HonestStreamsMember(rig, "a", instance_id="seat").heartbeat()
    with rejected(ErrorCode.FENCED_INSTANCE_ID, "was fenced by member a"):
        HonestStreamsMember(rig, "b", instance_id="seat").heartbeat(member_epoch=epoch)
    with rejected(ErrorCode.UNKNOWN_MEMBER_ID, "Instance id other is unknown"):
        HonestStreamsMember(rig, "b", instance_id="other").heartbeat(member_epoch=epoch)


@pytest.mark.parametrize("is_away", [True, False], ids=["away", "present"])
@pytest.mark.parametrize("own", [None, "own"], ids=["dynamic", "static"])
def test_member_cannot_take_the_place_of_another_one(
    rig: StreamsRig, own: str | None, *, is_away: bool
) -> None:
    """The tasks of the other member would replace its own ones, which nobody would have then."""
    first = HonestStreamsMember(rig, "a", instance_id=own, process_id="p")
    second = HonestStreamsMember(rig, "b", instance_id="seat", process_id="p")
    settle([first, second])
    if is_away:
        second.leave(-2)
    before = len(rig.log)
    user = "dynamic member" if own is None else "static member with instance id own"
    for instance_id in ("seat", "new"):
        with rejected(ErrorCode.INVALID_REQUEST, f"the member id is already used by a {user}."):
            HonestStreamsMember(rig, "a", instance_id=instance_id, process_id="p").heartbeat()
    assert len(rig.log) == before
    assert rig.group.state.members["a"].state.owned.plain == MemberTasks(tasks(0, 1))


def test_full_group_admits_only_the_return_of_static_members() -> None:
    rig = StreamsRig(
        config=Config.build(
            {
                "group.streams.max.size": 2,
                "group.streams.initial.rebalance.delay.ms": 0,
                "group.streams.assignment.interval.ms": 0,
            }
        )
    )
    rig.set_topics(ALL_TOPICS)
    members = [HonestStreamsMember(rig, name, instance_id=f"seat-{name}", process_id=name) for name in "ab"]
    settle(members)
    with rejected(ErrorCode.UNRELEASED_INSTANCE_ID):
        HonestStreamsMember(rig, "c", instance_id="seat-a").heartbeat()
    members[0].leave(-2)
    with rejected(ErrorCode.GROUP_MAX_SIZE_REACHED):
        HonestStreamsMember(rig, "c", instance_id="seat-c").heartbeat()
    successor = HonestStreamsMember(rig, "c", instance_id="seat-a", process_id="a")
    assert successor.heartbeat().tasks == MemberTasks(tasks(0, 1))


def test_repeated_offsets_are_rejected(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    with rejected(ErrorCode.INVALID_REQUEST, "duplicate entry for subtopology 0 and partition 1"):
        member.heartbeat(task_end_offsets=((("0", 1), 5), (("0", 1), 6)))
    assert not rig.log


def test_repeated_offsets_are_rejected_after_other_errors(rig: StreamsRig) -> None:
    """Kafka fits the topology and checks the tasks before the offsets."""
    twice = ((("0", 1), 5), (("0", 1), 6))
    unused = Topology(1, (replace(COUNT.subtopologies[0], repartition_source_topics=(StreamsTopic("r"),)),))
    with rejected(ErrorCode.STREAMS_INVALID_TOPOLOGY, "never used as a sink topic"):
        HonestStreamsMember(rig, "a", unused).heartbeat(task_offsets=twice)
    member = HonestStreamsMember(rig, "a")
    rig.set_topics({"t": 4})
    member.heartbeat()
    rig.set_topics(ALL_TOPICS)
    with rejected(ErrorCode.INVALID_REQUEST, "Subtopology 9 does not exist"):
        member.heartbeat(owned=MemberTasks(tasks(0, subtopology="9")), task_offsets=twice)


def test_repeated_offsets_leave_the_topology_fitted(rig: StreamsRig) -> None:
    """A member's rejected heartbeat is the first one after the internal topics were created."""
    rig.set_topics({"t": 4})
    HonestStreamsMember(rig, "a").heartbeat()
    rig.set_topics(ALL_TOPICS)
    with rejected(ErrorCode.INVALID_REQUEST, "duplicate entry"):
        HonestStreamsMember(rig, "b").heartbeat(task_offsets=((("0", 1), 5), (("0", 1), 6)))
    (subtopology,) = rig.group.describe_streams().topology.subtopologies
    assert subtopology.state_changelog_topics[0].partitions == 4


def test_previous_epoch_of_a_waiting_member_is_accepted(rig: StreamsRig) -> None:
    """Kafka forgets the previous epoch with the next heartbeat of a member that waits for tasks, and fences it."""
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    first.heartbeat()
    second.heartbeat()
    HonestStreamsMember(rig, "c").heartbeat()
    second.heartbeat()
    state = rig.group.state.members["b"].state
    second.heartbeat()
    assert rig.group.state.members["b"].state is state
    assert (state.phase.name, state.previous_epoch) == ("UNRELEASED", state.epoch - 1)
    second.epoch = state.previous_epoch
    assert second.heartbeat().member_epoch == state.epoch
