"""Static membership: KIP-345, and KIP-814 for the leader that returns."""

from __future__ import annotations

import pytest

from kproc.broker.group.messages import JoinedMember, LeavingMember
from kproc.common.errors import ErrorCode
from tests.support.group_rig import INITIAL_DELAY_MS, REBALANCE_MS, SESSION_MS, GroupRig


@pytest.fixture
def members(rig: GroupRig) -> list[str]:
    """A stable group of i0, who leads, and i1."""
    return rig.make_stable(2, static=True)


def test_ids_of_static_members_begin_with_their_instance(members: list[str]) -> None:
    assert members == ["i0-id1", "i1-id2"]


# A restart in Stable: no rebalance.


def test_a_follower_that_restarts_goes_on_with_its_assignment(rig: GroupRig, members: list[str]) -> None:
    join = rig.join(group_instance_id="i1")
    assert (join.value.member_id, join.value.generation, join.value.leader) == ("i1-id3", 1, members[0])
    assert (join.value.members, join.value.skip_assignment) == ((), False)
    assert rig.state == "Stable"
    assert rig.sync("i1-id3", group_instance_id="i1").value.assignment == b"a1"


def test_new_id_of_static_member_is_written_before_response(rig: GroupRig, members: list[str]) -> None:
    rig.holds_writes = True
    join = rig.join(group_instance_id="i1")
    assert join.is_open
    rig.write()
    assert join.code == ErrorCode.NONE
    assert [(each.member_id, each.assignment) for each in rig.log[-1].members] == [
        (members[0], b"a0"),
        ("i1-id3", b"a1"),
    ]


def test_old_id_of_static_member_is_fenced_in_all_requests(rig: GroupRig, members: list[str]) -> None:
    rig.join(group_instance_id="i1")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    old = members[1]
    assert rig.join(old, group_instance_id="i1").code == fenced
    assert rig.sync(old, group_instance_id="i1").code == fenced
    assert rig.heartbeat(old, group_instance_id="i1") == fenced
    assert rig.can_commit(old, group_instance_id="i1") == fenced
    assert rig.leave(LeavingMember(old, "i1")).value.members[0].error_code == fenced
    # Without the instance id it is just unknown.
    assert rig.heartbeat(old) == ErrorCode.UNKNOWN_MEMBER_ID


def test_restarted_static_leader_skips_the_assignment(rig: GroupRig, members: list[str]) -> None:
    join = rig.join(group_instance_id="i0", supports_skip_assignment=True)
    new = join.value.member_id
    assert (join.value.leader, join.value.skip_assignment) == (new, True)
    assert join.value.members == (JoinedMember(new, "i0", b"r"), JoinedMember(members[1], "i1", b"r"))
    assert rig.sync(new).value.assignment == b"a0"


def test_a_follower_has_no_assignment_to_skip(rig: GroupRig, members: list[str]) -> None:
    join = rig.join(group_instance_id="i1", supports_skip_assignment=True)
    assert (join.value.leader, join.value.skip_assignment, join.value.members) == (members[0], False, ())


def test_static_leader_before_version_9_gets_its_old_id(rig: GroupRig, members: list[str]) -> None:
    join = rig.join(group_instance_id="i0")
    assert join.value.leader == members[0] != join.value.member_id
    assert join.value.members == ()
    assert rig.group.roster.leader == join.value.member_id


def test_other_metadata_with_the_same_protocol_do_not_rebalance(rig: GroupRig, members: list[str]) -> None:
    rig.join(group_instance_id="i1", protocols=(("range", b"new"),))
    assert rig.state == "Stable"
    assert rig.log[-1].members[1].subscription == b"new"


def test_returning_static_member_updates_subscribed_topics(rig: GroupRig) -> None:
    def reads(topic: bytes) -> tuple[tuple[str, bytes], ...]:
        return (("range", b"\0\0\0\0\0\1\0\1" + topic),)

    rig.make_stable(1, static=True, protocols=reads(b"a"))
    rig.join(group_instance_id="i0", protocols=reads(b"b"))
    assert rig.group.state.subscribed_topics == {"b"}


