"""LeaveGroup in each state."""

from __future__ import annotations

import pytest

from kproc.broker.group.messages import LeaveResult, LeavingMember
from kproc.common.errors import ErrorCode
from tests.support.group_rig import INITIAL_DELAY_MS, Answer, GroupRig


def codes_of(leave: Answer[LeaveResult]) -> list[ErrorCode]:
    return [ErrorCode(each.error_code) for each in leave.value.members]


# LeaveGroup.


def test_members_leave_together_with_a_code_each(rig: GroupRig) -> None:
    members = rig.make_stable(4)
    leave = rig.leave(members[1], "stranger", LeavingMember(members[2], "i"), members[3])
    assert leave.code == ErrorCode.NONE
    assert codes_of(leave) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert rig.state == "PreparingRebalance"
    assert list(rig.group.roster.members) == [members[0], members[2]]


def test_a_member_leaves_once(rig: GroupRig) -> None:
    members = rig.make_stable()
    assert codes_of(rig.leave(members[0], members[0])) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]


def test_leave_group_of_unknown_member_changes_nothing(rig: GroupRig) -> None:
    rig.make_stable()
    assert codes_of(rig.leave("stranger")) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert codes_of(rig.leave()) == []
    assert rig.state == "Stable"


def test_last_leave_is_answered_when_empty_group_is_written(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.holds_writes = True
    leave = rig.leave(*members)
    assert rig.state == "Empty"
    assert leave.is_open
    rig.write()
    assert codes_of(leave) == [ErrorCode.NONE, ErrorCode.NONE]


def test_a_leave_in_the_join_phase_may_end_it(rig: GroupRig) -> None:
    members = rig.make_stable()
    join = rig.join(members[0])
    assert join.is_open
    rig.leave(members[1])
    assert join.value.generation == 2


def test_a_leave_in_the_sync_phase_begins_anew(rig: GroupRig) -> None:
    joins = [rig.join(), rig.join()]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    leader, follower = (join.value.member_id for join in joins)
    waiting = rig.sync(follower)
    rig.leave(leader)
    assert waiting.code == ErrorCode.REBALANCE_IN_PROGRESS
    assert rig.join(follower).value.leader == follower


def test_a_leave_during_the_initial_delay_does_not_end_it(rig: GroupRig) -> None:
    joins = [rig.join(), rig.join()]
    member = next(iter(rig.group.roster.members))
    rig.leave(member)
    assert joins[0].code == ErrorCode.UNKNOWN_MEMBER_ID
    assert joins[1].is_open
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    assert joins[1].value.generation == 1


@pytest.mark.parametrize("state", ["Stable", "CompletingRebalance"])
def test_leave_of_pending_member_id_rebalances_like_kafka(rig: GroupRig, state: str) -> None:
    members = rig.make_stable()
    if state == "CompletingRebalance":
        rig.rejoin_all(members)
    assert rig.state == state
    pending = rig.join(requires_known_member_id=True).value.member_id
    assert codes_of(rig.leave(pending)) == [ErrorCode.NONE]
    assert rig.state == "PreparingRebalance"
    assert rig.join(pending).code == ErrorCode.UNKNOWN_MEMBER_ID


def test_and_the_join_phase_does_not_wait_for_it_any_more(rig: GroupRig) -> None:
    members = rig.make_stable()
    pending = rig.join(requires_known_member_id=True).value.member_id
    joins = rig.rejoin_all(members)
    assert joins[0].is_open
    rig.leave(pending)
    assert joins[0].value.generation == 2


def test_group_without_members_is_empty_despite_pending_ids(rig: GroupRig) -> None:
    members = rig.make_stable()
    pending = rig.join(requires_known_member_id=True).value.member_id
    rig.leave(*members)
    assert (rig.state, rig.group.generation) == ("Empty", 2)
    join = rig.join(pending)
    rig.pass_ms(INITIAL_DELAY_MS)
    assert join.value.generation == 3


def test_a_dead_group_says_look_elsewhere(rig: GroupRig) -> None:
    rig.group.kill()
    assert rig.leave("m").code == ErrorCode.COORDINATOR_NOT_AVAILABLE
