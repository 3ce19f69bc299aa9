"""The table of topic configs: every name that Kafka 4.4 knows, one row each.

A row ties a config of a topic to the broker setting that is its default. Validation, DescribeConfigs and the config of
a log (`dynamic_settings.log_overrides`) are derived from it. A config that Kafka knows and kproc does not act on is
stored and shown, too, because clients (Connect, Schema Registry) check that it was accepted. `unhonoured` says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kproc.broker.config import SETTINGS, Config, ConfigError, Kind
from kproc.broker.config.values import (
    LONG_MAX,
    ONE_REPLICA,
    RECORD_BYTES_MAX,
    Check,
    at_least,
    between,
    list_problem,
    one_of,
    parse_value,
    wire_text,
)
from kproc.common.errors import ErrorCode, KafkaError


class TopicConfig(msgspec.Struct, frozen=True):
    """One row of the table.

    settings: the broker settings that are its default. The first one that is set wins.
    synonym: the broker setting that Kafka shows as its synonym, if kproc has no such setting.
    unhonoured: the reason why the config has no effect, or None.
    """

    name: str
    kind: Kind
    doc: str
    settings: tuple[str, ...] = ()
    check: Check | None = None
    fixed_default: str = ""
    synonym: str = ""
    unhonoured: str | None = None

    def parse(self, text: str) -> Any:
        """Parse `text`. Raise KafkaError(INVALID_CONFIG) with the reason if it is invalid."""
        try:
            value = parse_value(self.kind, text, self.name)
        except ConfigError:
            raise self._invalid(text, not_a(self.kind)) from None
        if problem := self.problem_with(value):
            raise self._invalid(text, problem)
        return value

    def problem_with(self, value: Any) -> str | None:
        """Return an error if the parsed value is invalid for this config, or None if it is valid."""
        return kafka_wording(self.check(value)) if self.check is not None else None

    def normalize(self, text: str) -> str:
        """Validate `text` and return it as it is stored and shown: without blanks."""
        if self.kind is Kind.LIST and (problem := list_problem(self.name, text)):
            raise KafkaError(ErrorCode.INVALID_CONFIG, problem)
        return wire_text(self.parse(text)) or ""

    def default(self, config: Config) -> str:
        """Return the default of a topic without an override, from the static settings."""
        return (config.wire_value(self.settings[0]) or "") if self.settings else self.fixed_default

    def _invalid(self, text: str, why: str) -> KafkaError:
        return KafkaError(
            ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {self.name}: {why}"
        )


def not_a(kind: Kind) -> str:
    """Return Kafka's error message for a config value that cannot be parsed as `kind`."""
    if kind is Kind.BOOLEAN:
        return "Expected value to be either true or false"
    return f"Not a number of type {kind.kafka_name}"


def kafka_wording(problem: str | None) -> str | None:
    """Return the error of a check in Kafka's wording, such as "Value must be at least 1". Return None for None."""
    return f"Value {problem}" if problem and problem.startswith("must") else problem


_THROTTLED: Final = re.compile(r"\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*|")
_NO_TIERS: Final = "there is no tiered storage"


def _only(*words: str) -> Check:
    """Return a check that a list has only `words` as elements.

    It may be empty: such a topic keeps all records (KIP-1161).
    """
    listed = ", ".join(words)
    return Check(
        f"empty, or some of {listed}",
        lambda value: None if set(value) <= set(words) else f"String must be one of: {listed}",
    )


def _check_throttled(value: tuple[str, ...]) -> str | None:
    if _THROTTLED.fullmatch(",".join(value)):
        return None
    return "must be the literal '*' or a list [partitionId]:[brokerId],[partitionId]:[brokerId],..."


def _check_tiered(value: bool) -> str | None:
    return "Tiered Storage functionality is disabled in the broker." if value else None


def _check_gzip_level(value: int) -> str | None:
    return None if value == -1 or 1 <= value <= 9 else "Value must be between 1 and 9 or equal to -1"


_THROTTLED_REPLICAS: Final = Check("*, or a list of partition:broker", _check_throttled)
_NO_REMOTE_STORAGE: Final = Check("false", _check_tiered)
_GZIP_LEVEL: Final = Check("-1, or from 1 to 9", _check_gzip_level)


