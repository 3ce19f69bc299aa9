"""TailCache: the positions of the newest batches, so that finding them for a consumer at the tail needs no I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

# A consumer at the tail is a few batches behind. 512 batches take 8 KB a partition, which is small enough for
# thousands of partitions, and are more than one fetch. A consumer that is further behind uses the index.
BATCHES_KEPT_MAX: Final = 512


class TailCache:
    """Last offsets and positions of the newest batches of the active segment. Owned by one Log."""

    __slots__ = ("_lasts", "_positions", "floor_offset")

    def __init__(self, floor_offset: int) -> None:
        self.reset(floor_offset)

    def reset(self, floor_offset: int) -> None:
        """Clear the cache and let it begin at `floor_offset`, for a new active segment."""
        self._lasts = array("q")
        self._positions = array("q")
        self.floor_offset = floor_offset

    def extend(self, lasts: list[int], positions: list[int]) -> None:
        """Add batches that were appended, oldest first."""
        self._lasts.extend(lasts)
        self._positions.extend(positions)
        if len(self._lasts) > BATCHES_KEPT_MAX:
            # Remove half at once, because each removal from the front of an array moves all that remains.
            drop = len(self._lasts) - BATCHES_KEPT_MAX // 2
            self.floor_offset = self._lasts[drop - 1] + 1
            del self._lasts[:drop], self._positions[:drop]

    def locate(self, offset: int, end_position: int) -> tuple[int, int]:
        """Return (position, size in bytes) of the batch that contains `offset`, at least `floor_offset`."""
        number = bisect_left(self._lasts, offset)
        position = self._positions[number]
        following = self._positions[number + 1] if number + 1 < len(self._positions) else end_position
        return position, following - position
