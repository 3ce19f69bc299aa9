"""Frames: an int32 length, then that many bytes.

The sans-IO twin of what a Processor does with `recv_into`: used by clients, tests and every reader that
gets its bytes in arbitrary pieces. A length that is negative or above the limit raises before a byte of the
frame is stored: "GET " read as a length is 1.2 GB.
"""

from __future__ import annotations

from typing import Final

from kproc.errors import ProtocolError
from kproc.wire.primitives import INT32, Buffer

LENGTH_BYTES: Final = 4


def encode_frame(*parts: bytes) -> bytes:
    """One frame holding the parts one after the other."""
    return INT32.pack(sum(map(len, parts))) + b"".join(parts)


def check_frame_length(length: int, limit_bytes: int) -> int:
    """The length itself, when a frame may have it."""
    if not 0 <= length <= limit_bytes:
        raise ProtocolError(f"frame of {length} bytes, limit {limit_bytes}")
    return length


class FrameReader:
    """Collects pieces of one stream and gives back whole frames, without their length, in order.

    Owned by one connection. After a ProtocolError the stream has no defined position any more: close it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, piece: Buffer) -> list[bytes]:
        """Take the next piece; the frames it completed."""
        self._buffer += piece
        frames: list[bytes] = []
        position = 0
        while len(self._buffer) - position >= LENGTH_BYTES:
            (length,) = INT32.unpack_from(self._buffer, position)
            end = position + LENGTH_BYTES + check_frame_length(length, self._limit_bytes)
            if end > len(self._buffer):
                break
            frames.append(bytes(self._buffer[position + LENGTH_BYTES : end]))
            position = end
        del self._buffer[:position]
        return frames

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not whole yet: nonzero at the end of a stream means it was cut."""
        return len(self._buffer)
