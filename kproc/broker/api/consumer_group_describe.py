"""ConsumerGroupDescribe (key 69), versions 0-1 (KIP-848).

It shows groups of the consumer protocol with the epochs, the subscription, the partitions and the target of each
member. Groups of other protocols get GROUP_ID_NOT_FOUND.

Versions: v1 type of a member: classic or consumer (KIP-1099).
"""

from __future__ import annotations

from collections.abc import Collection
from types import NoneType
from typing import TYPE_CHECKING, Final

from kproc.broker.api.consumer_group_heartbeat import check_enabled
from kproc.broker.api.group_descriptions import (
    assignment_fields,
    error_response,
    group_row,
    names_of,
    read_description,
    send_descriptions,
)
from kproc.broker.group.consumer.group import GROUP_TYPE
from kproc.broker.group.consumer.messages import DescribedConsumer, DescribedConsumerGroup
from kproc.broker.group.messages import GroupDescription
from kproc.broker.peers.coordinator_call import Fields, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

# The types of members: 0 for the classic protocol, 1 for the consumer protocol.
# KIP-1099: during a migration a group of the consumer protocol can still have members of the classic one.
_CLASSIC: Final = 0
_CONSUMER: Final = 1

__all__ = ["error_response", "handle_consumer_group_describe"]

_DESCRIBE: Final = GROUPS.operation(
    "consumer_group_describe", NoneType, GroupDescription[DescribedConsumerGroup]
)


@api(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    rows=(rows_at("group_ids", "groups.members", size=1),),
)
def handle_consumer_group_describe(context: RequestContext, request: Fields) -> None:
    check_enabled(context)
    send_descriptions(
        context,
        request,
        _DESCRIBE,
        lambda group_id, outcome: group_row(context, group_id, outcome, _topics_of, _member),
    )


def _topics_of(image: ClusterImage, member: DescribedConsumer) -> Collection[str]:
    """Return the names of the topics that a member's row shows."""
    return {*member.topic_names, *names_of(image, {*member.assignment, *member.target})}


def _member(image: ClusterImage, member: DescribedConsumer) -> Fields:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topic_names),
        # Kafka shows an empty expression for a member without one.
        "subscribed_topic_regex": member.topic_regex or "",
        "assignment": assignment_fields(image, member.assignment),
        "target_assignment": assignment_fields(image, member.target),
        "member_type": _CLASSIC if member.is_classic else _CONSUMER,
    }


@_DESCRIBE.handler
def _describe(
    coordinator: GroupCoordinator,
    group_id: str,
    _arguments: None,
    on_outcome: OnOutcome[GroupDescription[DescribedConsumerGroup]],
) -> None:
    read_description(
        coordinator, group_id, GROUP_TYPE, lambda: coordinator.describe_consumer_group(group_id), on_outcome
    )
