"""Messages of formats 0 and 1, as Kafka's clients wrote them before 0.11."""

from __future__ import annotations

import struct
import zlib

from kproc.wire.compression import Compression, compress

LOG_APPEND_TIME = 8


def message(
    offset: int, key: bytes | None, value: bytes | None, magic: int, time_ms: int = 0, attributes: int = 0
) -> bytes:
    """One message."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", time_ms) if magic else b"")
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def wrapper(
    offset: int, inside: list[bytes], magic: int, codec: Compression, time_ms: int = 0, attributes: int = 0
) -> bytes:
    """A compressed message; `offset` is that of the last one inside."""
    data = compress(codec, b"".join(inside))
    if codec == Compression.LZ4 and magic == 0:
        data = with_kafkas_lz4_mistake(data)
    return message(offset, None, data, magic, time_ms, codec | attributes)


def with_kafkas_lz4_mistake(frame: bytes) -> bytes:
    """Any other header checksum: no reader of format 0 ever checked it."""
    at = 4 + 2 + (8 if frame[4] & 8 else 0)
    return frame[:at] + bytes((frame[at] ^ 0x5A,)) + frame[at + 1 :]
