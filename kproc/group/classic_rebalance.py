"""ClassicRebalance: the join and the sync phase of a classic group, and everything that time does to it.

The second part of ClassicGroup. Kafka's DelayedJoin, InitialDelayedJoin, DelayedSync and DelayedHeartbeat are
deadlines here; `tick` looks at them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kproc.errors import ErrorCode
from kproc.group.classic_state import ClassicState, GroupEnvironment
from kproc.group.member import NEVER_MS, Member
from kproc.group.messages import UNKNOWN_MEMBER_ID, SyncResult, join_failed
from kproc.group.state import GroupState

logger = logging.getLogger(__name__)

_CAN_REBALANCE = frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE})
_ASSIGNED = frozenset({GroupState.COMPLETING_REBALANCE, GroupState.STABLE})


class ClassicRebalance(ClassicState):
    """Rebalances; see ClassicGroup."""

    def __init__(self, group_id: str, environment: GroupEnvironment) -> None:
        super().__init__(group_id, environment)
        # The join phase began in Empty: it lasts for the initial delay, whoever has joined (KIP-134).
        self._is_initial = False
        self._initial_delay_ms = 0  # the present one, and
        self._initial_rest_ms = 0  # how much longer it may become
        self._has_newcomer = False  # somebody came during the present delay
        # The leader's assignment of this generation is being written.
        self._is_assigning = False
        # Leave requests to be answered when the empty group is written.
        self._until_empty_is_written: list[Callable[[int], None]] = []

    # Join phase.

    def _rebalance_or_complete_join(self, now_ms: int, reason: str) -> None:
        """Somebody joined or left: begin a rebalance, or end the join phase of one if nobody is missing."""
        if self.state in _CAN_REBALANCE:
            self._prepare_rebalance(now_ms, reason)
        else:
            self._maybe_complete_join(now_ms)

    def _prepare_rebalance(self, now_ms: int, reason: str) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._fail_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._pending_sync.clear()
        self._sync_deadline_ms = NEVER_MS
        self._is_assigning = False
        self._is_initial = self.state is GroupState.EMPTY
        logger.info(
            "group=%s generation=%d state=%s rebalances: %s",
            self.group_id,
            self.generation,
            self.state.value,
            reason,
        )
        self._enter(GroupState.PREPARING_REBALANCE)
        if self._is_initial:
            self._start_initial_delay(now_ms)
        elif self.roster.all_joined or not self.roster.members:
            self._complete_join(now_ms)
        else:
            self._join_deadline_ms = self._wake_by(now_ms + self.roster.rebalance_timeout_ms)

    def _start_initial_delay(self, now_ms: int) -> None:
        delay_ms = self._environment.config.group_initial_rebalance_delay_ms
        self._has_newcomer = False
        if not delay_ms:
            self._complete_join(now_ms)
            return
        self._initial_delay_ms = delay_ms
        self._initial_rest_ms = max(self.roster.rebalance_timeout_ms - delay_ms, 0)
        self._join_deadline_ms = self._wake_by(now_ms + delay_ms)

    def _end_join_phase(self, now_ms: int) -> None:
        """The join phase's time is up. The initial one goes on while members come, up to the rebalance timeout."""
        if not (self._is_initial and self._has_newcomer and self._initial_rest_ms):
            self._complete_join(now_ms)
            return
        self._has_newcomer = False
        delay_ms = min(self._environment.config.group_initial_rebalance_delay_ms, self._initial_rest_ms)
        self._initial_rest_ms = max(self._initial_rest_ms - self._initial_delay_ms, 0)
        self._initial_delay_ms = delay_ms
        self._join_deadline_ms = self._wake_by(now_ms + delay_ms)

    def _maybe_complete_join(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE and not self._is_initial and self.roster.all_joined:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Everybody has joined or their time is up: the next generation begins with those who are there."""
        self._join_deadline_ms = NEVER_MS
        roster = self.roster
        for member in [each for each in roster.members.values() if each.join_reply is None]:
            # A static member may be on its way back: its place is kept until its session ends, or until it does
            # not sync.
            if member.group_instance_id is None:
                self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if roster.members and not roster.elect_joined_leader():
            # Only static members, and none came: nobody could assign. Wait for their sessions to end.
            self._join_deadline_ms = self._wake_by(now_ms + roster.rebalance_timeout_ms)
            return
        self.generation += 1
        if roster.members:
            self.protocol_name = roster.select_protocol()
            self._learn_topics()
            self._enter(GroupState.COMPLETING_REBALANCE)
            self._answer_joins(now_ms)
        else:
            self.protocol_name = None
            self._learn_topics()
            self._enter(GroupState.EMPTY)
            self._write_empty()

    def _answer_joins(self, now_ms: int) -> None:
        self._pending_sync = set(self.roster.members)
        self._sync_deadline_ms = self._wake_by(now_ms + self.roster.rebalance_timeout_ms)
        for member in list(self.roster.members.values()):
            member.is_new = False
            self._renew(member, now_ms)
            if member.join_reply is not None:
                self.roster.answer_join(member, self._join_result(member, self.roster.leader))

    def _write_empty(self) -> None:
        """If this fails, the generation before comes back after a restart, and its members' sessions end: harmless."""
        waiting, self._until_empty_is_written = self._until_empty_is_written, []

        def then(code: int, now_ms: int) -> None:
            for answer in waiting:
                answer(code)

        self._write(self.snapshot(), then)

    # Sync phase.

    def _fail_syncs(self, code: ErrorCode, now_ms: int) -> None:
        """No assignment in this generation: everybody's is void, and those who wait join again."""
        for member in list(self.roster.members.values()):
            member.assignment = b""
            if self._answer_sync(member, SyncResult(code)):
                self._renew(member, now_ms)

    def _end_sync_phase(self, now_ms: int) -> None:
        """Members that joined but did not sync in time leave, static ones too; the others rebalance.

        Nobody is late if all have synced: then the deadline has no meaning any more.
        """
        self._sync_deadline_ms = NEVER_MS
        late, self._pending_sync = self._pending_sync, set()
        for member_id in late:
            self._remove(self.roster.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        if late and self.state in _ASSIGNED:
            self._prepare_rebalance(now_ms, f"no SyncGroup of {len(late)} members in time")

    # Members that go.

    def _remove(self, member: Member, code: ErrorCode) -> None:
        """Forget a member; a request of it that waits is answered with `code`, upon which a live one joins anew."""
        self.roster.answer_join(member, join_failed(code, UNKNOWN_MEMBER_ID))
        self._answer_sync(member, SyncResult(code))
        self.roster.remove(member)

    def _end_session(self, member: Member, now_ms: int) -> None:
        if member.is_waiting:
            # What it waits for has a deadline, and its answer begins the session anew.
            member.deadline_ms = NEVER_MS
            return
        self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        reason = f"the session of {member.member_id} ended"
        if self.state in _ASSIGNED:
            self._prepare_rebalance(now_ms, reason)
        else:
            self._complete_join_without_the_missing(now_ms)

    def _complete_join_without_the_missing(self, now_ms: int) -> None:
        # As in Kafka even in the initial delay: who was waited for is not coming.
        if self.state is GroupState.PREPARING_REBALANCE and self.roster.all_joined:
            self._complete_join(now_ms)

    # Time.

    def next_deadline_ms(self) -> int | None:
        """When to call `tick` at the latest; O(1). May lie before the real deadline (a tick then only moves it) and
        never after it. Heartbeats never bring it forward: ask again after join, sync, leave, tick and on_written."""
        return None if self._wake_ms == NEVER_MS else self._wake_ms

    def tick(self, now_ms: int) -> None:
        """Do what is due, in the order in which it became due."""
        if now_ms < self._wake_ms:
            return
        roster = self.roster
        due = [(member.deadline_ms, member.member_id) for member in roster.members.values()]
        due += [(deadline_ms, member_id) for member_id, deadline_ms in roster.pending.items()]
        due = sorted(entry for entry in due if entry[0] <= now_ms)
        for deadline_ms, member_id in due:
            self._end_phase(min(deadline_ms, now_ms), now_ms)
            member = roster.members.get(member_id)
            if member is not None and member.deadline_ms <= now_ms:
                self._end_session(member, now_ms)
            elif roster.pending.get(member_id, NEVER_MS) <= now_ms:
                del roster.pending[member_id]
                self._complete_join_without_the_missing(now_ms)
        self._end_phase(now_ms, now_ms)
        self._wake_ms = min(
            self._join_deadline_ms,
            self._sync_deadline_ms,
            min((member.deadline_ms for member in roster.members.values()), default=NEVER_MS),
            min(roster.pending.values(), default=NEVER_MS),
        )

    def _end_phase(self, up_to_ms: int, now_ms: int) -> None:
        if self._join_deadline_ms <= up_to_ms:
            self._end_join_phase(now_ms)
        if self._sync_deadline_ms <= up_to_ms:
            self._end_sync_phase(now_ms)
