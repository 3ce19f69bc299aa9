"""Encodes and decodes the uncompressed records inside a batch of version 2. Needs no batch header.

record   length varint | attributes int8 (unused, 0) | timestamp delta varlong | offset delta varint
         | key length varint (-1: null) | key | value length varint (-1: null) | value
         | header count varint | header*
         If base timestamp plus delta exceeds 64 bits, the timestamp wraps, as in every Java client.
header   key length varint | key UTF-8 | value length varint (-1: null) | value
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kproc.common.errors import ErrorCode, KafkaError, ProtocolError
from kproc.wire.primitives import (
    INT64_MAX,
    INT64_MIN,
    as_int64,
    encode_varint,
    read_unsigned_varint,
    read_unsigned_varlong,
    read_varint,
)

# Smallest record: length, attributes, two deltas, two lengths and the header count, with one byte each.
RECORD_BYTES_MIN = 7
_HEADER_BYTES_MIN = 2
# Limit of the headers in one batch. Kafka has no limit. An empty header has two bytes on the wire, almost none
# compressed, and 80 bytes as Python objects. Without the limit, a batch of 5 kB would fill 5 GB and take half a minute
# to read.
HEADER_COUNT_MAX = 1_000_000

_new_tuple = tuple.__new__


class Record(NamedTuple):
    """One record. If it is to be encoded, offset -1 means the offset after the previous record's."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    offset: int = -1


def _nullable_bytes(value: bytes | None) -> bytes:
    # A null value has the length -1, which is 1 in zig-zag coding.
    return b"\x01" if value is None else encode_varint(len(value)) + value


def encode_records(records: Iterable[tuple[int, int, Record]]) -> bytes:
    """Encode records, each given as (timestamp delta, offset delta, record)."""
    encoded = bytearray()
    for timestamp_delta, offset_delta, record in records:
        body = bytearray(1)
        body += encode_varint(timestamp_delta)
        body += encode_varint(offset_delta)
        body += _nullable_bytes(record.key)
        body += _nullable_bytes(record.value)
        if record.headers:
            body += encode_varint(len(record.headers))
            for key, value in record.headers:
                body += _nullable_bytes(key.encode())
                body += _nullable_bytes(value)
        else:
            body.append(0)
        encoded += encode_varint(len(body))
        encoded += body
    return bytes(encoded)


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, why)


def _cut_off(what: str) -> KafkaError:
    return _invalid(f"{what} runs past the end of its record")


def _too_many_headers() -> KafkaError:
    return _invalid(f"a batch with more than {HEADER_COUNT_MAX} headers")


def _read_headers(raw: bytes, position: int, end: int) -> tuple[list[tuple[str, bytes | None]], int]:
    count, position = read_varint(raw, position)
    # Compare the header count with the record's remaining bytes, because a record of a few bytes can claim billions of
    # headers.
    if not 0 <= count <= (end - position) // _HEADER_BYTES_MIN:
        raise _invalid(f"record claims to have {count} headers, but its bytes cannot hold them")
    if count > HEADER_COUNT_MAX:
        raise _too_many_headers()
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key_bytes, position = read_varint(raw, position)
        value_at = position + key_bytes
        if key_bytes < 0 or value_at > end:
            raise _cut_off("header key")
        # Replace bytes that are not UTF-8, because Kafka stores any bytes, and its clients show such bytes as U+FFFD.
        key = raw[position:value_at].decode(errors="replace")
        value_bytes, position = read_varint(raw, value_at)
        if value_bytes < 0:
            headers.append((key, None))
            continue
        if position + value_bytes > end:
            raise _cut_off("header value")
        headers.append((key, raw[position : position + value_bytes]))
        position += value_bytes
    return headers, position


