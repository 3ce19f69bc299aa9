"""Checks of a heartbeat to a consumer group, the member's metadata after it, and whether it needs a new assignment.

All of them run before any record is written. The errors are those of Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from kproc.broker.coordinator.member_errors import (
    group_is_full,
    unreleased_instance,
    wrong_epoch,
)
from kproc.broker.coordinator.member_phase import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from kproc.broker.group.consumer.assignors import Assignment
from kproc.broker.group.consumer.messages import ConsumerHeartbeat
from kproc.broker.group.consumer.records import MemberMetadata, MemberState, OwnedPartitions
from kproc.broker.group.consumer.state import ConsumerGroupState, ConsumerMember
from kproc.broker.group.consumer.subscriptions import Subscriptions

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.group.consumer.group import ConsumerGroup


def check_size(member_count: int, config: Config) -> None:
    """Raise GROUP_MAX_SIZE_REACHED if no member can be added to a group of this size."""
    size_max = config.group_consumer_max_size
    if member_count >= size_max:
        raise group_is_full("consumer", size_max)


def admit(group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerMember | None:
    """Return the member that sent the request, or the static member that it replaces. None if a new member joins.

    Raises KafkaError if the group is full, the member unknown or fenced, or its instance id in use by another member.
    """
    state, member_id, instance_id = group.state, request.member_id, request.instance_id
    if request.member_epoch != JOIN_EPOCH:
        member = state.get_member(member_id, instance_id)
        _check_epoch(member.state, request)
        return member
    if instance_id is not None and instance_id in state.instance_ids:
        member = state.members[state.instance_ids[instance_id]]
        # A static member of the classic protocol does not leave when it stops, so it is replaced at once, as in Kafka.
        is_replaceable = member.classic is not None or member.state.epoch == STATIC_LEAVE_EPOCH
        if member.member_id != member_id and not is_replaceable:
            raise unreleased_instance(instance_id, member_id, member.member_id)
        return member
    # A member with a known id joins again: it was fenced, or the response to its first heartbeat was lost (KIP-1082).
    # As in Kafka 4.4, it can get or change its instance id.
    if member_id not in state.members:
        group.check_size()
    return state.members.get(member_id)


def merged(metadata: MemberMetadata | None, request: ConsumerHeartbeat) -> MemberMetadata:
    """Return a member's metadata after a heartbeat.

    `metadata` is from before the heartbeat, None for a new member. A field that the heartbeat does not have (None or
    -1) keeps its value.
    """
    known = metadata if metadata is not None else MemberMetadata(client_id="", client_host="")
    changes: dict[str, object] = {
        "client_id": request.client_id,
        "client_host": request.client_host,
        # A member of the consumer protocol that takes the place of a classic one has no classic protocols.
        "classic": None,
    }
    if request.instance_id is not None:
        changes["instance_id"] = request.instance_id
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != -1:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.assignor is not None:
        changes["assignor"] = request.assignor
    if request.topic_names is not None and frozenset(request.topic_names) != frozenset(known.topic_names):
        changes["topic_names"] = tuple(sorted(set(request.topic_names)))
    if request.topic_regex is not None:
        changes["topic_regex"] = request.topic_regex or None
    return msgspec.structs.replace(known, **changes)


def is_new_epoch_needed(
    state: ConsumerGroupState,
    before: MemberMetadata | None,
    updated: MemberMetadata,
    after: Subscriptions,
    supported: Sequence[str],
) -> bool:
    """Return True if the changed subscription of a member needs a new assignment.

    before, updated: the member's metadata before the request, None for a new member, and after it. after: the group's
    subscriptions after the request. supported: the names of the assignors. As in Kafka, a member that joins without a
    subscription leaves the assignment of the others as it is.
    """
    if before is None:
        before = MemberMetadata(client_id="", client_host="")
    return (
        frozenset(updated.topic_names) != frozenset(before.topic_names)
        or updated.topic_regex != before.topic_regex
        or after.preferred_assignor(supported) != state.subscriptions.preferred_assignor(supported)
    )


def _check_epoch(state: MemberState, request: ConsumerHeartbeat) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the request has the member's present epoch, or may repeat the previous one.

    A request with the previous epoch must report its partitions, and the coordinator must know all of them as the
    member's.
    """
    if request.member_epoch == state.epoch:
        return
    # The member repeats the previous epoch if the response with its new one was lost.
    is_repeated = request.member_epoch < state.epoch and request.member_epoch == state.previous_epoch
    # The partitions must be among those that the coordinator knows. Otherwise the member may read a partition
    # that was given to another one.
    if is_repeated and request.owned is not None and _is_part(request.owned, state.owned):
        return
    raise wrong_epoch("consumer", request.member_epoch, state.epoch)


def _is_part(partitions: Assignment, owned: OwnedPartitions) -> bool:
    return all(numbers <= owned.get(topic_id, {}).keys() for topic_id, numbers in partitions.items())
