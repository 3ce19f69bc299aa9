"""ShareGroupHeartbeat (key 76), version 1 (KIP-932).

A member of a share group joins, stays, changes its subscription and leaves by this request. The response has the
member's epoch, and its partitions if they have changed or the member may not know them. The rules are in
share/membership/group.py.

Differs from Kafka: the interval of heartbeats in the response is at most 500 ms while the member waits for partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.api.member_requests import (
    check_text,
    check_topic_names,
    client_id_of,
    heartbeat_fields,
    invalid_request,
)
from kproc.broker.cluster.features import share_version
from kproc.broker.coordinator.member_phase import JOIN_EPOCH, LEAVE_EPOCH
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics, on_group
from kproc.broker.security.acl import Operation
from kproc.broker.share.membership.messages import ShareHeartbeat, ShareHeartbeatReply, ShareHeartbeatResult
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_HEARTBEAT: Final = GROUPS.operation("share_group_heartbeat", ShareHeartbeat, ShareHeartbeatResult)


@api(ApiKey.SHARE_GROUP_HEARTBEAT, versions=(1, 1), needs=(on_group(Operation.READ),), rows_max=10_000)
def handle_share_group_heartbeat(context: RequestContext, request: Fields) -> None:
    check_share_enabled(context)
    # As in KafkaApis, one forbidden topic rejects the request, because a subscription without it would differ
    # from the one that the application asked for.
    if denied_topics(context, Operation.DESCRIBE, request["subscribed_topic_names"] or ()):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    _validate(request)

    def on_done(outcome: ShareHeartbeatResult | int) -> None:
        if isinstance(outcome, int):
            outcome = ShareHeartbeatResult(error_code=outcome)
        context.reply(heartbeat_fields(outcome))

    names = request["subscribed_topic_names"]
    heartbeat = ShareHeartbeat(
        member_id=request["member_id"],
        member_epoch=request["member_epoch"],
        rack_id=request["rack_id"],
        topic_names=None if names is None else tuple(names),
        client_id=client_id_of(context),
        client_host=context.client_host,
    )
    _HEARTBEAT.send_one(context, request["group_id"], heartbeat, on_done)


def check_share_enabled(context: RequestContext) -> None:
    """Raise UNSUPPORTED_VERSION unless the cluster has share groups (feature share.version)."""
    if share_version(context.services.image) < 1:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The cluster's feature share.version is 0; share groups need at least 1.",
        )


def _validate(request: Fields) -> None:
    """Raise INVALID_REQUEST for invalid fields, as GroupCoordinatorService does before it looks the group up."""
    epoch, names = request["member_epoch"], request["subscribed_topic_names"]
    check_text(request["member_id"], "MemberId")
    check_text(request["group_id"], "GroupId")
    check_text(request["rack_id"], "RackId")
    # KIP-932: a member of a share group has no regular expression and no owned partitions, so its first
    # heartbeat must name topics. Later, null means that the subscription has not changed.
    if epoch == JOIN_EPOCH and not names:
        raise invalid_request("SubscribedTopicNames must be set in first request.")
    # Share groups have no static members, so -1 (leave) is the smallest epoch.
    if epoch < LEAVE_EPOCH:
        raise invalid_request("MemberEpoch is invalid.")
    check_topic_names(names)


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    return heartbeat_fields(ShareHeartbeatResult(error_code=int(code), error_message=message))


@_HEARTBEAT.handler
def _heartbeat(
    coordinator: GroupCoordinator, group_id: str, request: ShareHeartbeat, on_outcome: ShareHeartbeatReply
) -> None:
    coordinator.share_requests.heartbeat(group_id, request, on_outcome)
