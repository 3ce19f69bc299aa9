"""UnsentAnswers: bounds the memory of answers that clients do not read.

A connection with unsent answers is not read, but the answers of up to INFLIGHT_MAX requests in work still arrive.
Ranges of files cost no memory until they are sent; all other answers are copied. If the copies exceed UNSENT_BYTES_MAX,
the address that holds most loses the connection that holds most, until they fit. Large requests that wait in a Handler
after their blocks were recalled (lent_blocks.py) have the same rule, with WAITING_BYTES_MAX.
"""

from __future__ import annotations

import logging
from typing import Final

from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.address_shares import AddressShares
from kproc.broker.processor.answer_parts import FileSend
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.describe import connection_name
from kproc.broker.processor.lent_blocks import LentBlocks
from kproc.broker.processor.processor_state import ProcessorState

logger = logging.getLogger(__name__)

UNSENT_BYTES_MAX: Final = 128 << 20
WAITING_BYTES_MAX: Final = 64 << 20  # Of encoded requests; decoded they take several times as much.


def unsent_bytes(connection: Connection) -> int:
    """Return the bytes of memory that a connection's unsent answers take. Ranges of files take none."""
    out = sum(len(item) for item in connection.out or () if not isinstance(item, FileSend))
    return out + sum(len(record) for _, record in connection.stash.values())


class UnsentAnswers:
    """Closes connections whose unread answers, or whose large requests in Handlers, take too much memory.

    One per Processor.
    """

    __slots__ = ("_blocks", "_state", "_table")

    def __init__(self, table: ConnectionTable, state: ProcessorState, blocks: LentBlocks) -> None:
        self._table = table
        self._blocks = blocks
        self._state = state

    def work(self) -> None:
        """Close connections while unsent answers, or large requests that wait in Handlers, take too much memory.

        The limits are UNSENT_BYTES_MAX and WAITING_BYTES_MAX. The address that holds most loses the connection that
        holds most. Called once a second.
        """
        unsent = {each: unsent_bytes(each) for each in self._table.by_fd.values() if each.out or each.stash}
        self._bound(unsent, UNSENT_BYTES_MAX, "it does not read its answers")
        by_id = self._table.by_id
        waiting = {by_id[key]: size for key, size in self._blocks.recalled_bytes().items() if key in by_id}
        self._bound(waiting, WAITING_BYTES_MAX, "its large requests wait in a Handler")

    def _bound(self, sizes: dict[Connection, int], size_max: int, reason: str) -> None:
        """Close connections of the addresses that hold most, until the others hold at most `size_max`."""
        total = sum(sizes.values())
        if total <= size_max:
            return
        shares = AddressShares()
        for connection, size in sizes.items():
            shares.put(connection, size)
        while total > size_max:
            holders = shares.largest_holders()
            victim = max(holders, key=holders.__getitem__)
            total -= holders[victim]
            shares.remove(victim)
            self._state.counts[SLOT["slow_readers_closed"]] += 1
            if self._state.refusals.has_room(self._state.now_ns):
                logger.warning(
                    "closing connection %s: %s, and all such connections together hold more than %d bytes",
                    connection_name(victim),
                    reason,
                    size_max,
                )
            self._table.close(victim, reason)
