"""Deadlines: a priority queue of keys by time, for requests, throttles, sessions and groups that wait.

The user chooses the unit of time. Discard a key that needs no deadline any more; its entry in the heap is removed
lazily.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)


NEVER: Final = 1 << 63
# The heap is rebuilt without its stale entries when it has more than 4 entries per key plus this number. A rebuild
# visits every entry, so it must be rare.
_STALE_MIN: Final = 64


class Deadlines(Generic[K]):
    """Keys with one deadline each. `first` is the earliest deadline, or NEVER."""

    __slots__ = ("_at", "_heap", "_tiebreak", "first")

    def __init__(self) -> None:
        # An entry of the heap is valid while `_at` has the same time for its key; others are stale. The first entry is
        # never stale. The tiebreak keeps the heap from comparing keys, which need no order.
        self._heap: list[tuple[int, int, K]] = []
        self._at: dict[K, int] = {}
        self._tiebreak = itertools.count()
        # Time of the earliest deadline, never of a stale entry, because the role sleeps until then and would wake for
        # nothing.
        self.first = NEVER

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[K]:
        return iter(self._at)

    def bring_forward(self, key: K, at: int | None) -> None:
        """Set the deadline of `key` to `at`, unless the key has an earlier one. Do nothing if `at` is None.

        A key that keeps an earlier deadline is due too early. Its user then checks it once in vain, which costs less
        than to move the deadline each time.
        """
        known = self._at.get(key)
        if at is None or (known is not None and known <= at):
            return
        self._at[key] = at
        heapq.heappush(self._heap, (at, next(self._tiebreak), key))
        if at < self.first:
            self.first = at

    def move(self, key: K, at: int) -> None:
        """Set the deadline of `key` to `at`, earlier or later than before."""
        self.discard(key)
        self.bring_forward(key, at)

    def discard(self, key: K) -> None:
        """Remove `key`, if it has a deadline."""
        at = self._at.pop(key, None)
        if at is not None and not self._at:
            self._heap.clear()
            self.first = NEVER
        elif at is not None and (at == self.first or len(self._heap) > _STALE_MIN + 4 * len(self._at)):
            self._remove_stale()

    def pop_due(self, now: int, count_max: int = sys.maxsize) -> list[K]:
        """Remove and return up to `count_max` keys whose deadline has passed, in the order of their deadlines."""
        due: list[K] = []
        while self.first <= now and len(due) < count_max:
            key = self._heap[0][2]
            due.append(key)
            self.discard(key)
        return due

    def pop_all(self) -> list[K]:
        """Remove and return all keys."""
        return self.pop_due(NEVER - 1)

    def _remove_stale(self) -> None:
        """Remove entries at the heap's front whose key has no or another deadline now. Update `first`.

        Rebuild the heap if most of its entries are of this kind.
        """
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        if len(heap) > _STALE_MIN + 4 * len(at):
            self._heap = heap = [(time, next(self._tiebreak), key) for key, time in at.items()]
            heapq.heapify(heap)
        self.first = heap[0][0] if heap else NEVER
