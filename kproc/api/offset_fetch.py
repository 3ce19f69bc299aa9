"""OffsetFetch (key 9), versions 1-10.

An offset that nobody committed is -1, and so is everything of a group that there is not: neither is an error.
`require_stable` asks for offsets that no open transaction can change: one that it can is UNSTABLE_OFFSET_COMMIT and -1,
and to be asked for again. Every answer waits until what it shows is durable. Versions: v2 null for all topics, and an
error of the request; v5 leader epochs; v6 flexible; v7 require stable (KIP-447); v8 several groups; v9 member id and
epoch, which the classic protocol does not look at; v10 topic ids (KIP-848).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.api.coordinator_call import Caller, Fields, Item, OnOutcome, Outcome
from kproc.api.group_call import GROUPS
from kproc.api.registry import api
from kproc.errors import ErrorCode
from kproc.group.records import NO_EPOCH, CommittedOffset
from kproc.wire.header import ApiKey
from kproc.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kproc.api.context import RequestContext
    from kproc.cluster.image import ClusterImage
    from kproc.group.coordinator import GroupCoordinator

_NAME: Final = "offset_fetch"
_TOP_LEVEL_ERROR_SINCE: Final = 2
_GROUPS_SINCE: Final = 8
_IDS_SINCE: Final = 10
_NO_OFFSET: Final = -1
# Of one offset as it travels: partition, offset, leader epoch, metadata, and an error code if it has one.
Row = list[Any]


@api(ApiKey.OFFSET_FETCH, versions=(1, 10))
def handle_offset_fetch(context: RequestContext, request: Fields) -> None:
    groups = _groups_of(context.api_version, request)
    image = context.services.image
    has_ids = context.api_version >= _IDS_SINCE
    is_stable = request.get("require_stable", False)
    items = [
        Item(group["group_id"], [_wanted_of(group, image, has_ids=has_ids), is_stable]) for group in groups
    ]

    def on_done(outcomes: list[Outcome]) -> None:
        answers = [
            _group_failed(context.api_version, group, outcome)
            if isinstance(outcome, int)
            else _group_answer(group, outcome, context.services.image, has_ids=has_ids)
            for group, outcome in zip(groups, outcomes, strict=True)
        ]
        context.reply(_response(context.api_version, answers))

    GROUPS.ask(context, _NAME, items, on_done)


def _groups_of(version: int, request: Fields) -> list[Fields]:
    return request["groups"] if version >= _GROUPS_SINCE else [request]


def _wanted_of(group: Fields, image: ClusterImage, *, has_ids: bool) -> list[list[Any]] | None:
    """[topic name, topic id, partitions] each; None for all that there is. Ids without a topic are left out."""
    if group["topics"] is None:
        return None
    wanted: list[list[Any]] = []
    for topic in group["topics"]:
        if not has_ids:
            wanted.append([topic["name"], ZERO_UUID, topic["partition_indexes"]])
        elif (found := image.topic_by_id(topic["topic_id"])) is not None:
            wanted.append([found.name, found.topic_id, topic["partition_indexes"]])
    return wanted


def _group_answer(group: Fields, outcome: Fields, image: ClusterImage, *, has_ids: bool) -> Fields:
    topics: list[Fields] = []
    shown: set[bytes] = set()
    for name, topic_id, rows in outcome["topics"]:
        partitions = [_partition(*row) for row in rows]
        if not has_ids:
            topics.append({"name": name, "partitions": partitions})
            continue
        if topic_id == ZERO_UUID and (known := image.topic(name)) is not None:  # Everything was asked for.
            topic_id = known.topic_id
        if topic_id != ZERO_UUID:  # A topic that was deleted meanwhile cannot be named.
            shown.add(topic_id)
            topics.append({"topic_id": topic_id, "partitions": partitions})
    if has_ids and group["topics"] is not None:
        unknown = [topic for topic in group["topics"] if topic["topic_id"] not in shown]
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
    del message  # The response has no room for it.
    if "groups" in request:
        return {"groups": [_group_failed(_GROUPS_SINCE, group, code) for group in request["groups"]]}
    topics = [_topic_failed(topic, code) for topic in request["topics"] or []]
    return {"topics": topics, "error_code": int(code)}


@GROUPS.operation(_NAME)
def _serve(
    coordinator: GroupCoordinator, _caller: Caller, group_id: str, wanted: Any, on_outcome: OnOutcome
) -> None:
    topics, is_stable = wanted

    coordinator.read(
        lambda: _look_up(coordinator, group_id, topics, is_stable=is_stable),
        lambda code, found: on_outcome(int(code) if code else {"topics": found}),
    )


def _look_up(
    coordinator: GroupCoordinator, group_id: str, wanted: list[list[Any]] | None, *, is_stable: bool
) -> list[list[Any]]:
    """[topic, topic id, rows] each."""
    offsets = coordinator.offsets
    pending = offsets.pending if is_stable and offsets.pending.has_group(group_id) else None

    def row(topic: str, index: int, committed: CommittedOffset | None) -> Row:
        if pending is not None and pending.has(group_id, topic, index):
            return [index, _NO_OFFSET, NO_EPOCH, "", int(ErrorCode.UNSTABLE_OFFSET_COMMIT)]
        if committed is None:
            return [index, _NO_OFFSET, NO_EPOCH, ""]
        return [index, committed.offset, committed.leader_epoch, committed.metadata]

    if wanted is None:
        return [
            [topic, ZERO_UUID, [row(topic, index, committed) for index, committed in partitions.items()]]
            for topic, partitions in offsets.of_group(group_id).items()
        ]
    return [
        [topic, topic_id, [row(topic, at, offsets.get(group_id, topic, at, topic_id)) for at in indexes]]
        for topic, topic_id, indexes in wanted
    ]
