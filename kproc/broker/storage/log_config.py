"""LogConfig: the settings of one log, from the broker's settings and the topic's configs. Frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final

from kproc.broker.storage.format import INT32_MAX
from kproc.wire.compression import DECOMPRESSED_BYTES_MAX
from kproc.wire.primitives import INT64_MAX

if TYPE_CHECKING:
    from kproc.broker.config import Config

APPEND_TIME: Final = "LogAppendTime"
AS_PRODUCED: Final = "producer"
FULL: Final = "full"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One log's settings. Names are Kafka's topic settings; defaults are Kafka's."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    retention_ms: int = 7 * 24 * 3600 * 1000  # -1: for ever
    retention_bytes: int = -1  # -1: no limit
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    max_message_bytes: int = 1_048_588
    max_decompressed_message_bytes: int = 2_147_483_639
    timestamp_type: str = "CreateTime"
    timestamp_before_max_ms: int = INT64_MAX
    timestamp_after_max_ms: int = 3_600_000
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    file_delete_delay_ms: int = 60_000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    min_cleanable_dirty_ratio: float = 0.5
    compression_type: str = AS_PRODUCED  # Or a codec, with which the broker compresses again.
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    producer_id_expiration_ms: int = 86_400_000
    # True if requests without a transactional id may contain transactional batches. Only tools need that.
    takes_transactions: bool = True
    # True if a transaction can begin in this log only after its coordinator has confirmed the partition (KIP-890).
    verifies_transactions: bool = False
    # Depth of the check of produced records: `lengths` or `full` (kproc.validate.records).
    validate_records: str = "lengths"
    # Computed once, because every append uses them:
    # - is_append_time: the broker's clock dates the records (LogAppendTime).
    # - looks_inside: the records of every batch must be decoded.
    # - plain_bytes: largest batch that the inline checks of log_append.py may accept.
    # - roll_ms: age at which a segment rolls, before jitter. Compaction never touches the active segment, so
    #   max.compaction.lag.ms limits its age, as in Kafka.
    is_append_time: bool = field(init=False, default=False)
    looks_inside: bool = field(init=False, default=False)
    plain_bytes: int = field(init=False, default=0)
    roll_ms: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        assert 0 < self.segment_bytes <= INT32_MAX, self.segment_bytes  # positions are int32 in the index
        looks_inside = (
            self.is_compacting
            or self.compression_type != AS_PRODUCED
            or self.timestamp_before_max_ms != INT64_MAX
            or self.validate_records == FULL
            # No batch is decompressed beyond DECOMPRESSED_BYTES_MAX, so only a lower limit requires a look at the
            # records.
            or self.max_decompressed_message_bytes < DECOMPRESSED_BYTES_MAX
        )
        # Bypass the class's own __setattr__, which raises an error because the class is frozen.
        object.__setattr__(self, "is_append_time", self.timestamp_type == APPEND_TIME)
        object.__setattr__(self, "looks_inside", looks_inside)
        plain_bytes = 0 if looks_inside else min(self.max_message_bytes, self.segment_bytes)
        object.__setattr__(self, "plain_bytes", plain_bytes)
        roll_ms = min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacting else self.segment_ms
        object.__setattr__(self, "roll_ms", roll_ms)

    @property
    def is_deleting(self) -> bool:
        """True if cleanup.policy contains `delete`, so that retention applies."""
        return "delete" in self.cleanup_policy

    @property
    def is_compacting(self) -> bool:
        """True if cleanup.policy contains `compact`, so that the cleaner keeps only the newest record of each key."""
        return "compact" in self.cleanup_policy

    @classmethod
    def of(cls, settings: Config, overrides: Mapping[str, str] | None = None) -> LogConfig:
        """Return the config of a topic: its own configs, and otherwise the broker's settings.

        `overrides` are the topic's configs as texts, which were validated when they were set. Configs that do not
        concern the log are ignored.
        """
        config = cls(
            takes_transactions=False,
            verifies_transactions=settings.transaction_partition_verification_enable,
            segment_bytes=settings.log_segment_bytes,
            segment_ms=settings.log_roll_ms,
            segment_jitter_ms=settings.log_roll_jitter_ms,
            retention_ms=settings.log_retention_ms,
            retention_bytes=settings.log_retention_bytes,
            index_interval_bytes=settings.log_index_interval_bytes,
            segment_index_bytes=settings.log_index_size_max_bytes,
            max_message_bytes=settings.message_max_bytes,
            max_decompressed_message_bytes=settings.max_decompressed_message_bytes,
            timestamp_type=settings.log_message_timestamp_type,
            timestamp_before_max_ms=settings.log_message_timestamp_before_max_ms,
            timestamp_after_max_ms=settings.log_message_timestamp_after_max_ms,
            flush_messages=settings.log_flush_interval_messages,
            flush_ms=settings.log_flush_interval_ms,
            file_delete_delay_ms=settings.log_segment_delete_delay_ms,
            cleanup_policy=frozenset(settings.log_cleanup_policy),
            delete_retention_ms=settings.log_cleaner_delete_retention_ms,
            min_compaction_lag_ms=settings.log_cleaner_min_compaction_lag_ms,
            max_compaction_lag_ms=settings.log_cleaner_max_compaction_lag_ms,
            min_cleanable_dirty_ratio=settings.log_cleaner_min_cleanable_ratio,
            compression_type=settings.compression_type,
            compression_gzip_level=settings.compression_gzip_level,
            compression_lz4_level=settings.compression_lz4_level,
            compression_zstd_level=settings.compression_zstd_level,
            producer_id_expiration_ms=settings.producer_id_expiration_ms,
            validate_records=settings.kproc_validate_records,
        )
        return config.with_overrides(overrides) if overrides else config

    def with_overrides(self, overrides: Mapping[str, str]) -> LogConfig:
        """Return a copy with a topic's own configs, by Kafka's names and as texts."""
        changes: dict[str, int | float | str | frozenset[str]] = {}
        for name, text in overrides.items():
            target = _FIELD_OF.get(name)
            if target is None:
                continue
            if target == "cleanup_policy":
                changes[target] = frozenset(policy.strip() for policy in text.split(",") if policy.strip())
            elif target in ("timestamp_type", "compression_type"):
                changes[target] = text
            elif target == "min_cleanable_dirty_ratio":
                changes[target] = float(text)
            elif target == "verifies_transactions":
                changes[target] = text == "true"
            else:
                changes[target] = int(text)
        return replace(self, **changes)  # type: ignore[arg-type]  # each field gets the type of its branch


# Maps names of topic configs to fields. Most names are the field's name with dots.
_FIELD_OF: Final[Mapping[str, str]] = {
    **{
        each.name.replace("_", "."): each.name
        for each in fields(LogConfig)
        if each.init and each.name != "validate_records"
    },
    "message.timestamp.type": "timestamp_type",
    "message.timestamp.before.max.ms": "timestamp_before_max_ms",
    "message.timestamp.after.max.ms": "timestamp_after_max_ms",
    "transaction.partition.verification.enable": "verifies_transactions",
}
