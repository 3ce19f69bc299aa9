"""The source partitions of each member's tasks by its endpoint, for interactive queries between members (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kproc.broker.streams.configured_topology import ConfiguredTopology, PartitionCounts
from kproc.broker.streams.messages import EndpointPartitions
from kproc.broker.streams.state import StreamsGroupMember
from kproc.broker.streams.tasks import Task, partitions_by_subtopology

TopicPartitions = tuple[tuple[str, tuple[int, ...]], ...]

# Limit of the topic names in a response. A heartbeat of 100 bytes could request 50 MB of names from a group of 1,000
# topics and 20,000 tasks.
ENDPOINTS_BYTES_MAX: Final = 1_000_000
# Bytes in the response for a topic besides its name, and for a partition.
_TOPIC_BYTES: Final = 4
_PARTITION_BYTES: Final = 4


def endpoint_partitions(
    members: Iterable[StreamsGroupMember], configured: ConfiguredTopology, counts: PartitionCounts
) -> tuple[EndpointPartitions, ...]:
    """Return one entry for each member with an endpoint. Warm-up tasks count as standby.

    Members and topics beyond ENDPOINTS_BYTES_MAX are omitted. Clients then know no member that has the state of the
    omitted topics' keys.
    """
    entries = []
    budget = _Budget(ENDPOINTS_BYTES_MAX)
    for member in members:
        if member.metadata is not None and member.metadata.endpoint is not None:
            endpoint = member.metadata.endpoint
            if not budget.pay(len(endpoint.host) + _TOPIC_BYTES):
                break
            owned = member.state.owned
            entries.append(
                EndpointPartitions(
                    endpoint,
                    _partitions(owned.active, configured, counts, budget),
                    _partitions(owned.standby | owned.warmup, configured, counts, budget),
                )
            )
    return tuple(entries)


class _Budget:
    """The number of bytes that a response may still use."""

    def __init__(self, left: int) -> None:
        self._left = left

    def pay(self, size: int) -> bool:
        """Return True if `size` more bytes fit, and count them. After the first failure nothing fits any more."""
        self._left -= size
        if self._left >= 0:
            return True
        self._left = -1
        return False


def _partitions(
    tasks: Iterable[Task], configured: ConfiguredTopology, counts: PartitionCounts, budget: _Budget
) -> TopicPartitions:
    """Return those partitions of the tasks' input topics that exist.

    A topic can have fewer partitions than its subtopology has tasks.
    """
    found: list[tuple[str, tuple[int, ...]]] = []
    for subtopology_id, numbers in partitions_by_subtopology(tasks).items():
        # After a topic was deleted there are no subtopologies, but members keep their tasks until their next
        # heartbeats.
        subtopology = configured.subtopologies.get(subtopology_id)
        for topic in () if subtopology is None else sorted(set(subtopology.subtopology.input_topics())):
            count = counts(topic) or 0
            partitions = tuple(number for number in numbers if number < count)
            if not partitions:
                continue
            if not budget.pay(len(topic) + _TOPIC_BYTES + _PARTITION_BYTES * len(partitions)):
                return tuple(found)
            found.append((topic, partitions))
    return tuple(found)
