"""Record batches: bytes from a script's `Batch`, and what can be compared of those in an answer."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import crc32c

from kproc.wire.compression import decompress
from tests.differential.protocol import read_varint, unsigned_varint, varint
from tests.differential.symbols import Batch

_HEADER = struct.Struct(">qiibIhiqqqhii")
_HEADER_BYTES = 61
_LENGTH_COVERS_FROM = 12
_CRC_COVERS_FROM = 21
_SEQUENCES = 2**31
_CODEC, _CONTROL = 7, 32
# In a marker: the lengths of key and value, a key of four bytes, the value's version.
_EPOCH_AT = 8
_GZIP, _SNAPPY, _LZ4 = 1, 2, 3


def compress(codec: int, data: bytes) -> bytes:
    """A valid frame of the codec, whose blocks are stored as they are but for gzip."""
    if codec == _GZIP:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(data) + packer.flush()
    if codec == _SNAPPY:
        block = unsigned_varint(len(data)) + b"\xf4" + struct.pack("<H", len(data) - 1) + data
        return b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + struct.pack(">i", len(block)) + block
    if codec == _LZ4:
        return bytes.fromhex("04224d18604082") + struct.pack("<I", len(data) | 1 << 31) + data + bytes(4)
    header = bytes.fromhex("28b52ffda0") + struct.pack("<I", len(data))
    return header + (len(data) << 3 | 1).to_bytes(3, "little") + data


def _text(value: str | int | None) -> bytes:
    """A key, a value or a header's part; a number is the size of one."""
    if value is None:
        return varint(-1)
    data = value.encode() if isinstance(value, str) else b"v" * value
    return varint(len(data)) + data


def build(batch: Batch, real: Callable[[Any], Any]) -> bytes:
    """The bytes; `real` gives this broker's values for what the script only names."""
    records = batch["records"]
    packed = b""
    for number, (key, value, after_ms, headers) in enumerate(records):
        record = b"\0" + varint(after_ms) + varint(number) + _text(key) + _text(value) + varint(len(headers))
        record += b"".join(_text(name) + _text(content) for name, content in headers)
        packed += varint(len(record)) + record
    codec = batch.get("codec", 0)
    if codec:
        packed = compress(codec, packed)
    base_time = real(batch["time"])
    latest = base_time + max((record[2] for record in records), default=0)
    sequence = real(batch.get("sequence", -1))
    if sequence >= 0:
        sequence %= _SEQUENCES
    producer = real(batch.get("pid", -1)), real(batch.get("epoch", -1)), sequence
    attributes = codec | batch.get("attributes", 0)
    tail = struct.pack(">hiqqqhii", attributes, len(records) - 1, base_time, latest, *producer, len(records))
    tail += packed
    crc = crc32c.crc32c(tail) ^ batch.get("crc", 0)
    length = len(tail) + _CRC_COVERS_FROM - _LENGTH_COVERS_FROM
    return struct.pack(">qiibI", batch.get("base", 0), length, -1, batch.get("magic", 2), crc) + tail


def read(data: bytes, stamp: Callable[[int], Any], producer: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Every batch of an answer's records; the last may be cut short."""
    batches: list[dict[str, Any]] = []
    at = 0
    while len(data) - at > _LENGTH_COVERS_FROM:
        (length,) = struct.unpack_from(">i", data, at + 8)
        end = at + _LENGTH_COVERS_FROM + length
        if end > len(data):
            break
        base, _, epoch, magic, crc, attributes, delta, first, latest, pid, pid_epoch, sequence, count = (
            _HEADER.unpack_from(data, at)
        )
        batches.append(
            {
                "base": base,
                "leader_epoch": epoch,
                "magic": magic,
                "crc": crc == crc32c.crc32c(data[at + _CRC_COVERS_FROM : end]),
                "attributes": attributes,
                "last_delta": delta,
                "base_time": stamp(first),
                "max_time": stamp(latest),
                "producer_id": producer(pid) if pid >= 0 else pid,
                "epoch": pid_epoch,
                "sequence": sequence,
                "count": count,
                "records": _records(data[at + _HEADER_BYTES : end], attributes, count, first, stamp),
            }
        )
        at = end
    if at < len(data):
        batches.append({"part of a batch": len(data) - at})
    return batches


def _records(
    body: bytes, attributes: int, count: int, base_time: int, stamp: Callable[[int], Any]
) -> list[tuple[Any, int, str]]:
    """(time, offset delta, the rest) of each; without the epoch of the coordinator that wrote a marker."""
    codec, is_control = attributes & _CODEC, attributes & _CONTROL
    if codec:
        body = decompress(codec, body)
    records: list[tuple[Any, int, str]] = []
    at = 0
    for _ in range(count):
        size, at = read_varint(body, at)
        end = at + size
        after_ms, at = read_varint(body, at + 1)
        delta, at = read_varint(body, at)
        rest = body[at:end]
        if is_control:
            rest = rest[:_EPOCH_AT] + b"epoch" + rest[_EPOCH_AT + 4 :]
        told = rest.hex() if len(rest) < 99 else f"{len(rest)} bytes {zlib.crc32(rest)}"
        records.append((stamp(base_time + after_ms), delta, told))
        at = end
    return records
