"""OffsetFetch (key 9), versions 1-10.

An offset that was never committed is -1. This is not an error, and holds for all offsets of a group that does not
exist. With `require_stable`, an offset that an open transaction may change is -1 with UNSTABLE_OFFSET_COMMIT, and the
client retries (KIP-447). A response waits until the offsets in it are durable.

Versions: v2 null for all topics, and an error of the request; v5 leader epochs (KIP-320); v6 flexible; v7
require_stable; v8 several groups (KIP-709); v9 member id and epoch (KIP-848), which classic groups ignore; v10 topic
ids (KIP-848).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.group.records import NO_EPOCH, CommittedOffset
from kproc.broker.peers.coordinator_call import Fields, Item, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request import division
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied, denied_topics
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.group.offsets import GroupOffsets
    from kproc.broker.request.context import RequestContext

_TOP_LEVEL_ERROR_SINCE: Final = 2
# KIP-709: one request can name several groups.
_GROUPS_SINCE: Final = 8
_IDS_SINCE: Final = 10
_NO_OFFSET: Final = -1
# Marks a topic that the client has not named. Offsets that do not exist any more when its slice is handled are skipped.
_LISTED: Final = "listed"


class OffsetRow(msgspec.Struct, array_like=True, gc=False):
    """The offset of one partition. The default values mean that no offset is committed."""

    partition: int
    offset: int = _NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    error_code: int = 0


class TopicPartitions(msgspec.Struct, array_like=True):
    """A topic and indexes of its partitions."""

    name: str
    topic_id: bytes
    partitions: list[int]


class TopicOffsets(msgspec.Struct, array_like=True):
    """The offsets of a topic. The id is zero unless the request named it."""

    name: str
    topic_id: bytes
    rows: list[OffsetRow]


class OffsetsRequest(msgspec.Struct):
    """The partitions of a group whose offsets are requested. `topics` is None for all partitions that have offsets."""

    topics: list[TopicPartitions] | None
    requires_stable: bool
    # The member of a group of the consumer protocol. An admin client sends no epoch, and classic groups ignore id and
    # epoch.
    member_id: str | None = None
    member_epoch: int = NO_EPOCH


class OffsetsResult(msgspec.Struct):
    """The offsets of a group. If it has too many for one response, `listed` has their partitions instead."""

    topics: list[TopicOffsets] = []
    listed: list[TopicPartitions] | None = None


_FETCH: Final = GROUPS.operation("offset_fetch", OffsetsRequest, OffsetsResult)


@api(
    ApiKey.OFFSET_FETCH,
    versions=(1, 10),
    rows=(
        rows_at("groups.topics.partition_indexes", "groups.topics.partitions"),
        rows_at("topics.partition_indexes", "topics.partitions"),
    ),
)
def handle_offset_fetch(context: RequestContext, request: Fields) -> None:
    groups = _groups_of(context.api_version, request)
    image = context.services.image
    # KIP-709: each group may ask for all of its offsets.
    if sum(group["topics"] is None for group in groups) > 1:
        # Each of these groups may have many offsets, so put each into a slice of its own.
        context.divide(lambda: request)
        return
    has_ids = context.api_version >= _IDS_SINCE
    refused = denied(context, Operation.DESCRIBE, ResourceType.GROUP, (group["group_id"] for group in groups))
    allowed = [group for group in groups if group["group_id"] not in refused]
    hidden = _hidden_topics(context, allowed)
    items = [
        _item(group, _requested_topics(group, image, hidden, has_ids=has_ids), request) for group in allowed
    ]

    def on_done(outcomes: list[OffsetsResult | int]) -> None:
        left = iter(outcomes)
        rows = []
        for group in groups:
            if group["group_id"] in refused:
                rows.append(_group_failed(context.api_version, group, ErrorCode.GROUP_AUTHORIZATION_FAILED))
                continue
            outcome = next(left)
            if isinstance(outcome, int):
                rows.append(_group_failed(context.api_version, group, outcome))
            elif outcome.listed is not None:
                context.divide(partial(_with_topics, context, request, group, outcome.listed))
                return
            else:
                rows.append(_group_row(context, group, outcome, hidden, has_ids=has_ids))
        context.reply(_response(context.api_version, rows))

    _FETCH.send(context, items, on_done)


def _item(group: Fields, topics: list[TopicPartitions] | None, request: Fields) -> Item:
    """Return the part of the request for the coordinator of one group."""
    is_stable = request.get("require_stable", False)
    member_epoch = group.get("member_epoch", NO_EPOCH)
    return Item(group["group_id"], OffsetsRequest(topics, is_stable, group.get("member_id"), member_epoch))


def _groups_of(version: int, request: Fields) -> list[Fields]:
    return request["groups"] if version >= _GROUPS_SINCE else [request]


def _with_topics(
    context: RequestContext, request: Fields, group: Fields, listed: list[TopicPartitions]
) -> Fields:
    """Return a copy of a request in which a group that asked for all topics names those with committed offsets."""
    image, topics = context.services.image, []
    for each in listed:
        row = {"partition_indexes": each.partitions, _LISTED: True}
        if context.api_version < _IDS_SINCE:
            topics.append({**row, "name": each.name})
        # A topic that was deleted meanwhile has no id by which to name it.
        elif (topic := image.topic(each.name)) is not None:
            topics.append({**row, "topic_id": topic.topic_id})
    if context.api_version < _GROUPS_SINCE:
        return {**request, "topics": topics}
    groups = [{**each, "topics": topics} if each is group else each for each in request["groups"]]
    return {**request, "groups": groups}


def _hidden_topics(context: RequestContext, groups: list[Fields]) -> Collection[str]:
    """Return the topics of the groups that the client may not describe."""
    if context.services.authorizer is None:
        return ()
    image = context.services.image
    topics = [(topic, _name_of(image, topic)) for group in groups for topic in group["topics"] or ()]
    named = (name for topic, name in topics if name is not None and _LISTED not in topic)
    listed = (name for topic, name in topics if name is not None and _LISTED in topic)
    return {
        *denied_topics(context, Operation.DESCRIBE, named),
        *denied(context, Operation.DESCRIBE, ResourceType.TOPIC, listed, is_question=True),
    }


def _name_of(image: ClusterImage, topic: Fields) -> str | None:
    """Return the name of a topic of the request, or None for an unknown id."""
    if "topic_id" not in topic:
        return str(topic["name"])
    found = image.topic_by_id(topic["topic_id"])
    return None if found is None else found.name


def _requested_topics(
    group: Fields, image: ClusterImage, hidden: Collection[str], *, has_ids: bool
) -> list[TopicPartitions] | None:
    """Return the topics of a group's request, or None for all topics. Skip unknown ids and `hidden` topics."""
    if group["topics"] is None:
        return None
    topics: list[TopicPartitions] = []
    for topic in group["topics"]:
        name, partitions = _name_of(image, topic), topic["partition_indexes"]
        if name is None or name in hidden:
            continue
        topic_id = topic["topic_id"] if has_ids and _LISTED not in topic else ZERO_UUID
        topics.append(TopicPartitions(name, topic_id, partitions))
    return topics


