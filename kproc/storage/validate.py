"""The slow half of append's checks: batches that are not plain, and the reason why one is refused.

The hot loop of `Log.append` recognises the plain batch by itself (one unpack, one CRC, a few comparisons).
All others come here: compressed topics' timestamps with a lower bound, transactions, markers, append-time
topics, and everything that is wrong.
"""

from __future__ import annotations

from typing import Final

from kproc.errors import ErrorCode, KafkaError
from kproc.storage.log_config import INT64_MAX, LogConfig
from kproc.wire.record_batch import (
    CONTROL,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    ControlType,
    check_batch,
    check_from_client,
    control_type,
    coordinator_epoch_of,
    decode_records,
)

CLIENT: Final = "client"
COORDINATOR: Final = "coordinator"


def examine(view: memoryview, config: LogConfig, *, origin: str, now_ms: int) -> BatchHeader:
    """The header of a batch that may be appended; KafkaError with Kafka's code otherwise.

    Origin "coordinator" is the broker's own: markers are allowed, and timestamps, which it sets itself, not
    checked.
    """
    header = check_batch(view)
    if origin == CLIENT:
        check_from_client(header)
        if header.attributes & LOG_APPEND_TIME:
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer cannot set the type LogAppendTime")
    if len(view) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {len(view)} bytes is larger than max.message.bytes={config.max_message_bytes}",
        )
    if origin == CLIENT and not config.is_append_time:
        _check_timestamps(view, header, config, now_ms)
    if len(view) > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"batch of {len(view)} bytes is larger than segment.bytes={config.segment_bytes}",
        )
    return header


def _check_timestamps(view: memoryview, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """message.timestamp.before.max.ms and .after.max.ms (KIP-937).

    The upper bound is checked on the header, which names the largest timestamp. The lower bound is off by
    default; where it is set the records are decoded, because the smallest one is in no header.
    """
    latest = now_ms + config.timestamp_after_max_ms
    if header.max_timestamp > latest or header.base_timestamp > latest:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, f"timestamp {header.max_timestamp} lies after the allowed {latest}"
        )
    if config.timestamp_before_max_ms == INT64_MAX:
        return
    earliest = now_ms - config.timestamp_before_max_ms
    for record in decode_records(view):
        if record.timestamp_ms != NO_TIMESTAMP and record.timestamp_ms < earliest:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {record.timestamp_ms} lies before the allowed {earliest}",
            )


def read_marker(view: memoryview, attributes: int) -> tuple[bool, int] | None:
    """(is abort, coordinator epoch) of a batch that ends a transaction; None for any other batch.

    Control batches of other types (a Raft leader change) and emptied ones (compaction) end nothing.
    """
    if not attributes & CONTROL:
        return None
    records = decode_records(view)
    if not records or control_type(records[0]) not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    return control_type(records[0]) == ControlType.ABORT, coordinator_epoch_of(records[0])
