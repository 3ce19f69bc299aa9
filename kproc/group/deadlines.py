"""Deadlines: when which group of which coordinator must be looked at. One heap for a whole Handler."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)


NEVER: Final = 1 << 63


class Deadlines(Generic[K]):
    """Keys with a time each, the earliest first."""

    __slots__ = ("_at", "_heap", "_tiebreak", "first_ms")

    def __init__(self) -> None:
        # Keys need not be comparable. An entry counts as long as `_at` says the same time; others are stale.
        self._heap: list[tuple[int, int, K]] = []
        self._at: dict[K, int] = {}
        self._tiebreak = itertools.count()
        self.first_ms = NEVER  # No key's time is earlier; a key that was discarded may make it too early.

    def __len__(self) -> int:
        return len(self._at)

    def bring_forward(self, key: K, at_ms: int | None) -> None:
        """Look at `key` at that time if not earlier: a look too many does no harm, and costs less than a search."""
        known = self._at.get(key)
        if at_ms is None or (known is not None and known <= at_ms):
            return
        self._at[key] = at_ms
        heapq.heappush(self._heap, (at_ms, next(self._tiebreak), key))
        if at_ms < self.first_ms:
            self.first_ms = at_ms

    def discard(self, key: K) -> None:
        """The key is no more."""
        self._at.pop(key, None)

    def next_ms(self) -> int | None:
        """The earliest time."""
        heap = self._heap
        while heap and self._at.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        self.first_ms = heap[0][0] if heap else NEVER
        return heap[0][0] if heap else None

    def pop_due(self, now_ms: int) -> list[K]:
        """All whose time has come; they have none afterwards."""
        due: list[K] = []
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            due.append(key)
        return due
