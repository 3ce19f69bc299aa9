"""Settings of topics, logs, fetching and producing. Rows of settings.py's table."""

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
    RECORD_BYTES_MAX,
    STRING,
    Check,
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
    """Settings of topics, segments, retention, compaction, fetching and producing."""

    # -- topics
    auto_create_topics_enable: bool = setting(
        BOOLEAN, True, "Create a missing topic when a client requests its metadata."
    )
    num_partitions: int = setting(
        INT, 1, "Number of partitions of topics that are created without a count.", at_least(1)
    )
    default_replication_factor: int = setting(
        INT,
        1,
        "Replication factor of topics that are created without one. kproc keeps one replica and rejects a topic with "
        "more.",
        at_least(1),
    )
    max_request_partition_size_limit: int = setting(
        INT, 2000, "Maximum number of partitions in one DescribeTopicPartitions response.", at_least(1)
    )
    delete_topic_enable: bool = setting(BOOLEAN, True, "Allow clients to delete topics.")
    min_insync_replicas: int = setting(
        INT,
        1,
        "Default of the topic setting min.insync.replicas.",
        at_least(1),
        dynamic=CLUSTER,
        unhonoured=ONE_REPLICA,
    )
    unclean_leader_election_enable: bool = setting(
        BOOLEAN,
        False,
        "Default of the topic setting unclean.leader.election.enable.",
        dynamic=CLUSTER,
        unhonoured=ONE_REPLICA,
    )

    # -- logs: defaults of the topic settings
    message_max_bytes: int = setting(
        INT,
        1_048_588,
        "Largest record batch in bytes, after compression. Default of max.message.bytes.",
        at_least(0),
        dynamic=CLUSTER,
    )
    max_decompressed_message_bytes: int = setting(
        INT,
        RECORD_BYTES_MAX,
        "Largest record in bytes that a compressed batch may hold. Produce rejects larger ones; compaction and "
        "look-ups by time fail at larger ones. Below 134217728 each produced record is checked, as with "
        "kproc.validate.records=full.",
        between(1, RECORD_BYTES_MAX),
        dynamic=CLUSTER,
    )
    compression_type: str = setting(
        STRING,
        "producer",
        "Codec of batches on disk. producer: store batches as the producer sent them. Any other codec: the broker "
        "compresses batches of other codecs again.",
        one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        dynamic=CLUSTER,
    )
    compression_gzip_level: int = setting(
        INT,
        -1,
        "gzip level when the broker compresses, from 1 to 9. -1: zlib's default, 6.",
        Check(
            "-1, or from 1 to 9",
            lambda value: None if value == -1 or 1 <= value <= 9 else "must be -1 or from 1 to 9",
        ),
        dynamic=CLUSTER,
    )
    compression_lz4_level: int = setting(
        INT, 9, "lz4 level when the broker compresses.", between(1, 17), dynamic=CLUSTER
    )
    compression_zstd_level: int = setting(
        INT, 3, "zstd level when the broker compresses.", between(-131_072, 22), dynamic=CLUSTER
    )
    log_segment_bytes: int = setting(
        INT,
        1 << 30,
        "Size in bytes at which the log begins a new segment.",
        at_least(1 << 20),
        dynamic=CLUSTER,
    )
    log_roll_hours: int = setting(
        INT, 168, "log.roll.ms in hours. Ignored if log.roll.ms is set.", at_least(1)
    )
    log_roll_ms: int = setting(
        LONG, 604_800_000, "Age in ms at which the log begins a new segment.", at_least(1), dynamic=CLUSTER
    )
    log_roll_jitter_hours: int = setting(
        INT, 0, "log.roll.jitter.ms in hours. Ignored if log.roll.jitter.ms is set.", at_least(0)
    )
    log_roll_jitter_ms: int = setting(
        LONG,
        0,
        "Maximum random time in ms by which log.roll.ms is shortened, so that not all logs roll at once.",
        at_least(0),
        dynamic=CLUSTER,
    )
    log_retention_hours: int = setting(
        INT, 168, "log.retention.ms in hours. Ignored if log.retention.minutes or log.retention.ms is set."
    )
    log_retention_minutes: int | None = setting(
        INT, None, "log.retention.ms in minutes. Ignored if log.retention.ms is set."
    )
    log_retention_ms: int = setting(
        LONG,
        604_800_000,
        "Age in ms after which a segment is deleted. Negative: never.",
        Check(
            "at least 1, or negative",
            lambda value: "must be at least 1, or negative for no limit" if value == 0 else None,
        ),
        dynamic=CLUSTER,
    )
    log_retention_bytes: int = setting(
        LONG,
        -1,
        "Size in bytes above which a partition's oldest segments are deleted. -1: no limit.",
        dynamic=CLUSTER,
    )
    log_retention_check_interval_ms: int = setting(
        LONG, 300_000, "Interval in ms at which the broker looks for segments to delete.", at_least(1)
    )
    log_index_interval_bytes: int = setting(
        INT, 4096, "Bytes of records between two entries of the offset index.", at_least(0), dynamic=CLUSTER
    )
    log_index_size_max_bytes: int = setting(
        INT,
        10_485_760,
        "Largest index file in bytes. A full index begins a new segment.",
        at_least(4),
        dynamic=CLUSTER,
    )
    log_segment_delete_delay_ms: int = setting(
        LONG,
        60_000,
        "Time in ms between the renaming of a file to .deleted and its removal.",
        at_least(0),
        dynamic=CLUSTER,
    )
    log_preallocate: bool = setting(
        BOOLEAN,
        False,
        "Default of the topic setting preallocate.",
        dynamic=CLUSTER,
        unhonoured="files grow as they are written",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        LIST,
        ("delete",),
        "Default of the topic setting cleanup.policy: delete, compact, or both. Empty: records are neither deleted "
        "by age or size nor compacted.",
        any_of("delete", "compact"),
        dynamic=CLUSTER,
    )
    log_cleaner_delete_retention_ms: int = setting(
        LONG,
        86_400_000,
        "Default of the topic setting delete.retention.ms: time in ms that compaction keeps tombstones.",
        at_least(0),
        dynamic=CLUSTER,
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        LONG,
        0,
        "Default of the topic setting min.compaction.lag.ms: time in ms before a record may be compacted.",
        at_least(0),
        dynamic=CLUSTER,
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        LONG,
        LONG_MAX,
        "Default of the topic setting max.compaction.lag.ms: time in ms after which a record must be compacted.",
        at_least(1),
        dynamic=CLUSTER,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        DOUBLE,
        0.5,
        "Default of the topic setting min.cleanable.dirty.ratio: share of uncompacted bytes at which a log is "
        "compacted.",
        between(0, 1),
        dynamic=CLUSTER,
    )
    log_cleaner_enable: bool = setting(BOOLEAN, True, "Compact topics with cleanup.policy=compact.")
    log_cleaner_threads: int = setting(
        INT, 1, "Number of Kafka's cleaner threads.", at_least(0), dynamic=CLUSTER, unhonoured=ONE_CLEANER
    )
    log_cleaner_backoff_ms: int = setting(
        LONG,
        15_000,
        "Time in ms that the cleaner pauses when no log needs compaction.",
        at_least(0),
        dynamic=CLUSTER,
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        LONG,
        134_217_728,
        "Memory in bytes for the keys of one compaction pass. A log with more keys takes several passes.",
        at_least(1 << 20),
        dynamic=CLUSTER,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        DOUBLE,
        0.9,
        "Share of log.cleaner.dedupe.buffer.size that may be filled with keys.",
        between(0, 1),
        dynamic=CLUSTER,
    )
    log_cleaner_io_buffer_size: int = setting(
        INT,
        524_288,
        "Size in bytes of the cleaner's reads. Below 64 KiB, 64 KiB count.",
        at_least(0),
        dynamic=CLUSTER,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        DOUBLE,
        DOUBLE_MAX,
        "Maximum rate of the cleaner's reads and writes together, in bytes per second.",
        dynamic=CLUSTER,
    )
    log_message_timestamp_type: str = setting(
        STRING,
        "CreateTime",
        "Source of the timestamps of records. CreateTime: the producer. LogAppendTime: the broker, on append.",
        one_of("CreateTime", "LogAppendTime"),
        dynamic=CLUSTER,
    )
    log_message_timestamp_before_max_ms: int = setting(
        LONG,
        LONG_MAX,
        "Maximum age in ms of a record's timestamp. Older records are rejected.",
        at_least(0),
        dynamic=CLUSTER,
    )
    log_message_timestamp_after_max_ms: int = setting(
        LONG,
        3_600_000,
        "Maximum time in ms by which a record's timestamp may be in the future. Others are rejected.",
        at_least(0),
        dynamic=CLUSTER,
    )
    log_flush_interval_messages: int = setting(
        LONG, LONG_MAX, "Number of records after which a log is synced to disk.", at_least(1), dynamic=CLUSTER
    )
    log_flush_interval_ms: int = setting(
        LONG,
        LONG_MAX,
        "Time in ms after which unsynced records are synced to disk, accurate to about 1 s.",
        dynamic=CLUSTER,
    )
    log_flush_scheduler_interval_ms: int = setting(
        LONG, LONG_MAX, "Value of log.flush.interval.ms if that is not set."
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        INT, 60_000, "Interval in ms at which the recovery points of logs are written.", at_least(0)
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        INT, 60_000, "Interval in ms at which the start offsets of logs are written.", at_least(0)
    )

    # -- fetching and producing
    fetch_max_bytes: int = setting(
        INT, 57_671_680, "Maximum bytes of records in one Fetch response.", at_least(1024)
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        INT, 1000, "Maximum number of incremental fetch sessions (KIP-227).", at_least(0)
    )
    producer_id_expiration_ms: int = setting(
        INT,
        86_400_000,
        "Time in ms without a batch after which the broker forgets an idempotent producer.",
        at_least(1),
        dynamic=CLUSTER,
    )
    transaction_partition_verification_enable: bool = setting(
        BOOLEAN,
        True,
        "Before the first batch of a transaction in a partition, check with the transaction's coordinator that the "
        "transaction is open (KIP-890).",
        dynamic=CLUSTER,
    )
