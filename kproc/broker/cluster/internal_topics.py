"""Table of the topics that the broker creates for itself, with Kafka's partition counts and configs.

A row with `found_by` has coordinators (handler/coordinator_kinds.py): each partition is the log of one. This table is
read by FindCoordinator, by Metadata, and by the code that creates such a topic or opens its partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kproc.broker.config import Config
from kproc.broker.security.acl import ResourceType

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_group_state"
BROKERS_DEFAULT: Final = -1  # In place of a number of partitions or replicas.


class FoundBy(NamedTuple):
    """The key type by which FindCoordinator finds a topic's coordinators, and the ACL resource type it checks."""

    key_type: int
    resource: ResourceType


class InternalTopic(NamedTuple):
    """A row: an internal topic, with the partitions and configs with which it is created."""

    name: str
    partitions: Callable[[Config], int] = lambda _config: BROKERS_DEFAULT
    configs: Callable[[Config], dict[str, str]] = lambda _config: {}
    found_by: FoundBy | None = None  # None: it has no coordinators.


_ROWS: Final = (
    InternalTopic(
        GROUP_METADATA_TOPIC,
        lambda config: config.offsets_topic_num_partitions,
        lambda config: {
            "cleanup.policy": "compact",
            # The coordinator compresses the topic's batches (offsets.topic.compression.codec), so the log stores them
            # as they are.
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
        FoundBy(0, ResourceType.GROUP),
    ),
    InternalTopic(
        TRANSACTION_STATE_TOPIC,
        lambda config: config.transaction_state_log_num_partitions,
        lambda config: {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            # Kafka's default is 2, but it must be 1 here, because one host keeps one replica.
            "min.insync.replicas": "1",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
        FoundBy(1, ResourceType.TRANSACTIONAL_ID),
    ),
    InternalTopic(
        SHARE_STATE_TOPIC,
        lambda config: config.share_coordinator_state_topic_num_partitions,
        lambda config: {
            # Updates build on earlier records, so the topic is not compacted. The coordinator deletes its old records.
            "cleanup.policy": "delete",
            "compression.type": "producer",
            # Kafka's default is 2, but it must be 1 here, because one host keeps one replica.
            "min.insync.replicas": "1",
            "retention.ms": "-1",
            "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
        },
        # Only brokers look for the share coordinators, with the operation CLUSTER_ACTION.
        FoundBy(2, ResourceType.CLUSTER),
    ),
)
INTERNAL_TOPICS: Final = {row.name: row for row in _ROWS}
COORDINATOR_TOPICS: Final = frozenset(row.name for row in _ROWS if row.found_by is not None)


def automatic_wish(name: str, config: Config) -> dict[str, Any]:
    """Return the CreateTopics entry of a topic that is created automatically: internal, or named by a client."""
    row = INTERNAL_TOPICS.get(name) or InternalTopic(name)
    return {
        "name": name,
        "num_partitions": row.partitions(config),
        "replication_factor": BROKERS_DEFAULT,  # One host keeps one replica, whatever the settings say.
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in row.configs(config).items()],
    }
