"""ClassicSync: SyncGroup of a classic group. It is answered when the leader's assignment is written.

The rules are those of Kafka's GroupMetadataManager.classicGroupSync.
"""

from __future__ import annotations

from kproc.broker.coordinator.member_memory import counted_bytes
from kproc.broker.group.classic.members import Member
from kproc.broker.group.classic.rebalance import ClassicRebalance
from kproc.broker.group.classic.state import ClassicState, GroupState
from kproc.broker.group.messages import SyncReply, SyncRequest, SyncResult
from kproc.common.errors import ErrorCode


def _differs(of_request: str | None, of_group: str | None) -> bool:
    """Return True if a request's protocol type or protocol name is not the group's (KIP-559).

    None, as in requests before v5, differs from no value.
    """
    return of_request is not None and of_group is not None and of_request != of_group


class ClassicSync:
    """The part of a ClassicGroup that answers SyncGroup."""

    __slots__ = ("_assigning", "_rebalance", "_state")

    def __init__(self, state: ClassicState, rebalance: ClassicRebalance) -> None:
        self._state = state
        self._rebalance = rebalance
        self._assigning = -1  # The generation whose assignment was written last, or is being written.

    def sync(self, request: SyncRequest, now_ms: int, reply: SyncReply) -> None:
        """Handle a SyncGroup. It is answered at once, or when the leader's assignment is written."""
        state = self._state
        refusal = self._sync_refusal(request)
        if refusal:
            reply(SyncResult(refusal))
            return
        member = state.roster.members[request.member_id]
        self._rebalance.mark_synced(member.member_id)
        # The leader's assignment is in the log already: the member repeats its request, or it is late. Answer it at
        # once.
        if state.current is GroupState.STABLE:
            state.renew(member, now_ms)
            reply(self._assigned(member))
            return
        # The client has repeated its SyncGroup, so it does not read the answer to the first one.
        state.answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        # Only the leader sends assignments. `_assigning` keeps a repeated SyncGroup of the leader from writing the
        # generation twice.
        if state.roster.leader == member.member_id and self._assigning != state.generation:
            self._assign(dict(request.assignments), now_ms)

    def _sync_refusal(self, request: SyncRequest) -> ErrorCode:
        state = self._state
        if state.current is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        refusal = state.roster.refusal(request.member_id, request.group_instance_id)
        if refusal:
            return refusal
        # Reject a member of an older generation, because other members may own its partitions now. It must join again.
        if request.generation != state.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if _differs(request.protocol_type, state.roster.protocol_type) or _differs(
            request.protocol_name, state.protocol_name
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        # The next rebalance has begun, so this assignment would be outdated at once. The member joins again.
        if state.current is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _assigned(self, member: Member) -> SyncResult:
        state = self._state
        return SyncResult(ErrorCode.NONE, state.roster.protocol_type, state.protocol_name, member.assignment)

    def _has_room(self, assignments: dict[str, bytes]) -> bool:
        """Return True if the Handler has memory for an assignment of this size."""
        members = self._state.roster.members.values()
        added = sum(
            counted_bytes(len(assignments.get(member.member_id, b""))) - counted_bytes(len(member.assignment))
            for member in members
        )
        return self._state.environment.member_memory.limit.has_room(added, with_reserve=True)

    def _assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        """Write the leader's assignment, then answer the SyncGroup of each member.

        A member that the leader has left out gets an empty assignment. If the assignment has no room in memory, answer
        with GROUP_MAX_SIZE_REACHED instead, and rebalance.
        """
        state = self._state
        self._assigning = generation = state.generation
        if not self._has_room(assignments):
            # The error ends the consumers, as it does for a JoinGroup. If they joined again, the leader would repeat
            # the assignment.
            self._rebalance.fail_syncs(ErrorCode.GROUP_MAX_SIZE_REACHED, now_ms)
            self._rebalance.prepare(now_ms, "the assignment has no room in the memory of all groups")
            return

        def then(code: int, now_ms: int) -> None:
            if state.current is not GroupState.COMPLETING_REBALANCE or state.generation != generation:
                return  # A rebalance has started meanwhile and has answered all members.
            if code:
                self._rebalance.fail_syncs(ErrorCode(code), now_ms)
                self._rebalance.prepare(now_ms, "its assignment could not be written")
                return
            state.enter(GroupState.STABLE)
            for member in list(state.roster.members.values()):
                member.assign(assignments.get(member.member_id, b""))
                if state.answer_sync(member, self._assigned(member)):
                    state.renew(member, now_ms)

        state.write(state.snapshot(assignments), then)