def test_a_restart_does_not_excuse_from_the_sync(rig: GroupRig) -> None:
    joins = [rig.join(group_instance_id="i0"), rig.join(group_instance_id="i1")]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    leader = joins[0].value.member_id
    rig.sync(leader)
    back = rig.join(group_instance_id="i1").value.member_id
    assert rig.state == "Stable"
    rig.pass_ms(REBALANCE_MS, before=lambda: [rig.heartbeat(each, 1) for each in (leader, back)])
    assert (rig.state, list(rig.group.roster.members)) == ("PreparingRebalance", [leader])


def test_another_protocol_does(rig: GroupRig) -> None:
    both = (("range", b"r"), ("sticky", b"s"))
    (member,) = rig.make_stable(1, static=True, protocols=both)
    join = rig.join(group_instance_id="i0", protocols=(("sticky", b"s"), ("range", b"r")))
    assert (join.value.protocol_name, join.value.generation) == ("sticky", 2)
    assert join.value.leader == join.value.member_id != member


def test_a_restart_whose_write_fails_never_was(rig: GroupRig, members: list[str]) -> None:
    rig.append_error = ErrorCode.KAFKA_STORAGE_ERROR
    join = rig.join(
        group_instance_id="i0",
        protocols=(("range", b"new"),),
        session_timeout_ms=20_000,
        rebalance_timeout_ms=1_000,
    )
    assert list(rig.group.roster.members) == members
    assert (join.code, join.value.member_id) == (ErrorCode.NOT_COORDINATOR, "")
    assert rig.group.roster.leader == members[0]
    assert rig.heartbeat(members[0], group_instance_id="i0") == ErrorCode.NONE
    member = rig.group.roster.members[members[0]]
    assert (member.protocols, member.assignment) == ((("range", b"r"),), b"a0")
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (SESSION_MS, REBALANCE_MS)


def test_static_restart_with_failed_sync_has_its_new_id(rig: GroupRig, members: list[str]) -> None:
    """The record is in the log: a restart of the coordinator would find the new id."""
    rig.holds_writes = True
    join = rig.join(group_instance_id="i0")
    rig.write(ErrorCode.KAFKA_STORAGE_ERROR)
    assert join.code == ErrorCode.NOT_COORDINATOR
    assert [each.member_id for each in rig.log[-1].members] == list(rig.group.roster.members)
    assert rig.heartbeat(members[0], group_instance_id="i0") == ErrorCode.FENCED_INSTANCE_ID


def test_static_restart_with_failed_append_spares_one_in_sync(rig: GroupRig, members: list[str]) -> None:
    """A failed write beside one that waits for its sync takes back its own effect only."""
    rig.holds_writes = True
    first = rig.join(group_instance_id="i0")
    rig.append_error = ErrorCode.KAFKA_STORAGE_ERROR
    second = rig.join(group_instance_id="i1")
    assert (first.is_open, second.code) == (True, ErrorCode.NOT_COORDINATOR)
    rig.write()
    assert first.code == ErrorCode.NONE
    assert list(rig.group.roster.members) == [first.value.member_id, members[1]]
    assert [each.member_id for each in rig.log[-1].members] == list(rig.group.roster.members)


def test_a_restart_during_the_write_of_a_restart(rig: GroupRig, members: list[str]) -> None:
    rig.holds_writes = True
    first = rig.join(group_instance_id="i1")
    second = rig.join(group_instance_id="i1")
    assert (first.code, first.value.member_id) == (ErrorCode.FENCED_INSTANCE_ID, "i1-id3")
    rig.write()
    assert (second.code, second.value.member_id) == (ErrorCode.NONE, "i1-id4")


