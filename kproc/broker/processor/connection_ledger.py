"""ConnectionLedger: a Processor's counts of open, opened and closed connections by listener, in shared memory.

A connection counts as opened once, at the Processor that got it from an Acceptor, and as closed once, at the Processor
where it ended, even if it migrated in between. Connections that died with a Processor are counted as closed by its
successor, which reads in the slab how many were open.
"""

from __future__ import annotations

from kproc.broker.metrics.requests import CLOSED, OPEN, OPENED, Counts


class ConnectionLedger:
    """One per Processor. Written by connection_books.py, stored at the Processor's tick."""

    __slots__ = ("_counts", "_open")

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._open: dict[int, int] = {}
        # A Processor that died left the number of its open connections in the slab. They died with it.
        for listener in counts.keys_of(OPEN):
            counts.add(CLOSED, listener, count=counts.get(OPEN, listener))
            self._open[listener] = 0

    def opened(self, listener: int) -> None:
        self._counts.add(OPENED, listener)

    def closed(self, listener: int) -> None:
        self._counts.add(CLOSED, listener)

    def is_here(self, listener: int) -> None:
        """Count a connection that was registered, or migrated here."""
        self._open[listener] = self._open.get(listener, 0) + 1

    def is_gone(self, listener: int) -> None:
        """Count a connection that was closed, or migrated away."""
        self._open[listener] -= 1

    def store(self) -> None:
        for listener, count in self._open.items():
            self._counts.set(OPEN, listener, count)
        self._counts.store()
