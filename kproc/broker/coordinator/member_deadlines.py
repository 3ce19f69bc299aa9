"""MemberDeadlines: when sessions and rebalance timeouts of a group's members end, and when its next assignment is due.

The groups whose partitions the broker assigns use it: consumer, share and streams groups. All times are in ms of the
coordinator's clock. They are in memory only, and sessions start again when a group is loaded.

A heartbeat only moves the member's own deadline, because a group of 10,000 members gets 2,000 heartbeats a second. The
entry in the heap stays where it was. `pop_due` finds it, compares it with the member, and puts it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from kproc.common.deadlines import NEVER, Deadlines

TRY_AGAIN_MS: Final = 1_000
"""Time until tombstones, or a target assignment, that could not be written are written again."""
UNSETTLED_HEARTBEAT_MS: Final = 500
"""Interval of a member's heartbeats while it waits for partitions or tasks.

1,000 waiting members then send 2,000 heartbeats a second, which take about a fifth of a core.
"""
REMOVED_AT_ONCE: Final = 200
"""Limit of the members of a consumer or streams group that are removed at once.

Their tombstones and the group's next epoch then fit into one batch. If a crash could separate these, no member would
get the free partitions. The limit also keeps a tick within a few ms.
"""
# The name of the deadline at which the next target assignment may be computed. The other deadlines have the ids of
# members, which clients choose, but which are never empty.
_ASSIGNMENT: Final = ""


class TimedMember:
    """A member's id, and its deadlines, which are only in memory."""

    __slots__ = ("member_id", "rebalance_deadline_ms", "session_deadline_ms")

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.session_deadline_ms = 0
        self.rebalance_deadline_ms: int | None = None  # Set while the member has a step of a rebalance to do.


M = TypeVar("M", bound=TimedMember)


class MemberDeadlines(Generic[M]):
    """The deadlines of one group."""

    __slots__ = ("_deadlines",)

    def __init__(self) -> None:
        self._deadlines: Deadlines[str] = Deadlines()

    @property
    def first_ms(self) -> int | None:
        """The earliest deadline in ms, or None."""
        return None if self._deadlines.first == NEVER else self._deadlines.first

    def renew_session(self, member: M, now_ms: int, timeout_ms: int) -> None:
        """Restart the session of a member, because it has sent a request."""
        member.session_deadline_ms = now_ms + timeout_ms
        self._deadlines.bring_forward(member.member_id, member.session_deadline_ms)

    def start_rebalance_timeout(self, member: M, now_ms: int, timeout_ms: int) -> None:
        """Start the timeout of a member's next rebalance step, unless it is running already.

        A member whose timeout ends is in the result of `pop_due`, and the group removes it.
        """
        # A running timeout is not extended. Otherwise a member that sends heartbeats and does not do its step
        # would delay the rebalance for ever.
        if member.rebalance_deadline_ms is None:
            member.rebalance_deadline_ms = now_ms + timeout_ms
            self._deadlines.bring_forward(member.member_id, member.rebalance_deadline_ms)

    def discard(self, member_id: str) -> None:
        """Discard the deadlines of a member that has left."""
        self._deadlines.discard(member_id)

    def schedule_assignment(self, due_ms: int) -> None:
        """Set a deadline: `pop_due` reports the target assignment as due at `due_ms` at the latest."""
        self._deadlines.bring_forward(_ASSIGNMENT, due_ms)

    def discard_assignment(self) -> None:
        """Discard the deadline of the target assignment, because it is computed now."""
        self._deadlines.discard(_ASSIGNMENT)

    def pop_due(self, members: Mapping[str, M], now_ms: int, limit: int) -> tuple[list[M], bool]:
        """Return (members whose session or rebalance timeout is over, True if the target assignment is due).

        limit: the largest number of deadlines that this call examines.
        """
        expired: list[M] = []
        is_assignment_due = False
        for name in self._deadlines.pop_due(now_ms, limit):
            is_assignment_due |= name == _ASSIGNMENT
            member = members.get(name)
            if member is None:
                continue  # The deadline of the assignment, or of a member that has left.
            # A heartbeat changes only the member's deadline, so the entry in the heap can be earlier than the deadline.
            due_ms = member.session_deadline_ms
            if member.rebalance_deadline_ms is not None:
                due_ms = min(due_ms, member.rebalance_deadline_ms)
            if due_ms <= now_ms:
                expired.append(member)
                due_ms = now_ms + TRY_AGAIN_MS  # The write of its tombstones can fail.
            self._deadlines.bring_forward(name, due_ms)
        return expired, is_assignment_due
