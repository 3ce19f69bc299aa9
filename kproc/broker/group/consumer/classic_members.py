"""Members of the classic protocol in a group of the consumer protocol (KIP-848, "Supporting online migration").

While a group is being upgraded, or downgraded, it has members of both protocols. A classic member still sends
JoinGroup, SyncGroup, Heartbeat and LeaveGroup. Its generation is its member epoch, the coordinator is its leader, and
its rebalance is one step of the reconciliation. The response to its Heartbeat is REBALANCE_IN_PROGRESS if the member
has a next step. Its JoinGroup makes the step, and the response to its SyncGroup has the partitions. When a static
classic member replaces the last member of the consumer protocol, the group becomes classic. No new target is computed
then, because the classic group rebalances instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.coordinator.member_errors import unknown_member
from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.group.classic.subscription import CONSUMER_PROTOCOL_TYPE
from kproc.broker.group.consumer.embedded import (
    decode_subscription,
    encode_assignment,
    subscription_version,
)
from kproc.broker.group.consumer.records import ClassicProtocols, MemberMetadata, plain
from kproc.broker.group.messages import (
    UNKNOWN_MEMBER_ID,
    JoinRequest,
    JoinResult,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResult,
)
from kproc.broker.security.principal import ANONYMOUS, Identity
from kproc.common.errors import ErrorCode, KafkaError, ProtocolError

if TYPE_CHECKING:
    from kproc.broker.group.consumer.group import ConsumerGroup
    from kproc.broker.group.consumer.state import ConsumerMember
    from kproc.broker.group.consumer.topics import TopicView

# Classic members subscribe without an expression, so nobody's rights are needed to resolve one.
_NOBODY: Final = Identity("", ANONYMOUS)


def join_classic(
    group: ConsumerGroup, topics: TopicView, request: JoinRequest, member_id: str, now_ms: int
) -> JoinResult:
    """Handle a JoinGroup. `member_id` is a new id for a client that has none. Raises KafkaError."""
    _check_protocols(group, request)
    try:
        subscription = decode_subscription(request.protocols[0][1])
    except ProtocolError as error:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "The subscription of the consumer protocol is malformed."
        ) from error
    member = _admit(group, request, member_id)
    if isinstance(member, JoinResult):
        return member
    # A dynamic member keeps the id that it got with MEMBER_ID_REQUIRED. A static one without an id gets a new one.
    member_id = request.member_id or member_id
    metadata = subscription.metadata_of(request)
    if member is not None and member.metadata is not None:
        metadata = _complete_metadata(metadata, member.metadata)
    reported = topics.by_id(subscription.owned or {})
    member = group.update_member(member, member_id, metadata, _NOBODY, now_ms)
    is_last = request.group_instance_id is not None and group.becomes_classic()
    if not is_last:
        group.update_target(now_ms)
    if not (is_last and group.state.is_target_stale):
        group.reconcile(member, reported, now_ms)
    # The SyncGroup must follow within a whole rebalance timeout. Clear the deadline first, because
    # start_rebalance_timeout keeps one that is running.
    member.rebalance_deadline_ms = None
    group.start_rebalance_timeout(member, now_ms)
    return JoinResult(
        ErrorCode.NONE,
        member_id,
        member.state.epoch,
        CONSUMER_PROTOCOL_TYPE,
        request.protocols[0][0],
    )


def _complete_metadata(requested: MemberMetadata, stored: MemberMetadata) -> MemberMetadata:
    """Return the metadata of a JoinGroup, with the member's stored value of each field that the request lacks."""
    # A JoinGroup has no assignor, and may leave out the instance id and the rack.
    return msgspec.structs.replace(
        requested,
        instance_id=requested.instance_id or stored.instance_id,
        rack_id=requested.rack_id or stored.rack_id,
        assignor=stored.assignor,
    )


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> None:
    """Raise INCONSISTENT_GROUP_PROTOCOL unless the member's protocol type is "consumer" and it shares an assignor.

    All other classic members of the group must have this assignor, too.
    """
    names = {name for name, _metadata in request.protocols}
    if request.protocol_type == CONSUMER_PROTOCOL_TYPE and names:
        others = [
            {name for name, _metadata in member.classic.protocols}
            for member in group.state.members.values()
            if member.classic is not None and member.member_id != request.member_id
        ]
        # An assignor that all classic members know is needed for a downgrade: the group then chooses one of
        # their protocols.
        if names.intersection(*others):
            return
    raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _admit(group: ConsumerGroup, request: JoinRequest, member_id: str) -> ConsumerMember | JoinResult | None:
    """Return the member that joins, or the static member that it replaces. None if a new member joins.

    Return a JoinResult if the request is the first step of a join (KIP-394), which only gets a member id.
    """
    is_unknown = request.member_id == UNKNOWN_MEMBER_ID
    instance_id = request.group_instance_id
    if instance_id is None:
        member = group.state.members.get(request.member_id)
        # KIP-394 comes after the check of the size, so that a client that will be rejected does not first get
        # an id.
        if member is None:
            group.check_size()
        if is_unknown and request.requires_known_member_id:
            return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        return member
    if not is_unknown:
        return group.state.get_member(request.member_id, instance_id)
    known_id = group.state.instance_ids.get(instance_id)
    if known_id is None:
        group.check_size()
        return None
    # The request replaces the static member at once, as in Kafka, whatever protocol that member uses and whether it has
    # left or not.
    return group.state.members[known_id]


