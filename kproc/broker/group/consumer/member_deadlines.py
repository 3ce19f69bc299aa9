"""MemberDeadlines: when the sessions and rebalance timeouts of a consumer group's members end, and its next assignment.

A heartbeat only moves the member's own deadline, because a group of 10,000 members gets 2,000 heartbeats a second. The
entry in the heap stays where it was. `pop_due` finds it, compares it with the member, and puts it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kproc.broker.group.consumer.state import ConsumerMember
from kproc.common.deadlines import NEVER, Deadlines

if TYPE_CHECKING:
    from kproc.broker.group.consumer.environment import ConsumerEnvironment

TRY_AGAIN_MS: Final = 1_000
"""Time until tombstones, or a target assignment, that could not be written are written again."""
# The name of the deadline at which the next target assignment may be computed. The other deadlines have the ids of
# members, which clients choose, but which are never empty.
_ASSIGNMENT: Final = ""


class MemberDeadlines:
    """The deadlines of one consumer group."""

    __slots__ = ("_deadlines", "_environment", "_group_id")

    def __init__(self, group_id: str, environment: ConsumerEnvironment) -> None:
        self._group_id = group_id
        self._environment = environment
        self._deadlines: Deadlines[str] = Deadlines()

    @property
    def first_ms(self) -> int | None:
        """The earliest deadline in ms, or None."""
        return None if self._deadlines.first == NEVER else self._deadlines.first

    def renew_session(self, member: ConsumerMember, now_ms: int) -> None:
        """Restart the session of a member, because it has sent a request."""
        timeout_ms = self._environment.session_timeout_ms(self._group_id)
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        member.session_deadline_ms = now_ms + timeout_ms
        self._deadlines.bring_forward(member.member_id, member.session_deadline_ms)

    def start_rebalance_timeout(self, member: ConsumerMember, now_ms: int) -> None:
        """Remove the member unless it makes its next step of a rebalance within its rebalance timeout."""
        if member.rebalance_deadline_ms is None and member.metadata is not None:
            member.rebalance_deadline_ms = now_ms + member.metadata.rebalance_timeout_ms
            self._deadlines.bring_forward(member.member_id, member.rebalance_deadline_ms)

    def discard(self, member_id: str) -> None:
        """Discard the deadlines of a member that has left."""
        self._deadlines.discard(member_id)

    def schedule_assignment(self, due_ms: int) -> None:
        """Compute the target assignment at `due_ms` at the latest."""
        self._deadlines.bring_forward(_ASSIGNMENT, due_ms)

    def discard_assignment(self) -> None:
        """Discard the deadline of the target assignment, because it is computed now."""
        self._deadlines.discard(_ASSIGNMENT)

    def pop_due(
        self, members: Mapping[str, ConsumerMember], now_ms: int, limit: int
    ) -> tuple[list[ConsumerMember], bool]:
        """Return up to `limit` members whose session or rebalance timeout is over, and if the assignment is due."""
        expired: list[ConsumerMember] = []
        is_assignment_due = False
        for name in self._deadlines.pop_due(now_ms, limit):
            is_assignment_due |= name == _ASSIGNMENT
            member = members.get(name)
            if member is None:
                continue  # The deadline of the assignment, or of a member that has left.
            # Heartbeats only change the member's deadline, so the entry may be an old one.
            due_ms = member.session_deadline_ms
            if member.rebalance_deadline_ms is not None:
                due_ms = min(due_ms, member.rebalance_deadline_ms)
            if due_ms <= now_ms:
                expired.append(member)
                due_ms = now_ms + TRY_AGAIN_MS  # The write of its tombstones can fail.
            self._deadlines.bring_forward(name, due_ms)
        return expired, is_assignment_due
