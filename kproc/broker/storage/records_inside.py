"""Checks the records inside a produced batch, and compresses the batch with its topic's codec.

These checks are made only for logs that need them (`LogConfig.looks_inside`): compacted logs, logs with
message.timestamp.before.max.ms, a codec as compression.type or a max.decompressed.message.bytes below
DECOMPRESSED_BYTES_MAX, and all logs with kproc.validate.records=full. They cost the Handler about as much as the
producer's own work. In all other logs only the records' lengths are checked (record_check.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from kproc.broker.storage.log_config import LogConfig
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.compression import (
    INFLATED_BYTES_FREE,
    Compression,
    InflatesTooMuch,
    compress,
    decompress,
    inflation_limit,
)
from kproc.wire.primitives import INT64_MAX, INT64_MIN
from kproc.wire.record_batch import NO_TIMESTAMP, BatchHeader, rebuild, stamp_max_timestamp
from kproc.wire.record_check import RecordConditions, check_record_sizes, scan_records
from kproc.wire.records import walk_records

if TYPE_CHECKING:
    from kproc.broker.storage.inspection import InspectionBudget

_CODECS: Final = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


# Limit of the records in one batch. A record has at least 7 bytes, but almost none if it is compressed: 120 kB of zstd
# can hold 19 million records, which take the Handler 10 s. A producer that gets MESSAGE_TOO_LARGE splits its batch.
RECORDS_INSIDE_MAX: Final = 25_000
# Limit of a batch's decompressed size, as a multiple of max.message.bytes. Decompressing 32 MiB takes 50 ms.
_INFLATED_BATCHES: Final = 32
# Limit of the bad records that an error lists. The whole batch is rejected anyway.
BAD_RECORDS_NAMED_MAX: Final = 10_000
# Largest number of records in a batch with a wrong timestamp for which the error names the bad records. A larger batch
# is rejected by its header alone.
_MISDATED_READ_MAX: Final = 10_000


def reject_misdated(view: memoryview, header: BatchHeader, config: LogConfig, now_ms: int) -> NoReturn:
    """Raise KafkaError for a batch whose header has a timestamp too far in the future.

    The error names the bad records if the batch is uncompressed and not too long. A compressed batch is not
    decompressed, because 4 kB can become 32 MiB.
    """
    if header.codec == Compression.NONE and header.record_count <= _MISDATED_READ_MAX:
        raw = bytes(view[HEADER_BYTES:])
        _check_records(raw, header, config, now_ms, check_offsets=False)
    raise _refusal_of([], 0, is_misdated=True)


def validate_inside(
    view: memoryview,
    header: BatchHeader,
    config: LogConfig,
    *,
    now_ms: int,
    inspection: InspectionBudget | None = None,
) -> tuple[memoryview, BatchHeader]:
    """Return the batch to store, and its header. Raise KafkaError if this log rejects one of its records.

    `inspection` counts the records and decompressed bytes that were read.
    """
    if not config.is_append_time and header.max_timestamp > now_ms + config.timestamp_after_max_ms:
        reject_misdated(view, header, config, now_ms)
    raw = _inflate(view, header, config)
    if inspection is not None:
        inspection.spend(header.record_count, len(raw))
    if header.codec != Compression.NONE:
        check_record_sizes(raw, header.record_count, config.max_decompressed_message_bytes)
    largest = scan_records(raw, header.record_count, _expected(header, config, now_ms))
    if largest is None:  # Read the records again to name the bad ones.
        largest = _check_records(raw, header, config, now_ms)
    codec = _CODECS.get(config.compression_type, header.codec)
    # Store the producer's bytes if the codec stays the same, because compressing is the expensive part.
    if codec == header.codec:
        if largest != header.max_timestamp and not config.is_append_time:
            header = stamp_max_timestamp(view, header, largest)
        return view, header
    payload = compress(codec, raw, level=_level(codec, config))
    batch = rebuild(header, payload, codec=codec, max_timestamp=largest)
    return memoryview(batch[0]), batch[1]


def _expected(header: BatchHeader, config: LogConfig, now_ms: int) -> RecordConditions:
    """Return the conditions that a batch's records must meet in this log."""
    earliest, latest = INT64_MIN, INT64_MAX
    if not config.is_append_time:
        earliest = now_ms - config.timestamp_before_max_ms
        latest = min(INT64_MAX, now_ms + config.timestamp_after_max_ms)
    return RecordConditions(header.base_timestamp, earliest, latest, config.is_compacting)


