"""ClassicJoin: which members may join with which ids, and the effect of a join in each state."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from kproc.broker.config import Config
from kproc.broker.coordinator.member_memory import MEMBER_BYTES
from kproc.broker.group.classic.join import NEW_MEMBER_JOIN_TIMEOUT_MS, join_refusal
from kproc.common.errors import ErrorCode
from tests.support.group_rig import INITIAL_DELAY_MS, REBALANCE_MS, SESSION_MS, GroupRig

BOTH = (("range", b"r"), ("sticky", b"s"))


@pytest.mark.parametrize(
    ("group_id", "session_timeout_ms", "member_id", "exists", "code"),
    [
        ("", SESSION_MS, "", True, ErrorCode.INVALID_GROUP_ID),
        ("g", 5_999, "", True, ErrorCode.INVALID_SESSION_TIMEOUT),
        ("g", 6_000, "", True, ErrorCode.NONE),
        ("g", 1_800_000, "", False, ErrorCode.NONE),
        ("g", 1_800_001, "", True, ErrorCode.INVALID_SESSION_TIMEOUT),
        ("g", SESSION_MS, "m", False, ErrorCode.UNKNOWN_MEMBER_ID),
        ("g", SESSION_MS, "m", True, ErrorCode.NONE),
    ],
)
def test_invalid_join_group_is_rejected_before_group_exists(
    rig: GroupRig, group_id: str, session_timeout_ms: int, member_id: str, exists: bool, code: ErrorCode
) -> None:
    request = rig.join_request(member_id, session_timeout_ms=session_timeout_ms)
    assert join_refusal(group_id, request, Config(), group_exists=exists) == code


def test_a_group_refuses_a_session_timeout_out_of_range(rig: GroupRig) -> None:
    join = rig.join(session_timeout_ms=1)
    assert (join.code, join.value.member_id) == (ErrorCode.INVALID_SESSION_TIMEOUT, "")
    assert rig.group.is_unwritten


def test_an_unknown_member_id_is_refused(rig: GroupRig) -> None:
    join = rig.join("m")
    assert (join.code, join.value.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "m")
    rig.make_stable()
    assert rig.join("m").code == ErrorCode.UNKNOWN_MEMBER_ID


# KIP-394.


def test_new_dynamic_member_gets_member_id_required(rig: GroupRig) -> None:
    first = rig.join(requires_known_member_id=True)
    assert (first.code, first.value.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "c-id1")
    assert rig.state == "Empty"
    assert not rig.group.is_unwritten
    second = rig.join("c-id1", requires_known_member_id=True)
    rig.pass_ms(INITIAL_DELAY_MS)
    assert (second.code, second.value.member_id, second.value.leader) == (ErrorCode.NONE, "c-id1", "c-id1")


def test_older_versions_and_static_members_join_in_one_step(rig: GroupRig) -> None:
    joins = [rig.join(), rig.join(group_instance_id="i", requires_known_member_id=True)]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    assert [join.value.member_id for join in joins] == ["c-id1", "i-id2"]


def test_unused_member_id_expires_after_session_timeout(rig: GroupRig) -> None:
    member_id = rig.join(requires_known_member_id=True).value.member_id
    rig.pass_ms(SESSION_MS - 1)
    assert member_id in rig.group.roster.pending
    rig.pass_ms(1)
    assert rig.join(member_id).code == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.group.next_deadline_ms() is None
    assert rig.group.is_unwritten


def test_rebalance_waits_for_members_with_a_pending_id(rig: GroupRig) -> None:
    leader, follower = rig.make_stable()
    third = rig.join(requires_known_member_id=True).value.member_id
    joins = rig.rejoin_all([leader, follower])
    assert rig.state == "PreparingRebalance"
    assert joins[0].is_open
    joins.append(rig.join(third, requires_known_member_id=True))
    assert [join.value.generation for join in joins] == [2, 2, 2]


def test_expired_pending_member_id_does_not_extend_rebalance(rig: GroupRig) -> None:
    leader, follower = rig.make_stable()
    rig.join(requires_known_member_id=True)
    joins = rig.rejoin_all([leader, follower])
    rig.pass_ms(SESSION_MS - 1)
    assert joins[0].is_open
    rig.pass_ms(1)
    assert [join.value.generation for join in joins] == [2, 2]


def test_an_id_given_to_a_dynamic_member_is_not_for_a_static_one(rig: GroupRig) -> None:
    member_id = rig.join(requires_known_member_id=True).value.member_id
    refused = rig.join(member_id, group_instance_id="i").value
    assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_SERVER_ERROR, "")


# Protocols.


@pytest.mark.parametrize(
    "fields",
    [{"protocol_type": ""}, {"protocols": ()}],
)
def test_the_first_member_has_to_speak_something(rig: GroupRig, fields: dict[str, Any]) -> None:
    assert rig.join(**fields).code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert rig.group.is_unwritten


@pytest.mark.parametrize(
    "fields",
    [{"protocol_type": "connect"}, {"protocols": (("sticky", b""),)}, {"protocols": ()}],
)
def test_a_member_that_the_others_do_not_understand_is_refused(rig: GroupRig, fields: dict[str, Any]) -> None:
    leader, _ = rig.make_stable()
    assert rig.join(**fields).code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert rig.join(leader, **fields).code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert rig.state == "Stable"


def test_an_empty_group_may_change_its_protocol_type(rig: GroupRig) -> None:
    rig.leave(*rig.make_stable(1))
    join = rig.join(protocol_type="connect", protocols=(("eager", b""),))
    rig.pass_ms(INITIAL_DELAY_MS)
    assert (join.value.protocol_type, join.value.protocol_name) == ("connect", "eager")


def test_most_preferred_common_protocol_is_selected(rig: GroupRig) -> None:
    joins = [
        rig.join(protocols=(("range", b""), ("sticky", b""))),
        rig.join(protocols=(("sticky", b""), ("range", b""), ("mine", b""))),
        rig.join(protocols=(("sticky", b""), ("range", b""))),
    ]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    assert {join.value.protocol_name for join in joins} == {"sticky"}


def test_a_name_that_a_request_repeats_counts_once(rig: GroupRig) -> None:
    joins = [rig.join(protocols=(("range", b""), ("range", b""))), rig.join(protocols=(("range", b""),))]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    assert [join.value.protocol_name for join in joins] == ["range", "range"]


def test_join_response_has_members_only_for_the_leader(rig: GroupRig) -> None:
    first, second = rig.join(protocols=(("range", b"one"),)), rig.join(group_instance_id="i")
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    assert second.value.members == ()
    assert first.value.leader == second.value.leader == first.value.member_id
    assert [(each.member_id, each.group_instance_id, each.metadata) for each in first.value.members] == [
        ("c-id1", None, b"one"),
        ("i-id2", "i", b"r"),
    ]
    assert not first.value.skip_assignment


# Known members.


def test_unchanged_rejoin_of_follower_gets_current_generation(rig: GroupRig) -> None:
    leader, follower = rig.make_stable()
    join = rig.join(follower)
    assert (join.value.generation, join.value.leader, join.value.members) == (1, leader, ())
    assert rig.state == "Stable"


def test_join_group_restarts_the_session(rig: GroupRig) -> None:
    _, follower = rig.make_stable()
    rig.pass_ms(SESSION_MS - 1)
    rig.join(follower)
    rig.pass_ms(SESSION_MS - 1)
    assert follower in rig.group.roster.members


def test_a_follower_with_other_metadata_rebalances(rig: GroupRig) -> None:
    leader, follower = rig.make_stable()
    join = rig.join(follower, protocols=(("range", b"other"),))
    assert rig.state == "PreparingRebalance"
    lead = rig.join(leader)
    assert join.value.generation == 2
    assert [each.metadata for each in lead.value.members] == [b"r", b"other"]


def test_the_leaders_join_rebalances_though_nothing_changed(rig: GroupRig) -> None:
    leader, follower = rig.make_stable()
    join = rig.join(leader)
    assert rig.state == "PreparingRebalance"
    assert join.is_open
    rig.join(follower)
    assert join.value.generation == 2


def test_unchanged_join_in_sync_phase_is_answered_from_state(rig: GroupRig) -> None:
    joins = [rig.join(), rig.join()]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    leader, follower = (join.value.member_id for join in joins)
    assert rig.state == "CompletingRebalance"
    assert rig.join(leader).value == joins[0].value
    assert rig.join(follower).value == joins[1].value


def test_in_the_sync_phase_other_metadata_begins_anew(rig: GroupRig) -> None:
    joins = [rig.join(), rig.join()]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    leader, follower = (join.value.member_id for join in joins)
    waiting = rig.sync(follower)
    join = rig.join(leader, protocols=(("range", b"new"),))
    assert waiting.code == ErrorCode.REBALANCE_IN_PROGRESS
    assert rig.state == "PreparingRebalance"
    rig.join(follower)
    assert join.value.generation == 2


def test_a_new_member_rebalances_a_stable_group(rig: GroupRig) -> None:
    members = rig.make_stable()
    new = rig.join()
    assert rig.state == "PreparingRebalance"
    assert rig.heartbeat(members[0]) == ErrorCode.REBALANCE_IN_PROGRESS
    joins = [new, *rig.rejoin_all(members)]
    assert {join.value.generation for join in joins} == {2}
    assert new.value.leader == members[0]


def test_a_join_that_another_replaces_is_answered_too(rig: GroupRig) -> None:
    members = rig.make_stable()
    first = rig.join(members[0])
    second = rig.join(members[0])
    assert (first.code, first.value.member_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, members[0])
    rig.join(members[1])
    assert second.value.generation == 2


def test_a_later_join_may_change_the_timeouts(rig: GroupRig) -> None:
    rig.make_stable(1)
    (member,) = rig.group.roster.members
    rig.join(member, session_timeout_ms=20_000, rebalance_timeout_ms=7_000)
    rig.sync_all([member])
    rig.pass_ms(19_999)
    assert rig.state == "Stable"
    rig.pass_ms(1)
    assert rig.state == "Empty"


def test_a_dead_group_sends_clients_to_look_for_the_coordinator(rig: GroupRig) -> None:
    (member,) = rig.make_stable(1)
    rig.group.kill()
    assert rig.join().code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert rig.join(member).code == ErrorCode.COORDINATOR_NOT_AVAILABLE


# A member that does not come back for its first join.


def test_the_first_join_of_a_member_does_not_wait_for_ever(rig: GroupRig) -> None:
    members = rig.make_stable(2, rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    new = rig.join(rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    rig.pass_ms(NEW_MEMBER_JOIN_TIMEOUT_MS - 1, before=lambda: [rig.heartbeat(each) for each in members])
    assert new.is_open
    rig.pass_ms(1)
    assert (new.code, new.value.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    assert list(rig.group.roster.members) == members


def test_waiting_join_of_known_member_outlives_session_timeout(rig: GroupRig) -> None:
    members = rig.make_stable()
    waiting = rig.join(members[0])
    rig.pass_ms(REBALANCE_MS - 1, before=lambda: rig.heartbeat(members[1]))
    assert waiting.is_open
    rig.pass_ms(1)
    assert (waiting.value.generation, waiting.value.member_id) == (2, members[0])
    assert REBALANCE_MS > SESSION_MS


# The memory of members, which are in no log until their group has a generation.


def test_members_of_all_groups_have_a_limit_of_memory(rig: GroupRig) -> None:
    first = rig.join(protocols=(("range", bytes(2_000)),))
    assert first.is_open
    limit = rig.environment.member_memory.limit
    limit.bytes_max = limit.used_bytes + 2 * MEMBER_BYTES
    other = GroupRig()
    other.environment.member_memory = rig.environment.member_memory
    refused = other.join(protocols=(("range", bytes(2 * MEMBER_BYTES)),))
    assert (refused.code, refused.value.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert not other.group.roster.members
    assert other.join(protocols=(("range", bytes(5)),)).is_open
    short = other.join(protocols=(("range", bytes(5)),))
    assert short.code == ErrorCode.GROUP_MAX_SIZE_REACHED, "each member counts, even with a short subscription"
    rig.pass_ms(INITIAL_DELAY_MS)
    assert rig.join(first.value.member_id, protocols=(("range", bytes(2_000)),)).code == ErrorCode.NONE
    del first
    rig.group = None  # type: ignore[assignment]
    gc.collect()
    assert other.join(protocols=(("range", bytes(2_000)),)).is_open


def test_static_member_replaces_itself_in_full_memory(rig: GroupRig) -> None:
    protocols = (("range", bytes(2_000)),)
    assert rig.join(protocols=protocols, group_instance_id="i").is_open
    limit = rig.environment.member_memory.limit
    limit.bytes_max = limit.used_bytes
    rig.pass_ms(INITIAL_DELAY_MS)
    assert rig.join(protocols=protocols, group_instance_id="i").code == ErrorCode.NONE
    assert rig.join(protocols=protocols, group_instance_id="j").code == ErrorCode.GROUP_MAX_SIZE_REACHED
