"""OffsetDelete (key 47), version 0 (KIP-496).

Takes committed offsets away. A group with members keeps those of the topics that it is subscribed to
(GROUP_SUBSCRIBED_TO_TOPIC); one whose subscriptions nobody knows keeps all (NON_EMPTY_GROUP).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from kproc.broker.group.records import OffsetKey
from kproc.broker.peers.coordinator_call import Caller, Fields, OnOutcome
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

_NAME: Final = "offset_delete"


@api(
    ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    needs=(on_group(Operation.DELETE),),
    rows=(rows_at("topics.partitions", "topics.partitions"),),
)
def handle_offset_delete(context: RequestContext, request: Fields) -> None:
    image = context.services.image
    hidden = denied_topics(context, Operation.READ, (topic["name"] for topic in request["topics"]))
    wanted = [
        (topic["name"], each["partition_index"])
        for topic in request["topics"]
        if topic["name"] not in hidden
        for each in topic["partitions"]
        if image.partition(topic["name"], each["partition_index"]) is not None
    ]
    if not request["group_id"]:
        context.reply(error_response(request, ErrorCode.INVALID_GROUP_ID, None))
        return

    def on_done(outcome: Fields | int) -> None:
        if isinstance(outcome, int):
            context.reply(error_response(request, outcome, None))
            return
        subscribed = set(outcome["subscribed"])
        rows = [_topic(topic, known, subscribed, hidden) for topic in request["topics"]]
        context.reply({"error_code": 0, "topics": rows})

    known = set(wanted)
    GROUPS.send_one(context, _NAME, request["group_id"], wanted, on_done)


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
        elif name in subscribed:
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        return {"partition_index": index, "error_code": int(code)}

    return {"name": name, "partitions": [row(each["partition_index"]) for each in topic["partitions"]]}


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    return {"error_code": int(code), "topics": []}


@GROUPS.operation(_NAME, list[tuple[str, int]])
def _serve(
    coordinator: GroupCoordinator,
    _caller: Caller,
    group_id: str,
    wanted: list[tuple[str, int]],
    on_outcome: OnOutcome,
) -> None:
    keys = [OffsetKey(group_id, topic, partition) for topic, partition in wanted]

    def on_done(code: int, subscribed: frozenset[str]) -> None:
        on_outcome(int(code) if code else {"subscribed": sorted(subscribed)})

    coordinator.delete_offsets(group_id, keys, on_done)
