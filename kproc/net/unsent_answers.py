"""UnsentAnswers: bounds the memory of answers that clients do not read.

A connection with unsent answers is not read, but up to INFLIGHT_MAX of its requests are in work and their answers still
come. Ranges of files cost no memory until they are sent; all other answers are copied. Where they take more than
UNSENT_BYTES_MAX, the address that holds most loses the connection that holds most, until they fit.
"""

from __future__ import annotations

import logging
from typing import Final

from kproc.metrics.spec import SLOT
from kproc.net.address_shares import AddressShares
from kproc.net.connection import Connection, FileSend
from kproc.net.connection_table import ConnectionTable
from kproc.net.describe import connection_name
from kproc.net.processor_state import ProcessorState

logger = logging.getLogger(__name__)

UNSENT_BYTES_MAX: Final = 128 << 20


def unsent_bytes(connection: Connection) -> int:
    """Return how much memory the answers take that a connection's client has not taken."""
    out = sum(len(item) for item in connection.out or () if not isinstance(item, FileSend))
    return out + sum(len(record) for _, record in connection.stash.values())


class UnsentAnswers:
    """One per Processor."""

    __slots__ = ("_state", "_table")

    def __init__(self, table: ConnectionTable, state: ProcessorState) -> None:
        self._table = table
        self._state = state

    def work(self) -> None:
        """Close connections until the unsent answers fit. Called once a second."""
        shares = AddressShares()
        total = 0
        for connection in self._table.by_fd.values():
            if connection.out or connection.stash:
                size = unsent_bytes(connection)
                shares.put(connection, size)
                total += size
        while total > UNSENT_BYTES_MAX:
            holders = shares.largest_holders()
            victim = max(holders, key=holders.__getitem__)
            total -= holders[victim]
            shares.remove(victim)
            self._state.counts[SLOT["slow_readers_closed"]] += 1
            if self._state.refusals.has_room(self._state.now_ns):
                logger.warning(
                    "closing connection %s: it does not read its answers, and they take too much memory",
                    connection_name(victim),
                )
            self._table.close(victim, "it does not read its answers")