def test_the_write_of_the_restart_before_does_not_answer_for_it(rig: GroupRig, members: list[str]) -> None:
    rig.holds_writes = True
    rig.join(group_instance_id="i1")
    second = rig.join(group_instance_id="i1")
    rig.write(ErrorCode.KAFKA_STORAGE_ERROR, count=1)
    assert second.is_open
    rig.write()
    assert (second.code, second.value.member_id) == (ErrorCode.NONE, "i1-id4")


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR])
def test_a_rebalance_during_the_write_of_a_restart(
    rig: GroupRig, members: list[str], code: ErrorCode
) -> None:
    rig.holds_writes = True
    back = rig.join(group_instance_id="i1")
    lead = rig.join(members[0])
    assert back.value.generation == lead.value.generation == 2
    rig.write(code)
    assert rig.state == "CompletingRebalance"
    assert "i1-id3" in rig.group.roster.members


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR])
def test_join_phase_starts_while_static_restart_is_written(
    rig: GroupRig, members: list[str], code: ErrorCode
) -> None:
    rig.holds_writes = True
    back = rig.join(group_instance_id="i1")
    rig.join()
    rig.write(code)
    assert rig.state == "PreparingRebalance"
    assert back.is_open is not bool(code)
    assert "i1-id3" in rig.group.roster.members


# A restart while the group rebalances.


def test_a_restart_in_the_join_phase_counts_as_its_join(rig: GroupRig, members: list[str]) -> None:
    lead = rig.join(members[0])
    back = rig.join(group_instance_id="i1")
    assert lead.value.generation == back.value.generation == 2
    assert {each.member_id for each in lead.value.members} == {members[0], "i1-id3"}


def test_the_join_of_the_process_before_is_fenced(rig: GroupRig, members: list[str]) -> None:
    waiting = rig.join(members[1], group_instance_id="i1", protocols=(("range", b"x"),))
    rig.join(group_instance_id="i1")
    assert (waiting.code, waiting.value.member_id) == (ErrorCode.FENCED_INSTANCE_ID, members[1])


def test_a_restart_in_the_sync_phase_begins_anew(rig: GroupRig) -> None:
    joins = [rig.join(group_instance_id="i0"), rig.join(group_instance_id="i1")]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    leader, follower = (join.value.member_id for join in joins)
    waiting = rig.sync(follower)
    back = rig.join(group_instance_id="i1")
    assert waiting.code == ErrorCode.FENCED_INSTANCE_ID
    assert rig.state == "PreparingRebalance"
    rig.join(leader)
    assert back.value.generation == 2


# Absence.


def test_a_stopped_member_keeps_its_place_until_its_session_ends(rig: GroupRig, members: list[str]) -> None:
    rig.pass_ms(SESSION_MS - 1, before=lambda: rig.heartbeat(members[0]))
    assert rig.state == "Stable"
    rig.pass_ms(1)
    assert (rig.state, list(rig.group.roster.members)) == ("PreparingRebalance", members[:1])


def test_member_not_rejoining_stays_until_sync_timeout(
    rig: GroupRig, members: list[str]
) -> None:
    lead = rig.join(members[0])

    def beat() -> None:
        rig.heartbeat(members[1], group_instance_id="i1")
        if not lead.is_open:
            rig.heartbeat(members[0])

    rig.pass_ms(REBALANCE_MS, before=beat)
    assert [each.member_id for each in lead.value.members] == members
    rig.sync(members[0], assignments=((members[0], b"0"), (members[1], b"1")))
    rig.pass_ms(REBALANCE_MS - 1, before=beat)
    assert list(rig.group.roster.members) == members
    rig.pass_ms(1)
    assert (rig.state, list(rig.group.roster.members)) == ("PreparingRebalance", members[:1])


