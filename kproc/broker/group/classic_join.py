"""ClassicJoin: who may join a classic group, as whom, and whether that needs a rebalance.

The cases are those of Kafka's GroupMetadataManager.classicGroupJoin: an unknown member (KIP-394: two steps for a
dynamic one), a static one that returns (KIP-345, KIP-814), a pending one, a known one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kproc.broker.group.classic_rebalance import ClassicRebalance
from kproc.broker.group.classic_state import ClassicState
from kproc.broker.group.config import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupConfig
from kproc.broker.group.member import Member
from kproc.broker.group.messages import (
    UNKNOWN_MEMBER_ID,
    JoinReply,
    JoinRequest,
    JoinResult,
    SyncResult,
    join_failed,
)
from kproc.broker.group.state import GroupState
from kproc.common.bounded import NAME_MAX
from kproc.common.errors import ErrorCode
from kproc.wire.primitives import shortened

# Limit of all protocol names and metadata in a member's join. A batch of `__consumer_offsets` has at most 1 MiB by
# default, and the group's record must fit into one.
PROTOCOL_BYTES_MAX: Final = 1 << 20


def join_refusal(
    group_id: str, request: JoinRequest, config: GroupConfig, *, group_exists: bool
) -> ErrorCode:
    """Why a join is refused before there is a group to ask (INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT,
    INVALID_REQUEST, UNKNOWN_MEMBER_ID), or NONE. Checked first, so that a rejected join creates no group."""
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not shortest <= request.session_timeout_ms <= longest:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    protocol_bytes = sum(len(name) + len(metadata) for name, metadata in request.protocols)
    if protocol_bytes > PROTOCOL_BYTES_MAX:
        return ErrorCode.INVALID_REQUEST
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
        """JoinGroup; answered when the rebalance's join phase ends (or at once)."""
        state = self._state
        refusal = join_refusal(state.group_id, request, state.environment.config, group_exists=True)
        if not refusal and state.current is GroupState.DEAD:
            refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if refusal:
            reply(join_failed(refusal, request.member_id))
        elif not self._has_room_for(request):
            self._turn_away(request, now_ms)
            reply(join_failed(ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID))
        elif not state.roster.supports(request.protocol_type, request.protocols):
            reply(join_failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        elif request.member_id == UNKNOWN_MEMBER_ID:
            self._join_unknown(request, now_ms, reply)
        elif request.member_id in state.roster.pending:
            self._join_pending(request, now_ms, reply)
        else:
            self._join_known(request, now_ms, reply)

    # group.max.size.

    def _has_room_for(self, request: JoinRequest) -> bool:
        """Members may always return. In a join phase those who have joined count, so that of a group that is too
        large (the limit was lowered) the last ones to rejoin are turned away."""
        state = self._state
        roster = state.roster
        # Unlike Kafka, a static member that returns without its member id has its old place too: nobody is added.
        member_id = request.member_id
        if request.group_instance_id is not None:
            member_id = roster.static_ids.get(request.group_instance_id, member_id)
        member = roster.members.get(member_id)
        limit = state.environment.config.group_max_size
        if state.current is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.join_reply is not None) or roster.joined_count < limit
        return state.current is GroupState.EMPTY or member is not None or len(roster) < limit

    def _turn_away(self, request: JoinRequest, now_ms: int) -> None:
        """A known member that finds no room is out; perhaps it was the one that the others waited for."""
        state = self._state
        state.roster.pending.pop(request.member_id, None)
        if not state.roster.refusal(request.member_id, request.group_instance_id):
            state.remove(state.roster.members[request.member_id], ErrorCode.GROUP_MAX_SIZE_REACHED)
        self._rebalance.maybe_complete_join(now_ms)

    # Members that are not in the group.

    def _join_unknown(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        state = self._state
        instance_id = request.group_instance_id
        prefix = request.client_id if instance_id is None else instance_id
        suffix = f"-{state.environment.random_id()}"
        member_id = shortened(prefix, NAME_MAX) + suffix
        if instance_id is not None and instance_id in state.roster.static_ids:
            member = state.roster.members[state.roster.static_ids[instance_id]]
            self._return_static(request, member, member_id, now_ms, reply)
        elif instance_id is None and request.requires_known_member_id:
            state.roster.pending[member_id] = state.wake_by(now_ms + request.session_timeout_ms)
            state.environment.on_pending(state.group_id, member_id)
            reply(join_failed(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(request, member_id, now_ms, reply)

    def _join_pending(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        if request.group_instance_id is not None:
            # The id was given to a dynamic member. Kafka calls this an unexpected state, and names no member.
            reply(join_failed(ErrorCode.UNKNOWN_SERVER_ERROR, ""))
            return
        self._add(request, request.member_id, now_ms, reply)

    def _add(self, request: JoinRequest, member_id: str, now_ms: int, reply: JoinReply) -> None:
        state = self._state
        if not state.roster.members:
            state.roster.protocol_type = request.protocol_type
        member = Member.from_request(member_id, request)
        member.deadline_ms = state.wake_by(now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance.note_newcomer()
        state.roster.add(member)
        state.roster.await_join(member, reply)
        self._rebalance.rebalance_or_complete_join(now_ms, f"{member_id} is new")

    # Members that are.

    def _join_known(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        state = self._state
        refusal = state.roster.refusal(request.member_id, request.group_instance_id)
        if refusal:
            reply(join_failed(refusal, request.member_id))
            return
        member = state.roster.members[request.member_id]
        leads = state.roster.leader == member.member_id
        is_unchanged = request.protocols == member.protocols
        if state.current is GroupState.PREPARING_REBALANCE:
            self._rejoin(member, request, now_ms, reply, reason="")
        elif state.current is GroupState.STABLE and leads:
            # The leader knows reasons that the broker does not: topics that changed, lost partitions.
            self._rejoin(member, request, now_ms, reply, reason=f"the leader {member.member_id} rejoined")
        elif is_unchanged:
            # It lost the answer of this generation's join, or fears so.
            state.renew(member, now_ms)
            reply(state.join_result(member, state.roster.leader))
        else:
            self._rejoin(member, request, now_ms, reply, reason=f"{member.member_id} changed its metadata")

    def _rejoin(
        self, member: Member, request: JoinRequest, now_ms: int, reply: JoinReply, *, reason: str
    ) -> None:
        state = self._state
        state.roster.update(member, request)
        state.roster.await_join(member, reply)
        self._rebalance.rebalance_or_complete_join(now_ms, reason)

    # A static member that returns without its member id: a restart.

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
        state.roster.await_join(member, reply)
        state.renew(member, now_ms)
        if state.current is GroupState.PREPARING_REBALANCE:
            self._rebalance.maybe_complete_join(now_ms)
        elif state.current is GroupState.COMPLETING_REBALANCE:
            # The leader may be assigning to the old id at this moment.
            self._rebalance.prepare(now_ms, f"{member_id} replaced {old_id} in the sync phase")
        elif state.roster.select_protocol() != state.protocol_name:
            self._rebalance.prepare(now_ms, f"{member_id} replaced {old_id} with another protocol")
        else:
            self._write_static(
                request, member, reply, old_id=old_id, old_terms=old_terms, old_leader=old_leader
            )

    def _fence(self, member: Member, member_id: str) -> None:
        """Give the member its new id. Requests under the old one that wait are another process's."""
        state = self._state
        old_id = member.member_id
        state.roster.answer_join(member, join_failed(ErrorCode.FENCED_INSTANCE_ID, old_id))
        state.answer_sync(member, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        member.is_new = False
        state.roster.rename(member, member_id)
        self._rebalance.note_renamed(old_id, member_id)

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
        """No rebalance: the new id is written, and the member goes on with the assignment that it had."""
        state = self._state
        state.learn_topics()

        def then(code: int, now_ms: int) -> None:
            if member.join_reply is not reply:
                return  # Fenced by yet another one, removed, or answered by a rebalance.
            if code:
                state.roster.answer_join(member, self._static_failed(code, old_leader))
            elif state.current is GroupState.STABLE:
                state.roster.answer_join(member, self._static_result(request, member, old_leader))
            else:
                return  # A rebalance began meanwhile; this join is part of it.
            state.renew(member, now_ms)

        if not state.write(state.snapshot(), then):
            state.roster.rename(member, old_id)
            state.roster.update(member, old_terms)
            state.learn_topics()

    def _static_result(self, request: JoinRequest, member: Member, old_leader: str | None) -> JoinResult:
        """A leader must not assign anew. From v9 on it is told so; before, it is told that its old id leads."""
        state = self._state
        if not request.supports_skip_assignment:
            return state.join_result(member, old_leader)
        leads = state.roster.leader == member.member_id
        return state.join_result(member, state.roster.leader, skip_assignment=leads)

    def _static_failed(self, code: int, old_leader: str | None) -> JoinResult:
        state = self._state
        return JoinResult(
            code,
            UNKNOWN_MEMBER_ID,
            state.generation,
            state.roster.protocol_type,
            state.protocol_name,
            old_leader or "",
        )
