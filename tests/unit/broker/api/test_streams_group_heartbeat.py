"""StreamsGroupHeartbeat: requests that the broker rejects before it looks the group up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kproc.broker.api.streams_group_heartbeat import TOPOLOGY_BYTES_MAX, _validate, check_enabled
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.request import registry
from kproc.broker.request.handler_call import check_whole
from kproc.broker.streams.configured_topology import TASKS_MAX
from kproc.broker.streams.topology import Topology
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey
from tests.support.groups import streams_join

INVALID, TOPOLOGY = ErrorCode.INVALID_REQUEST, ErrorCode.STREAMS_INVALID_TOPOLOGY
TASKS = [{"subtopology_id": "0", "partitions": [0]}]
OFFSET = {"subtopology_id": "0", "partition": 0, "offset": 1}
STAY = {
    "member_epoch": 3,
    "topology": None,
    "active_tasks": None,
    "standby_tasks": None,
    "warmup_tasks": None,
}


def validate(changes: dict[str, Any], subtopology: dict[str, Any] | None = None) -> None:
    request = streams_join("g", ["t"])
    request["topology"]["subtopologies"][0].update(subtopology or {})
    request |= changes
    topology = None if request["topology"] is None else msgspec.convert(request["topology"], Topology)
    _validate(request, topology)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"member_epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({**STAY, "member_epoch": -2}, "InstanceId can't be null."),
        ({"rebalance_timeout": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"active_tasks": TASKS}, "ActiveTasks must be empty when \\(re-\\)joining."),
        ({"warmup_tasks": TASKS}, "WarmupTasks must be empty when \\(re-\\)joining."),
        ({"topology": None}, "Topology must be non-null when \\(re-\\)joining."),
        ({"member_epoch": 1}, "Topology can only be provided when \\(re-\\)joining."),
        ({**STAY, "active_tasks": TASKS}, "If one task-type is non-null, all must be non-null."),
        ({"active_tasks": None}, "ActiveTasks must be empty when \\(re-\\)joining."),
    ],
)
def test_malformed_heartbeat_is_rejected(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(KafkaError, match=text, check=lambda error: error.code == INVALID):
        validate(changes)


@pytest.mark.parametrize(
    ("subtopology", "code"),
    [
        ({"source_topic_regex": ["t.*"]}, INVALID),
        (
            {
                "state_changelog_topics": [
                    {"name": "c", "partitions": 2, "replication_factor": 0, "topic_configs": []}
                ]
            },
            TOPOLOGY,
        ),
        ({"subtopology_id": "x" * TOPOLOGY_BYTES_MAX}, TOPOLOGY),
        ({"source_topics": [f"t{number}" for number in range(1_001)]}, TOPOLOGY),
    ],
)
def test_impossible_topology_is_rejected(subtopology: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(KafkaError, check=lambda error: error.code == code):
        validate({}, subtopology)


def test_member_can_report_all_tasks_of_a_group() -> None:
    offsets = [{"subtopology_id": "0", "partition": at, "offset": 1} for at in range(TASKS_MAX)]
    tasks = [{"subtopology_id": "0", "partitions": list(range(TASKS_MAX))}]
    none: list[Any] = []
    changes = {**STAY, "active_tasks": tasks, "standby_tasks": none, "warmup_tasks": none}
    request = streams_join("g", [], **changes, task_offsets=offsets, task_end_offsets=offsets)
    check_whole(SimpleNamespace(decoded=request), registry.APIS[ApiKey.STREAMS_GROUP_HEARTBEAT])  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{}, STAY, {**STAY, "member_epoch": -1}])
def test_well_formed_heartbeat_is_accepted(changes: dict[str, Any]) -> None:
    validate(changes)


def test_cluster_without_streams_groups_rejects_heartbeats() -> None:
    image = ClusterImage()
    context: Any = SimpleNamespace(services=SimpleNamespace(image=image))
    image.feature_levels["streams.version"] = 0
    with pytest.raises(KafkaError, check=lambda error: error.code == ErrorCode.UNSUPPORTED_VERSION):
        check_enabled(context)
    image.feature_levels["streams.version"] = 1
    check_enabled(context)
