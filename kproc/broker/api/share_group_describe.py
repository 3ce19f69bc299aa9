"""ShareGroupDescribe (key 77), version 1 (KIP-932).

It shows share groups with the epochs, the subscription and the partitions of each member. Groups of other protocols
get GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Final

from kproc.broker.api.share_group_heartbeat import check_share_enabled
from kproc.broker.peers.coordinator_call import Fields, Item, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.authorized_operations import NOT_TOLD, operations_on
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.share.membership.messages import DescribedShareGroup, DescribedShareMember
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_DESCRIBE: Final = GROUPS.operation("share_group_describe", NoneType, DescribedShareGroup)


@api(
    ApiKey.SHARE_GROUP_DESCRIBE,
    versions=(1, 1),
    rows=(rows_at("group_ids", "groups.members", size=1),),
)
def handle_share_group_describe(context: RequestContext, request: Fields) -> None:
    check_share_enabled(context)
    group_ids = request["group_ids"]
    refused = denied(context, Operation.DESCRIBE, ResourceType.GROUP, group_ids)
    allowed = [group_id for group_id in group_ids if group_id and group_id not in refused]

    def on_done(outcomes: list[DescribedShareGroup | int]) -> None:
        left = iter(outcomes)
        groups = []
        for group_id in group_ids:
            if group_id in refused:
                group = _failed(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            elif not group_id:
                group = _failed(group_id, ErrorCode.INVALID_GROUP_ID)
            else:
                group = _row(context, group_id, next(left))
            if request["include_authorized_operations"] and not group["error_code"]:
                group["authorized_operations"] = operations_on(context, ResourceType.GROUP, group_id)
            groups.append(group)
        context.reply({"groups": groups})

    _DESCRIBE.send(context, [Item(group_id, None) for group_id in allowed], on_done)


def _row(context: RequestContext, group_id: str, outcome: DescribedShareGroup | int) -> Fields:
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


def _topics_of(image: ClusterImage, member: DescribedShareMember) -> set[str]:
    """Return the names of the topics that a member's row shows."""
    topics = map(image.topic_by_id, member.assignment)
    return {*member.topic_names, *(topic.name for topic in topics if topic is not None)}


def _member(image: ClusterImage, member: DescribedShareMember) -> Fields:
    rows = []
    for topic_id, partitions in sorted(member.assignment.items()):
        topic = image.topic_by_id(topic_id)
        # A topic that was deleted meanwhile has no name to show.
        if topic is not None:
            rows.append({"topic_id": topic_id, "topic_name": topic.name, "partitions": sorted(partitions)})
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topic_names),
        "assignment": {"topic_partitions": rows},
    }


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
    coordinator: GroupCoordinator, group_id: str, _arguments: None, on_outcome: OnOutcome[DescribedShareGroup]
) -> None:
    def read() -> DescribedShareGroup | None:
        group = coordinator.shares.find(group_id)
        return None if group is None else group.describe_share()

    coordinator.read(
        read,
        lambda code, found: on_outcome(
            int(code) if code else found if found is not None else int(ErrorCode.GROUP_ID_NOT_FOUND)
        ),
    )
