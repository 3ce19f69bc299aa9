"""SlowFrames: requests that have begun, and take room that others wait for without getting on.

A large frame takes its whole length of the arena when its first bytes come, and any begun one its share of
`queued.max.request.bytes`; only its end gives that back. Somebody who announces 100 MiB and sends a byte a second
would so keep everybody else out. While nobody waits, a frame may take as long as it likes. While somebody does, each
begun frame is watched, and the slowest of those below the least rate loses its connection, then the next, until there
is room. Nothing is kept of a frame before that, so the way of ordinary requests has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from kproc.net.connection import Connection

# What one read may bring of a frame without being a block of its own; with one read it fits into the smallest ring.
LARGE_FRAME_BYTES: Final = 16 * 1024
# A sender that lives resends within this long; and a frame that fits into it at the least rate is no slow one.
WATCHED_NS: Final = 5_000_000_000
RATE_MIN: Final = 64 * 1024  # Bytes per second.
_SECOND_NS: Final = 1_000_000_000
_LENGTH: Final = Struct(">i")


def wanted_bytes(connection: Connection) -> int:
    """How large a block a connection has to get before it can be read on; 0 if it waits for something else."""
    held = connection.held
    if connection.block is not None or len(held) < _LENGTH.size:
        return 0
    (length,) = _LENGTH.unpack_from(held)
    return int(length) if length > LARGE_FRAME_BYTES else 0


def in_turn(stalled: Iterable[Connection]) -> list[Connection]:
    """Who waits for a small block comes first: those who want whole arenas could keep them among themselves."""
    return sorted(stalled, key=wanted_bytes)


class SlowFrames:
    """The frames that are watched because somebody waits. One per Processor."""

    def __init__(self) -> None:
        # By connection: the frame's number there, since when it has been watched, and how many bytes it had then.
        self._watched: dict[int, tuple[int, int, int]] = {}

    def forget(self) -> None:
        """Nobody waits any more."""
        self._watched.clear()

    def look(self, begun: Iterable[Connection], now_ns: int) -> list[Connection]:
        """Those that were watched for long enough and got on too slowly, the slowest first.

        `begun` are connections that are being read and have half a frame.
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
