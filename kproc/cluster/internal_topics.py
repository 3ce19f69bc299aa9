"""The topics that the broker creates for itself, with Kafka's partition counts and configs."""

from __future__ import annotations

from typing import Any

from kproc.cluster.topic_names import GROUP_METADATA_TOPIC, TELEMETRY_TOPIC, TRANSACTION_STATE_TOPIC
from kproc.config import Config


def _shape_of(name: str, config: Config) -> tuple[int, dict[str, str]]:
    """(partitions, configs); -1 is the broker's default. One host keeps one replica, whatever the settings say."""
    if name == TELEMETRY_TOPIC:
        return 1, {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "retention.bytes": str(256 << 20),
            "retention.ms": str(24 * 3600 * 1000),
            "segment.bytes": str(16 << 20),  # Retention deletes whole segments.
        }
    if name == TRANSACTION_STATE_TOPIC:
        return config.transaction_state_log_num_partitions, {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }
    if name != GROUP_METADATA_TOPIC:
        return -1, {}
    return config.offsets_topic_num_partitions, {
        "cleanup.policy": "compact",
        # Its batches are compressed by the coordinator, see offsets.topic.compression.codec.
        "compression.type": "producer",
        "segment.bytes": str(config.offsets_topic_segment_bytes),
    }


def automatic_wish(name: str, config: Config) -> dict[str, Any]:
    """The CreateTopics entry of a topic that is created automatically."""
    count, configs = _shape_of(name, config)
    return {
        "name": name,
        "num_partitions": count,
        "replication_factor": -1,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
