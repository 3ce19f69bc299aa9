"""ImageChanges: applies changes of the metadata to a Handler's partitions, coordinators and requests.

A change comes as a delta, or as a whole image at the start of the Handler or of the controller. The deltas before a
whole image may not have come, so the differences between the old and the new image are applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kproc.broker.handler.partition_transfer import moved_between
from kproc.broker.peers.owners import finish_calls_of_leavers

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage, ImageChange, MovedPartition, TopicImage
    from kproc.broker.coordinator.coordinator_runtime import CoordinatorRuntime
    from kproc.broker.handler.client_requests import ClientRequests
    from kproc.broker.handler.processor_peer import ProcessorPeer
    from kproc.broker.produce.produce import RecordRouter
    from kproc.broker.request.context import Services
    from kproc.broker.transport.agent import AgentId


class ImageChanges:
    """Brings the parts of one Handler up to date with its image of the metadata."""

    __slots__ = ("_clients", "_coordinators", "_produce", "_requests", "_services")

    def __init__(
        self,
        services: Services,
        *,
        coordinators: CoordinatorRuntime,
        produce: RecordRouter,
        requests: ClientRequests,
        clients: Mapping[AgentId, ProcessorPeer],
    ) -> None:
        self._services = services
        self._coordinators, self._produce, self._requests = coordinators, produce, requests
        self._clients = clients

    def adopt(self, image: ClusterImage) -> None:
        """Replace the whole image of the metadata, and apply its differences from the previous one to the parts."""
        services = self._services
        before = services.image
        gone = [
            topic for topic_id, topic in before.topics_by_id.items() if topic_id not in image.topics_by_id
        ]
        services.image = image
        self._produce.on_unknown()
        self._requests.switch_log()
        self._update_parts(gone, moved_between(before, image), is_whole=True)
        if image.acls != before.acls:
            services.owner.purgatory.expire_all()  # Parked requests were authorized by the old ACLs: see apply().
        for topic in image.topics_by_name.values():
            services.owner.partitions.reconfigure(topic)

    def apply(self, view: memoryview) -> ImageChange:
        """Apply a delta to the image and to the parts. Return the change."""
        services = self._services
        image = services.image
        change = image.apply(view)
        self._update_parts(change.deleted, change.moved)
        if change.acls_changed:
            # Complete parked Fetches now, because they were authorized when they came. Their clients send new ones, to
            # which the new ACLs apply.
            services.owner.purgatory.expire_all()
        if change.broker_configs_changed:
            self._requests.switch_log()
        for topic in image.topics_by_name.values() if change.broker_configs_changed else change.configured:
            services.owner.partitions.reconfigure(topic)
        return change

    def discard_fast_paths(self) -> None:
        """Discard all fast paths. They refer to the topics and owners of the metadata from which they were learned."""
        for client in self._clients.values():
            client.clear_paths()

    def _update_parts(
        self, deleted: list[TopicImage], moved: list[MovedPartition], *, is_whole: bool = False
    ) -> None:
        """Update the parts after the image has changed: deleted topics, and partitions that moved to another owner.

        is_whole: the image was replaced by a snapshot instead of changed by a delta.
        """
        services, owner = self._services, self._services.owner
        self.discard_fast_paths()
        # Record the transfers before any waiting request is called back: see PartitionTransfer.on_moved.
        begin_transfers = owner.transfers.on_moved(moved)
        if deleted or moved or is_whole:
            owner.shares.on_image()
        if deleted:
            # Release coordinators while their logs are open. Later writes would wait for ever, because nothing syncs a
            # closed log.
            self._coordinators.topics_deleted(deleted)
        for topic in deleted:
            owner.transfers.discard_topic(topic)
            owner.partitions.delete(topic)
        if moved:
            self._coordinators.on_moved(moved)
            finish_calls_of_leavers(services)
            self._produce.on_moved((each.topic.name, each.partition.index) for each in moved)
            begin_transfers()
        services.client_rates.on_image()
        owner.transfers.on_image()
