"""DescribeTopicPartitions (key 75), version 0 (KIP-966): Metadata in pages.

The topics are in the order of their names. A response has at most `response_partition_limit` partitions, and at most
max.request.partition.size.limit. The cursor names the start of the next page.

Differs from Kafka: a page also has at most max.request.partition.size.limit topics. Otherwise topics without partitions
would not count. A topic that the client may not describe is in one page, by its name. Kafka repeats it in each page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kproc.broker.api.metadata import topic_error, topic_row
from kproc.broker.cluster.image import ClusterImage, TopicImage
from kproc.broker.cluster.topic_changes import NO_TOPIC_ID
from kproc.broker.cluster.topic_names import problem_with
from kproc.broker.request.authorized_operations import operations_on
from kproc.broker.request.listing import Items, list_items
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode, KafkaError
from kproc.common.step_sort import sort_by_steps
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

Cursor = dict[str, Any]


@api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0), rows_max=20_000)
def handle_describe_topic_partitions(context: RequestContext, request: dict[str, Any]) -> None:
    names = _names(context.services.image, request["topics"], request["cursor"])
    fields: dict[str, Any] = {"next_cursor": None}
    list_items(context, "topics", _page(context, request, names, fields), fields=fields)


def _page(
    context: RequestContext, request: dict[str, Any], names: Iterator[str | None], fields: dict[str, Any]
) -> Items:
    """Yield the rows of a page's topics, then those of topics that the client may not describe.

    Yields None for a step without a row. Sets `next_cursor` of `fields` if a further page follows.
    """
    services, cursor = context.services, request["cursor"]
    asks_for_all = not request["topics"]
    page_max = services.config.max_request_partition_size_limit
    room = max(1, min(page_max, request["response_partition_limit"]))
    count = 0
    refused: list[dict[str, Any]] = []
    for name in names:
        if name is None:
            yield None
            continue
        first = cursor["partition_index"] if cursor is not None and cursor["topic_name"] == name else 0
        # As in Kafka, a full page also ends before a topic that does not exist, which has no partitions.
        if not room or count >= page_max:
            fields["next_cursor"] = {"topic_name": name, "partition_index": 0}
            break
        if denied(context, Operation.DESCRIBE, ResourceType.TOPIC, (name,), is_question=asks_for_all):
            if not asks_for_all:
                # As in DescribeTopicPartitionsRequestHandler, the rows of forbidden topics follow those of the
                # described topics.
                refused.append(_refused(name))
                count += 1
            yield None
            continue
        topic = services.image.topic(name)
        partition_count = 0 if topic is None else len(topic.partitions)
        count += 1
        yield _allowed_row(context, name, topic, first, room)
        if first + room < partition_count:
            fields["next_cursor"] = {"topic_name": name, "partition_index": first + room}
            break
        # The cursor can be behind the last partition: the topic was deleted and created again with fewer partitions.
        room -= max(0, partition_count - first)
    yield from refused


def error_response(request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    rows = [{**_missing(topic["name"]), "error_code": int(code)} for topic in request["topics"]]
    return {"topics": rows, "next_cursor": None}


def _names(image: ClusterImage, wanted: list[dict[str, Any]], cursor: Cursor | None) -> Iterator[str | None]:
    """Yield None for each topic while all names are read, and then the names from the cursor on, in order.

    If the request names no topics, all topics are listed. Raises KafkaError for an invalid cursor.
    """
    names = {topic["name"] for topic in wanted} or list(image.topics_by_name)
    if cursor is None:
        return sort_by_steps(names, key=str)
    # KIP-966: a cursor comes from a former response. One that no response can have is a client's bug, and
    # would otherwise select partitions from the end of the list.
    if cursor["partition_index"] < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    first = cursor["topic_name"]
    # The cursor belongs to another list of topics. Continuing there would skip topics without an error.
    if wanted and first not in names:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return sort_by_steps((name if name >= first else None for name in names), key=str)


def _allowed_row(
    context: RequestContext, name: str, topic: TopicImage | None, first: int, room: int
) -> dict[str, Any]:
    """Return the row of a topic that the client may describe, with up to `room` partitions from `first` on.

    topic: None if the topic does not exist.
    """
    row = _missing(name) if topic is None else _topic_row(topic, context.services.config.node_id, first, room)
    row["topic_authorized_operations"] = operations_on(context, ResourceType.TOPIC, name)
    return row


def _refused(name: str) -> dict[str, Any]:
    """Return the row of a topic that the client may not describe, which does not reveal whether it exists."""
    code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return {**_missing(name), "error_code": code, "is_internal": False}


def _missing(name: str) -> dict[str, Any]:
    is_valid = problem_with(name) is None
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION
    return topic_error(name, NO_TOPIC_ID, code)


def _topic_row(topic: TopicImage, node_id: int, first: int, room: int) -> dict[str, Any]:
    row = topic_row(topic, topic.partitions[first : first + room], node_id)
    for partition in row["partitions"]:
        # These lists name replicas that left the ISR (KIP-966). With one replica that never happens.
        partition |= {"eligible_leader_replicas": [], "last_known_elr": []}
    return row