def _group_row(
    context: RequestContext, group: Fields, result: OffsetsResult, hidden: Collection[str], *, has_ids: bool
) -> Fields:
    """Return the response's row of one group.

    `hidden`: topics of the request that the client may not see. They get an error row, but are skipped if the client
    asked for all topics.
    """
    image, requested = context.services.image, group["topics"]
    if requested is None:
        names = (each.name for each in result.topics)
        hidden = denied(context, Operation.DESCRIBE, ResourceType.TOPIC, names, is_question=True)
    named = [topic for topic in requested or () if _LISTED not in topic]
    is_listed = len(named) < len(requested or ())
    refused = [topic for topic in named if _name_of(image, topic) in hidden]
    topics = [_topic_failed(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for topic in refused]
    shown: set[bytes] = {topic["topic_id"] for topic in refused} if has_ids else set()
    for each in result.topics:
        if each.name in hidden:
            continue
        partitions = [
            _partition(row) for row in each.rows if not is_listed or row != OffsetRow(row.partition)
        ]
        if is_listed and not partitions:
            continue
        if not has_ids:
            topics.append({"name": each.name, "partitions": partitions})
            continue
        topic_id = each.topic_id
        # The coordinator does not return ids if the client asked for all topics.
        if topic_id == ZERO_UUID and (known := image.topic(each.name)) is not None:
            topic_id = known.topic_id
        # A topic that was deleted meanwhile has no id by which to name it.
        if topic_id != ZERO_UUID:
            shown.add(topic_id)
            topics.append({"topic_id": topic_id, "partitions": partitions})
    if has_ids and requested is not None:
        unknown = [topic for topic in named if topic["topic_id"] not in shown]
        topics += [_topic_failed(topic, ErrorCode.UNKNOWN_TOPIC_ID) for topic in unknown]
    return {"group_id": group["group_id"], "topics": topics, "error_code": int(ErrorCode.NONE)}


def _partition(row: OffsetRow) -> Fields:
    return {
        "partition_index": row.partition,
        "committed_offset": row.offset,
        "committed_leader_epoch": row.leader_epoch,
        "metadata": row.metadata,
        "error_code": row.error_code,
    }


def _topic_failed(topic: Fields, code: int) -> Fields:
    rows = [_partition(OffsetRow(index, error_code=int(code))) for index in topic["partition_indexes"]]
    label = "topic_id" if "topic_id" in topic else "name"
    return {label: topic[label], "partitions": rows}


def _group_failed(version: int, group: Fields, code: int) -> Fields:
    topics: list[Fields] = []
    # Below v2 the response has no error of its own, so each partition carries it.
    if version < _TOP_LEVEL_ERROR_SINCE:
        topics = [_topic_failed(topic, code) for topic in group["topics"]]
    return {"group_id": group["group_id"], "topics": topics, "error_code": int(code)}


def _response(version: int, rows: list[Fields]) -> Fields:
    if version >= _GROUPS_SINCE:
        return {"groups": rows}
    (row,) = rows
    return {"topics": row["topics"], "error_code": row["error_code"]}


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    if "groups" in request:
        return {"groups": [_group_failed(_GROUPS_SINCE, group, code) for group in request["groups"]]}
    topics = [_topic_failed(topic, code) for topic in request["topics"] or []]
    return {"topics": topics, "error_code": int(code)}


@_FETCH.handler
def _fetch(
    coordinator: GroupCoordinator,
    group_id: str,
    request: OffsetsRequest,
    on_outcome: OnOutcome[OffsetsResult],
) -> None:
    refusal = coordinator.offset_requests.fetch_refusal(group_id, request.member_id, request.member_epoch)
    if refusal:
        on_outcome(int(refusal))
        return
    coordinator.read(
        lambda: _read_offsets(coordinator, group_id, request),
        lambda code, result: on_outcome(int(code) if code else result),
    )


def _read_offsets(coordinator: GroupCoordinator, group_id: str, request: OffsetsRequest) -> OffsetsResult:
    offsets = coordinator.offsets
    # Most groups have no pending offset. This one look-up saves a look-up for each partition.
    has_pending = request.requires_stable and offsets.pending.has_group(group_id)
    pending = offsets.pending if has_pending else None

    def row(topic: str, index: int, committed: CommittedOffset | None) -> OffsetRow:
        if pending is not None and pending.has(group_id, topic, index):
            # KIP-447: the consumer retries until the transaction has ended. Otherwise it could start below an offset
            # that is about to be committed.
            return OffsetRow(index, error_code=int(ErrorCode.UNSTABLE_OFFSET_COMMIT))
        if committed is None:
            return OffsetRow(index)
        return OffsetRow(index, committed.offset, committed.leader_epoch, committed.metadata)

    if request.topics is None:
        return _all_offsets(offsets, group_id, row)
    return OffsetsResult(
        [
            TopicOffsets(
                each.name,
                each.topic_id,
                [
                    row(each.name, index, offsets.get(group_id, each.name, index, each.topic_id))
                    for index in each.partitions
                ],
            )
            for each in request.topics
        ]
    )


def _all_offsets(
    offsets: GroupOffsets, group_id: str, row: Callable[[str, int, CommittedOffset | None], OffsetRow]
) -> OffsetsResult:
    of_group = offsets.of_group(group_id)
    if offsets.has_more_than(group_id, division.SLICE_ROWS):
        listed = [TopicPartitions(topic, ZERO_UUID, list(found)) for topic, found in of_group.items()]
        return OffsetsResult(listed=listed)
    topics = []
    for topic, found in of_group.items():
        rows = [
            row(topic, index, committed)
            for index, committed in found.items()
            if not offsets.is_hidden(topic, committed)
        ]
        if rows:
            topics.append(TopicOffsets(topic, ZERO_UUID, rows))
    return OffsetsResult(topics)
