"""OffsetDelete (key 47), version 0 (KIP-496).

It deletes committed offsets. A consumer group with members keeps the offsets of the topics that it is subscribed to
(GROUP_SUBSCRIBED_TO_TOPIC). A group whose members speak another protocol keeps all of them (NON_EMPTY_GROUP).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from kproc.broker.group.records import OffsetKey
from kproc.broker.peers.coordinator_call import Fields, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics, on_group
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

# The operation's result: the topics of the request that the group is subscribed to.
_DELETE: Final = GROUPS.operation("offset_delete", list[OffsetKey], list[str])


@api(
    ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    needs=(on_group(Operation.DELETE),),
    rows=(rows_at("topics.partitions", "topics.partitions"),),
)
def handle_offset_delete(context: RequestContext, request: Fields) -> None:
    image, group_id = context.services.image, request["group_id"]
    # KIP-496: DELETE on the group and READ on the topic, as for the commit that made the offset.
    hidden = denied_topics(context, Operation.READ, (topic["name"] for topic in request["topics"]))
    keys = [
        OffsetKey(group_id, topic["name"], each["partition_index"])
        for topic in request["topics"]
        if topic["name"] not in hidden
        for each in topic["partitions"]
        # As in KafkaApis.handleOffsetDeleteRequest, partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION and are
        # not sent to the coordinator.
        if image.partition(topic["name"], each["partition_index"]) is not None
    ]
    # The group with the empty name exists for old simple consumers, which only commit. Kafka rejects it here.
    if not group_id:
        context.reply(error_response(request, ErrorCode.INVALID_GROUP_ID, None))
        return
    known = {(key.topic, key.partition) for key in keys}

    def on_done(outcome: list[str] | int) -> None:
        if isinstance(outcome, int):
            context.reply(error_response(request, outcome, None))
            return
        subscribed = set(outcome)
        rows = [_topic(topic, known, subscribed, hidden) for topic in request["topics"]]
        context.reply({"error_code": 0, "topics": rows})

    _DELETE.send_one(context, group_id, keys, on_done)


def _topic(
    topic: Fields, known: set[tuple[str, int]], subscribed: set[str], hidden: Collection[str]
) -> Fields:
    name = topic["name"]

    def row(index: int) -> Fields:
        code = ErrorCode.NONE
        if name in hidden:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif (name, index) not in known:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # KIP-496: an offset of a topic that members read now would be committed again within seconds, so its
        # deletion would only look like a success.
        elif name in subscribed:
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        return {"partition_index": index, "error_code": int(code)}

    return {"name": name, "partitions": [row(each["partition_index"]) for each in topic["partitions"]]}


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return {"error_code": int(code), "topics": []}


@_DELETE.handler
def _delete(
    coordinator: GroupCoordinator, group_id: str, keys: list[OffsetKey], on_outcome: OnOutcome[list[str]]
) -> None:
    def on_done(code: int, subscribed: frozenset[str]) -> None:
        on_outcome(int(code) if code else sorted(subscribed))

    coordinator.offset_requests.delete_offsets(group_id, keys, on_done)
