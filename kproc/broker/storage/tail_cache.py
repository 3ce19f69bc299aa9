"""TailCache: the positions of the newest batches, so that finding them for a consumer at the tail needs no I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

# Limit of cached batches. 512 batches are more than one fetch of a consumer at the tail, and take 8 KB a partition,
# which is little enough for thousands of partitions. A consumer that is further behind uses the index.
BATCHES_KEPT_MAX: Final = 512


class TailCache:
    """Last offsets and positions of the newest batches of the active segment. Owned by one Log.

    An append adds its batches to `lasts` and `positions` before it writes them, and calls `trim` after the write or
    `truncate` if the write fails.
    """

    __slots__ = ("floor_offset", "lasts", "positions")

    def __init__(self, floor_offset: int) -> None:
        self.reset(floor_offset)

    def reset(self, floor_offset: int) -> None:
        """Clear the cache and let it begin at `floor_offset`, for a new active segment."""
        self.lasts = array("q")
        self.positions = array("q")
        self.floor_offset = floor_offset

    def trim(self) -> None:
        """Remove the oldest batches. The caller has checked that there are more than BATCHES_KEPT_MAX."""
        # Remove half of the batches at once, because a removal from the front of an array moves all that remains.
        drop = len(self.lasts) - BATCHES_KEPT_MAX // 2
        self.floor_offset = self.lasts[drop - 1] + 1
        del self.lasts[:drop], self.positions[:drop]

    def truncate(self, count: int) -> None:
        """Remove all batches but the oldest `count`, because the write of the others failed."""
        del self.lasts[count:], self.positions[count:]

    def locate(self, offset: int, end_position: int) -> tuple[int, int]:
        """Return (position, size in bytes) of the batch that contains `offset`, which must be at least `floor_offset`.

        The newest batch ends at `end_position`, the segment's size.
        """
        number = bisect_left(self.lasts, offset)
        position = self.positions[number]
        following = self.positions[number + 1] if number + 1 < len(self.positions) else end_position
        return position, following - position