def read_record(raw: bytes, position: int, base_timestamp: int, base_offset: int) -> tuple[Record, int]:
    """Decode one record. Return (record, position after it). Raises KafkaError, ProtocolError or IndexError.

    This runs once for each record that the broker itself reads. Nearly every varint has one byte, and a function call
    costs more than decoding it, so the one-byte case of each varint is written out.
    """
    # 1. The record's length. It is zig-zag coded, so an odd number means a negative length.
    length = raw[position]
    position += 1
    if length > 127:
        length, position = read_unsigned_varint(raw, position - 1)
    end = position + (length >> 1)
    if length & 1 or end > len(raw):
        raise _cut_off("record")
    # 2. Timestamp delta and offset delta, after one byte of unused attributes.
    timestamp_delta = raw[position + 1]
    position += 2
    if timestamp_delta > 127:
        timestamp_delta, position = read_unsigned_varlong(raw, position - 1)
    offset_delta = raw[position]
    position += 1
    if offset_delta > 127:
        offset_delta, position = read_unsigned_varint(raw, position - 1)
    # 3. Key and value. Their lengths are zig-zag coded: odd means negative, which is null.
    key = value = None
    size = raw[position]
    position += 1
    if size > 127:
        size, position = read_unsigned_varint(raw, position - 1)
    if not size & 1:
        key = raw[position : position + (size >> 1)]
        position += size >> 1
    size = raw[position]
    position += 1
    if size > 127:
        size, position = read_unsigned_varint(raw, position - 1)
    if not size & 1:
        value = raw[position : position + (size >> 1)]
        position += size >> 1
    # 4. Headers. If a key or value reached beyond the data, Python has shortened its slice without an error. The
    # position is then beyond `end`, which the comparison below rejects.
    headers: Sequence[tuple[str, bytes | None]] = ()
    if raw[position]:
        headers, position = _read_headers(raw, position, end)
    else:
        position += 1
    if position != end:
        raise _invalid(
            f"the fields of a record end at byte {position}, but by its length it ends at byte {end}"
        )
    timestamp = base_timestamp + (timestamp_delta >> 1 ^ -(timestamp_delta & 1))
    if not INT64_MIN <= timestamp <= INT64_MAX:
        timestamp = as_int64(timestamp)
    offset = base_offset + (offset_delta >> 1 ^ -(offset_delta & 1))
    # Create the Record by tuple.__new__, because NamedTuple's constructor takes as long as decoding a short record.
    return _new_tuple(Record, (key, value, timestamp, headers, offset)), end


def walk_records(raw: bytes, count: int, base_timestamp: int, base_offset: int) -> Iterator[Record]:
    """Yield `count` records one by one. Raises INVALID_RECORD at the first error, after it has yielded earlier records.

    The records must fill `raw` exactly. Their offsets must rise, with gaps where compaction has removed records.
    """
    if not 0 <= count <= len(raw) // RECORD_BYTES_MIN:
        raise _invalid(f"batch claims {count} records in {len(raw)} bytes, which is impossible")
    position = 0
    last_offset = base_offset - 1
    header_count = 0
    try:
        for _ in range(count):
            record, position = read_record(raw, position, base_timestamp, base_offset)
            # Reject offsets that repeat or fall, because a consumer would read records twice or skip some.
            if record.offset <= last_offset:
                raise _invalid(f"record at offset {record.offset} follows {last_offset}: offsets must rise")
            last_offset = record.offset
            if record.headers:
                header_count += len(record.headers)
                if header_count > HEADER_COUNT_MAX:
                    raise _too_many_headers()
            yield record
    except (ProtocolError, IndexError):
        raise _cut_off("last field") from None
    if position != len(raw):
        raise _invalid(f"{len(raw) - position} bytes follow the last record of the batch")


def decode_records(raw: bytes, count: int, base_timestamp: int, base_offset: int) -> list[Record]:
    """Return the records of `walk_records` as a list. Use it only if the list is known to fit into memory."""
    return list(walk_records(raw, count, base_timestamp, base_offset))
