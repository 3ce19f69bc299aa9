"""ClassicRebalance: the join and the sync phase of a classic group, and everything that time does to it.

Kafka's DelayedJoin, InitialDelayedJoin, DelayedSync and DelayedHeartbeat are deadlines here; `tick` looks at them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kproc.broker.group.classic_state import ClassicState
from kproc.broker.group.member import NEVER_MS, Member
from kproc.broker.group.messages import SyncResult
from kproc.broker.group.state import GroupState
from kproc.common.bounded import short_name
from kproc.common.errors import ErrorCode

logger = logging.getLogger(__name__)

_CAN_REBALANCE = frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE})
_ASSIGNED = frozenset({GroupState.COMPLETING_REBALANCE, GroupState.STABLE})
# Delay before the record of an empty group is written again after a failed write.
_REWRITE_MS: Final = 1_000


class ClassicRebalance:
    """The part of a ClassicGroup that rebalances it."""

    __slots__ = (
        "_has_newcomer", "_initial_delay_ms", "_initial_rest_ms", "_is_initial", "_join_deadline_ms",
        "_pending_sync", "_rewrite_ms", "_state", "_sync_deadline_ms", "_until_empty_is_written",
    )  # fmt: skip

    def __init__(self, state: ClassicState) -> None:
        self._state = state
        self._join_deadline_ms = self._sync_deadline_ms = NEVER_MS
        # The join phase began in Empty: it lasts for the initial delay, whoever has joined (KIP-134).
        self._is_initial = False
        self._initial_delay_ms = 0  # the present one, and
        self._initial_rest_ms = 0  # how much longer it may become
        self._has_newcomer = False  # somebody came during the present delay
        # Members that have not sent their SyncGroup in this generation; empty in a join phase.
        self._pending_sync: set[str] = set()
        # Leave requests to be answered when the empty group is written.
        self._until_empty_is_written: list[Callable[[int], None]] = []
        self._rewrite_ms = NEVER_MS  # When an empty group that could not be written is written again.

    # What requests tell it.

    def note_newcomer(self) -> None:
        """A member that was not in the group joins."""
        self._has_newcomer = True

    def write_synced_mark(self, member_id: str) -> None:
        """A member has sent its SyncGroup."""
        self._pending_sync.discard(member_id)

    def note_renamed(self, old_id: str, member_id: str) -> None:
        """A static member that came back has another id."""
        if old_id in self._pending_sync:
            self._pending_sync.remove(old_id)
            self._pending_sync.add(member_id)

    def await_empty(self, answer: Callable[[int], None]) -> None:
        """If the group becomes empty, answer when that is written."""
        self._until_empty_is_written.append(answer)

    def withdraw(self, answer: Callable[[int], None]) -> bool:
        """The group did not become empty: whether the answer still waits, which it does no more."""
        if answer not in self._until_empty_is_written:
            return False
        self._until_empty_is_written.remove(answer)
        return True

    def stop(self) -> None:
        """The group is dead: nothing will be due."""
        self._state.wake_ms = self._join_deadline_ms = self._sync_deadline_ms = self._rewrite_ms = NEVER_MS

    # Join phase.

    def rebalance_or_complete_join(self, now_ms: int, reason: str) -> None:
        """Begin a rebalance after a member joined or left, or complete the join phase if no member is missing."""
        if self._state.current in _CAN_REBALANCE:
            self.prepare(now_ms, reason)
        else:
            self.maybe_complete_join(now_ms)

    def prepare(self, now_ms: int, reason: str) -> None:
        """Begin a rebalance: members are awaited, unless nobody is missing."""
        state = self._state
        if state.current is GroupState.COMPLETING_REBALANCE:
            self.fail_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._pending_sync.clear()
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
        if not delay_ms:
            self._complete_join(now_ms)
            return
        self._initial_delay_ms = delay_ms
        self._initial_rest_ms = max(state.roster.rebalance_timeout_ms - delay_ms, 0)
        self._join_deadline_ms = state.wake_by(now_ms + delay_ms)

    def _end_join_phase(self, now_ms: int) -> None:
        """The join phase's time is up. The initial one goes on while members come, up to the rebalance timeout."""
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
        """End the join phase if nobody is missing; the initial one lasts its time."""
        state = self._state
        if (
            state.current is GroupState.PREPARING_REBALANCE
            and not self._is_initial
            and state.roster.all_joined
        ):
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Everybody has joined or their time is up: the next generation begins with those who are there."""
        state = self._state
        self._join_deadline_ms = NEVER_MS
        roster = state.roster
        for member in [each for each in roster.members.values() if each.join_reply is None]:
            # A static member may be on its way back: its place is kept until its session ends, or until it does
            # not sync.
            if member.group_instance_id is None:
                state.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if roster.members and not roster.elect_joined_leader():
            # Only static members, and none came: nobody could assign. Wait for their sessions to end.
            self._join_deadline_ms = state.wake_by(now_ms + roster.rebalance_timeout_ms)
            return
        state.generation += 1
        if roster.members:
            state.protocol_name = roster.select_protocol()
            state.learn_topics()
            state.enter(GroupState.COMPLETING_REBALANCE)
            self._answer_joins(now_ms)
        else:
            state.protocol_name = None
            state.learn_topics()
            state.enter(GroupState.EMPTY)
            self._write_empty(now_ms)

    def _answer_joins(self, now_ms: int) -> None:
        state = self._state
        self._pending_sync = set(state.roster.members)
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
        """No assignment in this generation: everybody's is void, and those who wait join again."""
        state = self._state
        for member in list(state.roster.members.values()):
            member.assignment = b""
            if state.answer_sync(member, SyncResult(code)):
                state.renew(member, now_ms)

    def _end_sync_phase(self, now_ms: int) -> None:
        """Members that joined but did not sync in time leave, static ones too; the others rebalance.

        Nobody is late if all have synced: then the deadline has no meaning any more.
        """
        state = self._state
        self._sync_deadline_ms = NEVER_MS
        late, self._pending_sync = self._pending_sync, set()
        for member_id in late:
            state.remove(state.roster.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        if late and state.current in _ASSIGNED:
            self.prepare(now_ms, f"no SyncGroup of {len(late)} members in time")

    # Members that go.

    def _end_session(self, member: Member, now_ms: int) -> None:
        state = self._state
        if member.is_waiting:
            # What it waits for has a deadline, and its answer begins the session anew.
            member.deadline_ms = NEVER_MS
            return
        state.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        reason = f"the session of {member.member_id} ended"
        if state.current in _ASSIGNED:
            self.prepare(now_ms, reason)
        else:
            self._complete_join_without_the_missing(now_ms)

    def _complete_join_without_the_missing(self, now_ms: int) -> None:
        state = self._state
        # As in Kafka even in the initial delay: who was waited for is not coming.
        if state.current is GroupState.PREPARING_REBALANCE and state.roster.all_joined:
            self._complete_join(now_ms)

    # Time.

    def next_deadline_ms(self) -> int | None:
        """When to call `tick` at the latest; O(1). May lie before the real deadline (a tick then only moves it) and
        never after it. Heartbeats never bring it forward: ask again after join, sync, leave, tick and on_written."""
        state = self._state
        return None if state.wake_ms == NEVER_MS else state.wake_ms

    def tick(self, now_ms: int) -> None:
        """Do what is due, in the order in which it became due."""
        state = self._state
        if now_ms < state.wake_ms:
            return
        roster = state.roster
        due = [(member.deadline_ms, member.member_id) for member in roster.members.values()]
        due += [(deadline_ms, member_id) for member_id, deadline_ms in roster.pending.items()]
        due = sorted(entry for entry in due if entry[0] <= now_ms)
        for deadline_ms, member_id in due:
            # A phase whose time was up first ends first: whoever it removes has no session left to end.
            self._end_phase(min(deadline_ms, now_ms), now_ms)
            member = roster.members.get(member_id)
            if member is not None and member.deadline_ms <= now_ms:
                self._end_session(member, now_ms)
            elif roster.pending.get(member_id, NEVER_MS) <= now_ms:
                del roster.pending[member_id]
                self._complete_join_without_the_missing(now_ms)
        self._end_phase(now_ms, now_ms)
        state.wake_ms = min(
            self._join_deadline_ms,
            self._sync_deadline_ms,
            self._rewrite_ms,
            min((member.deadline_ms for member in roster.members.values()), default=NEVER_MS),
            min(roster.pending.values(), default=NEVER_MS),
        )

    def _end_phase(self, up_to_ms: int, now_ms: int) -> None:
        if self._join_deadline_ms <= up_to_ms:
            self._end_join_phase(now_ms)
        if self._sync_deadline_ms <= up_to_ms:
            self._end_sync_phase(now_ms)
        if self._rewrite_ms <= up_to_ms:
            self._write_empty(now_ms)
