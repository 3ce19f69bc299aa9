"""ClassicGroup: one group of Kafka's classic protocol (JoinGroup, SyncGroup), as Kafka 4's coordinator behaves.

No I/O, no clock, no thread: time comes with each call, records go out through `GroupEnvironment.persist`, answers
through the replies. Read `state.py` first, then what a group is made of: `roster.py`, `classic_state.py` which the
parts share, `classic_rebalance.py`, `classic_join.py`, `classic_sync.py`; the other requests are here.

Differs from Kafka in what its own clients cannot tell. A waiting request that a later one of the same member replaces
is answered (Kafka forgets it): a join COORDINATOR_NOT_AVAILABLE, a sync REBALANCE_IN_PROGRESS. A member that is
removed while its SyncGroup waits gets UNKNOWN_MEMBER_ID (likewise). A static member may return to a full group, a
leader's repeated SyncGroup waits for the first one's write, a member that leaves before its second join step disturbs
nobody, and any request that is answered well begins the session anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kproc.broker.group.classic_join import ClassicJoin, join_refusal
from kproc.broker.group.classic_rebalance import ClassicRebalance
from kproc.broker.group.classic_state import GROUP_TYPE, ClassicState, GroupEnvironment
from kproc.broker.group.classic_sync import ClassicSync
from kproc.broker.group.member import Member
from kproc.broker.group.messages import (
    UNKNOWN_MEMBER_ID,
    DescribedGroup,
    GroupOverview,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveResult,
    LeavingMember,
    LeftMember,
    SyncReply,
    SyncRequest,
    SyncResult,
    join_failed,
)
from kproc.broker.group.snapshot import GroupSnapshot
from kproc.broker.group.state import GroupState
from kproc.common.errors import ErrorCode

__all__ = ["ClassicGroup", "GroupEnvironment", "join_refusal"]


class ClassicGroup:
    """One group, owned by the coordinator of its `__consumer_offsets` partition.

    Every `reply` is called exactly once, now or later, from whatever call made it possible; it must not call the
    group. The object ends with `resign` or `kill`.
    """

    group_type: Final = GROUP_TYPE

    __slots__ = ("_join", "_member_of", "_rebalance", "_sync", "group_id", "roster", "state")

    def __init__(self, group_id: str, environment: GroupEnvironment) -> None:
        self.group_id = group_id
        self.state = state = ClassicState(group_id, environment)
        self.roster, self._member_of = state.roster, state.roster.members.get
        self._rebalance = rebalance = ClassicRebalance(state)
        self._join = ClassicJoin(state, rebalance)
        self._sync = ClassicSync(state, rebalance)

    @classmethod
    def restore(cls, snapshot: GroupSnapshot, environment: GroupEnvironment, now_ms: int) -> ClassicGroup:
        """The group that a predecessor persisted, each member with a fresh session timeout."""
        group = cls(snapshot.group_id, environment)
        state, roster = group.state, group.roster
        state.generation = snapshot.generation
        state.current_state_timestamp_ms = snapshot.current_state_timestamp_ms
        roster.protocol_type = snapshot.protocol_type or None
        state.protocol_name = snapshot.protocol_name
        # Members without a protocol are not what a coordinator writes; none could rejoin such a group.
        if snapshot.protocol_name is not None and snapshot.protocol_type:
            for each in snapshot.members:
                member = Member.from_snapshot(each, snapshot.protocol_name)
                roster.add(member)
                state.renew(member, now_ms)
        if snapshot.leader in roster.members:
            roster.leader = snapshot.leader
        state.learn_topics()
        if roster.members:
            state.current = GroupState.STABLE
        if len(roster) > environment.config.group_max_size:
            # The last ones to rejoin will be turned away; until then all may commit.
            group._rebalance.prepare(now_ms, f"{len(roster)} members are more than group.max.size")
        return group

    # JoinGroup, SyncGroup and time: what the parts do.

    def join(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        """JoinGroup; answered when the rebalance's join phase ends (or at once)."""
        self._join.join(request, now_ms, reply)

    def sync(self, request: SyncRequest, now_ms: int, reply: SyncReply) -> None:
        """SyncGroup; answered when the leader's assignment is written (or at once)."""
        self._sync.sync(request, now_ms, reply)

    def next_deadline_ms(self) -> int | None:
        """When to call `tick` at the latest; O(1). May lie before the real deadline (a tick then only moves it) and
        never after it. Heartbeats never bring it forward: ask again after join, sync, leave, tick and on_written."""
        return self._rebalance.next_deadline_ms()

    def tick(self, now_ms: int) -> None:
        """Do what is due, in the order in which it became due."""
        self._rebalance.tick(now_ms)

    # Heartbeat and OffsetCommit.

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation: int, now_ms: int) -> int:
        """Heartbeat: NONE, REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID..."""
        member = self._member_of(member_id)
        # The hot path: who is known is who it says it is if the instance ids agree.
        if member is None or (
            group_instance_id is not None and group_instance_id != member.group_instance_id
        ):
            if self.state.current is GroupState.DEAD:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            return self.roster.refusal(member_id, group_instance_id)
        if generation != self.state.generation:
            return ErrorCode.ILLEGAL_GENERATION
        # Earlier than before if the session's timeout shrank or a first join's longer one runs: `wake_by` is not
        # needed, because what made it so has called it (`renew` when the join was answered).
        member.deadline_ms = now_ms + member.session_timeout_ms
        if self.state.current is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def can_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
        now_ms: int,
        *,
        is_transactional: bool = False,
    ) -> int:
        """May these offsets be committed? Counts as a heartbeat of the member if they may.

        Without generation, member and instance it is an admin client or a consumer that assigns itself: only while
        the group is empty, unless within a transaction (whose old versions name no member).
        """
        state = self.state
        if state.current is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and state.current is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation >= 0 or member_id or group_instance_id is not None:
            refusal = self.roster.refusal(member_id, group_instance_id)
            if refusal:
                return refusal
            if generation != state.generation:
                return ErrorCode.ILLEGAL_GENERATION
        elif not is_transactional and state.current is not GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transactional and state.current is GroupState.COMPLETING_REBALANCE:
            # It knows of the new generation, but not yet what is its.
            return ErrorCode.REBALANCE_IN_PROGRESS
        member = self._member_of(member_id)
        if member is not None:
            state.renew(member, now_ms)
        return ErrorCode.NONE

    # LeaveGroup.

    def leave(self, members: Sequence[LeavingMember], now_ms: int, reply: LeaveReply) -> None:
        """LeaveGroup, one or many; answered at once, or after the write if the group became Empty by it."""
        state = self.state
        if state.current is GroupState.DEAD:
            reply(LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        left = tuple(
            LeftMember(each.member_id, each.group_instance_id, self._leave(each)) for each in members
        )

        def answer(code: int) -> None:
            reply(LeaveResult(code, () if code else left))

        # Before the rebalance, which may find the group empty, and answers then when that is written.
        self._rebalance.await_empty(answer)
        gone_count = sum(each.error_code == ErrorCode.NONE for each in left)
        # As in Kafka those count, too, that had not joined yet.
        if gone_count and state.current in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._rebalance.prepare(now_ms, f"{gone_count} members left")
        else:
            self._rebalance.maybe_complete_join(now_ms)
        if self._rebalance.withdraw(answer):
            answer(ErrorCode.NONE)

    def discard_pending(self, member_id: str, now_ms: int) -> None:
        """Discard a member id that was returned to a client and never used, because there are too many of them."""
        if self.roster.pending.pop(member_id, None) is not None:
            self._rebalance.maybe_complete_join(now_ms)

    def _leave(self, leaving: LeavingMember) -> ErrorCode:
        roster = self.roster
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER_ID:
            # An administrator removes a static member by its instance id (KIP-345).
            known_id = roster.static_ids.get(leaving.group_instance_id or "")
            if leaving.group_instance_id is None or known_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = known_id
        elif member_id in roster.pending:
            del roster.pending[member_id]
            return ErrorCode.NONE
        else:
            refusal = roster.refusal(member_id, leaving.group_instance_id)
            if refusal:
                return refusal
        self.state.remove(roster.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode.NONE

    # The end.

    def resign(self) -> None:
        """The group has another owner: answer all that wait with NOT_COORDINATOR. The object is dead afterwards."""
        self._die(ErrorCode.NOT_COORDINATOR)
        self.state.fail_writes(ErrorCode.NOT_COORDINATOR)

    def kill(self) -> None:
        """The group was deleted or its offsets expired: Dead. What waits is answered COORDINATOR_NOT_AVAILABLE, save
        for a leave whose write is on its way: the write will report."""
        self._die(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _die(self, code: ErrorCode) -> None:
        state = self.state
        state.enter(GroupState.DEAD)
        for member in list(state.roster.members.values()):
            state.roster.answer_join(member, join_failed(code, member.member_id))
            state.answer_sync(member, SyncResult(code))
            state.roster.remove(member)
        state.roster.pending.clear()
        self._rebalance.stop()

    # What else may be asked of it.

    def delete_refusal(self) -> int:
        """DeleteGroups: NONE, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
        state = self.state
        if state.current is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if state.current is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def offset_delete_refusal(self) -> int:
        """OffsetDelete of the group as a whole: NONE, NON_EMPTY_GROUP (not a consumer group), GROUP_ID_NOT_FOUND."""
        state = self.state
        return (
            ErrorCode.NONE
            if state.is_consumer_group and state.current is not GroupState.DEAD
            else self.delete_refusal()
        )

    def is_subscribed_to(self, topic: str) -> bool:
        """OffsetDelete's GROUP_SUBSCRIBED_TO_TOPIC. If a consumer group's topics are not known it may read any."""
        state = self.state
        if state.subscribed_topics is None:
            return state.is_consumer_group
        return topic in state.subscribed_topics

    def offset_expires_from_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """The wall time from which offsets.retention counts for an offset of `topic`; None: it does not expire now.

        KIP-211: an empty group's since it became empty, a stable consumer group's of topics that it no longer reads
        since the commit, and those of a group that never had members since the commit.
        """
        state = self.state
        if self.is_subscribed_to(topic):
            return None
        if state.roster.protocol_type is None:
            return commit_timestamp_ms
        if state.current is GroupState.EMPTY:
            since_ms = state.current_state_timestamp_ms
            return since_ms if since_ms >= 0 else commit_timestamp_ms
        return commit_timestamp_ms if state.is_consumer_group and state.current is GroupState.STABLE else None

    # Views.

    @property
    def generation(self) -> int:
        """Grows by one with each rebalance."""
        return self.state.generation

    @property
    def state_name(self) -> str:
        """Empty, PreparingRebalance, CompletingRebalance, Stable, Dead."""
        return self.state.current.value

    @property
    def is_empty(self) -> bool:
        """True if the state is Empty. New members may already have a member id with which they will join."""
        return self.state.current is GroupState.EMPTY

    @property
    def has_no_history(self) -> bool:
        """True if the log has no record of the group, so that it may be removed if it has no offsets."""
        return self.state.has_no_history

    def describe(self) -> DescribedGroup:
        """For DescribeGroups."""
        return self.state.describe()

    def overview(self) -> GroupOverview:
        """For ListGroups."""
        return self.state.overview()

    def snapshot(self) -> GroupSnapshot:
        """Return the present state for a write to the log."""
        return self.state.snapshot()