def test_returning_static_member_gets_leaders_assignment(
    rig: GroupRig, members: list[str]
) -> None:
    lead = rig.join(members[0])
    rig.pass_ms(REBALANCE_MS, before=lambda: rig.heartbeat(members[1]))
    rig.sync(members[0], assignments=((members[1], b"kept"),))
    back = rig.join(group_instance_id="i1")
    assert (back.value.generation, lead.value.generation) == (2, 2)
    assert rig.sync(back.value.member_id).value.assignment == b"kept"
    rig.pass_ms(
        REBALANCE_MS, before=lambda: [rig.heartbeat(each) for each in (members[0], back.value.member_id)]
    )
    assert rig.state == "Stable"


def test_rebalance_without_static_members_waits_for_sessions(
    rig: GroupRig, members: list[str]
) -> None:
    new = rig.join()
    rig.leave(new_id(rig))
    assert new.code == ErrorCode.UNKNOWN_MEMBER_ID
    rig.pass_ms(
        2 * REBALANCE_MS,
        before=lambda: [rig.heartbeat(each, group_instance_id=None) for each in members],
    )
    assert (rig.state, rig.group.generation) == ("PreparingRebalance", 1)
    rig.pass_ms(SESSION_MS)
    assert (rig.state, rig.group.generation) == ("Empty", 2)


def new_id(rig: GroupRig) -> str:
    """The member that came last."""
    return list(rig.group.roster.members)[-1]


def test_a_rebalance_timeout_of_0_does_not_spin(rig: GroupRig) -> None:
    members = rig.make_stable(1, static=True)
    rig.join(members[0], rebalance_timeout_ms=0)
    rig.sync_all(members)
    new = rig.join(rebalance_timeout_ms=0)
    rig.leave(new_id(rig))
    rig.pass_ms(
        20, before=lambda: rig.heartbeat(members[0])
    )  # Which checks that nothing is due after a tick.
    assert new.code == ErrorCode.UNKNOWN_MEMBER_ID


# LeaveGroup.


def test_an_administrator_removes_a_member_by_its_instance(rig: GroupRig, members: list[str]) -> None:
    leave = rig.leave(LeavingMember("", "i1"), LeavingMember("", "i9"), LeavingMember("", None))
    assert [(each.member_id, each.group_instance_id, each.error_code) for each in leave.value.members] == [
        ("", "i1", ErrorCode.NONE),
        ("", "i9", ErrorCode.UNKNOWN_MEMBER_ID),
        ("", None, ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert rig.state == "PreparingRebalance"
    assert rig.heartbeat(members[1], group_instance_id="i1") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_id_has_to_be_the_instances(rig: GroupRig, members: list[str]) -> None:
    leave = rig.leave(LeavingMember(members[0], "i1"), LeavingMember(members[0], "i9"))
    assert [each.error_code for each in leave.value.members] == [
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert rig.state == "Stable"


def test_removed_member_with_waiting_sync_gets_an_error(rig: GroupRig) -> None:
    joins = [rig.join(group_instance_id="i0"), rig.join(group_instance_id="i1")]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    waiting = rig.sync(joins[1].value.member_id)
    rig.leave(LeavingMember("", "i1"))
    assert waiting.code == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_instance_that_left_joins_as_a_new_member(rig: GroupRig, members: list[str]) -> None:
    rig.leave(LeavingMember(members[1], "i1"))
    rig.join(members[0])
    new = rig.join(group_instance_id="i1")
    assert rig.state == "PreparingRebalance"
    rig.join(members[0])
    assert new.value.generation == 3


def test_a_static_member_may_rejoin_under_its_id(rig: GroupRig, members: list[str]) -> None:
    join = rig.join(members[1], group_instance_id="i1")
    assert (join.value.generation, join.value.member_id) == (1, members[1])
    assert rig.join(members[0], group_instance_id="i1").code == ErrorCode.FENCED_INSTANCE_ID
    assert rig.join(members[0], group_instance_id="i9").code == ErrorCode.UNKNOWN_MEMBER_ID
