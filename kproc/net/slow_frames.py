"""SlowFrames: finds unfinished requests that hold memory which other connections wait for, and arrive too slowly.

A large frame occupies its whole length in the arena from its first bytes on, and every unfinished frame counts against
`queued.max.request.bytes`, until it has arrived. A client that announces 100 MiB and sends a byte a second would lock
everybody else out. While no connection waits for memory, a frame may take any time. While one does, every unfinished
frame is watched, and the slowest of those below the minimum rate loses its connection, then the next, until there is
room. Frames are watched only then, so ordinary requests do not pay for this.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from kproc.net.connection import Connection

# How much of an unfinished frame is kept outside the arena: with one more read it fits into the smallest ring.
LARGE_FRAME_BYTES: Final = 16 * 1024
# TCP resends within this time, so a live sender makes progress in it. A frame that arrives faster than this is not
# slow.
WATCHED_NS: Final = 5_000_000_000
RATE_MIN: Final = 64 * 1024  # Bytes per second.
_SECOND_NS: Final = 1_000_000_000
_LENGTH: Final = Struct(">i")


def wanted_bytes(connection: Connection) -> int:
    """The size of the arena block that a connection needs before it can be read further; 0 if it needs none."""
    held = connection.held
    if connection.block is not None or len(held) < _LENGTH.size:
        return 0
    (length,) = _LENGTH.unpack_from(held)
    return int(length) if length > LARGE_FRAME_BYTES else 0


def in_turn(stalled: Iterable[Connection]) -> list[Connection]:
    """Connections in the order in which they get memory: small requests first, or large ones could starve them."""
    return sorted(stalled, key=wanted_bytes)


class SlowFrames:
    """The unfinished frames that are watched because a connection waits for memory. One per Processor."""

    def __init__(self) -> None:
        # By connection: the frame's number in it, when watching began, and how many bytes had arrived by then.
        self._watched: dict[int, tuple[int, int, int]] = {}

    def forget(self) -> None:
        """Stop watching: no connection waits for memory any more."""
        self._watched.clear()

    def look(self, begun: Iterable[Connection], now_ns: int) -> list[Connection]:
        """The connections that were watched for long enough and are too slow, the slowest first.

        `begun` are the connections that are being read and have an unfinished frame.
        """
        watched: dict[int, tuple[int, int, int]] = {}
        slow: list[tuple[float, Connection]] = []
        for connection in begun:
            block = connection.block
            received = len(connection.held) if block is None else block.filled
            number, since_ns, before = self._watched.get(connection.id, (-1, 0, 0))
            if number != connection.next_sequence:
                watched[connection.id] = connection.next_sequence, now_ns, received
                continue
            watched[connection.id] = number, since_ns, before
            if now_ns - since_ns < WATCHED_NS:
                continue
            rate = (received - before) * _SECOND_NS / (now_ns - since_ns)
            if rate < RATE_MIN:
                slow.append((rate, connection))
            else:
                watched[connection.id] = number, now_ns, received
        self._watched = watched
        slow.sort(key=lambda each: each[0])
        return [connection for _, connection in slow]
