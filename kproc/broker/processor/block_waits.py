"""BlockWaits: gives memory to unfinished large frames that wait for it (ConnectionTable.wait_for_block).

Nothing reports that memory became free, so the Processor calls `retry` in each duty cycle while a frame waits. It gives
memory to addresses with the smallest share first, and within an address to short frames first.
"""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice
from typing import Final

from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.frame_memory import FrameMemories, FrameMemory
from kproc.broker.processor.framing import LENGTH_BYTES, frame_length
from kproc.broker.processor.memory_budget import MemoryBudget
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.slow_frames import SlowFrameReaper

_RETRY_NS: Final = 100_000_000  # Interval at which waiting frames are retried even if no memory became free.
_RETRIES: Final = 64  # Limit of addresses in one retry, and of frames of each address.


class BlockWaits:
    """The connections that wait for memory for an unfinished large frame, and the order in which they get it.

    One per Processor.
    """

    __slots__ = ("_budget", "_free_counts", "_memories", "_next_retry_ns", "_reaper", "_state", "_table")

    def __init__(
        self,
        table: ConnectionTable,
        state: ProcessorState,
        *,
        memories: FrameMemories,
        budget: MemoryBudget,
        reaper: SlowFrameReaper,
    ) -> None:
        self._table = table
        self._state = state
        self._memories = memories
        self._budget = budget
        self._reaper = reaper
        self._free_counts = (-1, -1)
        self._next_retry_ns = 0

    def retry(self) -> None:
        """Give memory to the frames that wait for it.

        Does nothing if no memory became free, except every _RETRY_NS: then connections of an address that holds more
        memory may be closed.
        """
        now_ns = self._state.now_ns
        may_close = now_ns >= self._next_retry_ns
        if self._memories.free_counts == self._free_counts and not may_close:
            return
        if may_close:
            self._next_retry_ns = now_ns + _RETRY_NS
        waiting = self._table.awaiting_block
        # Addresses that hold least come first, so that a client with many connections cannot keep the others waiting.
        for key in nsmallest(_RETRIES, waiting, key=self._memories.share_of_key):
            # Retry at most _RETRIES frames of an address, because it may have many. sorted() copies them, because a
            # retry may close other waiting connections, which changes the table.
            for connection in sorted(islice(waiting.get(key, ()), _RETRIES), key=self._needed_bytes):
                if connection.migration is None and not self._retry(connection, may_close=may_close):
                    break
        self._free_counts = self._memories.free_counts

    def _retry(self, connection: Connection, *, may_close: bool) -> bool:
        """Allocate memory for a frame, with `may_close` also by closing connections of another address.

        Return False if there is no memory for it.
        """
        memory = self._memories.of(connection)
        if self._resume(connection, memory):
            return True
        return (
            may_close
            and self._reaper.make_room(connection, memory, self._needed_bytes(connection))
            and self._resume(connection, memory)
        )

    def _needed_bytes(self, connection: Connection) -> int:
        """Return how many more bytes of memory a connection's unfinished frame waits for."""
        block, memory = connection.block, self._memories.of(connection)
        if block is None:
            return memory.needed_bytes(frame_length(connection.held), len(connection.held))
        present = len(block.view)
        return memory.needed_bytes(block.length, block.filled, present) - present

    def _resume(self, connection: Connection, memory: FrameMemory) -> bool:
        """Allocate memory for a frame and resume reading its connection. Return False if there is no memory."""
        block = connection.block
        if block is not None:
            if not memory.grow(connection, block):
                return False
        else:
            held = connection.held
            if not memory.start(connection, frame_length(connection.held), held[LENGTH_BYTES:]):
                return False
            connection.held = b""
            self._budget.held_bytes -= len(held)
        self._table.resume_with_block(connection)
        return True
