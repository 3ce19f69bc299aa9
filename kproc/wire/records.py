"""The single records inside a batch of version 2, uncompressed. Knows nothing of the batch's header.

record   length varint | attributes int8 (unused, 0) | timestamp delta varlong | offset delta varint
         | key length varint (-1: null) | key | value length varint (-1: null) | value
         | header count varint | header*
header   key length varint | key UTF-8 | value length varint (-1: null) | value
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kproc.errors import ErrorCode, KafkaError, ProtocolError
from kproc.wire.primitives import encode_varint, read_varint, read_varlong

# Length, attributes, two deltas, two lengths and the header count take a byte each at least.
RECORD_BYTES_MIN = 7
_HEADER_BYTES_MIN = 2


class Record(NamedTuple):
    """One record. On the way in, offset -1 means: next after the one before."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    offset: int = -1


def _nullable_bytes(value: bytes | None) -> bytes:
    return b"\x01" if value is None else encode_varint(len(value)) + value


def encode_records(records: Iterable[tuple[int, int, Record]]) -> bytes:
    """The records' bytes, each given with its timestamp delta and offset delta."""
    encoded = bytearray()
    for timestamp_delta, offset_delta, record in records:
        body = bytearray(1)
        body += encode_varint(timestamp_delta)
        body += encode_varint(offset_delta)
        body += _nullable_bytes(record.key)
        body += _nullable_bytes(record.value)
        body += encode_varint(len(record.headers))
        for key, value in record.headers:
            body += _nullable_bytes(key.encode())
            body += _nullable_bytes(value)
        encoded += encode_varint(len(body))
        encoded += body
    return bytes(encoded)


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, why)


def _read_bytes(raw: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(raw, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(raw):
        raise _invalid("record field runs past the end")
    return raw[position:end], end


def _read_headers(raw: bytes, count: int, position: int) -> tuple[list[tuple[str, bytes | None]], int]:
    if not 0 <= count <= (len(raw) - position) // _HEADER_BYTES_MIN:
        raise _invalid(f"record with {count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, position = _read_bytes(raw, position)
        if key is None:
            raise _invalid("record header without a key")
        value, position = _read_bytes(raw, position)
        headers.append((key.decode(), value))
    return headers, position


def _read_record(raw: bytes, position: int, base_timestamp: int, base_offset: int) -> tuple[Record, int]:
    # Nearly every varint here is one byte long, and a call costs more than what it does: the common case is
    # written out for the fields of every record.
    length, start = read_varint(raw, position)
    position = start + 1  # The attributes are unused.
    timestamp_delta, position = read_varlong(raw, position)
    offset_delta, position = read_varint(raw, position)
    key, position = _read_bytes(raw, position)
    byte = raw[position]
    if byte < 128 and not byte & 1 and position + (byte >> 1) < len(raw):
        end = position + 1 + (byte >> 1)
        value: bytes | None = raw[position + 1 : end]
        position = end
    else:
        value, position = _read_bytes(raw, position)
    headers: Sequence[tuple[str, bytes | None]] = ()
    if position < len(raw) and raw[position] == 0:
        position += 1
    else:
        count, position = read_varint(raw, position)
        headers, position = _read_headers(raw, count, position)
    if position != start + length:
        raise _invalid(f"record of {position - start} bytes declares {length}")
    return Record(key, value, base_timestamp + timestamp_delta, headers, base_offset + offset_delta), position


def decode_records(raw: bytes, count: int, base_timestamp: int, base_offset: int) -> list[Record]:
    """All `count` records, which must fill `raw` exactly. INVALID_RECORD otherwise.

    Offsets must rise: compaction leaves gaps, but nothing ever repeats or goes back.
    """
    if not 0 <= count <= len(raw) // RECORD_BYTES_MIN:
        raise _invalid(f"{count} records in {len(raw)} bytes")
    records: list[Record] = []
    position = 0
    last_offset = base_offset - 1
    try:
        for _ in range(count):
            record, position = _read_record(raw, position, base_timestamp, base_offset)
            if record.offset <= last_offset:
                raise _invalid(f"offset {record.offset} follows {last_offset}")
            last_offset = record.offset
            records.append(record)
    except (ProtocolError, IndexError) as error:
        raise _invalid(f"record runs past the end: {error}") from None
    except UnicodeDecodeError:
        raise _invalid("record header key is not UTF-8") from None
    if position != len(raw):
        raise _invalid(f"{len(raw) - position} bytes follow the last record")
    return records
