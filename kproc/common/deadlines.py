"""Deadlines: at what time which key is to be looked at. What roles wait by: requests, throttles, sessions, groups.

The unit of time is the owner's. Whatever ends before its time is discarded, so nothing gathers for what is long over.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)


NEVER: Final = 1 << 63
_STALE_MIN: Final = 64


class Deadlines(Generic[K]):
    """Keys with a time each, the earliest first."""

    __slots__ = ("_at", "_heap", "_tiebreak", "first")

    def __init__(self) -> None:
        # Keys need not be comparable. An entry counts as long as `_at` says the same time; others are stale, and the
        # first one never is.
        self._heap: list[tuple[int, int, K]] = []
        self._at: dict[K, int] = {}
        self._tiebreak = itertools.count()
        # The earliest time; of a key that there is, or whoever sleeps by it would spin.
        self.first = NEVER

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[K]:
        return iter(self._at)

    def bring_forward(self, key: K, at: int | None) -> None:
        """Look at `key` at that time if not earlier: a look too many does no harm, and costs less than a search."""
        known = self._at.get(key)
        if at is None or (known is not None and known <= at):
            return
        self._at[key] = at
        heapq.heappush(self._heap, (at, next(self._tiebreak), key))
        if at < self.first:
            self.first = at

    def move(self, key: K, at: int) -> None:
        """Look at `key` at that time, whenever it was to be before."""
        self.discard(key)
        self.bring_forward(key, at)

    def discard(self, key: K) -> None:
        """The key is no more."""
        at = self._at.pop(key, None)
        if at is not None and (at == self.first or len(self._heap) > _STALE_MIN + 4 * len(self._at)):
            self._settle()

    def pop_due(self, now: int) -> list[K]:
        """All whose time has come, in their order; they have none afterwards."""
        due: list[K] = []
        while self.first <= now:
            key = self._heap[0][2]
            due.append(key)
            self.discard(key)
        return due

    def pop_all(self) -> list[K]:
        """`pop_due` of everything, whatever the time."""
        return self.pop_due(NEVER - 1)

    def _settle(self) -> None:
        """Drop stale entries from the front; all of them when most are stale."""
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        if len(heap) > _STALE_MIN + 4 * len(at):
            self._heap = heap = [(time, next(self._tiebreak), key) for key, time in at.items()]
            heapq.heapify(heap)
        self.first = heap[0][0] if heap else NEVER
