"""Lag: how far a reader is behind the end of a partition's log."""

from __future__ import annotations


def lag_between(offset: int, end: int, start: int = 0) -> int:
    """Return the number of records between a reader's next offset and the log's end.

    start: the log's start. Records below it were deleted, so they do not count. An offset behind the end, which a log
    that lost records can have, gives 0.
    """
    return max(0, end - max(offset, start))
