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

from kproc.broker.api.group_descriptions import (
    error_response,
    failed_row,
    read_description,
    send_descriptions,
)
from kproc.broker.api.streams_group_heartbeat import check_enabled, task_rows
from kproc.broker.group.messages import GroupDescription
from kproc.broker.peers.coordinator_call import Fields, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.authorized_operations import NOT_TOLD
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.streams.group import GROUP_TYPE
from kproc.broker.streams.messages import DescribedStreamsGroup, DescribedStreamsMember, TaskOffsets
from kproc.broker.streams.tasks import MemberTasks
from kproc.broker.streams.topology import StreamsTopic, Subtopology
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_NOT_REQUESTED: Final = 0
_NOT_STORED: Final = 1

__all__ = ["error_response", "handle_streams_group_describe"]

_DESCRIBE: Final = GROUPS.operation(
    "streams_group_describe", NoneType, GroupDescription[DescribedStreamsGroup]
)


@api(
    ApiKey.STREAMS_GROUP_DESCRIBE,
    versions=(0, 1),
    rows=(rows_at("group_ids", "groups.members", size=1),),
)
def handle_streams_group_describe(context: RequestContext, request: Fields) -> None:
    check_enabled(context)
    is_requested = request.get("include_topology_description", False)
    status = _NOT_STORED if is_requested else _NOT_REQUESTED
    send_descriptions(
        context, request, _DESCRIBE, lambda group_id, outcome: _row(context, group_id, outcome, status)
    )


def _row(
    context: RequestContext,
    group_id: str,
    outcome: GroupDescription[DescribedStreamsGroup] | int,
    status: int,
) -> Fields:
    if isinstance(outcome, int):
        return failed_row(group_id, outcome)
    group = outcome.group
    if group is None:
        return failed_row(group_id, ErrorCode.GROUP_ID_NOT_FOUND, outcome.reason)
    if denied(context, Operation.DESCRIBE, ResourceType.TOPIC, _topics_of(group)):
        # KafkaApis hides the whole group, because its topology would name topics that the client may not see.
        return failed_row(
            group_id,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "The described group uses topics that the client is not authorized to describe.",
        )
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
        "authorized_operations": NOT_TOLD,
        "topology_description": None,
        "topology_description_status": status,
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


@_DESCRIBE.handler
def _describe(
    coordinator: GroupCoordinator,
    group_id: str,
    _arguments: None,
    on_outcome: OnOutcome[GroupDescription[DescribedStreamsGroup]],
) -> None:
    read_description(
        coordinator, group_id, GROUP_TYPE, lambda: coordinator.streams.describe(group_id), on_outcome
    )
