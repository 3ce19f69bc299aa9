"""Batches that a hostile client makes: a right CRC over records that contradict their header, or grow without end."""

from __future__ import annotations

from typing import Any

from kproc.wire.batch_header import CRC_AT, HEADER
from kproc.wire.compression import compress
from kproc.wire.primitives import encode_varint
from kproc.wire.record_batch import BatchHeader, crc_of
from tests.support.logs import NOW_MS


def sealed(
    payload: bytes, *, count: int = 1, codec: int = 0, now_ms: int = NOW_MS, **fields: Any
) -> memoryview:
    """A batch with this payload, whatever it is, a consistent header and a right CRC."""
    header = BatchHeader(0, 49 + len(payload), -1, 2, 0, codec, count - 1, now_ms, now_ms, -1, -1, -1, count)
    batch = bytearray(HEADER.pack(*header._replace(**fields))) + payload
    batch[CRC_AT : CRC_AT + 4] = crc_of(batch).to_bytes(4, "big")
    return memoryview(batch)


def record(body: bytes) -> bytes:
    """A record with a right length and this content, from the attributes on."""
    return encode_varint(len(body)) + body


EMPTY_RECORD = record(b"\0\0\0\1\1\0")
"""No key, no value, no headers: seven bytes, the smallest record."""


def empty_records(count: int) -> bytes:
    """The smallest records, with offsets that count from 0."""
    return b"".join(record(b"\0\0" + encode_varint(number) + b"\1\1\0") for number in range(count))


def long_timestamp(varint_bytes: int) -> bytes:
    """A record whose timestamp is a varint of so many bytes."""
    return record(b"\0" + b"\xff" * (varint_bytes - 1) + b"\0" + b"\0\1\1\0")


def empty_headers(count: int) -> bytes:
    """A record with so many headers, each with an empty key and an empty value."""
    return record(b"\0\0\0\1\1" + encode_varint(count) + b"\0\0" * count)


def bomb(codec: int, size: int) -> memoryview:
    """A batch of one record whose value is `size` equal bytes."""
    return sealed(
        compress(codec, record(b"\0\0\0\1" + encode_varint(size) + bytes(size) + b"\0")), codec=codec
    )


# Records whose fields contradict their lengths.
INSIDE = {
    "a timestamp of 127 bytes": long_timestamp(127),
    "a timestamp of 11 bytes": long_timestamp(11),
    "a key that runs past the end": record(b"\0\0\0\x7e\1\0"),
    "a value that runs past the end": record(b"\0\0\0\1\x7e\0"),
    "more headers than bytes": record(b"\0\0\0\1\1\x7e"),
    "a negative number of headers": record(b"\0\0\0\1\1\1"),
    "a header key that runs past the end": record(b"\0\0\0\1\1\2\x7e\1"),
    "a header key that is null": record(b"\0\0\0\1\1\2\1\1"),
    "a header value that runs past the end": record(b"\0\0\0\1\1\2\0\x7e"),
    "bytes behind the headers": record(b"\0\0\0\1\1\0\0"),
    "an offset that is not the first": record(b"\0\0\2\1\1\0"),
    "an offset beyond 32 bits": record(b"\0\0" + encode_varint(2**33) + b"\1\1\0"),
    "an offset below the first": record(b"\0\0\1\1\1\0"),
}
