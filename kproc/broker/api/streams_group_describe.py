"""StreamsGroupDescribe (key 89), versions 0-1 (KIP-1071).

It shows streams groups with their topology, and the epochs, process, tasks and target of each member. Groups of other
protocols get GROUP_ID_NOT_FOUND.

Differs from Kafka: there is no plug-in that stores descriptions of topologies (KIP-1331), so the status of the
description is NOT_STORED.

Versions: v1 description of the topology, which is always null, and the assignor (KIP-1357).
"""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.api.streams_group_heartbeat import check_enabled, task_rows
from kproc.broker.peers.coordinator_call import Fields, Item, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.authorized_operations import NOT_TOLD, operations_on
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.streams.messages import DescribedStreamsGroup, DescribedStreamsMember, TaskOffsets
from kproc.broker.streams.streams_groups import StreamsDescription
from kproc.broker.streams.tasks import MemberTasks
from kproc.broker.streams.topology import StreamsTopic, Subtopology
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_NOT_REQUESTED: Final = 0
_NOT_STORED: Final = 1

_DESCRIBE: Final = GROUPS.operation("streams_group_describe", NoneType, StreamsDescription)


@api(
    ApiKey.STREAMS_GROUP_DESCRIBE,
    versions=(0, 1),
    rows=(rows_at("group_ids", "groups.members", size=1),),
)
def handle_streams_group_describe(context: RequestContext, request: Fields) -> None:
    check_enabled(context)
    group_ids = request["group_ids"]
    refused = denied(context, Operation.DESCRIBE, ResourceType.GROUP, group_ids)
    allowed = [group_id for group_id in group_ids if group_id and group_id not in refused]

    def on_done(outcomes: list[StreamsDescription | int]) -> None:
        left = iter(outcomes)
        groups = []
        for group_id in group_ids:
            if group_id in refused:
                groups.append(_failed(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
            elif not group_id:
                groups.append(_failed(group_id, ErrorCode.INVALID_GROUP_ID))
            else:
                groups.append(_row(context, request, group_id, next(left)))
        context.reply({"groups": groups})

    _DESCRIBE.send(context, [Item(group_id, None) for group_id in allowed], on_done)


def _row(
    context: RequestContext, request: Fields, group_id: str, outcome: StreamsDescription | int
) -> Fields:
    if isinstance(outcome, int):
        return _failed(group_id, outcome)
    group = outcome.group
    if group is None:
        return _failed(group_id, ErrorCode.GROUP_ID_NOT_FOUND, outcome.reason)
    if denied(context, Operation.DESCRIBE, ResourceType.TOPIC, _topics_of(group)):
        # KafkaApis hides the whole group, because its topology would name topics that the client may not see.
        return _failed(
            group_id,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "The described group uses topics that the client is not authorized to describe.",
        )
    is_requested = request.get("include_topology_description", False)
    return {
        "error_code": int(ErrorCode.NONE),
        "error_message": None,
        "group_id": group_id,
        "group_state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "topology": {
            "epoch": group.topology.epoch,
            "subtopologies": [
                _subtopology(each)
                for each in sorted(group.topology.subtopologies, key=lambda each: each.subtopology_id)
            ],
        },
        "members": list(map(_member, group.members)),
        "authorized_operations": operations_on(context, ResourceType.GROUP, group_id)
        if request["include_authorized_operations"]
        else NOT_TOLD,
        "topology_description": None,
        "topology_description_status": _NOT_STORED if is_requested else _NOT_REQUESTED,
        "assignor_name": group.assignor,
    }


def _topics_of(group: DescribedStreamsGroup) -> set[str]:
    """Return the names of the topics that a group's row shows."""
    sinks = (name for each in group.topology.subtopologies for name in each.repartition_sink_topics)
    return set(group.topology.topic_names).union(sinks)


def _subtopology(subtopology: Subtopology) -> Fields:
    return {
        "subtopology_id": subtopology.subtopology_id,
        "source_topics": sorted(subtopology.source_topics),
        "repartition_sink_topics": sorted(subtopology.repartition_sink_topics),
        "state_changelog_topics": _topic_rows(subtopology.state_changelog_topics),
        "repartition_source_topics": _topic_rows(subtopology.repartition_source_topics),
    }


def _topic_rows(topics: Iterable[StreamsTopic]) -> list[Fields]:
    return [msgspec.to_builtins(topic) for topic in sorted(topics, key=lambda each: each.name)]


def _member(member: DescribedStreamsMember) -> Fields:
    metadata = member.metadata
    return {
        "member_id": member.member_id,
        "member_epoch": member.member_epoch,
        "instance_id": metadata.instance_id,
        "rack_id": metadata.rack_id,
        "client_id": metadata.client_id,
        "client_host": metadata.client_host,
        "topology_epoch": metadata.topology_epoch,
        "process_id": metadata.process_id,
        "user_endpoint": None if metadata.endpoint is None else msgspec.to_builtins(metadata.endpoint),
        "client_tags": [msgspec.to_builtins(tag) for tag in metadata.client_tags],
        "task_offsets": _offset_rows(member.task_offsets),
        "task_end_offsets": _offset_rows(member.task_end_offsets),
        "assignment": _tasks(member.assignment),
        "target_assignment": _tasks(member.target),
        "is_classic": False,
    }


def _offset_rows(offsets: TaskOffsets) -> list[Fields]:
    return [
        {"subtopology_id": each_id, "partition": partition, "offset": offset}
        for (each_id, partition), offset in offsets
    ]


def _tasks(tasks: MemberTasks) -> Fields:
    return {
        "active_tasks": task_rows(tasks.active),
        "standby_tasks": task_rows(tasks.standby),
        "warmup_tasks": task_rows(tasks.warmup),
    }


def error_response(request: Fields, code: int, message: str | None) -> Fields:
    return {"groups": [_failed(group_id, code, message) for group_id in request["group_ids"]]}


def _failed(group_id: str, code: int, message: str | None = None) -> Fields:
    return {
        "error_code": int(code),
        "error_message": message,
        "group_id": group_id,
        "topology": None,
        "members": [],
        "authorized_operations": NOT_TOLD,
    }


@_DESCRIBE.handler
def _describe(
    coordinator: GroupCoordinator,
    group_id: str,
    _arguments: None,
    on_outcome: OnOutcome[StreamsDescription],
) -> None:
    coordinator.read(
        lambda: coordinator.streams.describe(group_id),
        lambda code, found: on_outcome(int(code) if code else found),
    )
