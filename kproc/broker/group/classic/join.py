"""ClassicJoin: JoinGroup of a classic group. It decides who may join, under which member id, and with which rebalance.

The cases are those of Kafka's GroupMetadataManager.classicGroupJoin: an unknown member (a dynamic one joins in two
steps, KIP-394), a static member that returns (KIP-345, KIP-814), a member that has got its id, and a known member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.coordinator.member_memory import SubscriptionContent, member_bytes
from kproc.broker.group.classic.members import Member, bytes_of
from kproc.broker.group.classic.rebalance import ClassicRebalance
from kproc.broker.group.classic.state import ClassicState, GroupState
from kproc.broker.group.messages import (
    UNKNOWN_MEMBER_ID,
    JoinReply,
    JoinRequest,
    JoinResult,
    SyncResult,
)
from kproc.common.bounded import NAME_MAX, short_name
from kproc.common.errors import ErrorCode
from kproc.wire.primitives import shortened

if TYPE_CHECKING:
    from kproc.broker.config import Config

# Time in ms for the first join of a new member, as in Kafka (GroupCoordinatorConfig), which has no setting for it.
# Until its first answer a dynamic client knows no member id and cannot send heartbeats. Without this limit, a client
# that keeps retrying would leave a member in the group each time.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1_000
# Limit of all protocol names and metadata in a member's join. A batch of `__consumer_offsets` has at most 1 MiB by
# default, and the group's record must fit into one.
PROTOCOL_BYTES_MAX: Final = 1 << 20


def join_refusal(group_id: str, request: JoinRequest, config: Config, *, group_exists: bool) -> ErrorCode:
    """Return the error that a JoinGroup gets whatever the group's members and state are, or NONE.

    INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INVALID_REQUEST or UNKNOWN_MEMBER_ID. Checked before the group is looked
    up, so that a rejected join creates no group.
    """
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    # The client chooses this timeout, and the group waits that long for a member that died. The broker's
    # limits keep it reasonable.
    if not shortest <= request.session_timeout_ms <= longest:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if bytes_of(request.protocols) > PROTOCOL_BYTES_MAX:
        return ErrorCode.INVALID_REQUEST
    # A member id without its group: the group was deleted, or expired. The client joins again without an id.
    if request.member_id != UNKNOWN_MEMBER_ID and not group_exists:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE


class ClassicJoin:
    """The part of a ClassicGroup that answers JoinGroup."""

    __slots__ = ("_rebalance", "_state")

    def __init__(self, state: ClassicState, rebalance: ClassicRebalance) -> None:
        self._state = state
        self._rebalance = rebalance

    def join(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        """Handle a JoinGroup. It is answered at once, or when the join phase of the rebalance ends."""
        state = self._state
        refusal = join_refusal(state.group_id, request, state.environment.config, group_exists=True)
        # The group was deleted between the look-up and this call. COORDINATOR_NOT_AVAILABLE makes the client
        # look again, and then it finds no group or a new one.
        if not refusal and state.current is GroupState.DEAD:
            refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if refusal:
            reply(JoinResult(refusal, request.member_id))
        elif not self._has_room(request):
            reply(JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id))
        elif not self._fits(request):
            self._reject_for_size(request, now_ms)
            reply(JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID))
        elif not state.roster.supports(request.protocol_type, request.protocols):
            reply(JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        elif request.member_id == UNKNOWN_MEMBER_ID:
            self._join_unknown(request, now_ms, reply)
        elif request.member_id in state.roster.pending:
            self._join_pending(request, now_ms, reply)
        else:
            self._join_known(request, now_ms, reply)

    def _has_room(self, request: JoinRequest) -> bool:
        """Return True if the Handler has memory for the member and its protocols."""
        member = self._present_member(request)
        own_bytes = member_bytes(
            self._state.group_id,
            request.member_id,
            request.group_instance_id,
            short_name(request.client_id),
            request.client_host,
        )
        return self._state.environment.member_memory.has_room(
            SubscriptionContent(protocols=request.protocols),
            own_bytes=own_bytes,
            replaced=None if member is None else member.held,
        )

    def _present_member(self, request: JoinRequest) -> Member | None:
        """Return the member that sends the request. A static one that returns without its id replaces itself."""
        roster = self._state.roster
        member_id = request.member_id
        if request.group_instance_id is not None:
            member_id = roster.static_ids.get(request.group_instance_id, member_id)
        return roster.members.get(member_id)

    # group.max.size.

    def _fits(self, request: JoinRequest) -> bool:
        """Return True if group.max.size permits the member that joins.

        Outside of a join phase, a member of the group may always return. In a join phase, only the members that have
        joined count. If group.max.size was lowered, the last members to rejoin are therefore rejected.
        """
        state = self._state
        roster = state.roster
        # Unlike Kafka, permit a static member that returns without its member id.
        member = self._present_member(request)
        limit = state.environment.config.group_max_size
        if state.current is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.join_reply is not None) or roster.joined_count < limit
        return state.current is GroupState.EMPTY or member is not None or len(roster) < limit

    def _reject_for_size(self, request: JoinRequest, now_ms: int) -> None:
        """Remove the member that joins, because it exceeds group.max.size.

        Complete the join phase if it waited only for this member.
        """
        state = self._state
        state.roster.pending.pop(request.member_id, None)
        if not state.roster.refusal(request.member_id, request.group_instance_id):
            state.remove(state.roster.members[request.member_id], ErrorCode.GROUP_MAX_SIZE_REACHED)
        self._rebalance.maybe_complete_join(now_ms)

    # Clients that are not members yet.

    def _join_unknown(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        state = self._state
        instance_id = request.group_instance_id
        prefix = request.client_id if instance_id is None else instance_id
        suffix = f"-{state.environment.random_id()}"
        member_id = shortened(prefix, NAME_MAX) + suffix
        # KIP-345: the client has restarted within its session. It replaces itself, and usually keeps its
        # partitions without a rebalance.
        if instance_id is not None and instance_id in state.roster.static_ids:
            member = state.roster.members[state.roster.static_ids[instance_id]]
            self._return_static(request, member, member_id, now_ms, reply)
        elif instance_id is None and request.requires_known_member_id:
            # The client must join again with this id (KIP-394), so that a client that never gets the response leaves no
            # member behind.
            state.roster.pending[member_id] = state.wake_by(now_ms + request.session_timeout_ms)
            state.environment.on_pending(state.group_id, member_id)
            reply(JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(request, member_id, now_ms, reply)

    def _join_pending(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        if request.group_instance_id is not None:
            # The id was returned to a dynamic member, and the request is of a static one. As in Kafka, the response is
            # UNKNOWN_SERVER_ERROR without a member id.
            reply(JoinResult(ErrorCode.UNKNOWN_SERVER_ERROR, ""))
            return
        self._add(request, request.member_id, now_ms, reply)

    def _add(self, request: JoinRequest, member_id: str, now_ms: int, reply: JoinReply) -> None:
        state = self._state
        if not state.roster.members:
            state.roster.protocol_type = request.protocol_type
        member = Member.from_request(member_id, request)
        member.deadline_ms = state.wake_by(now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance.mark_newcomer()
        state.roster.add(member)
        state.hold_memory()
        member.hold_memory(state.environment.member_memory, state.group_id)
        state.roster.await_join(member, reply)
        self._rebalance.rebalance_or_complete_join(now_ms, f"{member_id} is new")

    # Members of the group.

    def _join_known(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        state = self._state
        refusal = state.roster.refusal(request.member_id, request.group_instance_id)
        if refusal:
            reply(JoinResult(refusal, request.member_id))
            return
        member = state.roster.members[request.member_id]
        leads = state.roster.leader == member.member_id
        is_unchanged = request.protocols == member.protocols
        if state.current is GroupState.PREPARING_REBALANCE:
            self._rejoin(member, request, now_ms, reply, reason="")
        elif state.current is GroupState.STABLE and leads:
            # The leader may know reasons that the broker does not know, such as changed topics or lost partitions.
            self._rejoin(member, request, now_ms, reply, reason=f"the leader {member.member_id} rejoined")
        elif is_unchanged:
            # The client repeats its JoinGroup, because it has not received the answer of this generation. Answer again.
            state.renew(member, now_ms)
            reply(state.join_result(member, state.roster.leader))
        else:
            self._rejoin(member, request, now_ms, reply, reason=f"{member.member_id} changed its metadata")

    def _rejoin(
        self, member: Member, request: JoinRequest, now_ms: int, reply: JoinReply, *, reason: str
    ) -> None:
        state = self._state
        state.roster.update(member, request)
        member.hold_memory(state.environment.member_memory, state.group_id)
        state.roster.await_join(member, reply)
        self._rebalance.rebalance_or_complete_join(now_ms, reason)

    # Static members that return without their member id, because their client has restarted (KIP-345).

    def _return_static(
        self, request: JoinRequest, member: Member, member_id: str, now_ms: int, reply: JoinReply
    ) -> None:
        state = self._state
        old_leader, old_id = state.roster.leader, member.member_id
        old_terms = msgspec.structs.replace(
            request,
            protocols=member.protocols,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.session_timeout_ms,
        )
        self._fence(member, member_id)
        state.roster.update(member, request)
        member.hold_memory(state.environment.member_memory, state.group_id)
        state.roster.await_join(member, reply)
        state.renew(member, now_ms)
        if state.current is GroupState.PREPARING_REBALANCE:
            self._rebalance.maybe_complete_join(now_ms)
        elif state.current is GroupState.COMPLETING_REBALANCE:
            # The leader may be assigning partitions to the old id at this moment.
            self._rebalance.prepare(now_ms, f"{member_id} replaced {old_id} in the sync phase")
        # The restarted client may come with another configuration. If the group would choose another assignor
        # now, the present assignment does not hold.
        elif state.roster.select_protocol() != state.protocol_name:
            self._rebalance.prepare(now_ms, f"{member_id} replaced {old_id} with another protocol")
        else:
            self._write_static(
                request, member, reply, old_id=old_id, old_terms=old_terms, old_leader=old_leader
            )

    def _fence(self, member: Member, member_id: str) -> None:
        """Give a static member its new id.

        Requests that wait under the old id are from its process before the restart; they get FENCED_INSTANCE_ID.
        """
        state = self._state
        old_id = member.member_id
        state.roster.answer_join(member, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old_id))
        state.answer_sync(member, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        member.is_new = False
        state.roster.rename(member, member_id)
        self._rebalance.rename(old_id, member_id)

    def _write_static(
        self,
        request: JoinRequest,
        member: Member,
        reply: JoinReply,
        *,
        old_id: str,
        old_terms: JoinRequest,
        old_leader: str | None,
    ) -> None:
        """Write the new member id without a rebalance. The member keeps its assignment (KIP-814)."""
        state = self._state
        state.update_topics()

        def then(code: int, now_ms: int) -> None:
            if member.join_reply is not reply:
                return  # The member was fenced again, was removed, or was answered by a rebalance.
            if code:
                state.roster.answer_join(member, self._static_failure(code, old_leader))
            elif state.current is GroupState.STABLE:
                state.roster.answer_join(member, self._static_result(request, member, old_leader))
            else:
                return  # A rebalance has started meanwhile, and this join is part of it.
            state.renew(member, now_ms)

        if not state.write(state.snapshot(), then):
            # The record is not in the log, so the member keeps its old id and its old protocols.
            state.roster.rename(member, old_id)
            state.roster.update(member, old_terms)
            state.update_topics()

    def _static_result(self, request: JoinRequest, member: Member, old_leader: str | None) -> JoinResult:
        """Return the JoinGroup response for a static member that returns.

        If it is the leader, it must not assign again. From v9 on the response has `skip_assignment` (KIP-814). Before
        v9 it names the old id as the leader, so that the member does not know that it leads.
        """
        state = self._state
        if not request.supports_skip_assignment:
            return state.join_result(member, old_leader)
        leads = state.roster.leader == member.member_id
        return state.join_result(member, state.roster.leader, skip_assignment=leads)

    def _static_failure(self, code: int, old_leader: str | None) -> JoinResult:
        state = self._state
        return JoinResult(
            code,
            UNKNOWN_MEMBER_ID,
            state.generation,
            state.roster.protocol_type,
            state.protocol_name,
            old_leader or "",
        )
