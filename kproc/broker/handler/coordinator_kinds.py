"""The kinds of coordinators that a Handler runs, one for each internal topic that has them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kproc.broker.cluster.config_changes import RESOURCE_GROUP
from kproc.broker.cluster.features import transaction_version
from kproc.broker.cluster.group_config import GROUP_CONFIGS, clamp_all
from kproc.broker.cluster.internal_topics import (
    GROUP_METADATA_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kproc.broker.cluster.records import node_over_cluster
from kproc.broker.coordinator.coordinator_log import CoordinatorKind
from kproc.broker.coordinator.member_memory import MemberMemory
from kproc.broker.coordinator.memory_limit import MemoryLimit
from kproc.broker.coordinator.rules import Timing
from kproc.broker.group.consumer.topics import ConsumerCluster, TopicView
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.group.offset_memory import offset_limit
from kproc.broker.peers.coordinator_call import Item
from kproc.broker.peers.markers import MarkerSender
from kproc.broker.peers.share_call import DELETE_STATE, initialize_states
from kproc.broker.request.name_pattern import SelectionTime
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.share.membership.share_states import OnCodes, ShareStates
from kproc.broker.share.state.coordinator import ShareCoordinator, ShareEnvironment
from kproc.broker.share.state.messages import DeleteState, InitializeState
from kproc.broker.share.state.records import base_key_of
from kproc.broker.transaction.coordinator import TransactionCoordinator
from kproc.broker.transaction.entry import Environment
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import KafkaError

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.request.context import Services
    from kproc.broker.security.principal import Identity
    from kproc.common.clock import Clock

# Kafka never compresses the records of transactions (TransactionLog).
_UNCOMPRESSED = 0
# Broker setting -> the group config whose default it is.
_GROUP_DEFAULTS = {row.synonym: name for name, row in GROUP_CONFIGS.items()}


def all_kinds(services: Services) -> list[CoordinatorKind[Any]]:
    """Return all kinds of coordinators that a Handler runs."""
    return [
        groups(services.config, services.clock, consumer_cluster(services)),
        transactions(services),
        share_states(services.config, services.clock, partial(_has_partition, services)),
    ]


def consumer_cluster(services: Services) -> ConsumerCluster:
    """Return the parts of the cluster's metadata that groups of the consumer protocol use."""
    return ConsumerCluster(
        topics=TopicView(lambda: services.image),
        group_configs=_GroupConfigs(services).of,
        match_topics=partial(_match_topics, services, SelectionTime(services.clock.host_ns)),
        share_states=_share_states(services),
        member_memory=MemberMemory(services.config.kproc_group_members_max_bytes),
        offset_memory=offset_limit(services.config.kproc_group_offsets_max_bytes),
    )


def _share_states(services: Services) -> ShareStates:
    """Return the calls to the share coordinators, which store the states of share partitions."""

    def initialize(items: Sequence[tuple[str, InitializeState]], on_codes: OnCodes) -> None:
        initialize_states(services, [Item(*each) for each in items], on_codes)

    def delete(keys: Sequence[str], on_codes: OnCodes) -> None:
        if services.image.topic(SHARE_STATE_TOPIC) is None:
            on_codes([0] * len(keys))  # No state was ever stored.
        else:
            DELETE_STATE.send_for_handler(services, [Item(key, DeleteState()) for key in keys], on_codes)

    return ShareStates(initialize, delete, lambda work: services.owner.purgatory.defer(work))


class _GroupConfigs:
    """The configs of groups: those of the group over the broker's dynamic defaults, clamped to the broker's limits."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._version = -1  # The version of the metadata that has `_defaults`.
        self._defaults: dict[str, str] = {}

    def of(self, group_id: str) -> Mapping[str, str]:
        """Return the configs of a group that are set, by name."""
        image, config = self._services.image, self._services.config
        if image.version != self._version:
            # Merge the defaults once for each version of the metadata, because each heartbeat reads several configs.
            settings = node_over_cluster(image.broker_configs, config.node_id).items()
            dynamic = {_GROUP_DEFAULTS[name]: value for name, value in settings if name in _GROUP_DEFAULTS}
            self._version, self._defaults = image.version, clamp_all(dynamic, config)
        own = image.resource_configs.get((RESOURCE_GROUP, group_id))
        return self._defaults if own is None else self._defaults | clamp_all(own, config)


def groups(config: Config, clock: Clock, cluster: ConsumerCluster) -> CoordinatorKind[GroupCoordinator]:
    """Return the kind of the group coordinators. Each partition of `__consumer_offsets` has one."""
    timing = _timing(clock)
    return CoordinatorKind(
        topic=GROUP_METADATA_TOPIC,
        make=lambda log, deadlines, _epoch: GroupCoordinator(config, cluster, timing, deadlines, log),
        codec=config.offsets_topic_compression_codec,
        sweep_interval_ms=config.offsets_retention_check_interval_ms,
        end_transaction=GroupCoordinator.end_transaction,
    )


def _match_topics(
    services: Services, time: SelectionTime, expression: str, client: Identity
) -> frozenset[str] | None:
    """Return the topics whose whole names match an expression and that the client may describe (KIP-848).

    Return None if the Handler has no time for that now. Raises KafkaError for an invalid expression.
    """
    if time.is_used_up:
        return None
    try:
        names = time.select(expression, services.image.topics_by_name)
    except KafkaError as error:
        raise KafkaError(
            error.code,
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {error.message}.",
        ) from error
    authorizer = services.authorizer
    return frozenset(
        name
        for name in names
        if authorizer is None
        or authorizer.verdict((client, Operation.DESCRIBE, ResourceType.TOPIC, name)).is_allowed
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
        memory=MemoryLimit("kproc.transactional.ids.max.bytes", config.kproc_transactional_ids_max_bytes),
    )
    return CoordinatorKind(
        topic=TRANSACTION_STATE_TOPIC,
        make=lambda log, deadlines, epoch: TransactionCoordinator(environment, log, deadlines, epoch),
        codec=_UNCOMPRESSED,
        sweep_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
        # Load without a request: an open transaction must end at its timeout even if no client asks for it,
        # because read_committed consumers wait for it.
        is_eager=True,
    )


def _has_partition(services: Services, topic_id: bytes, index: int) -> bool:
    topic = services.image.topic_by_id(topic_id)
    return topic is not None and 0 <= index < len(topic.partitions)


def share_states(
    config: Config, clock: Clock, has_partition: Callable[[bytes, int], bool]
) -> CoordinatorKind[ShareCoordinator]:
    """Return the kind of the share coordinators. Each partition of `__share_group_state` has one."""
    environment = ShareEnvironment(
        config,
        _timing(clock),
        has_partition,
        MemoryLimit("kproc.share.states.max.bytes", config.kproc_share_states_max_bytes),
    )
    return CoordinatorKind(
        topic=SHARE_STATE_TOPIC,
        make=lambda log, _deadlines, _epoch: ShareCoordinator(environment, log),
        codec=config.share_coordinator_state_topic_compression_codec,
        sweep_interval_ms=config.share_coordinator_state_topic_prune_interval_ms,
        base_key_of=base_key_of,
    )


def _timing(clock: Clock) -> Timing:
    return Timing(
        now_ms=lambda: clock.now_ns() // NS_PER_MS,
        wall_ms=clock.wall_ms,
        random_id=lambda: str(uuid.uuid4()),
    )
