"""ConnectionCounts: how many connections are open, as one Acceptor knows it.

Each Processor has a table with the counts that it reported over its handoff socket (count_reporter.py). The table is
dropped with the socket. One more table counts the sockets that no Processor has acknowledged yet. Each change also
updates the sums over all tables, so that checking a limit needs no addition.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

OWN: Final = "accepted here"
_K = TypeVar("_K")

Key = tuple[bytes, int]
"""Address in 16 bytes (handoff.pack_address) and listener."""


class ConnectionCounts:
    """Open connections by source, address and listener. A source is a Processor, or OWN for the Acceptor itself."""

    __slots__ = ("_by_address", "_by_listener", "_sources", "_unheard", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_address: dict[bytes, int] = {}
        self._by_listener: dict[int, int] = {}
        self._sources: dict[Hashable, dict[Key, int]] = {}
        self._unheard: set[Hashable] = set()

    def expect(self, source: Hashable) -> None:
        """Expect a first report of connections from this source. Until it comes, the counts are too low."""
        self._unheard.add(source)

    def heard(self, source: Hashable) -> None:
        """Record that the source has sent its whole first report."""
        self._unheard.discard(source)

    @property
    def is_complete(self) -> bool:
        return not self._unheard

    def add(self, source: Hashable, address: bytes, listener: int, change: int) -> None:
        """Add `change`, which may be negative, to the connections of `source`."""
        # A table for each source, because all connections of a Processor that dies must leave the sums at once.
        table = self._sources.setdefault(source, {})
        key = (address, listener)
        count = table.get(key, 0) + change
        # Replace a negative count by 0, because it would stay in the sums and admit too many clients for ever.
        if count < 0:
            logger.error(
                "%s reported %d more closed connections than it had; counting 0 at this listener and address",
                source,
                -count,
            )
            change, count = change - count, 0
        if count:
            table[key] = count
        else:
            table.pop(key, None)
        self._sum(address, listener, change)

    def drop(self, source: Hashable) -> None:
        """Remove a Processor that has ended from the counts, with its connections."""
        self._unheard.discard(source)
        for (address, listener), count in self._sources.pop(source, {}).items():
            self._sum(address, listener, -count)

    def of_address(self, address: bytes) -> int:
        return self._by_address.get(address, 0)

    def of_listener(self, listener: int) -> int:
        return self._by_listener.get(listener, 0)

    def listeners(self) -> Iterable[tuple[int, int]]:
        """Return (listener, connections) of every listener that has any."""
        return self._by_listener.items()

    def of_source(self, source: Hashable, listener: int) -> int:
        """Return how many connections of one listener a source has.

        The time grows with the size of the source's table.
        """
        table = self._sources.get(source, {})
        return sum(count for (_, by), count in table.items() if by == listener)

    def _sum(self, address: bytes, listener: int, change: int) -> None:
        self.total += change
        _add(self._by_address, address, change)
        _add(self._by_listener, listener, change)


def _add(counts: dict[_K, int], key: _K, change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
