"""Traffic: bytes and records of each partition, in and out; counted only while telemetry asks for them.

What comes in is counted by the owner that appends it, what goes out by the Handler that answers the Fetch.
"""

from __future__ import annotations

from collections.abc import Sequence

from kproc.broker.storage.results import AppendResult

# By topic name, or by topic id where a Fetch names it so.
TrafficKey = tuple[str | bytes | None, int]
Rows = dict[TrafficKey, list[int]]


class Traffic:
    """One per Handler, from one report to the next."""

    __slots__ = ("_came", "_went")

    def __init__(self) -> None:
        self._came: Rows = {}
        self._went: Rows = {}

    def appended(self, key: TrafficKey, count: int, results: Sequence[AppendResult]) -> None:
        """An append of `count` bytes; of its batches those that were stored count."""
        row = self._came.get(key)
        if row is None:
            row = self._came[key] = [0, 0]
        row[0] += count
        for result in results:
            if not result.error_code and not result.is_duplicate:
                row[1] += result.last_offset - result.base_offset + 1

    def fetched(self, key: TrafficKey, count: int) -> None:
        """A Fetch that brought records was answered."""
        row = self._went.get(key)
        if row is None:
            row = self._went[key] = [0, 0]
        row[0] += count
        row[1] += 1

    def take(self) -> tuple[Rows, Rows]:
        """All since the last time: [bytes, records] that came, [bytes, fetches] that went."""
        taken = self._came, self._went
        self._came, self._went = {}, {}
        return taken
