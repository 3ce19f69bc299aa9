"""Decides which segments retention deletes: pure functions over SegmentInfo, so that a table of cases can test them.

The owner knows the segments of its open logs; the cleaner reads names, sizes and times of files, and asks the owner.

As in Kafka, segments are deleted from the oldest on, without gaps. The active segment may be deleted by age (the log
rolls first), an empty one never. By size a segment is deleted only if the log without it is still at least as large as
retention.bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kproc.broker.storage.log_config import LogConfig


class SegmentInfo(NamedTuple):
    """The attributes of a segment that retention depends on."""

    base_offset: int
    next_offset: int  # The next segment's base, or the log's end.
    size: int
    largest_timestamp: int


def expired(segments: Sequence[SegmentInfo], *, now_ms: int, retention_ms: int) -> int:
    """Return how many of the oldest segments are older than `retention_ms`. -1 keeps all."""
    if retention_ms < 0:
        return 0
    count = 0
    for segment in segments:
        # Segments are deleted from the oldest on, so the first one to keep ends the count. An empty segment has no age.
        if not segment.size or now_ms - segment.largest_timestamp <= retention_ms:
            break
        count += 1
    return count


def oversized(segments: Sequence[SegmentInfo], *, retention_bytes: int) -> int:
    """Return how many of the oldest segments can be deleted so that at least `retention_bytes` remain. -1 keeps all."""
    if retention_bytes < 0:
        return 0
    surplus = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    for segment in segments:
        # As in Kafka, the segment stays if the log without it would be smaller than retention.bytes. So a log holds at
        # least that much.
        if not segment.size or surplus < segment.size:
            break
        surplus -= segment.size
        count += 1
    return count


def below_start(segments: Sequence[SegmentInfo], *, start_offset: int) -> int:
    """Return how many of the oldest segments end at or before the log's start, which DeleteRecords moves."""
    count = 0
    for segment in segments:
        # A segment that holds the start stays, although its first records are below it: files are deleted as a whole.
        if not segment.size or segment.next_offset > start_offset:
            break
        count += 1
    return count


def victims(
    segments: Sequence[SegmentInfo], config: LogConfig, *, now_ms: int, start_offset: int
) -> tuple[str, int]:
    """Return (reason, number of the oldest segments to delete) by the rule that deletes most."""
    counts = {"log start offset": below_start(segments, start_offset=start_offset)}
    if config.is_deleting:
        counts["retention.ms"] = expired(segments, now_ms=now_ms, retention_ms=config.retention_ms)
        counts["retention.bytes"] = oversized(segments, retention_bytes=config.retention_bytes)
    reason = max(counts, key=lambda name: counts[name])
    return reason, counts[reason]
