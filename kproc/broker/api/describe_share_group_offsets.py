"""DescribeShareGroupOffsets (key 90), versions 0-1 (KIP-932).

It shows where a share group begins to read each partition, and how many records after that are not completely delivered
(lag). The share coordinators have the start offsets, and the owners of the partitions the ends of the logs.

Versions: v1 lag (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.api.alter_share_group_offsets import message_of
from kproc.broker.api.list_offsets import gather_ends
from kproc.broker.api.share_group_heartbeat import check_share_enabled
from kproc.broker.peers.coordinator_call import Fields, Item, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.peers.share_call import READ_SUMMARY
from kproc.broker.request.division import SLICE_ROWS, rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied, denied_topics
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.share.state.messages import NO_COUNT, NO_OFFSET, PersistedState, ReadSummary, state_key
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.primitives import INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_NO_LAG: Final = -1
_Row = dict[str, Any]

_Initialized = dict[bytes, frozenset[int]]  # Topic id -> partitions.

_INITIALIZED: Final = GROUPS.operation("share_group_initialized", NoneType, _Initialized)


@api(
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    versions=(0, 1),
    rows=(rows_at("groups.topics.partitions", "groups.topics.partitions"),),
)
def handle_describe_share_group_offsets(context: RequestContext, request: Fields) -> None:
    check_share_enabled(context)
    groups = request["groups"]
    refused = denied(context, Operation.DESCRIBE, ResourceType.GROUP, (group["group_id"] for group in groups))
    unlisted = [
        group["group_id"] for group in groups if group["topics"] is None and group["group_id"] not in refused
    ]
    if len(unlisted) > 1:
        # Each of these groups may have many partitions, so put each into a slice of its own.
        context.divide(lambda: request)
        return

    def on_listed(outcomes: list[_Initialized | int]) -> None:
        failed = {name: each for name, each in zip(unlisted, outcomes, strict=True) if isinstance(each, int)}
        found = [each for each in outcomes if not isinstance(each, int)]
        named = _with_topics(context, request, unlisted[0], found[0]) if found else request
        if found and sum(map(len, found[0].values())) > SLICE_ROWS:
            context.divide(lambda: named)
        else:
            _describe(context, named, refused, failed)

    _INITIALIZED.send(context, [Item(group_id, None) for group_id in unlisted], on_listed)


def _with_topics(context: RequestContext, request: Fields, group_id: str, found: _Initialized) -> Fields:
    """Return the request with a group's initialized partitions, without topics that the client may not describe."""
    names = [
        (topic.name, sorted(partitions))
        for topic_id, partitions in sorted(found.items())
        if (topic := context.services.image.topic_by_id(topic_id)) is not None
    ]
    hidden = denied_topics(context, Operation.DESCRIBE, [name for name, _ in names])
    topics = [{"topic_name": name, "partitions": each} for name, each in names if name not in hidden]
    return {
        "groups": [
            {**group, "topics": topics}
            if group["group_id"] == group_id and group["topics"] is None
            else group
            for group in request["groups"]
        ]
    }


def _describe(
    context: RequestContext, request: Fields, refused: Collection[str], failed: dict[str, int]
) -> None:
    """Read the start offsets and the ends of the logs of all partitions that are named, and respond."""
    image, groups = context.services.image, []
    rows: list[tuple[str, _Row]] = []
    items: list[Item] = []
    readable = [each for each in request["groups"] if each["group_id"] not in refused]
    names = {topic["topic_name"] for group in readable for topic in group["topics"] or ()}
    hidden = denied_topics(context, Operation.DESCRIBE, names)
    for group in request["groups"]:
        group_id = group["group_id"]
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED if group_id in refused else failed.get(group_id, 0)
        shown = _group(group_id, code)
        groups.append(shown)
        for topic in () if code else group["topics"] or ():
            is_hidden = topic["topic_name"] in hidden
            # The id of a topic would tell a client without the right that the topic exists.
            image_topic = None if is_hidden else image.topic(topic["topic_name"])
            partitions = [_partition(each) for each in topic["partitions"]]
            topic_id = None if image_topic is None else image_topic.topic_id
            shown["topics"].append(
                {"topic_name": topic["topic_name"], "topic_id": topic_id, "partitions": partitions}
            )
            if is_hidden:
                _deny(partitions)
            elif image_topic is not None:
                rows += [(topic["topic_name"], row) for row in partitions]
                items += [
                    Item(state_key(group_id, image_topic.topic_id, each), ReadSummary())
                    for each in topic["partitions"]
                ]

    def on_states(states: list[PersistedState | int]) -> None:
        _add_states(context, groups, rows, states)

    READ_SUMMARY.send(context, items, on_states)


def _deny(rows: list[_Row]) -> None:
    for row in rows:
        row["error_code"] = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        row["error_message"] = message_of(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _add_states(
    context: RequestContext,
    groups: list[Fields],
    rows: list[tuple[str, _Row]],
    states: list[PersistedState | int],
) -> None:
    """Put the states into the rows, request the ends of the logs that a lag needs, and respond."""
    wanted: list[tuple[str, _Row, PersistedState]] = []
    for (name, row), state in zip(rows, states, strict=True):
        # As in Kafka, a state that cannot be read is shown as one that was never written.
        if isinstance(state, int):
            continue
        row["start_offset"], row["leader_epoch"] = state.start_offset, state.leader_epoch
        # KIP-1226: without the count of completed deliveries no lag is known. A state that was written by
        # WriteShareGroupState v0 lacks it.
        if state.start_offset != NO_OFFSET and state.delivery_complete_count != NO_COUNT:
            wanted.append((name, row, state))

    def on_ends(ends: list[Fields]) -> None:
        for (_, row, state), end in zip(wanted, ends, strict=True):
            # The end of the log is unknown, for example because the partition is moving. Show no start offset
            # either, because a row with an error must not look like a state.
            if end["error_code"]:
                row.update(_partition(row["partition_index"]), error_code=end["error_code"])
            else:
                lag = end["offset"] - state.start_offset - state.delivery_complete_count
                # Clamp the lag to an int64. InitializeShareGroupState stores any 64-bit start offset, so the difference
                # can be larger.
                row["lag"] = min(max(lag, INT64_MIN), INT64_MAX)
        context.reply({"groups": groups})

    gather_ends(context.services, [(name, row["partition_index"]) for name, row, _ in wanted], on_ends)


def _partition(index: int) -> _Row:
    return {
        "partition_index": index,
        "start_offset": NO_OFFSET,
        "leader_epoch": 0,
        "lag": _NO_LAG,
        "error_code": int(ErrorCode.NONE),
        "error_message": None,
    }


def _group(group_id: str, code: int, message: str | None = None) -> Fields:
    if code == ErrorCode.GROUP_ID_NOT_FOUND and message is None:
        message = f"Group {group_id} not found."
    return {"group_id": group_id, "topics": [], "error_code": int(code), "error_message": message}


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return {"groups": [_group(group["group_id"], code, message) for group in request["groups"]]}


@_INITIALIZED.handler
def _initialized(
    coordinator: GroupCoordinator,
    group_id: str,
    _arguments: None,
    on_outcome: OnOutcome[_Initialized],
) -> None:
    coordinator.read(
        partial(coordinator.shares.initialized_partitions, group_id),
        lambda code, found: on_outcome(int(code) if code else found),
    )
