"""Share groups at the group coordinator: members, epochs, start offsets, requests of other protocols."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.group.consumer.messages import ConsumerHeartbeat
from kproc.broker.share.membership.messages import (
    AlterShareOffsets,
    DeleteShareOffsets,
    ShareHeartbeat,
)
from kproc.common.errors import ErrorCode
from tests.support.consumer_groups import topic_id
from tests.support.group_coordinator_rig import run_steps
from tests.support.share_groups import ShareRig

T = topic_id("t")
ALL = {T: frozenset({0, 1})}


def test_first_member_gets_initialized_partitions() -> None:
    rig = ShareRig()
    first = rig.heartbeat("a", 0)
    assert (first.member_epoch, first.assignment, first.heartbeat_interval_ms) == (2, {}, 500)
    second = rig.heartbeat("a", 2)
    assert (second.member_epoch, second.assignment, second.heartbeat_interval_ms) == (3, ALL, 5_000)
    assert rig.heartbeat("a", 3).assignment is None
    # A new topic begins where share.auto.offset.reset says.
    assert {state.start_offset for state in rig.states.states.values()} == {-1}
    assert len(rig.states.states) == 2


def test_members_share_partitions() -> None:
    rig = ShareRig()
    for member_id in "abcd":
        rig.add_member(member_id)
    epoch = rig.group().generation
    assigned = [rig.heartbeat(each, rig.group().state.members[each].state.epoch) for each in "abcd"]
    assert {each.member_epoch for each in assigned} == {epoch}
    members = rig.group().state.members.values()
    assert [sum(map(len, member.state.assigned.values())) for member in members] == [1, 1, 1, 1]


def test_new_partitions_of_a_known_topic_begin_at_offset_0() -> None:
    rig = ShareRig()
    rig.add_member("a")
    rig.set_topics({"t": 3})
    result = rig.heartbeat("a", 2)
    result = rig.heartbeat("a", result.member_epoch)
    assert result.assignment == {T: frozenset({0, 1, 2})}
    assert sorted(state.start_offset for state in rig.states.states.values()) == [-1, -1, 0]


@pytest.mark.parametrize(
    ("member_id", "epoch", "code", "message"),
    [
        ("b", 1, ErrorCode.UNKNOWN_MEMBER_ID, "Member b is not a member of group g."),
        ("b", -1, ErrorCode.UNKNOWN_MEMBER_ID, "Member b is not a member of group g."),
        (
            "a",
            9,
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The share group member has a greater member epoch (9) than the one",
        ),
        (
            "a",
            1,
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The share group member has a smaller member epoch (1) than the one",
        ),
    ],
)
def test_unknown_and_fenced_members_get_kafkas_errors(
    member_id: str, epoch: int, code: ErrorCode, message: str
) -> None:
    rig = ShareRig()
    rig.add_member("a")
    rig.heartbeat("a", 2, topic_names=("t", "u"))
    result = rig.heartbeat(member_id, epoch)
    assert result.error_code == code
    assert result.error_message is not None
    assert result.error_message.startswith(message)


def test_previous_epoch_is_accepted_for_a_lost_response() -> None:
    rig = ShareRig()
    rig.add_member("a")
    assert rig.heartbeat("a", 2).error_code == 0


def test_full_group_rejects_another_member() -> None:
    rig = ShareRig()
    object.__setattr__(rig.coordinator.shares._environment.config, "group_share_max_size", 1)
    rig.add_member("a")
    result = rig.heartbeat("b", 0)
    assert result.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert result.error_message == "The share group has reached its maximum capacity of 1 members."
    assert rig.heartbeat("a", 2).error_code == 0


def test_member_is_removed_when_its_session_ends() -> None:
    rig = ShareRig()
    rig.add_member("a")
    rig.add_member("b")
    rig.pass_ms(44_000)
    rig.heartbeat("b", rig.group().state.members["b"].state.epoch)
    rig.pass_ms(2_000)
    assert list(rig.group().state.members) == ["b"]
    assert rig.heartbeat("b", rig.group().state.members["b"].state.epoch).assignment == ALL


def test_state_survives_a_reload() -> None:
    rig = ShareRig()
    rig.add_member("a", rack_id="r")
    described = rig.group().describe_share()
    rig.make()
    assert rig.group().describe_share() == described
    assert rig.heartbeat("a", 2).assignment is None
    rig.pass_ms(46_000)
    assert rig.group().is_empty


def test_assignment_follows_topics_that_come_grow_and_go() -> None:
    """Each change of the topics raises the epoch, as does each initialization of states that follows."""
    rig = ShareRig({"other": 1})
    result = rig.heartbeat("a", 0, topic_names=("t", "u", "v"))
    assert (result.member_epoch, result.assignment) == (2, {})
    epochs = []
    for topics in ({"t": 2, "u": 3}, {"t": 2, "u": 3, "v": 4}, {"t": 2, "u": 6, "v": 4}, {"u": 6, "v": 4}):
        rig.set_topics(topics)
        assignment = None
        for _ in range(3):
            result = rig.heartbeat("a", result.member_epoch)
            assignment = assignment if result.assignment is None else result.assignment
        assert assignment == {topic_id(name): frozenset(range(count)) for name, count in topics.items()}
        epochs.append(result.member_epoch)
    assert epochs == [4, 6, 8, 9]
    # After a restart of the coordinator the previous epoch is accepted, and nothing has changed.
    rig.make()
    result = rig.heartbeat("a", 8)
    assert (result.error_code, result.member_epoch, result.assignment) == (ErrorCode.NONE, 9, None)


def test_expired_member_joins_again_with_a_higher_epoch() -> None:
    rig = ShareRig({"t": 2, "u": 1})
    before = rig.add_member("a", topic_names=("t", "u")).member_epoch
    rig.pass_ms(45_000)
    assert rig.heartbeat("a", before).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    result = rig.heartbeat("a", 0, topic_names=("t", "u"))
    assert (result.member_epoch, result.assignment) == (before + 2, {T: {0, 1}, topic_id("u"): {0}})


def test_answer_after_the_resignation_is_ignored() -> None:
    rig = ShareRig()
    rig.coordinator.share_requests.heartbeat(
        "g", ShareHeartbeat(member_id="a", member_epoch=0, topic_names=("t",)), lambda _result: None
    )
    rig.log.sync()
    rig.coordinator.resign()
    before = len(rig.log.records)
    rig.run_all()
    assert len(rig.log.records) == before
    assert len(rig.states.states) == 2
    rig.make()
    rig.heartbeat("a", 2)
    assert rig.heartbeat("a", 2).assignment == ALL


# -- start offsets -----------------------------------------------------------------------------------------------


def test_alter_offsets_creates_group_and_raises_state_epoch() -> None:
    rig = ShareRig()
    result = rig.change_offsets(AlterShareOffsets({"t": {0: 7, 5: 1}, "missing": {0: 1}}))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert result.codes == {"t": {0: 0, 5: unknown}, "missing": {0: unknown}}
    assert [(each.state_epoch, each.start_offset) for each in rig.states.states.values()] == [(1, 7)]
    rig.change_offsets(AlterShareOffsets({"t": {0: 9}}))
    assert [(each.state_epoch, each.start_offset) for each in rig.states.states.values()] == [(2, 9)]
    assert rig.coordinator.shares.initialized_partitions("g") == {T: frozenset({0})}
    assert rig.group().state_name == "Empty"


def test_alter_offsets_of_a_group_with_members_is_rejected() -> None:
    rig = ShareRig()
    rig.add_member("a")
    assert rig.change_offsets(AlterShareOffsets({"t": {0: 7}})).error_code == ErrorCode.NON_EMPTY_GROUP
    assert rig.change_offsets(DeleteShareOffsets(("t",))).error_code == ErrorCode.NON_EMPTY_GROUP


def test_alter_offsets_of_unknown_topics_creates_no_group() -> None:
    rig = ShareRig()
    rig.change_offsets(AlterShareOffsets({"missing": {0: 7}}))
    assert len(rig.coordinator) == 0


def test_delete_offsets_lets_the_group_begin_anew() -> None:
    rig = ShareRig({"t": 2, "u": 1})
    assert rig.change_offsets(DeleteShareOffsets(("t",))).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    rig.change_offsets(AlterShareOffsets({"t": {0: 7, 1: 8}}))
    result = rig.change_offsets(DeleteShareOffsets(("t", "u", "missing")))
    assert result.codes == {"t": {-1: 0}, "u": {}, "missing": {-1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}}
    assert not rig.states.states
    assert rig.coordinator.shares.initialized_partitions("g") == {}
    rig.add_member("a")
    assert {state.start_offset for state in rig.states.states.values()} == {-1}


def test_failed_deletion_of_offsets_can_be_repeated() -> None:
    rig = ShareRig()
    rig.change_offsets(AlterShareOffsets({"t": {0: 7}}))
    rig.states.error = ErrorCode.NOT_COORDINATOR
    assert rig.change_offsets(DeleteShareOffsets(("t",))).codes == {"t": {-1: ErrorCode.NOT_COORDINATOR}}
    rig.states.error = 0
    rig.make()
    assert rig.change_offsets(DeleteShareOffsets(("t",))).codes == {"t": {-1: 0}}
    assert not rig.states.states


# -- deletion ----------------------------------------------------------------------------------------------------


def test_sweep_keeps_an_empty_group() -> None:
    rig = ShareRig()
    rig.add_member("a")
    rig.heartbeat("a", -1)
    rig.pass_ms(365 * 24 * 3_600_000)
    rig.coordinator.start_sweep()
    run_steps(rig.coordinator)
    rig.run_all()
    assert rig.group().is_empty


# -- requests of other protocols ---------------------------------------------------------------------------------


def test_other_protocols_do_not_find_a_share_group() -> None:
    rig = ShareRig()
    rig.add_member("a")
    coordinator = rig.coordinator
    joins = rig.join(group="g")
    assert joins[0].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    beats: list[Any] = []
    coordinator.consumer_heartbeat("g", ConsumerHeartbeat(member_id="x", member_epoch=0), beats.append)
    rig.run_all()
    assert (beats[0].error_code, beats[0].error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group g is not a consumer group.",
    )
    assert coordinator.heartbeat("g", "x", None, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.commit(5) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert coordinator.offset_requests.fetch_refusal("g", None, -1) == ErrorCode.NONE
    assert coordinator.describe("g") is None
    assert coordinator.describe_consumer_group("g") is None
    overview = next(iter(coordinator.overviews()))
    assert (overview.protocol_type, overview.group_type, overview.state) == ("share", "share", "Stable")


@pytest.mark.parametrize("is_member", [True, False])
def test_share_member_cannot_join_group_of_another_protocol(*, is_member: bool) -> None:
    rig = ShareRig()
    rig.coordinator.consumer_heartbeat(
        "g", ConsumerHeartbeat(member_id="x", member_epoch=0, topic_names=("t",)), lambda _result: None
    )
    if not is_member:
        rig.coordinator.consumer_heartbeat(
            "g", ConsumerHeartbeat(member_id="x", member_epoch=-1), lambda _result: None
        )
    result = rig.heartbeat("a", 0)
    assert (result.error_code, result.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group g is not a share group.",
    )


def test_heartbeat_of_a_missing_group_is_rejected() -> None:
    rig = ShareRig()
    assert rig.heartbeat("a", 1).error_message == "Share group g not found."
    assert rig.heartbeat("a", -1).error_message == "Group g not found."


def test_failed_write_rejects_heartbeat_and_changes_nothing() -> None:
    rig = ShareRig()
    rig.log.records_left = 0
    assert rig.heartbeat("a", 0).error_code == ErrorCode.NOT_COORDINATOR
    rig.log.records_left = None
    assert len(rig.coordinator) == 0