def inside_bytes_max(compressed_bytes: int, config: LogConfig) -> int:
    """Return the limit of the decompressed size of a batch that a Handler reads in one step."""
    most = max(INFLATED_BYTES_FREE, _INFLATED_BATCHES * config.max_message_bytes)
    return min(inflation_limit(compressed_bytes), most)


def _inflate(view: memoryview, header: BatchHeader, config: LogConfig) -> bytes:
    if header.record_count > RECORDS_INSIDE_MAX:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch has {header.record_count} records; a topic that checks each record accepts at most "
            f"{RECORDS_INSIDE_MAX} in a batch",
        )
    payload = view[HEADER_BYTES:]
    limit_bytes = inside_bytes_max(len(payload), config)
    try:
        return decompress(header.codec, payload, limit_bytes)
    except InflatesTooMuch as error:
        # After MESSAGE_TOO_LARGE a producer splits its batch. After CORRUPT_MESSAGE it would send the same batch again.
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, error.message) from error


def _level(codec: Compression | int, config: LogConfig) -> int | None:
    """Return the topic's compression level for a codec, or None for the codec's own default."""
    levels = {
        Compression.GZIP: config.compression_gzip_level,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }
    level = levels.get(Compression(codec))
    # In Kafka's setting -1 means zlib's own default, for which compress() expects None.
    return None if codec == Compression.GZIP and level == -1 else level


def _check_records(
    raw: bytes, header: BatchHeader, config: LogConfig, now_ms: int, *, check_offsets: bool = True
) -> int:
    """Check every record, as Kafka's LogValidator does. Returns the largest timestamp.

    Raises KafkaError, which lists the first BAD_RECORDS_NAMED_MAX records without a required key or with a forbidden
    timestamp. A wrong offset delta raises it at once: the deltas must be consecutive from 0, as the header's count and
    last delta promise. Kafka would renumber such a batch.
    """
    bad: list[tuple[int, str]] = []
    count = 0
    is_misdated = False
    check_times, needs_keys, largest = not config.is_append_time, config.is_compacting, INT64_MIN
    records = walk_records(raw, header.record_count, header.base_timestamp, header.base_offset)
    for number, record in enumerate(records):
        if check_offsets and record.offset != number:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"record {number} of the batch has the offset delta {record.offset}, not {number}",
            )
        timestamp = record.timestamp_ms
        if timestamp > largest:
            largest = timestamp
        # Compaction keeps the newest record of each key, so a record without a key could never be replaced.
        if needs_keys and record.key is None:
            why: str | None = "Compacted topic cannot accept message without key."
        else:
            why = _misdated(timestamp, number, config, now_ms) if check_times else None
            is_misdated |= why is not None
        if why is not None:
            count += 1
            # KIP-467: list the bad records by index, but not all of a large batch, because the response would be larger
            # than the batch.
            if count <= BAD_RECORDS_NAMED_MAX:
                bad.append((number, why))
    if bad:
        raise _refusal_of(bad, count, is_misdated=is_misdated)
    return largest


def _misdated(timestamp: int, number: int, config: LogConfig, now_ms: int) -> str | None:
    """Return the reason why message.timestamp.before.max.ms or .after.max.ms (KIP-937) forbids a timestamp, or None.

    A record without a timestamp is permitted. As in Kafka, the default of 2^63 - 1 ms is a limit, too. No earlier
    timestamp fits into a long.
    """
    if timestamp == NO_TIMESTAMP:
        return None
    earliest, latest = now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms
    if earliest <= timestamp <= latest:
        return None
    return (
        f"Timestamp {timestamp} of message with offset {number} is out of range. "
        f"The timestamp should be within [{earliest}, {latest}]"
    )


def _refusal_of(bad: list[tuple[int, str]], count: int, *, is_misdated: bool) -> KafkaError:
    """Return the error for a batch with bad records, with Kafka's message.

    bad: (number of the record in the batch, reason) of each bad record that is named. count: the number of all bad
    records. is_misdated: the records have invalid timestamps.
    """
    if is_misdated:
        message = "One or more records have been rejected due to invalid timestamp"
        return KafkaError(ErrorCode.INVALID_TIMESTAMP, message, tuple(bad))
    shown = ", ".join(f"record {number}: {why}" for number, why in bad[:3])
    message = (
        f"One or more records have been rejected due to {count} record errors in total, "
        f"and only showing the first three errors at most: {shown}"
    )
    return KafkaError(ErrorCode.INVALID_RECORD, message, tuple(bad))
