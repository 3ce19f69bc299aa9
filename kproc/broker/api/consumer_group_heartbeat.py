"""ConsumerGroupHeartbeat (key 68), versions 0-1 (KIP-848).

A member of the consumer protocol joins, stays, changes its subscription and leaves by this request. The response has
the member's epoch, and its partitions if they have changed or the member may not know them. The rules are in
group/consumer/group.py.

Versions: v1 expressions, and member ids that clients choose (KIP-1082).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from kproc.broker.api.member_requests import (
    check_text,
    check_topic_names,
    client_id_of,
    heartbeat_fields,
    invalid_request,
)
from kproc.broker.cluster.features import group_version
from kproc.broker.coordinator.member_phase import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from kproc.broker.group.consumer.assignors import Assignment, join_rows
from kproc.broker.group.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerHeartbeatResult,
)
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics, on_group
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_CLIENT_MAKES_ID_SINCE: Final = 1
_NO_TIMEOUT: Final = -1
# A member can own all partitions of a group, and reports them after each change. Most of the other rows are their
# topics, and the names of its subscription. 60,000 rows, each of a different topic, take up to 60 ms.
_ROWS_MAX: Final = 60_000

_HEARTBEAT: Final = GROUPS.operation("consumer_group_heartbeat", ConsumerHeartbeat, ConsumerHeartbeatResult)


@api(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    versions=(0, 1),
    needs=(on_group(Operation.READ),),
    rows_max=_ROWS_MAX,
)
def handle_consumer_group_heartbeat(context: RequestContext, request: Fields) -> None:
    check_enabled(context)
    # Check the number first, because an authorization takes time for each name.
    check_topic_names(request["subscribed_topic_names"])
    # KafkaApis.handleConsumerGroupHeartbeat rejects the whole request. A subscription without the forbidden
    # topics would silently differ from the one that the application asked for.
    if denied_topics(context, Operation.DESCRIBE, request["subscribed_topic_names"] or ()):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    _validate(context, request)

    def on_done(outcome: ConsumerHeartbeatResult | int) -> None:
        if isinstance(outcome, int):
            outcome = ConsumerHeartbeatResult(error_code=outcome)
        context.reply(heartbeat_fields(outcome))

    _HEARTBEAT.send_one(context, request["group_id"], _heartbeat_of(context, request), on_done)


def check_enabled(context: RequestContext) -> None:
    """Raise UNSUPPORTED_VERSION unless the cluster has the consumer protocol (feature group.version)."""
    if group_version(context.services.image) < 1:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The cluster's feature group.version is 0; the consumer protocol needs at least 1.",
        )


def _validate(context: RequestContext, request: Fields) -> None:
    """Raise INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for invalid fields.

    GroupCoordinatorService does so, too, before it looks the group up.
    """
    epoch = request["member_epoch"]
    # KIP-1082: from v1 on the client chooses the member id, also for its first heartbeat. Then a member whose
    # first response is lost joins again as the same member, and leaves no dead one behind.
    if context.api_version >= _CLIENT_MAKES_ID_SINCE or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH:
        check_text(request["member_id"], "MemberId")
    check_text(request["group_id"], "GroupId")
    check_text(request["instance_id"], "InstanceId")
    check_text(request["rack_id"], "RackId")
    if epoch == JOIN_EPOCH:
        _validate_join(request)
    # Epoch -2 means that a static member will come back (KIP-848). Only an instance id can recognise it then.
    elif epoch == STATIC_LEAVE_EPOCH and request["instance_id"] is None:
        raise invalid_request("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise invalid_request("MemberEpoch is invalid.")
    # Reject an unknown assignor here, because the coordinator stores the name with the member and does not check it
    # again. Kafka's GroupCoordinatorService rejects it before the look-up of the group, too, so a client gets this
    # error even if the group does not exist.
    assignor, supported = request["server_assignor"], context.services.config.group_consumer_assignors
    if assignor is not None and assignor not in supported:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {assignor} is not supported. Supported assignors: {', '.join(supported)}.",
        )


def _validate_join(request: Fields) -> None:
    """Raise INVALID_REQUEST for invalid fields of a member that joins."""
    # The coordinator needs this timeout: a member that does not give up revoked partitions within it is removed.
    if request["rebalance_timeout"] == _NO_TIMEOUT:
        raise invalid_request("RebalanceTimeoutMs must be provided in first request.")
    # A member that joins must own nothing. It was fenced, or it is new, so another member may have its partitions
    # already.
    if request["topic_partitions"] is None or request["topic_partitions"]:
        raise invalid_request("TopicPartitions must be empty when (re-)joining.")
    if request["subscribed_topic_names"] is None and request.get("subscribed_topic_regex") is None:
        raise invalid_request(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


def _heartbeat_of(context: RequestContext, request: Fields) -> ConsumerHeartbeat:
    names, partitions = request["subscribed_topic_names"], request["topic_partitions"]
    return ConsumerHeartbeat(
        # Before v1 the broker makes the id of a member that joins.
        member_id=request["member_id"] or str(uuid.uuid4()),
        member_epoch=request["member_epoch"],
        instance_id=request["instance_id"],
        rack_id=request["rack_id"],
        rebalance_timeout_ms=request["rebalance_timeout"],
        topic_names=None if names is None else tuple(names),
        topic_regex=request.get("subscribed_topic_regex"),
        assignor=request["server_assignor"],
        owned=None if partitions is None else _assignment_of(partitions),
        client_id=client_id_of(context),
        client_host=context.client_host,
        client=context.identity,
    )


def _assignment_of(topics: list[Fields]) -> Assignment:
    # A topic can have several rows. If one of them were left out, its partitions would count as given up, and another
    # member could get them while this one still reads from them.
    return join_rows((topic["topic_id"], topic["partitions"]) for topic in topics)


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    return heartbeat_fields(ConsumerHeartbeatResult(error_code=int(code), error_message=message))


@_HEARTBEAT.handler
def _heartbeat(
    coordinator: GroupCoordinator,
    group_id: str,
    request: ConsumerHeartbeat,
    on_outcome: ConsumerHeartbeatReply,
) -> None:
    coordinator.consumer_heartbeat(group_id, request, on_outcome)
