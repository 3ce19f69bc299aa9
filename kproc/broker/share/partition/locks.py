"""Locks: the times at which the acquisition locks of a share partition end.

Deadlines are multiples of LOCK_STEP_MS, so there are at most a few hundred of them, whatever the number of records. For
each deadline only the lowest and the highest offset are kept. When it has passed, the caller looks at the records
between them, each of which has its own deadline.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

# Resolution of the deadlines (ms). A lock lasts up to this much longer than its duration.
LOCK_STEP_MS: Final = 100


def lock_deadline_ms(now_ms: int, duration_ms: int) -> int:
    """Return the deadline of a lock that begins now: its end, rounded up to a multiple of LOCK_STEP_MS."""
    return -(-(now_ms + duration_ms) // LOCK_STEP_MS) * LOCK_STEP_MS


class Locks:
    """The deadlines of one share partition, each with the lowest and the highest offset that it locks."""

    __slots__ = ("_heap", "_ranges")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._ranges: dict[int, tuple[int, int]] = {}

    def add(self, deadline_ms: int, first: int, last: int) -> None:
        """Add offsets whose lock ends at a deadline."""
        known = self._ranges.get(deadline_ms)
        if known is None:
            heappush(self._heap, deadline_ms)
            self._ranges[deadline_ms] = first, last
        elif first < known[0] or last > known[1]:
            self._ranges[deadline_ms] = min(first, known[0]), max(last, known[1])

    def next_ms(self, start_offset: int) -> int | None:
        """Return the next deadline in ms, None if there is none. Discard deadlines of offsets below `start_offset`."""
        while self._heap:
            deadline_ms = self._heap[0]
            if self._ranges[deadline_ms][1] >= start_offset:
                return deadline_ms
            self._pop()
        return None

    def pop_due(self, now_ms: int) -> list[tuple[int, int]]:
        """Remove the deadlines that have passed. Return (lowest, highest offset) of each.

        Records between the two offsets can have other deadlines, so the caller must check each record.
        """
        due: list[tuple[int, int]] = []
        while self._heap and self._heap[0] <= now_ms:
            due.append(self._pop())
        return due

    def _pop(self) -> tuple[int, int]:
        return self._ranges.pop(heappop(self._heap))
