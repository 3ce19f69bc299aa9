"""HandlerParts: creates the components of a Handler. handler.py has the duty cycle in which they work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kproc.broker.api.init_producer_id import ProducerIdAllocator
from kproc.broker.api.topic_creations import TopicCreations
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.config import Config
from kproc.broker.coordinator.coordinator_runtime import CoordinatorRuntime
from kproc.broker.handler.client_requests import ClientRequests
from kproc.broker.handler.compaction_calls import CompactionCalls
from kproc.broker.handler.coordinator_kinds import all_kinds, consumer_cluster
from kproc.broker.handler.handler_metrics import HandlerMetrics
from kproc.broker.handler.image_changes import ImageChanges
from kproc.broker.handler.leader_epochs import LeaderEpochRaises
from kproc.broker.handler.owner_calls import OwnerCalls
from kproc.broker.handler.partition_transfer import PartitionTransfer
from kproc.broker.handler.partitions import Partitions
from kproc.broker.handler.processor_peer import ProcessorPeer
from kproc.broker.metrics.requests import HANDLERS_PART
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.observe.offline_partitions import OfflineNews
from kproc.broker.produce.append_queue import AppendQueue
from kproc.broker.produce.produce import RecordRouter
from kproc.broker.request.client_rates import ClientRates
from kproc.broker.request.context import ClientServices, OwnerServices, Peers, Services
from kproc.broker.request.fetch_session import SessionCache
from kproc.broker.role.due_time import DueTime
from kproc.broker.role.listeners import ListenerEndpoint
from kproc.broker.role.purgatory import Purgatory
from kproc.broker.security.authorizer import make_authorizer
from kproc.broker.share.partition.share_partitions import SharePartitions
from kproc.broker.share.session.sessions import ShareSessions
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import Clock
from kproc.wire.header import kafka_name

if TYPE_CHECKING:
    from kproc.common.containment import Containment

MakePartitions = Callable[[Callable[[], ClusterImage], Purgatory], Partitions]


class HandlerParts:
    """The components of one Handler. The constructor creates them in the order in which they need each other.

    clock: the host's clock, for compactions. moved: the broker's clock, which tests can move, for the rest.
    send_request: sends a call to another role.
    is_linked_to: returns True if there is a link to the Handler with this index.
    clients: the Processors with a link. The Handler changes it when a link comes or goes.
    on_watched: called when all requests must use the general path, or need not any more.
    """

    __slots__ = (
        "append_queue",
        "changes",
        "compaction",
        "coordinators",
        "epoch_raises",
        "metrics",
        "offline",
        "owner_calls",
        "partitions",
        "produce",
        "purgatory",
        "requests",
        "services",
    )

    def __init__(
        self,
        agent_id: AgentId,
        *,
        config: Config,
        endpoints: Sequence[ListenerEndpoint],
        clock: Clock,
        moved: Clock,
        metrics: MetricsRow,
        containment: Containment,
        due: DueTime,
        make_partitions: MakePartitions,
        send_request: Callable[..., None],
        is_linked_to: Callable[[int], bool],
        clients: dict[AgentId, ProcessorPeer],
        on_watched: Callable[[], None],
    ) -> None:
        index = agent_id.index
        self.purgatory = Purgatory(moved.now_ns, containment, due)
        self.partitions = make_partitions(lambda: self.services.image, self.purgatory)
        peers = Peers(send_request)
        self.services = self._make_services(index, config, endpoints, moved, metrics, containment, peers)
        self.services.owner = self._make_owner_services(index, is_linked_to)
        self.append_queue = AppendQueue(self.services)
        self.produce = RecordRouter(self.services, self.append_queue)
        self.compaction = CompactionCalls(self.partitions, lambda: self.services.image, clock.now_ns)
        self.epoch_raises = LeaderEpochRaises(lambda: self.services.image, peers.ask_controller)
        self.partitions.raise_epoch = self.epoch_raises.request
        self.coordinators = self._make_coordinators(index)
        self.services.owner.coordinators = self.coordinators.by_topic
        self.services.owner.shares = SharePartitions(
            self.services, consumer_cluster(self.services).group_configs
        )
        self.requests = self._make_requests(due, on_watched)
        self.changes = self._make_changes(clients)
        self.metrics = self._make_metrics(metrics.values, clients)
        self.offline = OfflineNews(index, peers.ask_controller)
        self.owner_calls = OwnerCalls(self.services, produce=self.produce, compaction=self.compaction)

    @staticmethod
    def _make_services(
        index: int,
        config: Config,
        endpoints: Sequence[ListenerEndpoint],
        clock: Clock,
        metrics: MetricsRow,
        containment: Containment,
        peers: Peers,
    ) -> Services:
        services = Services(
            config=config,
            clock=clock,
            image=ClusterImage(),
            endpoints=endpoints,
            handler_index=index,
            peers=peers,
            clients=ClientServices(),
            client_rates=ClientRates(
                quotas=lambda: services.image.client_quotas,
                now_ns=clock.now_ns,
                sample_count=config.quota_window_num,
                sample_s=config.quota_window_size_seconds,
            ),
            counts=metrics.slab.counts(HANDLERS_PART + index),
            containment=containment,
        )
        services.authorizer = make_authorizer(config, lambda: services.image.acls, kafka_name, clock.host_ns)
        return services

    def _make_owner_services(self, index: int, is_linked_to: Callable[[int], bool]) -> OwnerServices:
        services = self.services
        transfers = PartitionTransfer(
            handler_index=index,
            image=lambda: services.image,
            partitions=self.partitions,
            ask=services.peers.ask,
            is_linked=is_linked_to,
            now_ns=services.clock.host_ns,
        )
        return OwnerServices(
            partitions=self.partitions,
            purgatory=self.purgatory,
            transfers=transfers,
            producer_ids=ProducerIdAllocator(services.peers.ask_controller, services.containment),
            session_cache=SessionCache(services.config.max_incremental_fetch_session_cache_slots),
            share_sessions=ShareSessions(index, services.config.group_share_max_share_sessions),
            topic_creations=TopicCreations(),
        )

    def _make_coordinators(self, index: int) -> CoordinatorRuntime:
        services = self.services
        return CoordinatorRuntime(
            all_kinds(services),
            config=services.config,
            clock=services.clock,
            image=lambda: services.image,
            partitions=self.partitions,
            handler_index=index,
            containment=services.containment,
            ask_controller=services.peers.ask_controller,
        )

    def _make_requests(self, due: DueTime, on_watched: Callable[[], None]) -> ClientRequests:
        return ClientRequests(
            self.services,
            due,
            produce=self.produce,
            queue=self.append_queue,
            coordinators=self.coordinators,
            on_watched=on_watched,
        )

    def _make_changes(self, clients: dict[AgentId, ProcessorPeer]) -> ImageChanges:
        return ImageChanges(
            self.services,
            coordinators=self.coordinators,
            produce=self.produce,
            requests=self.requests,
            clients=clients,
        )

    def _make_metrics(self, values: list[int], clients: dict[AgentId, ProcessorPeer]) -> HandlerMetrics:
        return HandlerMetrics(
            values,
            self.services,
            partitions=self.partitions,
            requests=self.requests,
            produce=self.produce,
            queue=self.append_queue,
            coordinators=self.coordinators,
            clients=clients,
        )
