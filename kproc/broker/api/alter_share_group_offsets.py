"""AlterShareGroupOffsets (key 91), version 0 (KIP-932).

It sets where a share group begins to read partitions. The group must have no members; one that does not exist is
created. The states of the partitions are replaced, so that records are delivered again or never.

Differs from Kafka: the epoch of the group rises, so that a partition's owner that still has the old state is fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from kproc.broker.api.share_group_heartbeat import check_share_enabled
from kproc.broker.peers.coordinator_call import Fields, ItemOperation, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics, on_group
from kproc.broker.security.acl import Operation
from kproc.broker.share.membership.messages import AlterShareOffsets, ChangedShareOffsets, DeleteShareOffsets
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

C = TypeVar("C", AlterShareOffsets, DeleteShareOffsets)

_ALTER: Final = GROUPS.operation("alter_share_group_offsets", AlterShareOffsets, ChangedShareOffsets)
MESSAGES: Final = {
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
}


@api(
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    versions=(0, 0),
    needs=(on_group(Operation.READ),),
    rows=(rows_at("topics.partitions", "responses.partitions"),),
)
def handle_alter_share_group_offsets(context: RequestContext, request: Fields) -> None:
    check_share_enabled(context)
    if not request["group_id"]:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    topics = request["topics"]
    hidden = denied_topics(context, Operation.READ, (topic["topic_name"] for topic in topics))
    offsets: dict[str, dict[int, int]] = {}
    for topic in topics:
        if topic["topic_name"] not in hidden:
            # A topic can have several rows. Join them, because the coordinator changes each topic once.
            by_partition = offsets.setdefault(topic["topic_name"], {})
            by_partition |= {each["partition_index"]: each["start_offset"] for each in topic["partitions"]}

    send_change(
        context,
        request,
        _ALTER,
        AlterShareOffsets(offsets),
        lambda outcome: [_topic(context, topic, hidden, outcome) for topic in topics],
    )


def send_change(
    context: RequestContext,
    request: Fields,
    change: ItemOperation[GroupCoordinator, C, ChangedShareOffsets],
    arguments: C,
    rows_of: Callable[[ChangedShareOffsets], list[Fields]],
) -> None:
    """Change the start offsets of a request's group at its coordinator, and send the response.

    `rows_of` returns the response's rows of the topics. It is not called if the whole group has an error.
    """

    def on_done(outcome: ChangedShareOffsets | int) -> None:
        if isinstance(outcome, int):
            outcome = ChangedShareOffsets(error_code=outcome)
        if outcome.error_code:
            context.reply(error_response(request, outcome.error_code, outcome.error_message))
        else:
            context.reply({"error_code": 0, "error_message": None, "responses": rows_of(outcome)})

    change.send_one(context, request["group_id"], arguments, on_done)


def _topic(
    context: RequestContext, topic: Fields, hidden: Collection[str], outcome: ChangedShareOffsets
) -> Fields:
    name = topic["topic_name"]
    # Hide the id of a forbidden topic. Otherwise the row would show whether the topic exists.
    image_topic = None if name in hidden else context.services.image.topic(name)
    rows = []
    for each in topic["partitions"]:
        index = each["partition_index"]
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if name in hidden else outcome.codes[name][index]
        rows.append({"partition_index": index, "error_code": int(code), "error_message": message_of(code)})
    return {
        "topic_name": name,
        "topic_id": None if image_topic is None else image_topic.topic_id,
        "partitions": rows,
    }


def message_of(code: int) -> str | None:
    """Return the message that a row has for this error code, or None if the code is 0."""
    return MESSAGES.get(ErrorCode(code), ErrorCode(code).name) if code else None


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    return {"error_code": int(code), "error_message": message or message_of(code), "responses": []}


@_ALTER.handler
def _alter(
    coordinator: GroupCoordinator,
    group_id: str,
    request: AlterShareOffsets,
    on_outcome: OnOutcome[ChangedShareOffsets],
) -> None:
    coordinator.share_requests.change_offsets(group_id, request, on_outcome)
