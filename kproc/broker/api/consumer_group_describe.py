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
from kproc.broker.group.consumer.assignors import Assignment
from kproc.broker.group.consumer.messages import DescribedConsumer, DescribedConsumerGroup
from kproc.broker.peers.coordinator_call import Fields, Item, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.authorized_operations import NOT_TOLD, operations_on
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

# The types of members: 0 for the classic protocol, 1 for the consumer protocol.
_CLASSIC: Final = 0
_CONSUMER: Final = 1

_DESCRIBE: Final = GROUPS.operation("consumer_group_describe", NoneType, DescribedConsumerGroup)


@api(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    rows=(rows_at("group_ids", "groups.members", size=1),),
)
def handle_consumer_group_describe(context: RequestContext, request: Fields) -> None:
    check_enabled(context)
    group_ids = request["group_ids"]
    refused = denied(context, Operation.DESCRIBE, ResourceType.GROUP, group_ids)
    allowed = [group_id for group_id in group_ids if group_id and group_id not in refused]

    def on_done(outcomes: list[DescribedConsumerGroup | int]) -> None:
        left = iter(outcomes)
        groups = []
        for group_id in group_ids:
            if group_id in refused:
                groups.append(_failed(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
                continue
            if not group_id:
                groups.append(_failed(group_id, ErrorCode.INVALID_GROUP_ID))
                continue
            group = _row(context, group_id, next(left))
            if request["include_authorized_operations"] and not group["error_code"]:
                group["authorized_operations"] = operations_on(context, ResourceType.GROUP, group_id)
            groups.append(group)
        context.reply({"groups": groups})

    _DESCRIBE.send(context, [Item(group_id, None) for group_id in allowed], on_done)


def _row(context: RequestContext, group_id: str, outcome: DescribedConsumerGroup | int) -> Fields:
    if isinstance(outcome, int):
        message = f"Group {group_id} not found." if outcome == ErrorCode.GROUP_ID_NOT_FOUND else None
        return _failed(group_id, outcome, message)
    image = context.services.image
    names = {name for member in outcome.members for name in _topics_of(image, member)}
    if denied(context, Operation.DESCRIBE, ResourceType.TOPIC, names):
        # KafkaApis hides the whole group, because its members would name topics that the client may not see.
        return _failed(
            group_id,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "The group has described topic(s) that the client is not authorized to describe.",
        )
    return {
        "error_code": int(ErrorCode.NONE),
        "error_message": None,
        "group_id": group_id,
        "group_state": outcome.state,
        "group_epoch": outcome.group_epoch,
        "assignment_epoch": outcome.assignment_epoch,
        "assignor_name": outcome.assignor,
        "members": [_member(image, member) for member in outcome.members],
        "authorized_operations": NOT_TOLD,
    }


def _topics_of(image: ClusterImage, member: DescribedConsumer) -> Collection[str]:
    """Return the names of the topics that a member's row shows."""
    ids = {*member.assignment, *member.target}
    return {
        *member.topic_names,
        *(topic.name for topic in map(image.topic_by_id, ids) if topic is not None),
    }


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
        "assignment": _assignment(image, member.assignment),
        "target_assignment": _assignment(image, member.target),
        "member_type": _CLASSIC if member.is_classic else _CONSUMER,
    }


def _assignment(image: ClusterImage, assignment: Assignment) -> Fields:
    rows = []
    for topic_id, partitions in sorted(assignment.items()):
        topic = image.topic_by_id(topic_id)
        # A topic that was deleted meanwhile has no name to show.
        if topic is not None:
            rows.append({"topic_id": topic_id, "topic_name": topic.name, "partitions": sorted(partitions)})
    return {"topic_partitions": rows}


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return {"groups": [_failed(group_id, code, message) for group_id in request["group_ids"]]}


def _failed(group_id: str, code: int, message: str | None = None) -> Fields:
    return {
        "error_code": int(code),
        "error_message": message,
        "group_id": group_id,
        "members": [],
        "authorized_operations": NOT_TOLD,
    }


@_DESCRIBE.handler
def _describe(
    coordinator: GroupCoordinator,
    group_id: str,
    _arguments: None,
    on_outcome: OnOutcome[DescribedConsumerGroup],
) -> None:
    coordinator.read(
        lambda: coordinator.describe_consumer_group(group_id),
        lambda code, found: on_outcome(
            int(code) if code else found if found is not None else int(ErrorCode.GROUP_ID_NOT_FOUND)
        ),
    )
