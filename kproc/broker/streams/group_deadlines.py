"""GroupDeadlines: when sessions and rebalance timeouts of a streams group end, and when its next assignment is due.

All times are in ms of the coordinator's clock. They are in memory only: sessions start again when a group is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kproc.broker.streams.reconciliation import StreamsMemberPhase
from kproc.broker.streams.state import StreamsGroupMember
from kproc.common.deadlines import NEVER, Deadlines

TRY_AGAIN_MS: Final = 1_000
# Members that one tick removes, as in consumer groups: their tombstones and the epoch are surely in one batch.
REMOVED_AT_ONCE: Final = 200
# The name of the deadline at which the next target assignment may be computed. The other deadlines have the ids of
# members, which clients choose, but which are never empty.
_ASSIGNMENT: Final = ""


class GroupDeadlines:
    """The deadlines of one group."""

    __slots__ = ("_deadlines",)

    def __init__(self) -> None:
        self._deadlines: Deadlines[str] = Deadlines()

    @property
    def next_ms(self) -> int | None:
        """The time at which `pop_expired` must be called at the latest, or None."""
        return None if self._deadlines.first == NEVER else self._deadlines.first

    def renew_session(self, member: StreamsGroupMember, now_ms: int, timeout_ms: int) -> None:
        """Restart the session of a member, because it has sent a heartbeat."""
        member.session_deadline_ms = now_ms + timeout_ms
        self._deadlines.bring_forward(member.member_id, member.session_deadline_ms)

    def start_rebalance_timeout(self, member: StreamsGroupMember, now_ms: int) -> None:
        """Remove the member unless it gives up its tasks within its rebalance timeout."""
        member.rebalance_deadline_ms = None
        if member.state.phase is StreamsMemberPhase.UNREVOKED and member.metadata is not None:
            member.rebalance_deadline_ms = now_ms + member.metadata.rebalance_timeout_ms
            self._deadlines.bring_forward(member.member_id, member.rebalance_deadline_ms)

    def discard_member(self, member_id: str) -> None:
        """Remove the deadlines of a member that has left."""
        self._deadlines.discard(member_id)

    def assign_at(self, at_ms: int) -> None:
        """Let the next target assignment be computed at `at_ms` at the latest."""
        self._deadlines.bring_forward(_ASSIGNMENT, at_ms)

    def discard_assignment(self) -> None:
        """Remove the time of the next target assignment, because it is computed now."""
        self._deadlines.discard(_ASSIGNMENT)

    def pop_expired(self, members: Mapping[str, StreamsGroupMember], now_ms: int) -> list[StreamsGroupMember]:
        """Return the members to remove now: those whose session or rebalance timeout has ended."""
        expired = []
        for name in self._deadlines.pop_due(now_ms, REMOVED_AT_ONCE):
            member = members.get(name)
            if member is None:
                continue  # The deadline of the assignment, or of a member that has left.
            # Heartbeats only change the member's own deadline, so this entry can be older.
            due_ms = member.session_deadline_ms
            if member.rebalance_deadline_ms is not None:
                due_ms = min(due_ms, member.rebalance_deadline_ms)
            if due_ms <= now_ms:
                expired.append(member)
                due_ms = now_ms + TRY_AGAIN_MS  # The write of its tombstones can fail.
            self._deadlines.bring_forward(name, due_ms)
        return expired
