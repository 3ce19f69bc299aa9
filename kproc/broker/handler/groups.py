"""Consumer groups as a kind of coordinator: topic, codec, sweep interval and clocks."""

from __future__ import annotations

import uuid

from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.config import Config
from kproc.broker.coordinator.rules import Timing
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.handler.coordinator_shard import CoordinatorKind
from kproc.common.clock import NS_PER_MS, Clock


def groups(config: Config, clock: Clock) -> CoordinatorKind[GroupCoordinator]:
    """Return the kind of the group coordinators. Each partition of `__consumer_offsets` has one."""
    timing = Timing(
        now_ms=lambda: clock.now_ns() // NS_PER_MS,
        wall_ms=clock.wall_ms,
        random_id=lambda: str(uuid.uuid4()),
    )
    return CoordinatorKind(
        topic=GROUP_METADATA_TOPIC,
        make=lambda log, deadlines, _epoch: GroupCoordinator(config, timing, deadlines, log),
        codec=config.offsets_topic_compression_codec,
        sweep_interval_ms=config.offsets_retention_check_interval_ms,
        end_transaction=GroupCoordinator.end_transaction,
    )
