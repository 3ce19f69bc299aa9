"""Groups in the states PreparingRebalance and CompletingRebalance."""

from __future__ import annotations

from tests.support.group_rig import INITIAL_DELAY_MS, GroupRig


def completing(rig: GroupRig, count: int = 2) -> list[str]:
    """A group in its first sync phase; the leader's id first."""
    joins = [rig.join() for _ in range(count)]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    assert rig.state == "CompletingRebalance"
    return [join.value.member_id for join in joins]


def preparing(rig: GroupRig) -> list[str]:
    """A group of two in the join phase of its second generation."""
    members = rig.make_stable()
    rig.join()
    assert rig.state == "PreparingRebalance"
    return members
