"""Settings of the share coordinator and of the topic that stores the states. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass

from kproc.broker.config.values import INT, SIZE, at_least, between, setting


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ShareStateSettings:
    """Settings of the stored states of share partitions: the topic, snapshots, and deletion of old records."""

    kproc_share_states_max_bytes: int = setting(
        SIZE,
        64 << 20,
        "Memory that the states of share partitions may take in a Handler. A state takes 1 KiB, and each range of "
        "records in flight 150 bytes. Beyond it, share groups get no further partitions.",
        at_least(1 << 20),
    )
    share_coordinator_state_topic_num_partitions: int = setting(
        INT, 50, "Number of partitions with which __share_group_state is created.", at_least(1)
    )
    share_coordinator_state_topic_segment_bytes: int = setting(
        INT, 104_857_600, "segment.bytes with which __share_group_state is created.", at_least(1 << 20)
    )
    share_coordinator_state_topic_compression_codec: int = setting(
        INT,
        0,
        "Codec of batches in __share_group_state: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        between(0, 4),
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = setting(
        INT,
        500,
        "Number of changes of a share partition that are stored as updates before the next snapshot of its state.",
        between(0, 500),
    )
    share_coordinator_state_topic_prune_interval_ms: int = setting(
        INT,
        300_000,
        "Interval in ms at which records of __share_group_state are deleted that newer snapshots have replaced.",
        at_least(1),
        internal=True,
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = setting(
        INT,
        300_000,
        "Age in ms of a share partition's last snapshot at which it is repeated, so that older records can be deleted.",
        at_least(1),
        internal=True,
    )
