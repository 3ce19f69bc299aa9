"""SlowFrameReaper: closes connections whose unfinished requests hold memory for too long.

An unfinished frame holds memory: in `Connection.held`, in the arena, or in LoginBlocks. Three rules limit what a client
gains by sending slowly. The first two count only the time in which the Processor reads the connection, because a client
is not slow while the Processor makes it wait.

    always                        a frame must be complete within kproc.request.receive.timeout.ms
    a connection waits for        every frame that arrived below RATE_MIN in the last WATCHED_NS is closed
    memory
    its address holds less than   frames of the address that holds most are closed, the largest first, until the
    another one                   connection has its block; frames younger than _GRACE_NS are exempt

Unfinished frames are checked once a second. Requests that arrive in one read cost nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from heapq import nlargest
from typing import Final

from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_state import ACTIVE
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.describe import connection_name
from kproc.broker.processor.frame_memory import FrameMemory
from kproc.broker.processor.memory_budget import MemoryBudget
from kproc.broker.processor.processor_state import ProcessorState

logger = logging.getLogger(__name__)

# Limit of an unfinished frame in `Connection.held`. Together with one more read it fits into the smallest ring.
LARGE_FRAME_BYTES: Final = 16 * 1024
# Window in ns in which a frame's rate is measured. TCP retransmits within it, so a live sender makes progress. A frame
# that is complete sooner is never slow.
WATCHED_NS: Final = 5_000_000_000
RATE_MIN: Final = 64 * 1024  # Bytes per second.
# A frame younger than this (ns) is not closed to free memory, because it may still be crossing a busy network.
_GRACE_NS: Final = 1_000_000_000
# Limit of connections closed at once for one waiting connection, so that the pass stays short.
_VICTIMS_MAX: Final = 64
_SECOND_NS: Final = 1_000_000_000


class FrameProgress:
    """The progress of one unfinished frame. Time counts only while its connection is read."""

    __slots__ = ("is_slow", "number", "read_ns", "since_ns", "window_bytes", "window_ns")

    def __init__(self, number: int, received: int, now_ns: int) -> None:
        self.number = number  # The frame's sequence in its connection.
        self.since_ns = now_ns
        self.read_ns = 0
        self.window_ns = 0
        self.window_bytes = received  # Bytes that had arrived when the window began.
        self.is_slow = False  # In the last window.

    def advance(self, received: int, elapsed_ns: int, rate_min: float) -> None:
        """Count the time since the last update, during which the connection was read."""
        self.read_ns += elapsed_ns
        self.window_ns += elapsed_ns
        if self.window_ns >= WATCHED_NS:
            self.is_slow = (received - self.window_bytes) * _SECOND_NS < rate_min * self.window_ns
            self.window_ns, self.window_bytes = 0, received


class SlowFrames:
    """Measures how fast the unfinished frames of one Processor arrive."""

    def __init__(self, receive_ns_max: int) -> None:
        self._receive_ns_max = receive_ns_max
        self._progress: dict[int, FrameProgress] = {}  # By connection id.
        self._seen_ns = 0

    def update(self, begun: Iterable[Connection], now_ns: int) -> None:
        """Measure the unfinished frames of the connections in `begun`, and forget all others. Called once a second."""
        elapsed_ns, self._seen_ns = now_ns - self._seen_ns, now_ns
        progress: dict[int, FrameProgress] = {}
        for connection in begun:
            block = connection.block
            received = len(connection.held) if block is None else block.filled
            seen = self._progress.get(connection.id)
            if seen is None or seen.number != connection.next_sequence:
                seen = FrameProgress(connection.next_sequence, received, now_ns)
            elif connection.interest == ACTIVE:
                seen.advance(received, elapsed_ns, self._rate_min(connection))
            progress[connection.id] = seen
        self._progress = progress

    def _rate_min(self, connection: Connection) -> float:
        """Return the bytes per second below which a frame is slow. A long frame needs a higher rate to be in time."""
        block = connection.block
        if block is None or not self._receive_ns_max:
            return RATE_MIN
        return max(RATE_MIN, block.length * _SECOND_NS / self._receive_ns_max)

    def _find(self, connection: Connection) -> FrameProgress | None:
        seen = self._progress.get(connection.id)
        return seen if seen is not None and seen.number == connection.next_sequence else None

    def is_slow(self, connection: Connection) -> bool:
        """Return True if the frame arrived too slowly in the last window of WATCHED_NS."""
        seen = self._find(connection)
        return seen is not None and seen.is_slow

    def is_late(self, connection: Connection) -> bool:
        """Return True if the frame has taken kproc.request.receive.timeout.ms or longer. With 0 no frame is late."""
        seen = self._find(connection)
        return seen is not None and 0 < self._receive_ns_max <= seen.read_ns

    def is_older(self, connection: Connection, age_ns: int, now_ns: int) -> bool:
        """Return True if `update` has known the frame for at least `age_ns`."""
        seen = self._find(connection)
        return seen is not None and now_ns - seen.since_ns >= age_ns


class SlowFrameReaper:
    """Closes connections whose unfinished requests hold memory for too long (module docstring). One per Processor."""

    __slots__ = ("_budget", "_slow_frames", "_state", "_table")

    def __init__(
        self, table: ConnectionTable, state: ProcessorState, *, budget: MemoryBudget, receive_ns_max: int
    ) -> None:
        self._table = table
        self._state = state
        self._budget = budget
        self._slow_frames = SlowFrames(receive_ns_max)

    def work(self) -> None:
        """Close connections whose frame is late, or slow while others wait for memory. Called once a second."""
        begun = [each for each in self._table.by_fd.values() if each.block is not None or each.held]
        frames = self._slow_frames
        frames.update(begun, self._state.now_ns)
        if not begun:
            return
        others_wait = bool(self._table.awaiting_block) or (
            bool(self._table.short_of_memory) and not self._budget.has_room()
        )
        for connection in begun:
            if connection.interest != ACTIVE:
                continue  # The client waits for us, because its frame has no room in a ring or waits for a block.
            if frames.is_late(connection):
                self._close(connection, "its request did not arrive within kproc.request.receive.timeout.ms")
            elif others_wait and frames.is_slow(connection):
                self._close(
                    connection, "its request is arriving too slowly while other clients wait for memory"
                )

    def make_room(self, waiting: Connection, memory: FrameMemory, needed: int) -> bool:
        """Close connections whose unfinished frames hold memory, to free `needed` bytes for the frame of `waiting`.

        Only connections of the address that holds the most memory are closed, those with the largest frames first. A
        connection is spared if its frame is younger than _GRACE_NS. It is also spared if its address would then hold
        less than the address of `waiting` holds after it gets `needed` bytes. Stops when `needed` bytes are free, or
        after _VICTIMS_MAX connections. Returns True if it closed a connection, even if fewer bytes are free.
        """
        shares = memory.shares
        share, largest = shares.share_of(waiting), shares.largest_share()
        now_ns = self._state.now_ns
        victims = [
            (size, each)
            for each, size in shares.largest_holders().items()
            if self._slow_frames.is_older(each, _GRACE_NS, now_ns)
        ]
        freed = 0
        for size, victim in nlargest(_VICTIMS_MAX, victims, key=lambda each: each[0]):
            if freed >= needed or largest - freed - size < share + needed:
                continue
            freed += size
            self._close(victim, "its address holds more memory for unfinished requests than any other")
        return freed > 0

    def _close(self, connection: Connection, reason: str) -> None:
        self._state.counts[SLOT["slow_frames_closed"]] += 1
        if self._state.refusals.has_room(self._state.now_ns):
            logger.warning("closing connection %s: %s", connection_name(connection), reason)
        self._table.close(connection, reason)
