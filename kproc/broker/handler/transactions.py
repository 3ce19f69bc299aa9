"""Transactions as a kind of coordinator: topic, sweep interval, and the services that the coordinator uses."""

from __future__ import annotations

import uuid

from kproc.broker.cluster.features import transaction_version
from kproc.broker.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from kproc.broker.coordinator.rules import Timing
from kproc.broker.handler.coordinator_shard import CoordinatorKind
from kproc.broker.peers.markers import MarkerSender
from kproc.broker.request.context import Services
from kproc.broker.transaction.coordinator import TransactionCoordinator
from kproc.broker.transaction.entry import Environment
from kproc.common.clock import NS_PER_MS

_UNCOMPRESSED = 0


def transactions(services: Services) -> CoordinatorKind[TransactionCoordinator]:
    """Return the kind of the transaction coordinators. Each partition of `__transaction_state` has one."""
    clock, config = services.clock, services.config
    environment = Environment(
        config=config,
        timing=Timing(
            now_ms=lambda: clock.now_ns() // NS_PER_MS,
            wall_ms=clock.wall_ms,
            random_id=lambda: str(uuid.uuid4()),
        ),
        cluster_version=lambda: transaction_version(services.image),
        new_producer_id=lambda on_id, on_failure: services.producer_ids.allocate(on_id, on_failure),
        send_markers=MarkerSender(services).send,
    )
    return CoordinatorKind(
        topic=TRANSACTION_STATE_TOPIC,
        make=lambda log, deadlines, epoch: TransactionCoordinator(environment, log, deadlines, epoch),
        codec=_UNCOMPRESSED,
        sweep_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
        is_eager=True,
    )
