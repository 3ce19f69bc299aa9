"""SlowFrames: finds unfinished requests that hold memory which other connections wait for, and arrive too slowly.

A large frame occupies its whole length in the arena from its first bytes on, and every unfinished frame counts against
`queued.max.request.bytes`, until it has arrived. A client that announces 100 MiB and sends a byte a second would lock
everybody else out. While no connection waits for memory, a frame may take any time. While one does, every unfinished
frame is watched, and the slowest of those below the minimum rate loses its connection, then the next, until there is
room. Frames are watched only then, so ordinary requests do not pay for this.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from struct import Struct
from typing import Final

from kproc.metrics.spec import SLOT
from kproc.net.connection import Connection
from kproc.net.connection_table import ConnectionTable
from kproc.net.describe import connection_name
from kproc.net.memory_budget import MemoryBudget
from kproc.net.processor_state import ProcessorState
from kproc.net.socket_watch import ACTIVE
from kproc.transport.agent import BlockOwner

logger = logging.getLogger(__name__)

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


class SlowFrameReaper:
    """One per Processor. Closes connections whose unfinished frames are too slow, while others wait for memory."""

    __slots__ = ("_arena", "_budget", "_slow_frames", "_state", "_table")

    def __init__(
        self, table: ConnectionTable, state: ProcessorState, *, budget: MemoryBudget, arena: BlockOwner
    ) -> None:
        self._table = table
        self._state = state
        self._budget = budget
        self._arena = arena
        self._slow_frames = SlowFrames()

    def work(self) -> None:
        """Check all unfinished frames, if a connection waits for memory. Called once a second."""
        wanted = [size for size in map(wanted_bytes, self._table.stalled) if size]
        if not self._is_short(max(wanted, default=0)):
            self._slow_frames.forget()
            return
        waits_for_memory = self._table.short_of_memory
        begun = [
            each
            for each in self._table.by_fd.values()
            if each.interest == ACTIVE and (each.block is not None or (each.held and waits_for_memory))
        ]
        for connection in self._slow_frames.look(begun, self._state.now_ns):
            if not self._is_short(min(wanted, default=0)):
                return  # There is room for the first; the others are seen to a second later.
            self._state.counts[SLOT["slow_frames_closed"]] += 1
            if self._state.refusals.has_room(self._state.now_ns):
                logger.warning(
                    "closing connection %s: its request gets on too slowly, and others wait for the room",
                    connection_name(connection),
                )
            self._table.close(connection, "its frame makes too little progress")

    def _is_short(self, wanted: int) -> bool:
        """Whether there is no arena block that large, or no memory though a connection waits for it."""
        has_block = self._arena.has_room(wanted)
        return not has_block or (bool(self._table.short_of_memory) and not self._budget.has_room())
