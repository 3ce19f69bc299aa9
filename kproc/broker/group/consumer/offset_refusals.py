"""Which members of a consumer group may commit offsets, as ConsumerGroup.validateOffsetCommit in Kafka."""

from __future__ import annotations

from kproc.broker.coordinator.member_phase import NO_EPOCH
from kproc.broker.group.consumer.state import ConsumerGroupState
from kproc.broker.group.messages import CommitRequest
from kproc.common.errors import ErrorCode


def commit_refusal(state: ConsumerGroupState, request: CommitRequest) -> int:
    """Return the error for a commit of offsets, or NONE. A commit does not restart the member's session.

    A member that has not yet learnt its new epoch may commit offsets of partitions that it had before (KIP-1251).
    """
    epoch = request.generation
    is_transactional = request.producer is not None
    # Accept a commit without a member of a tool or of a consumer that assigns its own partitions, while the group has
    # no members. Also accept one of a transactional producer older than KIP-447, which cannot name the member.
    is_unnamed = is_transactional and not request.member_id
    if epoch < 0 and (is_unnamed or not state.members):
        return ErrorCode.NONE
    member = state.members.get(request.member_id)
    if member is None or member.metadata is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    # A member of the classic protocol (KIP-848, online migration) knows generations, and rejoins after this error.
    if member.classic is not None:
        return ErrorCode.NONE if epoch == member.state.epoch else ErrorCode.ILLEGAL_GENERATION
    if not is_transactional and not request.knows_unknown_group:
        return ErrorCode.UNSUPPORTED_VERSION  # Before v9 the client knows no STALE_MEMBER_EPOCH.
    if epoch == member.state.epoch:
        return ErrorCode.NONE
    # KIP-1251: a commit can cross the heartbeat that raised the member's epoch. It stays valid for partitions that the
    # member has owned since the epoch of the commit, because no other member can have committed there.
    for key, committed in request.offsets:
        assigned_at = member.state.owned.get(committed.topic_id, {}).get(key.partition, NO_EPOCH)
        if not 0 <= assigned_at <= epoch < member.state.epoch:
            return ErrorCode.STALE_MEMBER_EPOCH
    return ErrorCode.NONE
