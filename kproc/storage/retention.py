"""Which segments retention takes: pure functions over facts, so that a table of cases tests them.

As in Kafka: only from the oldest on, without gaps; the active segment may go by age (the log rolls first),
an empty one never; a segment goes by size only while the log stays at least as large as retention.bytes
without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class SegmentFacts(NamedTuple):
    """What retention looks at."""

    base_offset: int
    next_offset: int  # The next segment's base, or the log's end.
    size: int
    largest_timestamp: int


def expired(segments: Sequence[SegmentFacts], *, now_ms: int, retention_ms: int) -> int:
    """How many of the oldest segments are older than retention.ms; -1 keeps all."""
    if retention_ms < 0:
        return 0
    count = 0
    for segment in segments:
        if not segment.size or now_ms - segment.largest_timestamp <= retention_ms:
            break
        count += 1
    return count


def oversized(segments: Sequence[SegmentFacts], *, retention_bytes: int) -> int:
    """How many of the oldest segments can go with retention.bytes still there; -1 keeps all."""
    if retention_bytes < 0:
        return 0
    surplus = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    for segment in segments:
        if not segment.size or surplus < segment.size:
            break
        surplus -= segment.size
        count += 1
    return count


def below_start(segments: Sequence[SegmentFacts], *, start_offset: int) -> int:
    """How many of the oldest segments end at or before the log's start (DeleteRecords moved it)."""
    count = 0
    for segment in segments:
        if not segment.size or segment.next_offset > start_offset:
            break
        count += 1
    return count
