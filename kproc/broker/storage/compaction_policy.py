"""Decides which segments are compacted: pure functions over attributes of segments, tested with a table of cases.

As in Kafka's LogCleanerManager, the section before the first dirty offset was compacted before, and the section from
there to the first uncleanable offset can be compacted now. A log is due if the second section is a large enough share
of both, or holds records that are older than max.compaction.lag.ms. The active segment is never compacted. Unlike in
Kafka, records that no sync has confirmed are not compacted either: a power loss can remove the newer record of a key,
and then the older one must still exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kproc.broker.storage.format import INT32_MAX
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.retention import SegmentInfo
from kproc.wire.primitives import INT64_MAX

# Limit of old segments that one swap replaces. For each of them the owner makes up to five renames in one step. The
# next pass groups segments that are still small.
SEGMENTS_PER_SWAP: Final = 16


class DirtySection(NamedTuple):
    """The part of a log that can be compacted: offsets from `first_dirty` to before `first_uncleanable`."""

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        """Cleanable bytes as a share of clean and cleanable bytes."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Return True if min.cleanable.dirty.ratio or max.compaction.lag.ms requires a compaction now."""
        return bool(self.cleanable_bytes) and (
            self.is_overdue or self.ratio > config.min_cleanable_dirty_ratio
        )


class CompactionLimits(NamedTuple):
    """The offsets of a log between which it may be compacted."""

    start_offset: int
    stable_offset: int  # The last stable offset: an open transaction begins there.
    synced_offset: int  # The recovery point: syncs have confirmed all records below.


def assess(
    segments: Sequence[SegmentInfo],
    config: LogConfig,
    limits: CompactionLimits,
    *,
    checkpoint: int | None,
    now_ms: int,
    first_timestamp: Callable[[int], int],
) -> DirtySection:
    """Return the section of a log that can be compacted.

    segments: all segments, oldest first. The last one is the active segment.
    checkpoint: the offset where the last compaction ended, or None. It is ignored if it is outside the log.
    first_timestamp: returns the largest timestamp in ms of the first batch of the segment with a given base offset.
    It is called only if max.compaction.lag.ms is set.
    """
    end_offset = segments[-1].next_offset
    sealed = segments[:-1]
    start_offset = first_dirty = limits.start_offset
    # A checkpoint outside of the log is stale: the log was truncated after a power loss, or its start moved by a
    # DeleteRecords.
    if checkpoint is not None and start_offset <= checkpoint <= end_offset:
        first_dirty = checkpoint
    dirty = [segment for segment in sealed if segment.next_offset > first_dirty]
    first_uncleanable = _first_uncleanable(segments, dirty, config, limits, now_ms)
    return DirtySection(
        first_dirty,
        first_uncleanable,
        sum(segment.size for segment in sealed if segment.next_offset <= first_dirty),
        sum(segment.size for segment in dirty if segment.base_offset < first_uncleanable),
        _is_overdue(dirty, config, now_ms, first_timestamp),
    )


def _first_uncleanable(
    segments: Sequence[SegmentInfo],
    dirty: Sequence[SegmentInfo],
    config: LogConfig,
    limits: CompactionLimits,
    now_ms: int,
) -> int:
    """Return the base offset of the first segment that must not be compacted yet. The active segment is one."""
    # Do not compact an open transaction, which may still be aborted, an unsynced record, which may be lost, or the
    # active segment.
    bound = min(limits.stable_offset, limits.synced_offset, segments[-1].base_offset)
    if config.min_compaction_lag_ms > 0:
        young = now_ms - config.min_compaction_lag_ms
        bound = min([bound, *(segment.base_offset for segment in dirty if segment.largest_timestamp > young)])
    # Compact whole segments only. So exclude the segment that contains `bound`, the first offset not to compact.
    return max(
        (segment.base_offset for segment in segments if segment.base_offset <= bound),
        default=segments[0].base_offset,
    )


def _is_overdue(
    dirty: Sequence[SegmentInfo], config: LogConfig, now_ms: int, first_timestamp: Callable[[int], int]
) -> bool:
    if config.max_compaction_lag_ms == INT64_MAX:
        return False
    latest_ms = now_ms - config.max_compaction_lag_ms
    return any(0 < first_timestamp(segment.base_offset) < latest_ms for segment in dirty if segment.size)


class SealedSegment(NamedTuple):
    """A segment that may be compacted. Its attributes come from its owner and from its files."""

    base_offset: int
    next_offset: int
    size: int
    inode: int
    index_bytes: int
    time_index_bytes: int
    modified_ns: int


def group_segments(
    segments: Sequence[SealedSegment], config: LogConfig, *, segments_max: int = SEGMENTS_PER_SWAP
) -> list[list[SealedSegment]]:
    """Group adjacent segments that together fit into one by segment.bytes, segment.index.bytes and 32-bit offsets.

    Each group has at most `segments_max` segments.
    """
    groups: list[list[SealedSegment]] = []
    for segment in segments:
        group = groups[-1] if groups else []
        if (
            group
            and len(group) < segments_max
            and sum(each.size for each in group) + segment.size <= config.segment_bytes
            and sum(each.index_bytes for each in group) + segment.index_bytes <= config.segment_index_bytes
            and sum(each.time_index_bytes for each in group) + segment.time_index_bytes
            <= config.segment_index_bytes
            and segment.next_offset - 1 - group[0].base_offset <= INT32_MAX
        ):
            group.append(segment)
        else:
            groups.append([segment])
    return groups
