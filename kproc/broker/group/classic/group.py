"""ClassicGroup: one group of Kafka's classic protocol, with the rules of Kafka 4's GroupMetadataManager.

The group has no I/O, no clock and no thread. The time comes with each call, records leave through
`GroupEnvironment.persist`, and answers through the replies. `state.py` has the diagram of states. JoinGroup and
SyncGroup are in `join.py` and `sync.py`, and what happens at deadlines in `rebalance.py`. This file has the other
requests: Heartbeat, LeaveGroup, and the checks for OffsetCommit, OffsetDelete and DeleteGroups.

Differs from Kafka, without a difference for Kafka's own clients:

- If a member repeats a request while its first one waits, the first one is answered: a join with
  COORDINATOR_NOT_AVAILABLE, a sync with REBALANCE_IN_PROGRESS. Kafka never answers it.
- A member that is removed while its SyncGroup waits gets UNKNOWN_MEMBER_ID. Kafka never answers that request either.
- A static member may return to a full group.
- A leader's repeated SyncGroup waits for the write of the first one.
- A member that leaves between the two steps of its join (KIP-394) causes no rebalance.
- Every request that succeeds restarts the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kproc.broker.coordinator.steps import Work
from kproc.broker.group.classic.join import ClassicJoin
from kproc.broker.group.classic.members import Member
from kproc.broker.group.classic.rebalance import ClassicRebalance
from kproc.broker.group.classic.state import GROUP_TYPE, ClassicState, GroupEnvironment, GroupState
from kproc.broker.group.classic.sync import ClassicSync
from kproc.broker.group.messages import (
    UNKNOWN_MEMBER_ID,
    CommitRequest,
    DescribedGroup,
    JoinReply,
    JoinRequest,
    JoinResult,
    LeaveReply,
    LeaveResult,
    LeavingMember,
    LeftMember,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from kproc.broker.group.records import GroupSnapshot, encode_group_key
from kproc.common.errors import ErrorCode

# Costs of restoring one member, and of removing one from a group that ends, in units of about 1 us (see Steps).
_RESTORE_COST: Final = 8
_REMOVE_COST: Final = 6


class ClassicGroup:
    """One group, owned by the coordinator of its `__consumer_offsets` partition.

    Each `reply` is called exactly once, now or in a later call of any method. A reply must not call the group. The
    group's life ends with `resign` (another Handler coordinates it now), `kill` (it was deleted) or `dissolve` (it has
    become a consumer group).
    """

    group_type: Final = GROUP_TYPE
    can_expire: Final = True

    __slots__ = ("_join", "_member_of", "_rebalance", "_sync", "group_id", "roster", "state")

    def __init__(self, group_id: str, environment: GroupEnvironment) -> None:
        self.group_id = group_id
        self.state = state = ClassicState(group_id, environment)
        self.roster, self._member_of = state.roster, state.roster.members.get
        self._rebalance = rebalance = ClassicRebalance(state)
        self._join = ClassicJoin(state, rebalance)
        self._sync = ClassicSync(state, rebalance)

    def restore(self, snapshot: GroupSnapshot) -> Work:
        """Restore a new group from its record in the log. The caller must call `start_sessions` afterwards."""
        state, roster = self.state, self.roster
        if snapshot.protocol_type:
            state.hold_memory()
        state.generation = snapshot.generation
        state.current_state_timestamp_ms = snapshot.current_state_timestamp_ms
        roster.protocol_type = snapshot.protocol_type or None
        state.protocol_name = snapshot.protocol_name
        # Ignore members without a protocol. No coordinator writes such a record, and no member could rejoin the group.
        if snapshot.protocol_name is not None and snapshot.protocol_type:
            for each in snapshot.members:
                member = Member.from_snapshot(each, snapshot.protocol_name)
                member.hold_memory(state.environment.member_memory, state.group_id)
                roster.add(member)
                yield _RESTORE_COST
        if snapshot.leader in roster.members:
            roster.leader = snapshot.leader
        state.update_topics()
        if roster.members:
            state.current = GroupState.STABLE

    def start_sessions(self, now_ms: int) -> None:
        """Start the session of each member of a restored group. Rebalance if there are more than group.max.size."""
        for member in self.roster.members.values():
            self.state.renew(member, now_ms)
        if len(self.roster) > self.state.environment.config.group_max_size:
            # group.max.size was lowered below the number of members. Rebalance: the last members to rejoin are
            # rejected. Until then all of them may commit offsets.
            self._rebalance.prepare(now_ms, f"{len(self.roster)} members are more than group.max.size")

    # JoinGroup, SyncGroup and deadlines, which ClassicJoin, ClassicSync and ClassicRebalance handle.

    def join(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        """Handle a JoinGroup. It is answered at once, or when the join phase of the rebalance ends."""
        self._join.join(request, now_ms, reply)

    def sync(self, request: SyncRequest, now_ms: int, reply: SyncReply) -> None:
        """Handle a SyncGroup. It is answered at once, or when the leader's assignment is written."""
        self._sync.sync(request, now_ms, reply)

    def next_deadline_ms(self) -> int | None:
        """Return the time in ms at which `tick` must be called at the latest, or None.

        It can be earlier than the real deadline; that tick only moves it. Call this again after join, sync, leave, tick
        and a completed write. Heartbeats only move deadlines to a later time.
        """
        return self._rebalance.next_deadline_ms()

    def tick(self, now_ms: int) -> None:
        """Handle all deadlines up to `now_ms`, in the order of the deadlines."""
        self._rebalance.tick(now_ms)

    # Heartbeat and OffsetCommit.

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation: int, now_ms: int) -> int:
        """Handle a Heartbeat. Return NONE, REBALANCE_IN_PROGRESS, or the error for a wrong member or generation."""
        member = self._member_of(member_id)
        # The frequent case is a dynamic member, which needs no look-up of its instance id.
        if member is None or (
            group_instance_id is not None and group_instance_id != member.group_instance_id
        ):
            if self.state.current is GroupState.DEAD:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            return self.roster.refusal(member_id, group_instance_id)
        if generation != self.state.generation:
            return ErrorCode.ILLEGAL_GENERATION
        # The new deadline can be earlier than the old one: a first join has a longer timeout, and a rejoin can shorten
        # the session. `wake_by` is not needed here, because `renew` has called it when that join was answered.
        member.deadline_ms = now_ms + member.session_timeout_ms
        if self.state.current is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def commit_refusal(self, request: CommitRequest, now_ms: int) -> int:
        """Return the error for a commit of offsets, or NONE.

        A commit that is accepted also restarts the member's session. A request without generation, member and instance
        is of an admin client or of a consumer that assigns its own partitions. It may commit only while the group is
        empty, or in a transaction, where old versions name no member.
        """
        member_id, instance_id, generation = request.member_id, request.group_instance_id, request.generation
        is_transactional = request.producer is not None
        state = self.state
        if state.current is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        # A consumer that assigns its own partitions, or a tool, commits without a member, as in
        # GroupMetadata.validateOffsetCommit. If the group has members, such a commit is rejected below.
        if generation < 0 and state.current is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation >= 0 or member_id or instance_id is not None:
            refusal = self.roster.refusal(member_id, instance_id)
            if refusal:
                return refusal
            if generation != state.generation:
                return ErrorCode.ILLEGAL_GENERATION
        elif not is_transactional and state.current is not GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transactional and state.current is GroupState.COMPLETING_REBALANCE:
            # The member knows the new generation, but not its assignment yet.
            return ErrorCode.REBALANCE_IN_PROGRESS
        member = self._member_of(member_id)
        if member is not None:
            state.renew(member, now_ms)
        return ErrorCode.NONE

    # LeaveGroup.

    def leave(self, members: Sequence[LeavingMember], now_ms: int, reply: LeaveReply) -> None:
        """Handle a LeaveGroup of one or several members.

        If the group becomes Empty, the request is answered after the write of the group's record.
        """
        state = self.state
        if state.current is GroupState.DEAD:
            reply(LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        left = tuple(map(self._leave, members))

        def answer(code: int) -> None:
            reply(LeaveResult(code, () if code else left))

        # Register the answer before the rebalance below. If the group is empty, the rebalance writes its record, and
        # this write calls the answer.
        self._rebalance.await_empty(answer)
        gone_count = sum(each.error_code == ErrorCode.NONE for each in left)
        # As in Kafka, a removed member id with which no client had joined counts as a member that left, too.
        if gone_count and state.current in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._rebalance.prepare(
                now_ms, "1 member left" if gone_count == 1 else f"{gone_count} members left"
            )
        else:
            self._rebalance.maybe_complete_join(now_ms)
        if self._rebalance.cancel_empty(answer):
            answer(ErrorCode.NONE)

    def discard_pending(self, member_id: str, now_ms: int) -> None:
        """Discard a member id that was returned to a client and never used, because there are too many of them.

        Complete the join phase if it waited only for this client.
        """
        if self.roster.pending.pop(member_id, None) is not None:
            self._rebalance.maybe_complete_join(now_ms)

    def _leave(self, leaving: LeavingMember) -> LeftMember:
        roster = self.roster
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if member_id == UNKNOWN_MEMBER_ID:
            # An administrator removes a static member by its instance id (KIP-345).
            known_id = roster.static_ids.get(instance_id or "")
            if instance_id is None or known_id is None:
                return LeftMember(member_id, instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
            member_id = known_id
        # KIP-394: a client that got this member id and has not joined with it is no member. Only discard the id.
        elif member_id in roster.pending:
            del roster.pending[member_id]
            return LeftMember(member_id, instance_id, ErrorCode.NONE)
        else:
            refusal = roster.refusal(member_id, instance_id)
            if refusal:
                return LeftMember(member_id, instance_id, refusal)
        member = roster.members[member_id]
        self.state.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        return LeftMember(
            leaving.member_id, instance_id, ErrorCode.NONE, member.client_id, member.client_host
        )

    # Methods that end the group, because another Handler coordinates it, or because it was deleted.

    def record_keys(self) -> list[bytes]:
        """Return the encoded keys of all records of the group."""
        return [encode_group_key(self.group_id)]

    def resign(self) -> Work:
        """Answer all waiting requests with NOT_COORDINATOR, because another Handler coordinates the group now."""
        yield from self._die(ErrorCode.NOT_COORDINATOR)
        self.state.fail_writes(ErrorCode.NOT_COORDINATOR)

    def kill(self) -> None:
        """End a group that was deleted. Waiting requests get COORDINATOR_NOT_AVAILABLE, because they may retry.

        A LeaveGroup that waits for the write of the empty group is answered by that write.
        """
        for _ in self._die(ErrorCode.COORDINATOR_NOT_AVAILABLE):
            pass  # Only a group without members is deleted.

    def dissolve(self) -> None:
        """End a group that has become a consumer group. Waiting members get REBALANCE_IN_PROGRESS and join again."""
        for _ in self._die(ErrorCode.REBALANCE_IN_PROGRESS):
            pass

    def rebalance(self, now_ms: int, reason: str) -> None:
        """Begin a rebalance of a stable group."""
        self._rebalance.prepare(now_ms, reason)

    def _die(self, code: ErrorCode) -> Work:
        state = self.state
        state.enter(GroupState.DEAD)
        state.roster.pending.clear()
        self._rebalance.stop()
        # Remove the oldest member, who usually leads, last. Removing a leader searches the next one past all removed
        # members, which would take quadratic time.
        for member in reversed(list(state.roster.members.values())):
            state.roster.answer_join(member, JoinResult(code, member.member_id))
            state.answer_sync(member, SyncResult(code))
            state.roster.remove(member)
            yield _REMOVE_COST
        state.update_topics()
        state.release_memory()

    # Deletion and expiry of offsets.

    def offset_delete_refusal(self) -> int:
        """Return the error for an OffsetDelete (KIP-496): NONE or NON_EMPTY_GROUP.

        It is NONE for an empty group. If the members are consumers (protocol type `consumer`), it is NONE, too, because
        offsets of topics without subscriptions may be deleted.
        """
        may_delete = self.is_empty or self.state.is_consumer_group
        return ErrorCode.NONE if may_delete else ErrorCode.NON_EMPTY_GROUP

    def is_subscribed_to(self, topic: str) -> bool:
        """Return True if a member subscribes to a topic, or if that is unknown.

        It is unknown for consumers whose subscriptions cannot be read. Members of other protocol types than `consumer`
        subscribe to no topic.
        """
        state = self.state
        if state.subscribed_topics is None:
            return state.is_consumer_group
        return topic in state.subscribed_topics

    def offset_expires_from_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """Return the wall time in ms from which an offset's retention counts (KIP-211). None: it does not expire.

        The offsets of an empty group expire after it became empty. In a stable group of consumers, offsets of topics
        without a subscription expire after their commit. The same holds for offsets of a group that never had members.
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
        """The number of the last rebalance that ended its join phase."""
        return self.state.generation

    @property
    def state_name(self) -> str:
        """The state's name as ListGroups shows it."""
        return self.state.current.value

    @property
    def is_empty(self) -> bool:
        """True if the state is Empty. Clients may already have a member id with which they will join."""
        return self.state.current is GroupState.EMPTY

    @property
    def is_unwritten(self) -> bool:
        """True if the log has no record of the group, so that it may be removed if it has no offsets."""
        return self.state.is_unwritten

    @property
    def member_count(self) -> int:
        return len(self.roster)

    def describe(self) -> DescribedGroup:
        """Return the group for DescribeGroups."""
        return self.state.describe()

    @property
    def protocol_type(self) -> str:
        """The type of the members' protocol, such as consumer or connect. Empty if it had no members yet."""
        return self.roster.protocol_type or ""
