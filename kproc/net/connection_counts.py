"""How many connections there are, as one Acceptor knows it: a table per Processor and one of its own.

A Processor's table is what it reported over the hand-over pair (count_reporter.py) and goes with the pair. The own one
holds sockets that were accepted and that no Processor has acknowledged. Sums over all tables are kept as they change.
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
    """Open connections by source, address and listener. A source is any name for who counts."""

    __slots__ = ("_by_address", "_by_listener", "_sources", "_unheard", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_address: dict[bytes, int] = {}
        self._by_listener: dict[int, int] = {}
        self._sources: dict[Hashable, dict[Key, int]] = {}
        self._unheard: set[Hashable] = set()

    def expect(self, source: Hashable) -> None:
        """A source is there that will report what it has; until then the counts are too low."""
        self._unheard.add(source)

    def heard(self, source: Hashable) -> None:
        """It has reported."""
        self._unheard.discard(source)

    @property
    def is_complete(self) -> bool:
        return not self._unheard

    def add(self, source: Hashable, address: bytes, listener: int, change: int) -> None:
        """Count connections of `source` up or down."""
        table = self._sources.setdefault(source, {})
        key = (address, listener)
        count = table.get(key, 0) + change
        if count < 0:  # Sums of what never was would refuse or admit the wrong clients for ever.
            logger.error("%s reported %d connections too few", source, -count)
            change, count = change - count, 0
        if count:
            table[key] = count
        else:
            table.pop(key, None)
        self._sum(address, listener, change)

    def drop(self, source: Hashable) -> None:
        """The source is gone, and its connections with it."""
        self._unheard.discard(source)
        for (address, listener), count in self._sources.pop(source, {}).items():
            self._sum(address, listener, -count)

    def of_address(self, address: bytes) -> int:
        return self._by_address.get(address, 0)

    def of_listener(self, listener: int) -> int:
        return self._by_listener.get(listener, 0)

    def listeners(self) -> Iterable[tuple[int, int]]:
        """(listener, connections) of every listener that has any."""
        return self._by_listener.items()

    def of_source(self, source: Hashable, listener: int) -> int:
        """Connections of one source by one listener; walks its table."""
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
