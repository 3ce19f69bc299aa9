"""ClassicGroup: one group of Kafka's classic protocol (JoinGroup, SyncGroup), as Kafka 4's coordinator behaves.

No I/O, no clock, no thread: time comes with each call, records go out through `GroupEnvironment.persist`, answers
through the replies. Read `state.py` first, then the parts from the bottom: `roster.py`, `classic_state.py`,
`classic_rebalance.py`, `classic_join.py`, and the other requests here.

Differs from Kafka in what its own clients cannot tell. A waiting request that a later one of the same member replaces
is answered (Kafka forgets it): a join COORDINATOR_NOT_AVAILABLE, a sync REBALANCE_IN_PROGRESS. A member that is
removed while its SyncGroup waits gets UNKNOWN_MEMBER_ID (likewise). A static member may return to a full group, a
leader's repeated SyncGroup waits for the first one's write, a member that leaves before its second join step disturbs
nobody, and any request that is answered well begins the session anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from kproc.errors import ErrorCode
from kproc.group.classic_join import ClassicJoin, join_refusal
from kproc.group.classic_state import GroupEnvironment
from kproc.group.member import NEVER_MS, Member
from kproc.group.messages import (
    UNKNOWN_MEMBER_ID,
    LeaveReply,
    LeaveResult,
    LeavingMember,
    LeftMember,
    SyncReply,
    SyncRequest,
    SyncResult,
    join_failed,
)
from kproc.group.snapshot import GroupSnapshot
from kproc.group.state import GroupState

__all__ = ["ClassicGroup", "GroupEnvironment", "join_refusal"]


def _differs(asked: str | None, group_has: str | None) -> bool:
    """Protocol type and name of a SyncGroup v5 are compared if both sides know them (KIP-559)."""
    return asked is not None and group_has is not None and asked != group_has


class ClassicGroup(ClassicJoin):
    """One group, owned by the coordinator of its `__consumer_offsets` partition.

    Every `reply` is called exactly once, now or later, from whatever call made it possible; it must not call the
    group. The object ends with `resign` or `kill`.
    """

    @classmethod
    def restore(cls, snapshot: GroupSnapshot, environment: GroupEnvironment, now_ms: int) -> ClassicGroup:
        """The group that a predecessor persisted, each member with a fresh session timeout."""
        group = cls(snapshot.group_id, environment)
        group.generation = snapshot.generation
        group.current_state_timestamp_ms = snapshot.current_state_timestamp_ms
        group.roster.protocol_type = snapshot.protocol_type or None
        group.protocol_name = snapshot.protocol_name
        # Members without a protocol are not what a coordinator writes; none could rejoin such a group.
        if snapshot.protocol_name is not None and snapshot.protocol_type:
            for each in snapshot.members:
                member = Member.from_snapshot(each, snapshot.protocol_name)
                group.roster.add(member)
                group._renew(member, now_ms)
        if snapshot.leader in group.roster.members:
            group.roster.leader = snapshot.leader
        group._learn_topics()
        if group.roster.members:
            group.state = GroupState.STABLE
        if len(group.roster) > environment.config.group_max_size:
            # The last ones to rejoin will be turned away; until then all may commit.
            group._prepare_rebalance(now_ms, f"{len(group.roster)} members are more than group.max.size")
        return group

    # SyncGroup.

    def sync(self, request: SyncRequest, now_ms: int, reply: SyncReply) -> None:
        """SyncGroup; answered when the leader's assignment is written (or at once)."""
        refusal = self._sync_refusal(request)
        if refusal:
            reply(SyncResult(refusal))
            return
        member = self.roster.members[request.member_id]
        self._pending_sync.discard(member.member_id)
        if self.state is GroupState.STABLE:
            self._renew(member, now_ms)
            reply(self._assigned(member))
            return
        self._answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if self.roster.leader == member.member_id and not self._is_assigning:
            self._assign(dict(request.assignments))

    def _sync_refusal(self, request: SyncRequest) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        refusal = self.roster.refusal(request.member_id, request.group_instance_id)
        if refusal:
            return refusal
        if request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if _differs(request.protocol_type, self.roster.protocol_type) or _differs(
            request.protocol_name, self.protocol_name
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _assigned(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, self.roster.protocol_type, self.protocol_name, member.assignment)

    def _assign(self, assignments: dict[str, bytes]) -> None:
        """Write the leader's assignment, then tell it; a member that it forgot gets an empty one."""
        self._is_assigning = True
        generation = self.generation

        def then(code: int, now_ms: int) -> None:
            if self.state is not GroupState.COMPLETING_REBALANCE or self.generation != generation:
                return  # A rebalance began meanwhile and has answered everybody.
            if code:
                self._fail_syncs(ErrorCode(code), now_ms)
                self._prepare_rebalance(now_ms, "its assignment could not be written")
                return
            self._is_assigning = False
            self._enter(GroupState.STABLE)
            for member in list(self.roster.members.values()):
                member.assignment = assignments.get(member.member_id, b"")
                if self._answer_sync(member, self._assigned(member)):
                    self._renew(member, now_ms)

        self._write(self.snapshot(assignments), then)

    # Heartbeat and OffsetCommit.

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation: int, now_ms: int) -> int:
        """Heartbeat: NONE, REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID..."""
        member = self.roster.members.get(member_id)
        # The hot path: who is known is who it says it is if the instance ids agree.
        if member is None or (
            group_instance_id is not None and group_instance_id != member.group_instance_id
        ):
            if self.state is GroupState.DEAD:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            return self.roster.refusal(member_id, group_instance_id)
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        # Earlier than before if the session's timeout shrank or a first join's longer one runs: `_wake_by` is not
        # needed, because what made it so has called it (`_renew` when the join was answered).
        member.deadline_ms = now_ms + member.session_timeout_ms
        if self.state is GroupState.PREPARING_REBALANCE:
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
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation >= 0 or member_id or group_instance_id is not None:
            refusal = self.roster.refusal(member_id, group_instance_id)
            if refusal:
                return refusal
            if generation != self.generation:
                return ErrorCode.ILLEGAL_GENERATION
        elif not is_transactional and self.state is not GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transactional and self.state is GroupState.COMPLETING_REBALANCE:
            # It knows of the new generation, but not yet what is its.
            return ErrorCode.REBALANCE_IN_PROGRESS
        member = self.roster.members.get(member_id)
        if member is not None:
            self._renew(member, now_ms)
        return ErrorCode.NONE

    # LeaveGroup.

    def leave(self, members: Sequence[LeavingMember], now_ms: int, reply: LeaveReply) -> None:
        """LeaveGroup, one or many; answered at once, or after the write if the group became Empty by it."""
        if self.state is GroupState.DEAD:
            reply(LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        left = tuple(
            LeftMember(each.member_id, each.group_instance_id, self._leave(each)) for each in members
        )

        def answer(code: int) -> None:
            reply(LeaveResult(code, () if code else left))

        self._until_empty_is_written.append(answer)
        gone_count = sum(each.error_code == ErrorCode.NONE for each in left)
        # As in Kafka those count, too, that had not joined yet.
        if gone_count and self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(now_ms, f"{gone_count} members left")
        else:
            self._maybe_complete_join(now_ms)
        if answer in self._until_empty_is_written:
            self._until_empty_is_written.remove(answer)
            answer(ErrorCode.NONE)

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
        self._remove(roster.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode.NONE

    # The end.

    def resign(self) -> None:
        """The group has another owner: answer all that wait with NOT_COORDINATOR. The object is dead afterwards."""
        self._die(ErrorCode.NOT_COORDINATOR)
        writes, self._writes = self._writes, {}
        for then in writes.values():
            then(ErrorCode.NOT_COORDINATOR, 0)

    def kill(self) -> None:
        """The group was deleted or its offsets expired: Dead. What waits is answered COORDINATOR_NOT_AVAILABLE, save
        for a leave whose write is on its way: the write will report."""
        self._die(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _die(self, code: ErrorCode) -> None:
        self._enter(GroupState.DEAD)
        for member in list(self.roster.members.values()):
            self.roster.answer_join(member, join_failed(code, member.member_id))
            self._answer_sync(member, SyncResult(code))
            self.roster.remove(member)
        self.roster.pending.clear()
        self._wake_ms = self._join_deadline_ms = self._sync_deadline_ms = NEVER_MS

    # What else may be asked of it.

    def delete_refusal(self) -> int:
        """DeleteGroups: NONE, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
        if self.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if self.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def offset_delete_refusal(self) -> int:
        """OffsetDelete of the group as a whole: NONE, NON_EMPTY_GROUP (not a consumer group), GROUP_ID_NOT_FOUND."""
        return (
            ErrorCode.NONE
            if self.is_consumer_group and self.state is not GroupState.DEAD
            else self.delete_refusal()
        )

    def is_subscribed_to(self, topic: str) -> bool:
        """OffsetDelete's GROUP_SUBSCRIBED_TO_TOPIC. If a consumer group's topics are not known it may read any."""
        if self.subscribed_topics is None:
            return self.is_consumer_group
        return topic in self.subscribed_topics

    def offset_expires_from_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """The wall time from which offsets.retention counts for an offset of `topic`; None: it does not expire now.

        KIP-211: an empty group's since it became empty, a stable consumer group's of topics that it no longer reads
        since the commit, and those of a group that never had members since the commit.
        """
        if self.is_subscribed_to(topic):
            return None
        if self.roster.protocol_type is None:
            return commit_timestamp_ms
        if self.state is GroupState.EMPTY:
            since_ms = self.current_state_timestamp_ms
            return since_ms if since_ms >= 0 else commit_timestamp_ms
        return commit_timestamp_ms if self.is_consumer_group and self.state is GroupState.STABLE else None