ROWS: Final = (
    TopicConfig(
        "cleanup.policy",
        Kind.LIST,
        "How old records are removed. delete: segments are deleted by age and size. compact: only the newest record of "
        "each key is kept. Both may be set. Empty: all records are kept.",
        ("log.cleanup.policy",),
        _only("compact", "delete"),
    ),
    TopicConfig(
        "compression.gzip.level",
        Kind.INT,
        "gzip level when the broker compresses, from 1 to 9. -1: zlib's default, 6.",
        ("compression.gzip.level",),
        _GZIP_LEVEL,
    ),
    TopicConfig(
        "compression.lz4.level",
        Kind.INT,
        "lz4 level when the broker compresses.",
        ("compression.lz4.level",),
        between(1, 17),
    ),
    TopicConfig(
        "compression.type",
        Kind.STRING,
        "Codec of batches on disk. producer: store batches as the producer sent them. Any other codec: the broker "
        "compresses batches of other codecs again.",
        ("compression.type",),
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    TopicConfig(
        "compression.zstd.level",
        Kind.INT,
        "zstd level when the broker compresses.",
        ("compression.zstd.level",),
        between(-131072, 22),
    ),
    TopicConfig(
        "delete.retention.ms",
        Kind.LONG,
        "Time in ms that compaction keeps tombstones, so that consumers learn of deleted keys.",
        ("log.cleaner.delete.retention.ms",),
        at_least(0),
    ),
    TopicConfig(
        "errors.deadletterqueue.group.enable",
        Kind.BOOLEAN,
        "Allow share groups to write records that they cannot deliver to this topic.",
        (),
        None,
        "false",
    ),
    TopicConfig(
        "file.delete.delay.ms",
        Kind.LONG,
        "Time in ms between the renaming of a file to .deleted and its removal.",
        ("log.segment.delete.delay.ms",),
        at_least(0),
    ),
    TopicConfig(
        "flush.messages",
        Kind.LONG,
        "Number of records after which the log is synced to disk. The broker answers the last of them after the sync.",
        ("log.flush.interval.messages",),
        at_least(1),
    ),
    TopicConfig(
        "flush.ms",
        Kind.LONG,
        "Time in ms after which unsynced records are synced to disk, accurate to about 1 s.",
        ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        at_least(0),
    ),
    TopicConfig(
        "follower.replication.throttled.replicas",
        Kind.LIST,
        "Replicas whose followers are throttled.",
        (),
        _THROTTLED_REPLICAS,
        unhonoured=ONE_REPLICA,
    ),
    TopicConfig(
        "index.interval.bytes",
        Kind.INT,
        "Bytes of records between two entries of the offset index.",
        ("log.index.interval.bytes",),
        at_least(0),
    ),
    TopicConfig(
        "leader.replication.throttled.replicas",
        Kind.LIST,
        "Replicas whose leaders are throttled.",
        (),
        _THROTTLED_REPLICAS,
        unhonoured=ONE_REPLICA,
    ),
    TopicConfig(
        "local.retention.bytes",
        Kind.LONG,
        "Bytes of a partition that stay on the local disk.",
        (),
        at_least(-2),
        "-2",
        "log.local.retention.bytes",
        unhonoured=_NO_TIERS,
    ),
    TopicConfig(
        "local.retention.ms",
        Kind.LONG,
        "Time in ms that a segment stays on the local disk.",
        (),
        at_least(-2),
        "-2",
        "log.local.retention.ms",
        unhonoured=_NO_TIERS,
    ),
    TopicConfig(
        "max.compaction.lag.ms",
        Kind.LONG,
        "Time in ms after which a record must be compacted.",
        ("log.cleaner.max.compaction.lag.ms",),
        at_least(1),
    ),
    TopicConfig(
        "max.decompressed.message.bytes",
        Kind.INT,
        "Largest record in bytes that a compressed batch may hold. Produce rejects larger ones; compaction and "
        "look-ups by time fail at larger ones. Below 134217728 each produced record is checked.",
        ("max.decompressed.message.bytes",),
        between(1, RECORD_BYTES_MAX),
    ),
    TopicConfig(
        "max.message.bytes",
        Kind.INT,
        "Largest record batch in bytes, after compression.",
        ("message.max.bytes",),
        at_least(0),
    ),
    TopicConfig(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        "Maximum time in ms by which a record's timestamp may be in the future. Others are rejected.",
        ("log.message.timestamp.after.max.ms",),
        at_least(0),
    ),
    TopicConfig(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        "Maximum age in ms of a record's timestamp. Older records are rejected.",
        ("log.message.timestamp.before.max.ms",),
        at_least(0),
    ),
    TopicConfig(
        "message.timestamp.type",
        Kind.STRING,
        "Source of the timestamps of records. CreateTime: the producer. LogAppendTime: the broker, on append.",
        ("log.message.timestamp.type",),
        one_of("CreateTime", "LogAppendTime"),
    ),
    TopicConfig(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        "Share of uncompacted bytes at which a log is compacted.",
        ("log.cleaner.min.cleanable.ratio",),
        between(0, 1),
    ),
    TopicConfig(
        "min.compaction.lag.ms",
        Kind.LONG,
        "Time in ms before a record may be compacted.",
        ("log.cleaner.min.compaction.lag.ms",),
        at_least(0),
    ),
    TopicConfig(
        "min.insync.replicas",
        Kind.INT,
        "Number of replicas that must have a record of acks=all.",
        ("min.insync.replicas",),
        at_least(1),
        unhonoured=ONE_REPLICA,
    ),
    TopicConfig(
        "preallocate",
        Kind.BOOLEAN,
        "Reserve the disk space of a segment when it is created.",
        ("log.preallocate",),
        unhonoured="files grow as they are written",
    ),
    TopicConfig(
        "remote.copy.lag.bytes",
        Kind.LONG,
        "Bytes of newer records after which a segment is copied to remote storage.",
        (),
        at_least(-1),
        "-1",
        "log.remote.copy.lag.bytes",
        unhonoured=_NO_TIERS,
    ),
    TopicConfig(
        "remote.copy.lag.ms",
        Kind.LONG,
        "Time in ms after which a segment is copied to remote storage.",
        (),
        at_least(-1),
        "0",
        "log.remote.copy.lag.ms",
        unhonoured=_NO_TIERS,
    ),
    TopicConfig(
        "remote.log.copy.disable",
        Kind.BOOLEAN,
        "Stop the copying of segments to remote storage.",
        (),
        None,
        "false",
        unhonoured=_NO_TIERS,
    ),
    TopicConfig(
        "remote.log.delete.on.disable",
        Kind.BOOLEAN,
        "Delete the remote segments when remote storage is disabled.",
        (),
        None,
        "false",
        unhonoured=_NO_TIERS,
    ),
    TopicConfig(
        "remote.storage.enable",
        Kind.BOOLEAN,
        "Copy segments to remote storage. kproc rejects true.",
        (),
        _NO_REMOTE_STORAGE,
        "false",
        unhonoured=_NO_TIERS,
    ),
    TopicConfig(
        "retention.bytes",
        Kind.LONG,
        "Size in bytes above which a partition's oldest segments are deleted. -1: no limit.",
        ("log.retention.bytes",),
    ),
    TopicConfig(
        "retention.ms",
        Kind.LONG,
        "Age in ms after which a segment is deleted. -1: never.",
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        at_least(-1),
    ),
    TopicConfig(
        "segment.bytes",
        Kind.INT,
        "Size in bytes at which the log begins a new segment.",
        ("log.segment.bytes",),
        at_least(1 << 20),
    ),
    TopicConfig(
        "segment.index.bytes",
        Kind.INT,
        "Largest index file in bytes. A full index begins a new segment.",
        ("log.index.size.max.bytes",),
        at_least(4),
    ),
    TopicConfig(
        "segment.jitter.ms",
        Kind.LONG,
        "Maximum random time in ms by which segment.ms is shortened, so that not all logs roll at once.",
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
        at_least(0),
    ),
    TopicConfig(
        "segment.ms",
        Kind.LONG,
        "Age in ms at which the log begins a new segment.",
        ("log.roll.ms", "log.roll.hours"),
        at_least(1),
    ),
    TopicConfig(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        "Allow a replica that lacks records to become the leader.",
        ("unclean.leader.election.enable",),
        unhonoured=ONE_REPLICA,
    ),
)
# Broker settings that apply to logs and that topics cannot override.
LOG_SETTINGS: Final = frozenset({"producer.id.expiration.ms", "transaction.partition.verification.enable"})
TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {row.name: row for row in ROWS}
assert all(name in SETTINGS for row in ROWS for name in row.settings), (
    "a row names a setting that does not exist"
)


def check_all(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Validate and normalize a topic's configs. Raise KafkaError(INVALID_CONFIG) for the first invalid one."""
    if nulls := [name for name, value in configs.items() if value is None]:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}"
        )
    if unknown := [name for name in configs if name not in TOPIC_CONFIGS]:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {unknown[0]}")
    normalized = {
        name: TOPIC_CONFIGS[name].normalize(value) for name, value in configs.items() if value is not None
    }
    shortest = int(normalized.get("min.compaction.lag.ms", 0))
    longest = int(normalized.get("max.compaction.lag.ms", LONG_MAX))
    if shortest > longest:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > "
            f"max.compaction.lag.ms ({longest})",
        )
    return normalized
