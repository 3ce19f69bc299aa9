"""Topics and logs: defaults of the topic settings, limits of fetching and producing. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kproc.broker.config.values import (
    BOOLEAN,
    CLUSTER,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    ONE_REPLICA,
    STRING,
    any_of,
    at_least,
    between,
    one_of,
    setting,
)

ONE_CLEANER: Final = "one process compacts"
DOUBLE_MAX: Final = 1.7976931348623157e308  # Java's Double.MAX_VALUE.


@dataclass(frozen=True, init=False, repr=False, eq=False)
class LogSettings:
    """Topics, segments, retention, compaction, fetching, producing."""

    # -- topics
    auto_create_topics_enable: bool = setting(
        BOOLEAN, True, "A Metadata or Produce request may create its topic."
    )
    num_partitions: int = setting(INT, 1, "Partitions of a topic created without a count.", at_least(1))
    default_replication_factor: int = setting(
        INT,
        1,
        "Replicas of a topic created without a count; one host has one, and more are refused when the topic is made.",
        at_least(1),
    )
    max_request_partition_size_limit: int = setting(
        INT, 2000, "Most partitions of one DescribeTopicPartitions answer.", at_least(1)
    )
    delete_topic_enable: bool = setting(BOOLEAN, True, "Clients may delete topics.")
    min_insync_replicas: int = setting(
        INT, 1, "Default of min.insync.replicas.", at_least(1), dynamic=CLUSTER, unhonoured=ONE_REPLICA
    )
    unclean_leader_election_enable: bool = setting(
        BOOLEAN, False, "Default of unclean.leader.election.enable.", dynamic=CLUSTER, unhonoured=ONE_REPLICA
    )

    # -- logs: defaults of the topic settings
    message_max_bytes: int = setting(INT, 1_048_588, "Largest record batch.", at_least(0), dynamic=CLUSTER)
    compression_type: str = setting(
        STRING,
        "producer",
        "Codec on disk; producer keeps what was sent, any other has the broker compress again.",
        one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        dynamic=CLUSTER,
    )
    compression_gzip_level: int = setting(
        INT,
        -1,
        "Level of gzip where the broker compresses; -1: zlib's own, which is 6.",
        lambda value: None if value == -1 or 1 <= value <= 9 else "must be -1 or from 1 to 9",
        dynamic=CLUSTER,
    )
    compression_lz4_level: int = setting(
        INT, 9, "Level of lz4 where the broker compresses.", between(1, 17), dynamic=CLUSTER
    )
    compression_zstd_level: int = setting(
        INT, 3, "Level of zstd where the broker compresses.", between(-131_072, 22), dynamic=CLUSTER
    )
    log_segment_bytes: int = setting(
        INT, 1 << 30, "A segment is rolled at this size.", at_least(1 << 20), dynamic=CLUSTER
    )
    log_roll_hours: int = setting(INT, 168, "log.roll.ms in hours.", at_least(1))
    log_roll_ms: int = setting(
        LONG, 604_800_000, "A segment is rolled at this age.", at_least(1), dynamic=CLUSTER
    )
    log_roll_jitter_hours: int = setting(INT, 0, "log.roll.jitter.ms in hours.", at_least(0))
    log_roll_jitter_ms: int = setting(
        LONG, 0, "At most this much earlier, by chance.", at_least(0), dynamic=CLUSTER
    )
    log_retention_hours: int = setting(INT, 168, "log.retention.ms in hours.")
    log_retention_minutes: int | None = setting(INT, None, "log.retention.ms in minutes; wins over hours.")
    log_retention_ms: int = setting(
        LONG, 604_800_000, "Segments older than this are deleted; negative: never.", dynamic=CLUSTER
    )
    log_retention_bytes: int = setting(
        LONG, -1, "A partition's oldest segments above this size are deleted; -1: never.", dynamic=CLUSTER
    )
    log_retention_check_interval_ms: int = setting(
        LONG, 300_000, "How often retention is checked.", at_least(1)
    )
    log_index_interval_bytes: int = setting(
        INT, 4096, "Bytes between index entries.", at_least(0), dynamic=CLUSTER
    )
    log_index_size_max_bytes: int = setting(
        INT, 10_485_760, "Largest index; full: roll.", at_least(4), dynamic=CLUSTER
    )
    log_segment_delete_delay_ms: int = setting(
        LONG, 60_000, "From renaming a file to .deleted until it is removed.", at_least(0), dynamic=CLUSTER
    )
    log_preallocate: bool = setting(
        BOOLEAN,
        False,
        "Default of preallocate.",
        dynamic=CLUSTER,
        unhonoured="files grow as they are written",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        LIST,
        ("delete",),
        "Default of cleanup.policy. Empty: records are neither deleted by age or size nor compacted.",
        any_of("delete", "compact"),
        dynamic=CLUSTER,
    )
    log_cleaner_delete_retention_ms: int = setting(
        LONG,
        86_400_000,
        "Default of delete.retention.ms.",
        at_least(0),
        dynamic=CLUSTER,
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        LONG, 0, "Default of min.compaction.lag.ms.", at_least(0), dynamic=CLUSTER
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        LONG,
        LONG_MAX,
        "Default of max.compaction.lag.ms.",
        at_least(1),
        dynamic=CLUSTER,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        DOUBLE,
        0.5,
        "Default of min.cleanable.dirty.ratio.",
        between(0, 1),
        dynamic=CLUSTER,
    )
    log_cleaner_enable: bool = setting(BOOLEAN, True, "Compaction of topics with cleanup.policy=compact.")
    log_cleaner_threads: int = setting(
        INT, 1, "Kafka's cleaner threads.", at_least(0), dynamic=CLUSTER, unhonoured=ONE_CLEANER
    )
    log_cleaner_backoff_ms: int = setting(
        LONG, 15_000, "Pause of the cleaner when no log is dirty enough.", at_least(0), dynamic=CLUSTER
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        LONG,
        134_217_728,
        "Memory for the keys of one pass of compaction; a log with more keys takes several passes.",
        at_least(1 << 20),
        dynamic=CLUSTER,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        DOUBLE, 0.9, "Share of log.cleaner.dedupe.buffer.size that is used.", between(0, 1), dynamic=CLUSTER
    )
    log_cleaner_io_buffer_size: int = setting(
        INT, 524_288, "Bytes that the cleaner reads at once.", at_least(0), dynamic=CLUSTER
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        DOUBLE, DOUBLE_MAX, "Bytes that the cleaner reads and writes in a second.", dynamic=CLUSTER
    )
    log_message_timestamp_type: str = setting(
        STRING,
        "CreateTime",
        "Who dates records: the producer or the broker.",
        one_of("CreateTime", "LogAppendTime"),
        dynamic=CLUSTER,
    )
    log_message_timestamp_before_max_ms: int = setting(
        LONG, LONG_MAX, "Older records are refused.", at_least(0), dynamic=CLUSTER
    )
    log_message_timestamp_after_max_ms: int = setting(
        LONG, 3_600_000, "Records from further in the future are refused.", at_least(0), dynamic=CLUSTER
    )
    log_flush_interval_messages: int = setting(
        LONG, LONG_MAX, "Records between syncs of a log.", at_least(1), dynamic=CLUSTER
    )
    log_flush_interval_ms: int = setting(LONG, LONG_MAX, "Time between syncs of a log.", dynamic=CLUSTER)
    log_flush_scheduler_interval_ms: int = setting(
        LONG, LONG_MAX, "log.flush.interval.ms where that is not set."
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        INT, 60_000, "How often recovery points are written.", at_least(0)
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        INT, 60_000, "How often log starts are written.", at_least(0)
    )

    # -- fetching and producing
    fetch_max_bytes: int = setting(INT, 57_671_680, "Most bytes of one Fetch answer.", at_least(1024))
    max_incremental_fetch_session_cache_slots: int = setting(
        INT, 1000, "Fetch sessions kept (KIP-227).", at_least(0)
    )
    producer_id_expiration_ms: int = setting(
        INT, 86_400_000, "An idempotent producer is forgotten after this.", at_least(1), dynamic=CLUSTER
    )
    transaction_partition_verification_enable: bool = setting(
        BOOLEAN,
        True,
        "A transaction's first batch in a partition is written only when its coordinator knows of it (KIP-890).",
        dynamic=CLUSTER,
    )
