"""ClassicGroup: Heartbeat and the fencing of OffsetCommit in each state."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from tests.support.group_rig import SESSION_MS, GroupRig
from tests.support.group_states import completing, preparing

# Heartbeat.


def test_heartbeat_in_each_state(rig: GroupRig) -> None:
    assert rig.heartbeat("m") == ErrorCode.UNKNOWN_MEMBER_ID
    leader, follower = completing(rig)
    assert rig.heartbeat(leader) == ErrorCode.NONE
    rig.sync_all([leader, follower])
    assert rig.heartbeat(leader) == ErrorCode.NONE
    rig.join()
    assert rig.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    rig.group.kill()
    assert rig.heartbeat(leader) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_heartbeat_of_invalid_member_returns_error(rig: GroupRig) -> None:
    members = rig.make_stable()
    assert rig.heartbeat("stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.heartbeat(members[0], 0) == ErrorCode.ILLEGAL_GENERATION
    assert rig.heartbeat(members[0], 2) == ErrorCode.ILLEGAL_GENERATION
    assert rig.heartbeat(members[0], group_instance_id="i") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_refused_heartbeat_does_not_keep_the_session(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.pass_ms(SESSION_MS, before=lambda: [rig.heartbeat(each, 0) for each in members])
    assert rig.state == "Empty"


def test_heartbeats_in_the_join_phase_keep_the_session(rig: GroupRig) -> None:
    members = preparing(rig)
    rig.pass_ms(2 * SESSION_MS, before=lambda: [rig.heartbeat(each) for each in members])
    assert set(members) <= set(rig.group.roster.members)


def test_heartbeat_before_second_join_is_unknown_member(rig: GroupRig) -> None:
    member_id = rig.join(requires_known_member_id=True).value.member_id
    assert rig.heartbeat(member_id, 0) == ErrorCode.UNKNOWN_MEMBER_ID


# OffsetCommit.


def test_offset_commit_to_empty_group_by_member_and_generation(rig: GroupRig) -> None:
    assert rig.can_commit(generation=-1) == ErrorCode.NONE
    assert rig.can_commit("m", -1) == ErrorCode.NONE  # As in Kafka: only the generation counts.
    assert rig.can_commit("m", 0) == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.can_commit(generation=0, group_instance_id="i") == ErrorCode.UNKNOWN_MEMBER_ID


def test_offset_commit_to_stable_group_needs_its_generation(rig: GroupRig) -> None:
    members = rig.make_stable()
    assert rig.can_commit(members[0]) == ErrorCode.NONE
    assert rig.can_commit(generation=-1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.can_commit("stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.can_commit(members[0], 0) == ErrorCode.ILLEGAL_GENERATION
    assert rig.can_commit(members[0], -1) == ErrorCode.ILLEGAL_GENERATION


def test_commits_while_the_group_rebalances(rig: GroupRig) -> None:
    leader, follower = completing(rig)
    assert rig.can_commit(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    rig.sync_all([leader, follower])
    rig.join()
    assert rig.can_commit(leader) == ErrorCode.NONE


def test_a_commit_keeps_the_session(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.pass_ms(2 * SESSION_MS, before=lambda: [rig.can_commit(each) for each in members])
    assert rig.state == "Stable"


def test_transactions_may_commit_without_a_member(rig: GroupRig) -> None:
    """TxnOffsetCommit knows members since version 3 only (KIP-447)."""
    leader, _ = completing(rig)
    assert rig.can_commit(generation=-1, is_transactional=True) == ErrorCode.NONE
    assert rig.can_commit(leader, is_transactional=True) == ErrorCode.NONE
    assert rig.can_commit(leader, 0, is_transactional=True) == ErrorCode.ILLEGAL_GENERATION
    assert rig.can_commit("stranger", is_transactional=True) == ErrorCode.UNKNOWN_MEMBER_ID


def test_offset_commit_to_dead_group_is_rejected(rig: GroupRig) -> None:
    rig.group.kill()
    assert rig.can_commit(generation=-1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
