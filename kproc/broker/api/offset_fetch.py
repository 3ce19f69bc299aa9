"""OffsetFetch (key 9), versions 1-10.

An offset that nobody committed is -1, and so is everything of a group that there is not: neither is an error.
`require_stable` asks for offsets that no open transaction can change: one that it can is UNSTABLE_OFFSET_COMMIT and -1,
and to be asked for again. Every answer waits until what it shows is durable. Versions: v2 null for all topics, and an
error of the request; v5 leader epochs; v6 flexible; v7 require stable (KIP-447); v8 several groups; v9 member id and
epoch, which the classic protocol does not look at; v10 topic ids (KIP-848).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.group.records import NO_EPOCH, CommittedOffset
from kproc.broker.peers.coordinator_call import Caller, Fields, Item, OnOutcome, Outcome
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
    from kproc.broker.request.context import RequestContext

_NAME: Final = "offset_fetch"
_TOP_LEVEL_ERROR_SINCE: Final = 2
_GROUPS_SINCE: Final = 8
_IDS_SINCE: Final = 10
_NO_OFFSET: Final = -1
# The values behind the partition in a row without a committed offset.
_NOTHING: Final[list[Any]] = [_NO_OFFSET, NO_EPOCH, ""]
# Marks a topic that the client has not named. Offsets that do not exist any more when its slice is handled are skipped.
_LISTED: Final = "listed"
# One offset in a call between Handlers: partition, offset, leader epoch, metadata, and an error code if it has one.
Row = list[Any]


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
    if sum(group["topics"] is None for group in groups) > 1:
        # Each of these groups may have many offsets, so put each into a slice of its own.
        context.divide(lambda: request)
        return
    has_ids = context.api_version >= _IDS_SINCE
    is_stable = request.get("require_stable", False)
    refused = denied(context, Operation.DESCRIBE, ResourceType.GROUP, (group["group_id"] for group in groups))
    asked = [group for group in groups if group["group_id"] not in refused]
    hidden = _hidden_topics(context, asked)
    items = [
        Item(group["group_id"], (_wanted_of(group, image, hidden, has_ids=has_ids), is_stable))
        for group in asked
    ]

    def on_done(outcomes: list[Outcome]) -> None:
        left = iter(outcomes)
        answers = []
        for group in groups:
            is_refused = group["group_id"] in refused
            outcome = ErrorCode.GROUP_AUTHORIZATION_FAILED if is_refused else next(left)
            if isinstance(outcome, dict) and "listed" in outcome:
                context.divide(partial(_with_topics, context, request, group, outcome["listed"]))
                return
            if isinstance(outcome, int):
                answers.append(_group_failed(context.api_version, group, outcome))
            else:
                answers.append(_group_answer(context, group, outcome, hidden, has_ids=has_ids))
        context.reply(_response(context.api_version, answers))

    GROUPS.send(context, _NAME, items, on_done)


def _groups_of(version: int, request: Fields) -> list[Fields]:
    return request["groups"] if version >= _GROUPS_SINCE else [request]


def _with_topics(context: RequestContext, request: Fields, group: Fields, listed: list[list[Any]]) -> Fields:
    """Return a copy of a request in which a group that asked for all topics names those with committed offsets."""
    image, topics = context.services.image, []
    for name, indexes in listed:
        label, shown = "name", name
        if context.api_version >= _IDS_SINCE:
            if (topic := image.topic(name)) is None:
                continue  # A topic that was deleted meanwhile cannot be named.
            label, shown = "topic_id", topic.topic_id
        topics.append({label: shown, "partition_indexes": indexes, _LISTED: True})
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


def _wanted_of(
    group: Fields, image: ClusterImage, hidden: Collection[str], *, has_ids: bool
) -> list[list[Any]] | None:
    """Return [topic name, topic id, partitions] for each topic, or None for all topics. Skip unknown ids."""
    if group["topics"] is None:
        return None
    wanted: list[list[Any]] = []
    for topic in group["topics"]:
        name = _name_of(image, topic)
        if name is None or name in hidden:
            continue
        if _LISTED in topic:
            wanted.append([name, ZERO_UUID, topic["partition_indexes"]])
        elif not has_ids:
            wanted.append([topic["name"], ZERO_UUID, topic["partition_indexes"]])
        elif (found := image.topic_by_id(topic["topic_id"])) is not None:
            wanted.append([found.name, found.topic_id, topic["partition_indexes"]])
    return wanted


def _group_answer(
    context: RequestContext, group: Fields, outcome: Fields, hidden: Collection[str], *, has_ids: bool
) -> Fields:
    """Return the response's row of one group.

    `hidden`: topics of the request that the client may not see. They get an error row, but are skipped if the client
    asked for all topics.
    """
    image, wanted = context.services.image, group["topics"]
    if wanted is None:
        names = (name for name, _, _ in outcome["topics"])
        hidden = denied(context, Operation.DESCRIBE, ResourceType.TOPIC, names, is_question=True)
    named = [topic for topic in wanted or () if _LISTED not in topic]
    is_listed = len(named) < len(wanted or ())
    refused = [topic for topic in named if _name_of(image, topic) in hidden]
    topics = [_topic_failed(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for topic in refused]
    shown: set[bytes] = {topic["topic_id"] for topic in refused} if has_ids else set()
    for name, topic_id, rows in outcome["topics"]:
        if name in hidden:
            continue
        partitions = [_partition(*row) for row in rows if not is_listed or row[1:] != _NOTHING]
        if is_listed and not partitions:
            continue
        if not has_ids:
            topics.append({"name": name, "partitions": partitions})
            continue
        # The coordinator does not return ids if the client asked for all topics.
        if topic_id == ZERO_UUID and (known := image.topic(name)) is not None:
            topic_id = known.topic_id
        # A topic that was deleted meanwhile has no id by which to name it.
        if topic_id != ZERO_UUID:
            shown.add(topic_id)
            topics.append({"topic_id": topic_id, "partitions": partitions})
    if has_ids and wanted is not None:
        unknown = [topic for topic in named if topic["topic_id"] not in shown]
        topics += [_topic_failed(topic, ErrorCode.UNKNOWN_TOPIC_ID) for topic in unknown]
    return {"group_id": group["group_id"], "topics": topics, "error_code": int(ErrorCode.NONE)}


def _partition(index: int, offset: int, epoch: int, metadata: str, code: int = ErrorCode.NONE) -> Fields:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "metadata": metadata,
        "error_code": int(code),
    }


def _topic_failed(topic: Fields, code: int) -> Fields:
    rows = [_partition(index, _NO_OFFSET, NO_EPOCH, "", code) for index in topic["partition_indexes"]]
    label = "topic_id" if "topic_id" in topic else "name"
    return {label: topic[label], "partitions": rows}


def _group_failed(version: int, group: Fields, code: int) -> Fields:
    topics: list[Fields] = []
    if version < _TOP_LEVEL_ERROR_SINCE:
        topics = [_topic_failed(topic, code) for topic in group["topics"]]
    return {"group_id": group["group_id"], "topics": topics, "error_code": int(code)}


def _response(version: int, answers: list[Fields]) -> Fields:
    if version >= _GROUPS_SINCE:
        return {"groups": answers}
    (answer,) = answers
    return {"topics": answer["topics"], "error_code": answer["error_code"]}


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    del message  # The response has no field for a message.
    if "groups" in request:
        return {"groups": [_group_failed(_GROUPS_SINCE, group, code) for group in request["groups"]]}
    topics = [_topic_failed(topic, code) for topic in request["topics"] or []]
    return {"topics": topics, "error_code": int(code)}


@GROUPS.operation(_NAME, tuple[list[Any] | None, bool])
def _serve(
    coordinator: GroupCoordinator,
    _caller: Caller,
    group_id: str,
    wanted: tuple[list[Any] | None, bool],
    on_outcome: OnOutcome,
) -> None:
    topics, is_stable = wanted
    coordinator.read(
        lambda: _look_up(coordinator, group_id, topics, is_stable=is_stable),
        lambda code, found: on_outcome(int(code) if code else found),
    )


def _look_up(
    coordinator: GroupCoordinator, group_id: str, wanted: list[list[Any]] | None, *, is_stable: bool
) -> Fields:
    """Return "topics": [topic, topic id, rows] each. If there are many rows, "listed": [topic, partitions] each."""
    offsets = coordinator.offsets
    pending = offsets.pending if is_stable and offsets.pending.has_group(group_id) else None

    def row(topic: str, index: int, committed: CommittedOffset | None) -> Row:
        if pending is not None and pending.has(group_id, topic, index):
            return [index, _NO_OFFSET, NO_EPOCH, "", int(ErrorCode.UNSTABLE_OFFSET_COMMIT)]
        if committed is None:
            return [index, *_NOTHING]
        return [index, committed.offset, committed.leader_epoch, committed.metadata]

    if wanted is None:
        of_group = offsets.of_group(group_id)
        if offsets.has_more_than(group_id, division.SLICE_ROWS):
            return {"listed": [[topic, list(partitions)] for topic, partitions in of_group.items()]}
        found = [
            [topic, ZERO_UUID, [row(topic, index, committed) for index, committed in partitions.items()]]
            for topic, partitions in of_group.items()
        ]
    else:
        found = [
            [topic, topic_id, [row(topic, at, offsets.get(group_id, topic, at, topic_id)) for at in indexes]]
            for topic, topic_id, indexes in wanted
        ]
    return {"topics": found}
