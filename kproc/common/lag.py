"""Lag: how far a reader is behind the end of a partition's log."""

from __future__ import annotations


def lag_between(offset: int, end: int) -> int:
    """Return the number of offsets between a reader's next offset and the log's end.

    Deleted records count until the reader has passed them, as in Kafka's tools. An offset above the log's end, which
    can occur after the log lost records, gives 0.
    """
    return max(0, end - offset)
