"""The kinds of coordinators that a Handler runs, one for each internal topic that has them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from kproc.broker.cluster.features import transaction_version
from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kproc.broker.coordinator.coordinator_log import CoordinatorKind
from kproc.broker.coordinator.rules import Timing
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.peers.markers import MarkerSender
from kproc.broker.transaction.coordinator import TransactionCoordinator
from kproc.broker.transaction.entry import Environment
from kproc.common.clock import NS_PER_MS

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.request.context import Services
    from kproc.common.clock import Clock

# Kafka never compresses the records of transactions (TransactionLog).
_UNCOMPRESSED = 0


def all_kinds(services: Services) -> list[CoordinatorKind[Any]]:
    """Return all kinds of coordinators that a Handler runs."""
    return [groups(services.config, services.clock), transactions(services)]


def groups(config: Config, clock: Clock) -> CoordinatorKind[GroupCoordinator]:
    """Return the kind of the group coordinators. Each partition of `__consumer_offsets` has one."""
    timing = _timing(clock)
    return CoordinatorKind(
        topic=GROUP_METADATA_TOPIC,
        make=lambda log, deadlines, _epoch: GroupCoordinator(config, timing, deadlines, log),
        codec=config.offsets_topic_compression_codec,
        sweep_interval_ms=config.offsets_retention_check_interval_ms,
        end_transaction=GroupCoordinator.end_transaction,
    )


def transactions(services: Services) -> CoordinatorKind[TransactionCoordinator]:
    """Return the kind of the transaction coordinators. Each partition of `__transaction_state` has one."""
    clock, config = services.clock, services.config
    environment = Environment(
        config=config,
        timing=_timing(clock),
        cluster_version=lambda: transaction_version(services.image),
        new_producer_id=lambda on_id, on_failure: services.owner.producer_ids.allocate(on_id, on_failure),
        send_markers=MarkerSender(services).send,
    )
    return CoordinatorKind(
        topic=TRANSACTION_STATE_TOPIC,
        make=lambda log, deadlines, epoch: TransactionCoordinator(environment, log, deadlines, epoch),
        codec=_UNCOMPRESSED,
        sweep_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
        is_eager=True,
    )


def _timing(clock: Clock) -> Timing:
    return Timing(
        now_ms=lambda: clock.now_ns() // NS_PER_MS,
        wall_ms=clock.wall_ms,
        random_id=lambda: str(uuid.uuid4()),
    )
