"""Decodes messages of formats 0 and 1, which Kafka wrote before 0.11. kproc converts them to batches.

       0  offset       int64
       8  length       int32   bytes from 12 to the end
      12  crc          uint32  CRC-32 of everything from 16 to the end
      16  magic        int8    0 or 1
      17  attributes   int8    bits 0-2 codec, 3 timestamp type (format 1)
      18  timestamp    int64   format 1 only
          key          int32 length (-1: null), bytes
          value        int32 length (-1: null), bytes

With a codec, the value is a compressed sequence of messages and the offset is that of the last one. The offsets inside
are absolute in format 0. In format 1 they are relative: the last one corresponds to the outer message's offset.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.compression import Compression, decompress
from kproc.wire.primitives import INT32, INT64, Buffer
from kproc.wire.record_batch import CODEC_MASK, LOG_APPEND_TIME, LOG_OVERHEAD_BYTES, NO_TIMESTAMP
from kproc.wire.records import Record

HEAD: Final = Struct(">qiIbb")
OLD_MAGICS: Final = (0, 1)
_CRC_FROM: Final = 16  # The CRC-32 covers all bytes from the magic byte on.
# Size of the smallest message, of format 0 with null key and value: the head and two lengths.
_BYTES_MIN: Final = HEAD.size + 2 * INT32.size

_LZ4_MAGIC_BYTES: Final = 4


class OldMessage(NamedTuple):
    """One message of a log. It is one record, or with a codec a compressed sequence of records."""

    offset: int
    magic: int
    codec: int
    is_log_append_time: bool
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def old_message_bytes(view: Buffer, position: int = 0) -> int | None:
    """Return the size of a message of format 0 or 1 by its head at `position`, or None if there is no such head."""
    if position + HEAD.size > len(view):
        return None
    offset, length, _, magic, _ = HEAD.unpack_from(view, position)
    total = int(length) + LOG_OVERHEAD_BYTES
    return total if magic in OLD_MAGICS and offset >= 0 and total >= _BYTES_MIN else None


def is_old_message(view: Buffer) -> bool:
    """Return True if the bytes are exactly one undamaged message of format 0 or 1."""
    if old_message_bytes(view) != len(view):
        return False
    return bool(zlib.crc32(memoryview(view)[_CRC_FROM:]) == HEAD.unpack_from(view)[2])


def decode_old_message(view: Buffer, position: int = 0) -> tuple[OldMessage, int]:
    """Return (message, position behind it). Raise CORRUPT_MESSAGE if the message is damaged."""
    total = old_message_bytes(view, position)
    if total is None or position + total > len(view):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no message of format 0 or 1 at byte {position}")
    message = memoryview(view)[position : position + total]
    if not is_old_message(message):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"the CRC-32 of the message at byte {position} does not match"
        )
    offset, _, _, magic, attributes = HEAD.unpack_from(message)
    at, timestamp_ms = HEAD.size, NO_TIMESTAMP
    # KIP-32 added the timestamp, with format 1.
    if magic == 1:
        (timestamp_ms,) = INT64.unpack_from(message, at)
        at += INT64.size
    key, at = _nullable(message, at)
    value, at = _nullable(message, at)
    if at != total:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the message at byte {position} has {total} bytes, but its fields end after {at}",
        )
    is_log_append_time = magic == 1 and bool(attributes & LOG_APPEND_TIME)
    decoded = OldMessage(offset, magic, attributes & CODEC_MASK, is_log_append_time, timestamp_ms, key, value)
    return decoded, position + total


def records_of(message: OldMessage) -> Iterator[Record]:
    """Yield the records of a message, with absolute offsets. Raise CORRUPT_MESSAGE for damaged compressed data."""
    if message.codec == Compression.NONE:
        yield Record(message.key, message.value, message.timestamp_ms, (), message.offset)
        return
    raw = _decompress(message)
    inside: list[OldMessage] = []
    position = 0
    while position < len(raw):
        one, position = decode_old_message(raw, position)
        # Kafka never nested compressed messages. Without this check a few bytes could decompress into an endless chain.
        if one.codec:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, "a compressed message contains another compressed message"
            )
        inside.append(one)
    if not inside:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the compressed message at offset {message.offset} contains no message",
        )
    # KIP-31: in format 1 the inner offsets are relative, and the outer offset is that of the last message. In format 0
    # they are absolute.
    shift = message.offset - inside[-1].offset if message.magic else 0
    for one in inside:
        timestamp_ms = message.timestamp_ms if message.is_log_append_time else one.timestamp_ms
        yield Record(one.key, one.value, timestamp_ms, (), one.offset + shift)


def _nullable(message: memoryview, at: int) -> tuple[bytes | None, int]:
    end = at + INT32.size
    length = INT32.unpack_from(message, at)[0] if end <= len(message) else len(message)
    if length == -1:
        return None, end
    if not 0 <= length <= len(message) - end:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, "the key or value of a message of format 0 or 1 runs past its end"
        )
    return bytes(message[end : end + length]), end + length


def _decompress(message: OldMessage) -> bytes:
    data = message.value or b""
    # Correct the LZ4 header checksum only in format 0, because producers write it correctly since format 1 (KIP-57).
    if message.codec == Compression.LZ4 and message.magic == 0:
        data = _with_right_lz4_checksum(data)
    return decompress(message.codec, data)


def _with_right_lz4_checksum(frame: bytes) -> bytes:
    """Return an LZ4 frame of format 0 with the header checksum of the LZ4 specification.

    Kafka's producers also included the frame's magic number in the checksum, by mistake (KAFKA-3160).
    """
    flags_at = _LZ4_MAGIC_BYTES
    # If bit 3 of the flags is set, a content size of 8 bytes precedes the header checksum. Two bytes of flags precede
    # both.
    has_content_size = len(frame) > flags_at and frame[flags_at] & 0x08
    checksum_at = flags_at + 2 + (8 if has_content_size else 0)
    if len(frame) <= checksum_at:
        return frame
    # LZ4 specification: the header checksum is the second byte of the xxHash of the header.
    checksum = _xxh32(frame[flags_at:checksum_at]) >> 8 & 0xFF
    return frame[:checksum_at] + bytes((checksum,)) + frame[checksum_at + 1 :]


def _xxh32(data: bytes) -> int:
    """Return the 32-bit xxHash of fewer than 16 bytes, with seed 0."""
    assert len(data) < 16, len(data)
    mask, prime2, prime3, prime5 = 0xFFFFFFFF, 2246822519, 3266489917, 374761393
    value = prime5 + len(data)
    position = 0
    while position + 4 <= len(data):
        value = value + int.from_bytes(data[position : position + 4], "little") * prime3 & mask
        value = (value << 17 | value >> 15) * 668265263 & mask
        position += 4
    for byte in data[position:]:
        value = value + byte * prime5 & mask
        value = (value << 11 | value >> 21) * 2654435761 & mask
    value = (value ^ value >> 15) * prime2 & mask
    value = (value ^ value >> 13) * prime3 & mask
    return value ^ value >> 16
