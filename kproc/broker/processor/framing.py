"""Framing: where the requests begin and end in the bytes that a client has sent. Sans-IO.

    | length i32, big-endian | `length` bytes | length | ...

TCP keeps no message borders: one read may bring a part of a frame, several frames, or both. These functions look at a
buffer and copy nothing, because that buffer is the free space of a Handler's ring (request_reader.py), and a whole
frame stays where it was received. The caller keeps the bytes behind the last whole frame, and puts the next bytes
behind them.

A length that is negative or larger than socket.request.max.bytes is invalid, as in Kafka (NetworkReceive). Nothing
behind it can be read, because nobody knows where the next frame begins.
"""

from __future__ import annotations

import struct
from typing import Final

_LENGTH: Final = struct.Struct(">i")
LENGTH_BYTES: Final = _LENGTH.size
pack_length: Final = _LENGTH.pack
# Bound once for the paths that every request takes, because a call of `frame_length` would cost each of them 50 ns.
unpack_length: Final = _LENGTH.unpack_from

Bytes = bytes | memoryview


def frame_length(data: Bytes, at: int = 0) -> int:
    """Return the announced length of the frame that begins at `at`, of which at least LENGTH_BYTES are there."""
    length: int = unpack_length(data, at)[0]
    return length


def find_frames(
    data: Bytes, start: int, end: int, *, count_max: int, length_max: int
) -> tuple[int, int, bool]:
    """Find the whole frames in data[start:end], up to `count_max` frames.

    Return (position behind the last frame, number of frames, False if an invalid length follows at this position).
    """
    count = 0
    while end - start >= LENGTH_BYTES and count < count_max:
        (length,) = unpack_length(data, start)
        if not 0 <= length <= length_max:
            return start, count, False
        following = start + LENGTH_BYTES + length
        if following > end:
            break
        start = following
        count += 1
    return start, count, True
