"""FittedTopology: a group's topology, fitted to the existing topics, and the partitions behind each endpoint.

Most heartbeats change nothing, so both results are cached until the topics, the topology or the members change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kproc.broker.streams.configured_topology import ConfiguredTopology, configure_topology
from kproc.broker.streams.endpoints import endpoint_partitions
from kproc.broker.streams.memory import StreamsMemory
from kproc.broker.streams.messages import EndpointPartitions
from kproc.broker.streams.state import StreamsGroupMember
from kproc.broker.streams.topology import Topology

if TYPE_CHECKING:
    from kproc.broker.group.consumer.topics import TopicView


class FittedTopology:
    """Caches a group's topology as fitted to the existing topics, and the partitions of its members' endpoints.

    `topics`: the topics of the cluster. `memory` counts the topology.
    """

    __slots__ = ("_endpoints", "_memory", "_topics", "_topology", "_version", "configured", "metadata_hash")

    def __init__(self, topics: TopicView, memory: StreamsMemory) -> None:
        self._topics = topics
        self._memory = memory
        # The topology and the version of the metadata for which `configured` and `metadata_hash` were computed.
        self._topology: Topology | None = None
        self._version = -1
        self.configured: ConfiguredTopology | None = None
        self.metadata_hash = 0
        self._endpoints: tuple[EndpointPartitions, ...] | None = None

    def fit(self, topology: Topology) -> ConfiguredTopology:
        """Fit the topology to the topics that exist now.

        Raises STREAMS_INVALID_TOPOLOGY if that is impossible. Raises GROUP_MAX_SIZE_REACHED if the topology with its
        tasks has grown beyond the Handler's limit of memory.
        """
        configured, version = self.configured, self._topics.version
        is_new = configured is None or topology is not self._topology
        if configured is None or is_new or self._version != version:
            metadata_hash = self._topics.metadata_hash(topology.topic_names)
            if configured is None or is_new or metadata_hash != self.metadata_hash:
                configured = configure_topology(topology, self._topics.count_of)
                self._memory.count_topology(topology, configured.task_count)
                self.configured = configured
                self._endpoints = None
            self._topology, self._version = topology, version
            self.metadata_hash = metadata_hash
        return configured

    def discard_endpoints(self) -> None:
        """Discard the cached partitions of the endpoints, because members, endpoints or tasks have changed."""
        self._endpoints = None

    def endpoints_of(self, members: Iterable[StreamsGroupMember]) -> tuple[EndpointPartitions, ...]:
        """Return the partitions of each member's tasks by the member's endpoint. `fit` must have been called."""
        if self._endpoints is None:
            assert self.configured is not None
            self._endpoints = endpoint_partitions(members, self.configured, self._topics.count_of)
        return self._endpoints
