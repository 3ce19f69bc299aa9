"""LastStop: what is known about a log from outside its directory, when a Handler opens it.

log_opener.py collects it from the checkpoints, the clean-shutdown marker and the partition table. log_end.py decides by
it which batches need no verification.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class TrustedEnd(NamedTuple):
    """The end of a log, as its owner published it in the partition table before it died.

    All batches before `position` in the segment with the base offset `segment_base` are complete.
    """

    end_offset: int
    segment_base: int
    position: int
    start_offset: int
    # False if the owner knew no producer. The replay of producers can then skip all batches before `end_offset`.
    has_producers: bool = True


class LastStop(msgspec.Struct, frozen=True):
    """Information about a log from outside its directory: checkpoints, and the row that its last owner published."""

    recovery_point: int = 0  # A sync has confirmed every record below it.
    start_offset: int = 0  # DeleteRecords has moved the log's start there.
    recorded_start: int | None = None  # The largest start in the data directory's checkpoints (log_start.py).
    clean: bool = False  # True after a clean stop: all logs were closed and synced.
    trusted: TrustedEnd | None = None  # The published end, if only the owner died and the host did not.

    @property
    def effective_start(self) -> int:
        """The log's start: the larger one of those in its checkpoint and in the row that its dead owner published."""
        return (
            self.start_offset if self.trusted is None else max(self.start_offset, self.trusted.start_offset)
        )

    @property
    def explained_start(self) -> int | None:
        """The largest offset at which the log may start, by checkpoints and row. None if neither records a start."""
        # A start of 0 in the checkpoint may mean that no start was ever recorded. With a row the start is certainly 0.
        if self.effective_start or self.trusted is not None:
            return max(self.effective_start, self.recorded_start or 0)
        return self.recorded_start

    @property
    def confirmed_end(self) -> int:
        """The offset that the log certainly reached: a sync confirmed it, or an owner published it and died."""
        return (
            self.recovery_point if self.trusted is None else max(self.recovery_point, self.trusted.end_offset)
        )
