"""Checks the records of a produced batch without creating an object for each. Handlers use it when they append.

There are two depths (kproc.validate.records):

- lengths: `check_small` checks the lengths of the first LENGTHS_WALKED_MAX records. A batch with fewer records must end
  where its last record ends. A small compressed batch is decompressed for this check.
- full: `scan_records` reads every field of every record.

Kafka always reads every field. In Python that takes 0.3 us a record, so a batch of 10,000 records would keep its
Handler busy for 3 ms. The lengths of 64 records take 4 us.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kproc.common.errors import ErrorCode, KafkaError, ProtocolError
from kproc.wire.compression import InflatesTooMuch, decompress, has_frame_start
from kproc.wire.primitives import (
    INT64_MIN,
    Buffer,
    as_int64,
    read_unsigned_varint,
    read_unsigned_varlong,
    read_varint,
)
from kproc.wire.record_batch import NO_TIMESTAMP, check_count
from kproc.wire.records import RECORD_BYTES_MIN

LENGTHS_WALKED_MAX: Final = 64
# At depth `lengths`, decompress batches of at most SMALL_COMPRESSED_BYTES, to at most SMALL_INFLATED_BYTES. This takes
# 5 us (gzip, snappy) to 11 us (lz4, zstd) for 1 kB, and at most 0.1 ms.
SMALL_COMPRESSED_BYTES: Final = 4096
SMALL_INFLATED_BYTES: Final = 256 << 10
# Limit of headers in a batch at depth `full`. Compressed empty headers occupy almost no space, but checking takes 0.3
# us each. A producer splits a batch that is rejected as too large.
HEADERS_CHECKED_MAX: Final = 200_000
# The shortest length of a record, zig-zag coded (doubled): six fields of one byte follow the length.
_LENGTH_MIN: Final = 2 * (RECORD_BYTES_MIN - 1)


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, why)


def check_small(codec: int, payload: Buffer, count: int) -> bool:
    """Check `count` records at depth `lengths` (see the module's docstring).

    `payload` is the batch without its header. If it is compressed and larger than SMALL_COMPRESSED_BYTES, only its
    first bytes are checked. If it decompresses to more than SMALL_INFLATED_BYTES, its records are not checked. Returns
    True always, so that the call can be part of a condition. Raises INVALID_RECORD for a wrong length or count, and
    CORRUPT_MESSAGE for damaged compressed data.
    """
    size = len(payload)
    if not codec:
        check_lengths(payload, count)
        return True
    check_count(codec, count, size)
    # Check only the magic number of a large compressed batch: decompressing it would cost more than appending it, and
    # the usual mistake is a wrong codec in the attributes.
    if size > SMALL_COMPRESSED_BYTES:
        if not has_frame_start(codec, payload):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, "compressed records do not begin with their codec's magic number"
            )
        return True
    try:
        raw = decompress(codec, payload, SMALL_INFLATED_BYTES)
    # Accept a batch that decompresses to more than the limit without checking it: its CRC is correct, so it is as the
    # producer sent it.
    except InflatesTooMuch:
        return True
    check_lengths(raw, count)
    return True


def check_lengths(raw: Buffer, count: int) -> None:
    """Raise INVALID_RECORD unless the lengths of the first LENGTHS_WALKED_MAX records fit into `raw`.

    If the batch has no more records than that, they must fill `raw` exactly.
    """
    size = len(raw)
    if count * RECORD_BYTES_MIN > size:
        raise _invalid(f"batch claims {count} records, which cannot fit into its {size} bytes")
    walked = min(count, LENGTHS_WALKED_MAX)
    position = number = 0
    try:
        for number in range(walked):
            length = raw[position]
            if length > 127:
                second = raw[position + 1]
                if second > 127:
                    length, position = read_unsigned_varint(raw, position)
                else:
                    length = length & 127 | second << 7
                    position += 2
            else:
                position += 1
            # Reject odd numbers: the length is zig-zag coded, where odd means negative.
            if length & 1 or length < _LENGTH_MIN:
                raise _invalid(f"record {number} of the batch has an invalid length")
            position += length >> 1
    except (IndexError, ProtocolError):
        position = size + 1
    left = size - position
    if left < (count - walked) * RECORD_BYTES_MIN:
        raise _invalid(f"record {number} of the batch runs past its end")
    # Reject bytes after the last record. Otherwise they would stay in the log, and consumers would report damage.
    if left and walked == count:
        raise _invalid(f"{left} bytes follow the last record of the batch")


def _too_many_headers() -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"batch has more than {HEADERS_CHECKED_MAX} headers, the limit of a topic that checks each record",
    )


def record_too_large(size: int, limit_bytes: int) -> KafkaError:
    """Return Kafka's error for a record of a compressed batch above max.decompressed.message.bytes."""
    return _invalid(
        f"Invalid record size: {size} exceeds the configured maximum record size of {limit_bytes}."
    )


def check_record_sizes(raw: Buffer, count: int, limit_bytes: int) -> None:
    """Raise INVALID_RECORD if one of `count` decompressed records is larger than `limit_bytes`.

    As in Kafka, the size of a record does not include the length field in front of it. A malformed record ends the
    check without an error, because the code that reads the records reports it. Takes 0.2 us per record.
    """
    # If all records together are within the limit, each of them is.
    if len(raw) <= limit_bytes:
        return
    position = 0
    try:
        for _ in range(count):
            length, position = read_unsigned_varint(raw, position)
            size = length >> 1
            if size > limit_bytes:
                raise record_too_large(size, limit_bytes)
            position += size
    except (IndexError, ProtocolError):
        return


class RecordConditions(NamedTuple):
    """Conditions that `scan_records` checks for every record: bounds of its timestamp, in ms, and if it needs a key.

    `base_timestamp` is that of the batch.
    """

    base_timestamp: int
    earliest: int
    latest: int
    needs_key: bool


def scan_records(raw: bytes, count: int, expected: RecordConditions) -> int | None:
    """Read every field of `count` records. Return the largest timestamp, or None if a record is invalid.

    After None the caller reads the records again to find out which ones are invalid. Offset deltas must count from 0,
    and timestamps must lie within the bounds. Raises MESSAGE_TOO_LARGE for more than HEADERS_CHECKED_MAX headers. Takes
    0.3 us per record.
    """
    base, earliest, latest, needs_key = expected
    size = len(raw)
    # Validate the header's record count, which comes from the client, before the loop uses it.
    if not 0 < count <= size // RECORD_BYTES_MIN:
        return None
    position = header_count = 0
    largest = INT64_MIN
    try:
        for number in range(count):
            length = raw[position]
            position += 1
            if length > 127:
                length, position = read_unsigned_varint(raw, position - 1)
            end = position + (length >> 1)
            if length & 1 or end > size:
                return None
            delta = raw[position + 1]
            position += 2
            if delta > 127:
                delta, position = read_unsigned_varlong(raw, position - 1)
            timestamp = base + (delta >> 1 ^ -(delta & 1))
            if not earliest <= timestamp <= latest:
                # Records without a timestamp are not checked. A sum of base timestamp and delta beyond 64 bits wraps,
                # as in Java.
                timestamp = as_int64(timestamp)
                if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
                    return None
            if timestamp > largest:
                largest = timestamp
            offset = raw[position]
            position += 1
            if offset > 127:
                offset, position = read_unsigned_varint(raw, position - 1)
            # The offset deltas must be 0, 1, 2 and so on, as in Kafka. Zig-zag coding doubles them.
            if offset != 2 * number:
                return None
            field = raw[position]
            position += 1
            if field > 127:
                field, position = read_unsigned_varint(raw, position - 1)
            if not field & 1:
                position += field >> 1
            elif needs_key:
                return None
            field = raw[position]
            position += 1
            if field > 127:
                field, position = read_unsigned_varint(raw, position - 1)
            if not field & 1:
                position += field >> 1
            if raw[position]:
                headers, position = _skip_headers(raw, position, end)
                header_count += headers
                if header_count > HEADERS_CHECKED_MAX:
                    raise _too_many_headers()
            else:
                position += 1
            if position != end:
                return None
    except (IndexError, ProtocolError):
        return None
    return largest if position == size else None


def _skip_headers(raw: bytes, position: int, end: int) -> tuple[int, int]:
    """Return (number of headers, position after them) of a record. Raise ProtocolError if they are malformed."""
    count, position = read_varint(raw, position)
    # A header has at least two bytes, because each of its two lengths takes one.
    if not 0 <= count <= (end - position) // 2:
        raise ProtocolError("record claims more headers than its bytes can hold")
    if count > HEADERS_CHECKED_MAX:
        raise _too_many_headers()
    for _ in range(count):
        key_bytes, position = read_varint(raw, position)
        value_at = position + key_bytes
        if key_bytes < 0 or value_at > end:
            raise ProtocolError("a header's key runs past its record")
        value_bytes, position = read_varint(raw, value_at)
        # A null value has length -1 and no bytes, which must not move the position back by 1.
        position += max(value_bytes, 0)
        if position > end:
            raise ProtocolError("a header's value runs past its record")
    return count, position