def sync_classic(group: ConsumerGroup, topics: TopicView, request: SyncRequest, now_ms: int) -> SyncResult:
    """Handle a SyncGroup: return the partitions that the member may read now. Raises KafkaError."""
    member, classic = _classic_member(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation)
    name = classic.protocols[0][0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        name,
    ):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if (
        group.state.target_epoch.epoch > member.state.epoch
        and member.state.phase is not MemberPhase.UNREVOKED
    ):
        # There is a newer assignment, so the member must join again before it gets partitions.
        group.start_rebalance_timeout(member, now_ms)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    if member.state.phase is not MemberPhase.UNREVOKED:
        member.rebalance_deadline_ms = None
    group.renew_session(member, now_ms)
    version = subscription_version(classic.protocols[0][1])
    assignment = encode_assignment(version, topics.by_name(plain(member.state.owned)))
    return SyncResult(ErrorCode.NONE, CONSUMER_PROTOCOL_TYPE, name, assignment)


def heartbeat_classic(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
) -> ErrorCode:
    """Handle a Heartbeat. Return NONE, or REBALANCE_IN_PROGRESS if the member must join again. Raises KafkaError."""
    member, _classic = _classic_member(group, member_id, instance_id)
    _check_generation(member, generation)
    group.renew_session(member, now_ms)
    if group.state.is_target_stale and group.state.is_classic:
        # Compute the target here, because the group has no member whose ConsumerGroupHeartbeat would do it.
        group.update_target(now_ms)
    state = member.state
    has_next_step = (
        state.epoch < group.state.target_epoch.epoch
        or state.phase is MemberPhase.UNREVOKED
        or (state.phase is MemberPhase.UNRELEASED and group.state.can_get_more(member))
    )
    if not has_next_step:
        return ErrorCode.NONE
    group.start_rebalance_timeout(member, now_ms)
    return ErrorCode.REBALANCE_IN_PROGRESS


def leave_classic(group: ConsumerGroup, leaving: Sequence[LeavingMember]) -> tuple[LeftMember, ...]:
    """Handle a LeaveGroup and return a result for each of its members, which may use either protocol."""
    left: list[LeftMember] = []
    members: dict[str, ConsumerMember] = {}
    for each in leaving:
        code = ErrorCode.NONE
        try:
            member = _leaving_member(group, each)
            members[member.member_id] = member
        except KafkaError as error:
            code = error.code
        left.append(LeftMember(each.member_id, each.group_instance_id, code))
    if members:
        group.remove(list(members.values()))
    return tuple(left)


def _leaving_member(group: ConsumerGroup, leaving: LeavingMember) -> ConsumerMember:
    if leaving.member_id == UNKNOWN_MEMBER_ID and leaving.group_instance_id is not None:
        # An administrator removes a static member by its instance id (KIP-345).
        known_id = group.state.instance_ids.get(leaving.group_instance_id, UNKNOWN_MEMBER_ID)
        return group.state.get_member(known_id, leaving.group_instance_id)
    return group.state.get_member(leaving.member_id, leaving.group_instance_id)


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicProtocols]:
    """Return a member that uses the classic protocol, and its protocols. Raises KafkaError for any other member."""
    member = group.state.get_member(member_id, instance_id)
    if member.classic is None:
        raise unknown_member(group.group_id, member_id)
    return member, member.classic


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.state.epoch:
        # The member has missed a step. A classic client joins again after this error, and its JoinGroup makes
        # the step.
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
