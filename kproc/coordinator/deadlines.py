"""Deadlines: when which group of which coordinator must be looked at. One heap for a whole Handler."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)


NEVER: Final = 1 << 63
_STALE_MIN: Final = 64


class Deadlines(Generic[K]):
    """Keys with a time each, the earliest first."""

    __slots__ = ("_at", "_heap", "_tiebreak", "first_ms")

    def __init__(self) -> None:
        # Keys need not be comparable. An entry counts as long as `_at` says the same time; others are stale, and the
        # first one never is.
        self._heap: list[tuple[int, int, K]] = []
        self._at: dict[K, int] = {}
        self._tiebreak = itertools.count()
        self.first_ms = (
            NEVER  # The earliest time; of a key that there is, or whoever sleeps by it would spin.
        )

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
        if self._at.pop(key, None) is not None:
            self._settle()

    def pop_due(self, now_ms: int) -> list[K]:
        """All whose time has come; they have none afterwards."""
        due: list[K] = []
        while self.first_ms <= now_ms:
            key = self._heap[0][2]
            due.append(key)
            self.discard(key)
        return due

    def _settle(self) -> None:
        """Drop stale entries from the front; all of them when most are stale."""
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        if len(heap) > _STALE_MIN and len(heap) > 4 * len(at):
            self._heap = heap = [(at_ms, next(self._tiebreak), key) for key, at_ms in at.items()]
            heapq.heapify(heap)
        self.first_ms = heap[0][0] if heap else NEVER
