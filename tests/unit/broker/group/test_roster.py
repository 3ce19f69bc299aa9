"""Roster: group.max.size."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from tests.support.group_rig import REBALANCE_MS, GroupRig

# group.max.size.


def test_a_new_member_finds_no_room_in_a_full_group(rig: GroupRig) -> None:
    rig.configure(group_max_size=2)
    members = rig.make_stable(2)
    full = rig.join()
    assert (full.code, full.value.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert rig.join(requires_known_member_id=True).code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert rig.state == "Stable"
    assert rig.join(members[1]).code == ErrorCode.NONE


def test_joins_of_the_initial_delay_count(rig: GroupRig) -> None:
    rig.configure(group_max_size=2)
    assert rig.join().is_open
    assert rig.join().is_open
    assert rig.join().code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_member_id_required_reserves_no_place_in_the_group(rig: GroupRig) -> None:
    rig.configure(group_max_size=1)
    told = [rig.join(requires_known_member_id=True).value.member_id for _ in range(2)]
    assert rig.join(told[1]).is_open
    assert rig.join(told[0]).code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert told[0] not in rig.group.roster.pending


def test_last_rejoiners_of_oversized_group_are_removed(rig: GroupRig) -> None:
    members = rig.make_stable(3)
    rig.configure(group_max_size=2)
    joins = rig.rejoin_all(members)
    assert joins[2].code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [join.value.generation for join in joins[:2]] == [2, 2]  # Nobody is missing now.
    assert list(rig.group.roster.members) == members[:2]


def test_waiting_member_may_join_again_in_a_full_group(rig: GroupRig) -> None:
    members = rig.make_stable(2)
    rig.configure(group_max_size=1)
    rig.join(members[0])
    assert rig.join(members[0]).is_open


def test_fenced_member_takes_no_place_in_a_full_group(rig: GroupRig) -> None:
    members = rig.make_stable(2, static=True)
    rig.configure(group_max_size=1)
    rig.join(members[0], protocols=(("range", b"x"),))
    assert rig.join(members[0], group_instance_id="i1").code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert members == list(rig.group.roster.members)


def test_a_static_member_returns_to_a_full_group(rig: GroupRig) -> None:
    rig.configure(group_max_size=2)
    rig.make_stable(2, static=True)
    assert rig.join(group_instance_id="i1").code == ErrorCode.NONE
    assert rig.join(group_instance_id="i2").code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_group_that_is_too_large_when_loaded_rebalances(rig: GroupRig) -> None:
    members = rig.make_stable(3)
    rig.configure(group_max_size=2)
    rig.restore(rig.log[-1])
    assert rig.state == "PreparingRebalance"
    assert rig.can_commit(members[2]) == ErrorCode.NONE  # What the rebalance is for.
    joins = rig.rejoin_all(members)
    assert [join.code for join in joins] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]


def test_or_when_some_do_not_rejoin(rig: GroupRig) -> None:
    members = rig.make_stable(3)
    rig.configure(group_max_size=2)
    rig.restore(rig.log[-1])
    join = rig.join(members[2])
    rig.pass_ms(REBALANCE_MS)
    assert join.value.leader == members[2]
