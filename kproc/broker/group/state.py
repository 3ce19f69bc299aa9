"""The states of a classic group, as data.

         first member joins (initial delay)
Empty ----------------------------------------> PreparingRebalance <---------------+
  ^                                               |            |  ^                |
  |  nobody is left: generation + 1, written      |            |  |  a join, a     |  a new member, a leave,
  +-----------------------------------------------+            |  |  leave, a      |  an ended session, the
                                                               |  |  failed write  |  leader's join
                          all have joined, or time is up:      |  |                |
                          generation + 1, joins are answered   v  |                |
                                                    CompletingRebalance --------> Stable
                                                                leader's assignment
                                                                written: syncs are answered

Dead: deleted, or another Handler coordinates the group. Reached from any state, and final.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class GroupState(Enum):
    """Values are the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# State -> the states it may follow.
PREVIOUS: Final = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {
        GroupState.EMPTY,
        GroupState.COMPLETING_REBALANCE,
        GroupState.STABLE,
    },
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}
