"""GroupSnapshot: groups that are loaded again, and waiters at the end of a coordinator."""

from __future__ import annotations

import msgspec

from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.records import GroupSnapshot
from kproc.common.errors import ErrorCode
from tests.support.group_rig import INITIAL_DELAY_MS, SESSION_MS, GroupRig

# Version, topics, user data: of a version that does not exist, with something after it.
SUBSCRIPTION = (
    b"\x00\x09" + b"\x00\x00\x00\x02" + b"\x00\x01a" + b"\x00\x02bb" + b"\xff\xff\xff\xff" + b"owned"
)
READS_A_AND_BB = (("range", SUBSCRIPTION),)


def reloaded(rig: GroupRig, snapshot: GroupSnapshot | None = None) -> ClassicGroup:
    """The group as a successor has it."""
    rig.restore(snapshot or rig.log[-1])
    return rig.group


# Snapshots.


def test_a_stable_group_comes_back_as_it_was(rig: GroupRig) -> None:
    members = rig.make_stable(3, static=True, protocols=READS_A_AND_BB)
    before = rig.group.describe()
    group = reloaded(rig)
    assert group.describe() == before
    assert group.state.snapshot() == rig.log[-1]
    assert (group.roster.leader, group.generation) == (members[0], 1)
    assert group.state.subscribed_topics == {"a", "bb"}
    for member in members:
        assert rig.heartbeat(member) == ErrorCode.NONE
        assert rig.join(group_instance_id="i2").value.generation == 1
        break


def test_the_leader_stays_the_leader(rig: GroupRig) -> None:
    members = rig.make_stable()
    reloaded(rig, msgspec.structs.replace(rig.log[-1], leader=members[1]))
    assert rig.group.roster.leader == members[1]


def test_loaded_members_have_a_whole_session(rig: GroupRig) -> None:
    members = rig.make_stable()
    snapshot = rig.log[-1]
    rig.clock.advance_ms(100 * SESSION_MS)
    reloaded(rig, snapshot)
    rig.pass_ms(SESSION_MS - 1)
    assert rig.heartbeat(members[1]) == ErrorCode.NONE
    rig.pass_ms(1)
    assert list(rig.group.roster.members) == [members[1]]


def test_an_empty_group_comes_back_empty(rig: GroupRig) -> None:
    rig.leave(*rig.make_stable())
    emptied_ms = rig.group.state.current_state_timestamp_ms
    rig.clock.advance_ms(1_000)
    group = reloaded(rig)
    assert (group.state_name, group.generation) == ("Empty", 2)
    assert group.state.current_state_timestamp_ms == emptied_ms
    assert group.next_deadline_ms() is None
    assert not group.is_unwritten
    assert group.state.snapshot() == rig.log[-1]


def test_only_the_chosen_protocol_comes_back(rig: GroupRig) -> None:
    both = (("range", b"r"), ("sticky", b"s"))
    leader, follower = rig.make_stable(2, protocols=both)
    reloaded(rig)
    rig.join(follower, protocols=both)
    assert rig.state == "PreparingRebalance"
    rig.join(leader, protocols=both)
    assert rig.state == "CompletingRebalance"


def test_a_value_of_version_0_knows_no_rebalance_timeout(rig: GroupRig) -> None:
    rig.make_stable(1)
    (member,) = rig.log[-1].members
    old = msgspec.structs.replace(member, rebalance_timeout_ms=-1)
    group = reloaded(rig, msgspec.structs.replace(rig.log[-1], members=(old,)))
    assert group.roster.rebalance_timeout_ms == SESSION_MS


def test_foreign_records_make_a_working_group(rig: GroupRig) -> None:
    members = rig.make_stable()
    snapshot = rig.log[-1]
    group = reloaded(rig, msgspec.structs.replace(snapshot, leader="gone"))
    assert group.roster.leader == members[0]
    group = reloaded(rig, msgspec.structs.replace(snapshot, protocol_name=None))
    assert (group.state_name, group.generation, len(group.roster)) == ("Empty", 1, 0)


# The two ends.


def test_waiting_joins_of_resigned_group_get_not_coordinator(rig: GroupRig) -> None:
    members = rig.make_stable()
    joins = [rig.join(), rig.join(members[0])]
    list(rig.group.resign())
    assert [join.code for join in joins] == [ErrorCode.NOT_COORDINATOR] * 2
    assert joins[1].value.member_id == members[0]
    assert (rig.state, rig.group.next_deadline_ms()) == ("Dead", None)
    rig.group.tick(rig.now_ms + 1_000_000)


def test_resignation_ends_syncs_that_wait_for_a_write(rig: GroupRig) -> None:
    joins = [rig.join(), rig.join()]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    members = [join.value.member_id for join in joins]
    rig.holds_writes = True
    syncs = [rig.sync(member) for member in members]
    list(rig.group.resign())
    assert [sync.code for sync in syncs] == [ErrorCode.NOT_COORDINATOR] * 2
    rig.write(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # Nobody is told twice.
    assert rig.state == "Dead"


def test_resignation_ends_leave_group_that_waits_for_a_write(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.holds_writes = True
    leave = rig.leave(*members)
    list(rig.group.resign())
    assert (leave.code, leave.value.members) == (ErrorCode.NOT_COORDINATOR, ())
    rig.write()


def test_resignation_ends_static_join_that_waits_for_a_write(rig: GroupRig) -> None:
    rig.make_stable(static=True)
    rig.holds_writes = True
    join = rig.join(group_instance_id="i1")
    list(rig.group.resign())
    assert join.code == ErrorCode.NOT_COORDINATOR
    rig.write(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_deleted_group_lets_its_last_write_report(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.holds_writes = True
    leave = rig.leave(*members)
    rig.group.kill()
    assert leave.is_open
    rig.write()
    assert leave.code == ErrorCode.NONE
