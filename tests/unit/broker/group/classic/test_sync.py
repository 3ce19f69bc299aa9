"""ClassicSync: SyncGroup in each state, and writes that fail."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from tests.support.group_rig import SESSION_MS, GroupRig
from tests.support.group_states import completing, preparing

# SyncGroup.


def test_syncs_are_answered_when_the_leaders_is_written(rig: GroupRig) -> None:
    leader, follower = completing(rig)
    rig.holds_writes = True
    early = rig.sync(follower)
    lead = rig.sync(leader, assignments=((leader, b"0"), (follower, b"1")))
    assert early.is_open
    assert lead.is_open
    assert rig.state == "CompletingRebalance"
    rig.write()
    assert (lead.value.assignment, early.value.assignment) == (b"0", b"1")
    assert (lead.value.protocol_type, lead.value.protocol_name) == ("consumer", "range")
    assert rig.state == "Stable"


def test_sync_group_writes_members_with_assignments(rig: GroupRig) -> None:
    leader, follower = completing(rig)
    rig.sync(leader, assignments=((leader, b"0"), (follower, b"1")))
    (written,) = rig.log
    assert (written.group_id, written.generation, written.leader) == ("g", 1, leader)
    assert [(each.member_id, each.subscription, each.assignment) for each in written.members] == [
        (leader, b"r", b"0"),
        (follower, b"r", b"1"),
    ]


def test_a_sync_after_the_leaders_is_answered_at_once(rig: GroupRig) -> None:
    leader, follower = completing(rig)
    rig.sync(leader, assignments=((follower, b"1"),))
    assert rig.sync(follower).value.assignment == b"1"
    assert rig.sync(follower).value.assignment == b"1"


def test_sync_group_restarts_the_session(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.pass_ms(2 * SESSION_MS, before=lambda: [rig.sync(each) for each in members])
    assert rig.state == "Stable"


def test_a_sync_while_the_leaders_is_being_written_waits_for_it(rig: GroupRig) -> None:
    leader, follower = completing(rig)
    rig.holds_writes = True
    rig.sync(leader, assignments=((follower, b"1"),))
    late = rig.sync(follower)
    rig.write()
    assert late.value.assignment == b"1"


def test_member_without_assignment_gets_an_empty_one(rig: GroupRig) -> None:
    leader, follower = completing(rig)
    waiting = rig.sync(follower)
    rig.sync(leader, assignments=((leader, b"all"), ("stranger", b"x")))
    assert (waiting.code, waiting.value.assignment) == (ErrorCode.NONE, b"")
    assert [each.assignment for each in rig.log[-1].members] == [b"all", b""]


def test_a_followers_assignments_are_not_looked_at(rig: GroupRig) -> None:
    _, follower = completing(rig)
    waiting = rig.sync(follower, assignments=((follower, b"mine"),))
    assert waiting.is_open
    assert not rig.log


def test_a_leader_that_syncs_twice_writes_once(rig: GroupRig) -> None:
    leader, _ = completing(rig)
    rig.holds_writes = True
    first = rig.sync(leader, assignments=((leader, b"0"),))
    second = rig.sync(leader, assignments=((leader, b"0"),))
    assert first.code == ErrorCode.REBALANCE_IN_PROGRESS  # Its connection is gone, or it would not ask again.
    assert len(rig.writing) == 1
    rig.write()
    assert second.value.assignment == b"0"


def test_sync_group_of_invalid_member_returns_error(rig: GroupRig) -> None:
    leader, follower = completing(rig)
    assert rig.sync("stranger").code == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.sync(leader, group_instance_id="i").code == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.sync(leader, 0).code == ErrorCode.ILLEGAL_GENERATION
    assert rig.sync(leader, 2).code == ErrorCode.ILLEGAL_GENERATION
    assert rig.sync(leader, protocol_type="connect").code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert rig.sync(leader, protocol_name="sticky").code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert rig.sync(follower, protocol_type="consumer", protocol_name="range").is_open


def test_sync_group_in_join_phase_is_rejected(rig: GroupRig) -> None:
    members = preparing(rig)
    assert rig.sync(members[0]).code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_sync_of_an_empty_or_dead_group(rig: GroupRig) -> None:
    assert rig.sync("m").code == ErrorCode.UNKNOWN_MEMBER_ID
    rig.group.kill()
    assert rig.sync("m").code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_new_rebalance_ends_waiting_syncs(rig: GroupRig) -> None:
    _, follower = completing(rig)
    waiting = rig.sync(follower)
    rig.join()
    assert waiting.code == ErrorCode.REBALANCE_IN_PROGRESS
    assert waiting.value.assignment == b""


def test_a_write_that_a_rebalance_overtook_changes_nothing(rig: GroupRig) -> None:
    leader, follower = completing(rig)
    rig.holds_writes = True
    lead = rig.sync(leader, assignments=((leader, b"0"),))
    rig.join()
    assert lead.code == ErrorCode.REBALANCE_IN_PROGRESS
    rig.write()
    assert rig.state == "PreparingRebalance"
    joins = rig.rejoin_all([leader, follower])
    assert joins[0].value.generation == 2
    assert rig.group.describe().members[0].assignment == b""


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR])
def test_a_write_of_the_generation_before_changes_nothing(rig: GroupRig, code: ErrorCode) -> None:
    leader, follower = completing(rig)
    rig.holds_writes = True
    rig.sync(leader, assignments=((leader, b"old"),))
    rig.join(follower, protocols=(("range", b"new"),))
    rig.join(leader)
    assert (rig.state, rig.group.generation) == ("CompletingRebalance", 2)
    waiting = rig.sync(follower)
    rig.write(code)
    assert rig.state == "CompletingRebalance"
    assert waiting.is_open


# Failed writes.


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_FETCH_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_unwritable_assignment_is_void_and_rebalances(
    rig: GroupRig, error: ErrorCode, told: ErrorCode
) -> None:
    leader, follower = completing(rig)
    rig.append_error = error
    syncs = [rig.sync(follower), rig.sync(leader, assignments=((leader, b"0"),))]
    assert [sync.code for sync in syncs] == [told, told]
    assert (rig.state, rig.log) == ("PreparingRebalance", [])
    rig.append_error = ErrorCode.NONE
    rig.rejoin_all([leader, follower])
    rig.sync_all([leader, follower])
    assert rig.group.generation == 2


def test_unwritable_empty_group_is_still_empty(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.append_error = ErrorCode.KAFKA_STORAGE_ERROR
    leave = rig.leave(*members)
    assert (leave.code, leave.value.members) == (ErrorCode.NOT_COORDINATOR, ())
    assert (rig.state, len(rig.log)) == ("Empty", 1)
    rig.pass_ms(3_000)
    assert len(rig.log) == 1
    rig.append_error = ErrorCode.NONE
    rig.pass_ms(1_000)
    assert (rig.log[-1].members, rig.log[-1].generation, len(rig.log)) == ((), 2, 2)
    rig.pass_ms(5_000)
    assert len(rig.log) == 2


def test_empty_group_that_fills_is_not_written_again(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.append_error = ErrorCode.KAFKA_STORAGE_ERROR
    rig.leave(*members)
    rig.append_error = ErrorCode.NONE
    rig.join()
    rig.pass_ms(2_000)
    assert (rig.state, len(rig.log)) == ("PreparingRebalance", 1)


# The memory of assignments.


def test_assignment_without_room_is_rejected_and_not_written(rig: GroupRig) -> None:
    leader, follower = completing(rig)
    limit = rig.environment.member_memory.limit
    before = limit.used_bytes
    limit.bytes_max = (before + 3_000) // 2  # Half of it is the reserve of known members.
    waiting = rig.sync(follower)
    lead = rig.sync(leader, assignments=((leader, bytes(2_000)), (follower, bytes(2_000))))
    assert lead.code == waiting.code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert rig.log == []
    assert rig.state == "PreparingRebalance"
    rig.rejoin_all([leader, follower])
    fits = rig.sync(leader, assignments=((leader, bytes(2_000)), (follower, bytes(900))))
    assert (fits.code, len(fits.value.assignment)) == (ErrorCode.NONE, 2_000)
    assert limit.used_bytes == before + 2_000


def test_assignment_that_does_not_grow_always_has_room(rig: GroupRig) -> None:
    leader, follower = completing(rig)
    rig.sync(leader, assignments=((leader, bytes(2_000)), (follower, b"")))
    rig.environment.member_memory.limit.bytes_max = 0
    rig.join(leader)
    rig.join(follower)
    assert rig.state == "CompletingRebalance"
    moved = rig.sync(leader, assignments=((leader, bytes(900)), (follower, bytes(2_000))))
    assert moved.code == ErrorCode.NONE
