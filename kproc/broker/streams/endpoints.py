"""The source partitions of each member's tasks by its endpoint, for interactive queries between members (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable

from kproc.broker.streams.messages import EndpointPartitions
from kproc.broker.streams.state import StreamsGroupMember
from kproc.broker.streams.tasks import Task, partitions_by_subtopology
from kproc.broker.streams.topology import ConfiguredTopology, PartitionCounts

TopicPartitions = tuple[tuple[str, tuple[int, ...]], ...]


def endpoint_partitions(
    members: Iterable[StreamsGroupMember], configured: ConfiguredTopology, counts: PartitionCounts
) -> tuple[EndpointPartitions, ...]:
    """Return one entry for each member with an endpoint. Warm-up tasks count as standby."""
    entries = []
    for member in members:
        if member.metadata is not None and member.metadata.endpoint is not None:
            owned = member.state.owned
            entries.append(
                EndpointPartitions(
                    member.metadata.endpoint,
                    _partitions(owned.active, configured, counts),
                    _partitions(owned.standby | owned.warmup, configured, counts),
                )
            )
    return tuple(entries)


def _partitions(
    tasks: Iterable[Task], configured: ConfiguredTopology, counts: PartitionCounts
) -> TopicPartitions:
    """Return the partitions of the tasks' input topics. A topic can have fewer partitions than there are tasks."""
    found = []
    for subtopology_id, numbers in partitions_by_subtopology(tasks).items():
        # A member keeps its tasks for a moment after a topic was deleted, when there are no subtopologies.
        subtopology = configured.subtopologies.get(subtopology_id)
        for topic in () if subtopology is None else sorted(set(subtopology.subtopology.input_topics())):
            count = counts(topic) or 0
            partitions = tuple(number for number in numbers if number < count)
            if partitions:
                found.append((topic, partitions))
    return tuple(found)
