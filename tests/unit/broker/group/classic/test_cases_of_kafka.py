"""Cases of Kafka's GroupMetadataManagerClassicGroupTest that no other test of ours has (tests/UPSTREAM.md)."""

from __future__ import annotations

from kproc.broker.group.classic.join import NEW_MEMBER_JOIN_TIMEOUT_MS
from kproc.common.errors import ErrorCode
from tests.support.group_rig import INITIAL_DELAY_MS, REBALANCE_MS, SESSION_MS, GroupRig
from tests.support.group_states import completing


def test_rejected_second_join_keeps_the_member_id(rig: GroupRig) -> None:
    """The second JoinGroup has no protocol. The member can join with the same id and a valid request."""
    member_id = rig.join(requires_known_member_id=True).value.member_id
    rejected = rig.join(member_id, protocols=())
    assert (rejected.code, rejected.value.protocol_type) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None)
    joined = rig.join(member_id)
    rig.pass_ms(INITIAL_DELAY_MS)
    assert (joined.value.member_id, joined.value.protocol_type) == (member_id, "consumer")


def test_first_join_ends_before_a_long_initial_delay() -> None:
    """The group was new. It becomes empty, and this is written."""
    rig = GroupRig(group_initial_rebalance_delay_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    waiting = rig.join(rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    rig.pass_ms(NEW_MEMBER_JOIN_TIMEOUT_MS - 1)
    assert waiting.is_open
    rig.pass_ms(1)
    assert (waiting.code, rig.state, rig.log[-1].members) == (ErrorCode.UNKNOWN_MEMBER_ID, "Empty", ())


def test_dead_group_does_not_complete_its_join_phase(rig: GroupRig) -> None:
    rig.join()
    rig.group.kill()
    rig.pass_ms(INITIAL_DELAY_MS)
    assert (rig.state, rig.group.generation, rig.group.next_deadline_ms()) == ("Dead", 0, None)


def test_session_replaces_the_time_limit_of_the_first_join(rig: GroupRig) -> None:
    session_ms = NEW_MEMBER_JOIN_TIMEOUT_MS + 5_000
    members = rig.make_stable(1, session_timeout_ms=session_ms)
    rig.pass_ms(session_ms - 1)
    assert list(rig.group.roster.members) == members
    rig.pass_ms(1)
    assert (rig.state, rig.group.generation, rig.log[-1].protocol_name) == ("Empty", 2, None)


def test_unused_member_id_leaves_a_stable_group_alone(rig: GroupRig) -> None:
    members = rig.make_stable()
    pending = rig.join(requires_known_member_id=True).value.member_id
    rig.pass_ms(SESSION_MS, before=lambda: [rig.heartbeat(each) for each in members])
    assert pending not in rig.group.roster.pending
    assert (rig.state, rig.group.generation, list(rig.group.roster.members)) == ("Stable", 1, members)


def test_group_without_any_sync_becomes_empty(rig: GroupRig) -> None:
    members = completing(rig, 3)
    rig.pass_ms(REBALANCE_MS, before=lambda: [rig.heartbeat(each) for each in members])
    assert (rig.state, rig.log[-1].members) == ("Empty", ())
    assert {rig.heartbeat(each) for each in members} == {ErrorCode.UNKNOWN_MEMBER_ID}


def test_members_and_a_pending_id_leave_together(rig: GroupRig) -> None:
    members = rig.make_stable()
    pending = rig.join(requires_known_member_id=True).value.member_id
    leave = rig.leave(*members, pending, "stranger")
    codes = [each.error_code for each in leave.value.members]
    assert codes == [ErrorCode.NONE] * 3 + [ErrorCode.UNKNOWN_MEMBER_ID]
    assert (rig.state, pending in rig.group.roster.pending) == ("Empty", False)


def test_static_member_that_leads_may_be_absent(rig: GroupRig) -> None:
    """Another member leads when the join phase ends without it, and gets its subscription, too."""
    leader, follower = rig.make_stable(2, static=True, session_timeout_ms=4 * REBALANCE_MS)
    new = rig.join(group_instance_id="new", session_timeout_ms=4 * REBALANCE_MS)
    joined = rig.join(follower, session_timeout_ms=4 * REBALANCE_MS)
    assert joined.is_open
    rig.pass_ms(REBALANCE_MS)
    assert (joined.value.leader, joined.value.generation, new.value.leader) == (follower, 2, follower)
    assert {each.member_id for each in joined.value.members} == {leader, follower, new.value.member_id}
