"""ClassicRebalance: the join phase and the sync phase of a classic group, and everything that happens at a deadline.

The delayed operations of Kafka's classic groups (DelayedJoin, InitialDelayedJoin, DelayedSync, DelayedHeartbeat) are
deadlines here, and `tick` handles those that have passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Final

from kproc.broker.group.classic.members import NEVER_MS, Member
from kproc.broker.group.classic.state import ClassicState, GroupState
from kproc.broker.group.messages import SyncResult
from kproc.common.bounded import short_name
from kproc.common.errors import ErrorCode

logger = logging.getLogger(__name__)

_CAN_REBALANCE = frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE})
_ASSIGNED = frozenset({GroupState.COMPLETING_REBALANCE, GroupState.STABLE})
# Time in ms until the record of an empty group is written again after a failed write.
_REWRITE_MS: Final = 1_000
# Limit of members that one tick removes. Each takes about 7 us, and all members of a large group can miss the same
# deadline. The tick then leaves the deadline at the present time, and the next duty cycle continues.
_REMOVED_AT_ONCE: Final = 400
# Limit of member ids in one line of the log. The line counts all members.
_NAMED_IN_LOG: Final = 5


class ClassicRebalance:
    """The part of a ClassicGroup that rebalances it."""

    __slots__ = (
        "_expired_ids", "_has_newcomer", "_initial_delay_ms", "_initial_rest_ms", "_is_initial", "_join_deadline_ms",
        "_late_count", "_pending_sync", "_rewrite_ms", "_state", "_sync_deadline_ms", "_until_empty_is_written",
    )  # fmt: skip

    def __init__(self, state: ClassicState) -> None:
        self._state = state
        self._join_deadline_ms = self._sync_deadline_ms = NEVER_MS
        # True if the group was Empty before this join phase. The phase then lasts for the initial delay, even if all
        # members have joined (KIP-134).
        self._is_initial = False
        self._initial_delay_ms = 0  # The present delay.
        self._initial_rest_ms = 0  # The time by which the delay may still be prolonged.
        self._has_newcomer = False  # True if a new member has joined during the present delay.
        # Members that have not sent their SyncGroup in this generation. Empty in a join phase.
        self._pending_sync: set[str] = set()
        self._late_count = 0  # Members that were removed since the deadline of the sync phase.
        # Members that the present tick has removed in the join phase, because their sessions have expired.
        self._expired_ids: list[str] = []
        # LeaveGroup requests that are answered when the record of the empty group is written.
        self._until_empty_is_written: list[Callable[[int], None]] = []
        self._rewrite_ms = NEVER_MS  # The time at which a record that could not be written is written again.

    # Called by the requests.

    def mark_newcomer(self) -> None:
        """Record that a new member joins.

        When the initial delay (KIP-134) of a join phase ends, it is then prolonged.
        """
        self._has_newcomer = True

    def mark_synced(self, member_id: str) -> None:
        """Expect no further SyncGroup of this member in the present generation."""
        self._pending_sync.discard(member_id)

    def rename(self, old_id: str, member_id: str) -> None:
        """Expect the SyncGroup of a static member that has returned under its new member id."""
        if old_id in self._pending_sync:
            self._pending_sync.remove(old_id)
            self._pending_sync.add(member_id)

    def await_empty(self, answer: Callable[[int], None]) -> None:
        """Call `answer` when the record of the empty group is written, if the group becomes empty."""
        self._until_empty_is_written.append(answer)

    def cancel_empty(self, answer: Callable[[int], None]) -> bool:
        """Cancel `await_empty`. Return False if it is too late: the group has become empty, and `answer` is called."""
        if answer not in self._until_empty_is_written:
            return False
        self._until_empty_is_written.remove(answer)
        return True

    def stop(self) -> None:
        """Cancel all deadlines, because the group is dead."""
        self._state.wake_ms = self._join_deadline_ms = self._sync_deadline_ms = self._rewrite_ms = NEVER_MS

    # Join phase.

    def rebalance_or_complete_join(self, now_ms: int, reason: str) -> None:
        """Start a rebalance after a member has joined or left. In a join phase, complete it if no member is missing."""
        if self._state.current in _CAN_REBALANCE:
            self.prepare(now_ms, reason)
        else:
            self.maybe_complete_join(now_ms)

    def prepare(self, now_ms: int, reason: str) -> None:
        """Start a rebalance, and fail waiting SyncGroups. Complete its join phase at once if no member is missing.

        In an Empty group the join phase lasts for the initial delay instead (KIP-134).
        """
        state = self._state
        if state.current is GroupState.COMPLETING_REBALANCE:
            self.fail_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._pending_sync.clear()
        self._late_count = 0
        self._sync_deadline_ms = self._rewrite_ms = NEVER_MS
        self._is_initial = state.current is GroupState.EMPTY
        logger.info(
            "group=%s generation=%d state=%s rebalances: %s",
            short_name(state.group_id),
            state.generation,
            state.current.value,
            reason,
        )
        state.enter(GroupState.PREPARING_REBALANCE)
        if self._is_initial:
            self._start_initial_delay(now_ms)
        elif state.roster.all_joined or not state.roster.members:
            self._complete_join(now_ms)
        else:
            self._join_deadline_ms = state.wake_by(now_ms + state.roster.rebalance_timeout_ms)

    def _start_initial_delay(self, now_ms: int) -> None:
        state = self._state
        delay_ms = state.environment.config.group_initial_rebalance_delay_ms
        self._has_newcomer = False
        # group.initial.rebalance.delay.ms=0 (KIP-134): do not wait for further members, because there may be
        # none.
        if not delay_ms:
            self._complete_join(now_ms)
            return
        self._initial_delay_ms = delay_ms
        # KIP-134: the delay may grow with new members, but all of them together wait no longer than the rebalance
        # timeout.
        self._initial_rest_ms = max(state.roster.rebalance_timeout_ms - delay_ms, 0)
        self._join_deadline_ms = state.wake_by(now_ms + delay_ms)

    def _on_join_deadline(self, now_ms: int) -> None:
        """Complete the join phase, or prolong an initial one while new members come, up to the rebalance timeout."""
        state = self._state
        if not (self._is_initial and self._has_newcomer and self._initial_rest_ms):
            self._complete_join(now_ms)
            return
        self._has_newcomer = False
        delay_ms = min(state.environment.config.group_initial_rebalance_delay_ms, self._initial_rest_ms)
        self._initial_rest_ms = max(self._initial_rest_ms - self._initial_delay_ms, 0)
        self._initial_delay_ms = delay_ms
        self._join_deadline_ms = state.wake_by(now_ms + delay_ms)

    def maybe_complete_join(self, now_ms: int) -> None:
        """Complete the join phase if no member is missing. An initial join phase always lasts until its delay ends."""
        state = self._state
        if (
            state.current is GroupState.PREPARING_REBALANCE
            and not self._is_initial
            and state.roster.all_joined
        ):
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Start the next generation with the members that have joined."""
        state = self._state
        self._join_deadline_ms = NEVER_MS
        self._log_expired()
        roster = state.roster
        # A static member may be restarting (KIP-345). It stays until its session expires, or until it misses the
        # deadline of the sync phase.
        missing = [
            each
            for each in roster.members.values()
            if each.join_reply is None and each.group_instance_id is None
        ]
        for member in missing[:_REMOVED_AT_ONCE]:
            state.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._log_removed([each.member_id for each in missing[:_REMOVED_AT_ONCE]], "no JoinGroup in time")
        if len(missing) > _REMOVED_AT_ONCE:
            self._join_deadline_ms = state.wake_by(now_ms)
            return
        if roster.members and not roster.elect_joined_leader():
            # There are only static members, and none has joined, so nobody could assign. Wait until a session expires.
            self._join_deadline_ms = state.wake_by(now_ms + roster.rebalance_timeout_ms)
            return
        # The new generation fences requests of members that missed the join phase.
        state.generation += 1
        if roster.members:
            state.protocol_name = roster.select_protocol()
            state.update_topics()
            state.enter(GroupState.COMPLETING_REBALANCE)
            self._answer_joins(now_ms)
        else:
            state.protocol_name = None
            state.update_topics()
            state.enter(GroupState.EMPTY)
            self._write_empty(now_ms)

    def _log_expired(self) -> None:
        """Log the members whose sessions have expired in the join phase, before the phase or the tick ends."""
        expired_ids, self._expired_ids = self._expired_ids, []
        self._log_removed(expired_ids, "session expired")

    def _log_removed(self, member_ids: list[str], reason: str) -> None:
        """Log members that were removed in a join phase.

        Their removal starts no rebalance, so `prepare` logs nothing. All members of a large group may miss one
        deadline, so there is one line for all that are removed at once.
        """
        if not member_ids:
            return
        state = self._state
        logger.info(
            "group=%s generation=%d state=%s removed %d members: %s: %s",
            short_name(state.group_id),
            state.generation,
            state.current.value,
            len(member_ids),
            reason,
            ", ".join(member_ids[:_NAMED_IN_LOG]) + (", ..." if len(member_ids) > _NAMED_IN_LOG else ""),
        )

    def _answer_joins(self, now_ms: int) -> None:
        state = self._state
        self._pending_sync = set(state.roster.members)
        # KAFKA-10024 and GroupCoordinator.schedulePendingSync: a leader that dies between its join and its sync must
        # not let the others wait until its session expires.
        self._sync_deadline_ms = state.wake_by(now_ms + state.roster.rebalance_timeout_ms)
        for member in list(state.roster.members.values()):
            member.is_new = False
            state.renew(member, now_ms)
            if member.join_reply is not None:
                state.roster.answer_join(member, state.join_result(member, state.roster.leader))

    def _write_empty(self, now_ms: int) -> None:
        """Write the record of an empty group, then answer the leave requests that made it empty.

        If the write fails, the group is empty all the same and the record is written again later. A restart before that
        would restore the previous generation until its members' sessions expire.
        """
        state = self._state
        waiting, self._until_empty_is_written = self._until_empty_is_written, []
        self._rewrite_ms = NEVER_MS

        def then(code: int, _now_ms: int) -> None:
            for answer in waiting:
                answer(code)

        if not state.write(state.snapshot(), then) and state.current is GroupState.EMPTY:
            self._rewrite_ms = state.wake_by(now_ms + _REWRITE_MS)

    # Sync phase.

    def fail_syncs(self, code: ErrorCode, now_ms: int) -> None:
        """Answer all waiting SyncGroups with `code` and clear the assignments. The clients join again."""
        state = self._state
        for member in list(state.roster.members.values()):
            member.assign(b"")
            if state.answer_sync(member, SyncResult(code)):
                state.renew(member, now_ms)

    def _on_sync_deadline(self, now_ms: int) -> None:
        """Remove the members that have joined but not sent their SyncGroup, static ones too. The others rebalance.

        Do nothing if all have sent it.
        """
        state = self._state
        self._sync_deadline_ms = NEVER_MS
        for member_id in list(islice(self._pending_sync, _REMOVED_AT_ONCE)):
            self._pending_sync.remove(member_id)
            self._late_count += 1
            state.remove(state.roster.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        if self._pending_sync:
            self._sync_deadline_ms = state.wake_by(now_ms)
            return
        late_count, self._late_count = self._late_count, 0
        if late_count and state.current in _ASSIGNED:
            self.prepare(now_ms, f"no SyncGroup of {late_count} members in time")

    # Sessions.

    def _expire_session(self, member: Member, now_ms: int) -> None:
        state = self._state
        if member.is_waiting:
            # The member waits in a join or sync, which has a deadline of its own. The answer restarts the session.
            member.deadline_ms = NEVER_MS
            return
        state.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        reason = f"the session of {member.member_id} expired"
        if state.current in _ASSIGNED:
            self.prepare(now_ms, reason)
        else:
            self._expired_ids.append(member.member_id)
            self._complete_join_without_the_missing(now_ms)

    def _complete_join_without_the_missing(self, now_ms: int) -> None:
        state = self._state
        # As in Kafka, complete even a join phase in its initial delay. The member or client whose deadline has passed
        # does not come any more.
        if state.current is GroupState.PREPARING_REBALANCE and state.roster.all_joined:
            self._complete_join(now_ms)

    # Deadlines.

    def next_deadline_ms(self) -> int | None:
        """Return the time in ms at which `tick` must be called at the latest, or None. See ClassicGroup."""
        state = self._state
        return None if state.wake_ms == NEVER_MS else state.wake_ms

    def tick(self, now_ms: int) -> None:
        """Handle all deadlines up to `now_ms`, in the order of the deadlines."""
        state = self._state
        if now_ms < state.wake_ms:
            return
        roster = state.roster
        due = [(member.deadline_ms, member.member_id) for member in roster.members.values()]
        due += [(deadline_ms, member_id) for member_id, deadline_ms in roster.pending.items()]
        due = sorted(entry for entry in due if entry[0] <= now_ms)
        for deadline_ms, member_id in due[:_REMOVED_AT_ONCE]:
            # A phase with an earlier deadline ends first. The members that it removes have no session any more.
            self._expire_phases(min(deadline_ms, now_ms), now_ms)
            member = roster.members.get(member_id)
            if member is not None and member.deadline_ms <= now_ms:
                self._expire_session(member, now_ms)
            elif roster.pending.get(member_id, NEVER_MS) <= now_ms:
                del roster.pending[member_id]
                self._complete_join_without_the_missing(now_ms)
        self._log_expired()
        if len(due) > _REMOVED_AT_ONCE:
            state.wake_ms = now_ms
            return
        self._expire_phases(now_ms, now_ms)
        state.wake_ms = min(
            self._join_deadline_ms,
            self._sync_deadline_ms,
            self._rewrite_ms,
            min((member.deadline_ms for member in roster.members.values()), default=NEVER_MS),
            min(roster.pending.values(), default=NEVER_MS),
        )

    def _expire_phases(self, up_to_ms: int, now_ms: int) -> None:
        if self._join_deadline_ms <= up_to_ms:
            self._on_join_deadline(now_ms)
        if self._sync_deadline_ms <= up_to_ms:
            self._on_sync_deadline(now_ms)
        if self._rewrite_ms <= up_to_ms:
            self._write_empty(now_ms)
