"""Commits of the offsets of a streams group: the epochs that a member may use (KIP-1071, KIP-1251)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.broker.streams.state import StreamsGroupState
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.group.messages import CommitRequest


def commit_refusal(state: StreamsGroupState, request: CommitRequest) -> int:
    """Return the error for a commit of offsets, or NONE.

    A member that does not know its new epoch yet may commit offsets of a task if it has owned the task since the epoch
    in its request, or longer.
    """
    epoch = request.generation
    is_transactional = request.producer is not None
    # Clients from before KIP-447 commit in transactions without a member id.
    is_unnamed = is_transactional and not request.member_id
    if epoch < 0 and (is_unnamed or not state.members):
        return ErrorCode.NONE  # A tool may commit while the group is empty.
    member = state.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not is_transactional and not request.knows_unknown_group:
        return ErrorCode.UNSUPPORTED_VERSION  # STALE_MEMBER_EPOCH came with v9 of OffsetCommit.
    if epoch == member.state.epoch:
        return ErrorCode.NONE
    # A higher epoch cannot come from this coordinator: the log has lost records, or the client is wrong.
    # Reject it, because the tasks that the member owned at that epoch are unknown.
    if epoch > member.state.epoch or state.topology is None:
        return ErrorCode.STALE_MEMBER_EPOCH
    assigned_at = {**member.state.pending_revocation.active, **member.state.owned.active}
    subtopologies = state.topology.subtopology_of_topic
    for key, _committed in request.offsets:
        since = assigned_at.get((subtopologies.get(key.topic, ""), key.partition))
        if since is None or epoch < since:
            return ErrorCode.STALE_MEMBER_EPOCH
    return ErrorCode.NONE
