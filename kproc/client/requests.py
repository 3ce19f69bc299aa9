"""Fields of requests that commands and Spark's processes send alike, as dicts for `Client.call_latest`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from kproc.common.reading import READ_UNCOMMITTED
from kproc.wire.primitives import ZERO_UUID

# Topic and number of a partition.
Partition = tuple[str, int]
_P = TypeVar("_P", bound=Partition)


class FetchLimits(NamedTuple):
    """Limits of a Fetch: it returns at most `max_bytes`, and waits up to `wait_ms` until it has `min_bytes`.

    It returns the first batch even if that is larger.
    """

    max_bytes: int
    min_bytes: int = 1
    wait_ms: int = 500


def fetch_fields(
    partition: Partition,
    offset: int,
    limits: FetchLimits,
    *,
    isolation: int = READ_UNCOMMITTED,
    topic_id: bytes | None = None,
) -> dict[str, Any]:
    """Return the fields of a Fetch of one partition, without a session.

    `topic_id` replaces the name from version 13 on.
    """
    topic, number = partition
    rows = [_fetch_row(number, offset, limits.max_bytes)]
    topics = [{"topic": topic, "topic_id": topic_id or ZERO_UUID, "partitions": rows}]
    return _fetch(topics, limits, isolation)


def fetch_many_fields(
    offsets: Mapping[_P, int], limits: FetchLimits, *, partition_bytes: int
) -> dict[str, Any]:
    """Return the fields of a Fetch of many partitions, without a session. `offsets` has the first offset of each.

    Send them in version 12 or lower, because newer ones address topics by id. The broker returns no batch of a
    partition whose first batch exceeds `partition_bytes`, except for the first partition of the response.
    """
    rows = {
        partition: _fetch_row(partition[1], offset, partition_bytes) for partition, offset in offsets.items()
    }
    topics = [
        {"topic": each["name"], "topic_id": ZERO_UUID, "partitions": each["partitions"]}
        for each in _by_topic(rows)
    ]
    return _fetch(topics, limits, READ_UNCOMMITTED)


def _fetch_row(number: int, offset: int, max_bytes: int) -> dict[str, Any]:
    return {
        "partition": number,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }


def _fetch(topics: list[dict[str, Any]], limits: FetchLimits, isolation: int) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "max_wait": limits.wait_ms,
        "min_bytes": limits.min_bytes,
        "max_bytes": limits.max_bytes,
        "isolation_level": isolation,
        "session_id": 0,
        "session_epoch": -1,
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def list_offsets_fields(timestamps: Mapping[_P, int], *, isolation: int, timeout_ms: int) -> dict[str, Any]:
    """Return the fields of ListOffsets. `timestamps` maps each partition to a time in ms, EARLIEST or LATEST."""
    rows = {
        partition: {"partition_index": partition[1], "current_leader_epoch": -1, "timestamp": timestamp}
        for partition, timestamp in timestamps.items()
    }
    return {
        "replica_id": -1,
        "isolation_level": isolation,
        "topics": _by_topic(rows),
        "timeout": timeout_ms,
    }


def commit_fields(group: str, offsets: Mapping[_P, int]) -> dict[str, Any]:
    """Return the fields of OffsetCommit without a member (generation -1), which a group with members rejects."""
    rows = {
        partition: {
            "partition_index": partition[1],
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        for partition, offset in offsets.items()
    }
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": _by_topic(rows),
    }


def topic_creation(
    name: str,
    *,
    partitions: int,
    replication_factor: int = -1,
    configs: Iterable[tuple[str, str | None]] = (),
) -> dict[str, Any]:
    """Return the fields of one topic for CreateTopics. A count of -1 means the broker's default."""
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in configs],
    }


def numbers_by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Group partitions by topic. Return the partition numbers of each topic in the given order."""
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    return numbers


def _by_topic(rows: Mapping[_P, dict[str, Any]]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, _), row in rows.items():
        topics.setdefault(topic, []).append(row)
    return [{"name": topic, "partitions": each} for topic, each in topics.items()]


GROUP_STATES: Final = (
    "Empty",
    "NotReady",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Stable",
    "Dead",
)
"""The states of groups. The classic protocol has the two rebalance states, the newer protocols have Assigning and
Reconciling, and only streams groups have NotReady."""

# Resource type GROUP of the requests that describe or alter configs (KIP-848).
GROUP_RESOURCE: Final = 32
_SET: Final = 0


def group_configuration(group: str, configs: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of an IncrementalAlterConfigs that sets configs of a group."""
    changes = [{"name": name, "config_operation": _SET, "value": value} for name, value in configs.items()]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": changes}
    return {"resources": [resource], "validate_only": False}
