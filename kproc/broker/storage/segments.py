"""SegmentList: a log's segments in order, and the files of deleted segments that wait to be unlinked."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from kproc.broker.storage.format import LOG_SUFFIX
from kproc.broker.storage.fs import Fs, Shortage, StorageFailure
from kproc.broker.storage.retention import SegmentInfo
from kproc.broker.storage.segment import LogSegment

logger = logging.getLogger(__name__)

# Limit of a log's sealed segments with open descriptors, unless its Handler sets a shared limit for all of its logs.
COLD_OPEN_MAX: Final = 2
# Files of one log that one call unlinks, in about 2 ms.
UNLINKED_FILES_MAX: Final = 100


class ColdSegments:
    """The sealed segments that were read last. Their descriptors stay open for readers that catch up.

    Each segment costs up to three descriptors. A Handler has thousands of partitions, so all of its logs share one
    ColdSegments, whose limit follows from the process's limit of descriptors.
    """

    __slots__ = ("_limit", "_segments")

    def __init__(self, limit: int = COLD_OPEN_MAX) -> None:
        self._limit = limit
        self._segments: dict[LogSegment, None] = {}  # Least recently read segment first.

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: LogSegment) -> None:
        """Add a segment that is read now. If there are too many, close the segment that was read least recently."""
        self._segments.pop(segment, None)
        self._segments[segment] = None
        if len(self._segments) > self._limit:
            # add() inserts a segment again at each read, and a dict keeps the order of insertion. So the first segment
            # was read least recently.
            oldest = next(iter(self._segments))
            del self._segments[oldest]
            oldest.close()

    def discard(self, segment: LogSegment) -> None:
        """Remove a segment that its log closes."""
        self._segments.pop(segment, None)


class Doomed(NamedTuple):
    """A file that was renamed to .deleted, and the monotonic time in ms at which it may be unlinked."""

    due_ms: int
    path: Path


class SegmentList:
    """The segments of one log, oldest first; the last is the active one. Owned by one Log."""

    __slots__ = ("_aborting", "_bases", "_doomed", "_fs", "_segments", "cold")

    def __init__(self, fs: Fs, segments: list[LogSegment]) -> None:
        assert segments, "a log has at least one segment"
        self._fs = fs
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.cold = ColdSegments()  # Only for this log, until the Handler that opened it sets a shared one.
        self._doomed: deque[Doomed] = deque()
        # Segments whose transaction index has rows. None: not looked up yet. The list is empty for most logs.
        self._aborting: list[LogSegment] | None = None

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def active(self) -> LogSegment:
        """The segment that is appended to."""
        return self._segments[-1]

    @property
    def first_base(self) -> int:
        """The base offset of the oldest segment."""
        return self._bases[0]

    def all(self) -> list[LogSegment]:
        """Return all segments, oldest first."""
        return list(self._segments)

    def bases(self) -> list[int]:
        """Return all base offsets, in ascending order."""
        return list(self._bases)

    def add(self, segment: LogSegment) -> None:
        """Append a new active segment."""
        assert segment.base_offset > self._bases[-1], (segment.base_offset, self._bases[-1])
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def number_of(self, offset: int) -> int:
        """Return the position in the list of the segment to which an offset belongs, 0 for one before the first."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def get(self, number: int) -> LogSegment | None:
        """Return a segment by its position in the list, or None behind the last."""
        return self._segments[number] if number < len(self._segments) else None

    def with_aborts(self, offset: int) -> list[LogSegment]:
        """Return the segments from the one of `offset` on that have a marker of an aborted transaction."""
        if self._aborting is None:
            self._aborting = [segment for segment in self._segments if not segment.txn_index.is_empty]
        if not self._aborting:
            return []
        base = self._bases[self.number_of(offset)]
        return self._aborting[bisect_left(self._aborting, base, key=lambda each: each.base_offset) :]

    def mark_aborts(self) -> None:
        """Record that the active segment has a marker of an aborted transaction."""
        known, active = self._aborting, self._segments[-1]
        if known is not None and active not in known[-1:]:
            known.append(active)

    def warm(self, segment: LogSegment) -> LogSegment:
        """Record that a segment is read, and return it. May close the sealed segment that was read least recently."""
        if segment is not self._segments[-1]:
            self.cold.add(segment)
        return segment

    def info(self, end_offset: int, count: int | None = None) -> list[SegmentInfo]:
        """Return the SegmentInfo of all segments, or of the `count` oldest ones, for retention."""
        # Each segment ends where the next one begins, because offsets have no gaps between segments.
        nexts = [*self._bases[1:], end_offset]
        return [
            SegmentInfo(segment.base_offset, following, segment.size, self.warm(segment).largest_timestamp())
            for segment, following in zip(self._segments[:count], nexts[:count], strict=True)
        ]

    def size_bytes(self) -> int:
        """Return the bytes of all .log files."""
        segments = self._segments
        # Fast path for the one segment that most logs have: metrics call this for thousands of logs.
        if len(segments) == 1:
            return segments[0].size
        # sum() over a list comprehension takes half the time of a generator.
        return sum([segment.size for segment in segments])

    def delete_oldest(self, count: int, *, due_ms: int) -> list[LogSegment]:
        """Remove the oldest segments from the log, and return them. Their files wait as .deleted until `due_ms`.

        If the disk has no space for the new names, fewer segments are removed. The next check removes the others.
        """
        assert count < len(self._segments), (count, len(self._segments))
        gone: list[LogSegment] = []
        for segment in self._segments[:count]:
            try:
                self._retire(segment, due_ms=due_ms, with_snapshot=True)
            except Shortage as failure:
                logger.warning(
                    "cannot rename segment %s for its deletion, trying again later: %s",
                    segment.path(LOG_SUFFIX),
                    failure,
                )
                break
            gone.append(segment)
        del self._segments[: len(gone)], self._bases[: len(gone)]
        # Discard the list of segments with aborted transactions, which may contain a deleted one. The next look-up
        # builds it.
        self._aborting = None
        return gone

    def retire_for(self, base_offset: int, number: int, count: int, *, due_ms: int) -> list[LogSegment]:
        """Rename adjacent segments' files to .deleted, for a compacted segment that begins at `base_offset`.

        The segments stay in the list until replace(), which must follow. The producer snapshot of the first segment
        stays, because the new segment has the same base offset.
        """
        gone = self._segments[number : number + count]
        # The renames replace .deleted files of earlier swaps. Remove the entries of those, so that the new files of the
        # same names wait until their own due time.
        names = {path.name for segment in gone for path in segment.deleted_paths()}
        self._doomed = deque(each for each in self._doomed if each.path.name not in names)
        for segment in gone:
            self._retire(segment, due_ms=due_ms, with_snapshot=segment.base_offset != base_offset)
        return gone

    def replace(self, number: int, count: int, segment: LogSegment) -> None:
        """Replace retired segments in the list with a compacted one. The active segment must not be among them."""
        assert number + count < len(self._segments), (number, count, len(self._segments))
        assert segment.base_offset == self._bases[number], (segment.base_offset, self._bases[number])
        self._segments[number : number + count] = [segment]
        self._bases[number : number + count] = [segment.base_offset]
        self._aborting = None

    def _retire(self, segment: LogSegment, *, due_ms: int, with_snapshot: bool) -> None:
        self._doomed.extend(
            Doomed(due_ms, path) for path in segment.mark_deleted(with_snapshot=with_snapshot)
        )
        segment.close()
        self.cold.discard(segment)

    def unlink_due(self, now_ms: int) -> int:
        """Unlink files that are due, at most UNLINKED_FILES_MAX, and return their number."""
        count = 0
        while count < UNLINKED_FILES_MAX and self._doomed and self._doomed[0].due_ms <= now_ms:
            try:
                self._fs.unlink(self._doomed[0].path)
            except StorageFailure as failure:
                # The next call retries, and so does the next opening of the log.
                logger.warning("cannot unlink %s, trying again later: %s", self._doomed[0].path, failure)
                break
            self._doomed.popleft()
            count += 1
        return count

    def next_due_ms(self) -> int | None:
        """Return the monotonic time in ms at which unlink_due() has work again, or None if no file waits."""
        return self._doomed[0].due_ms if self._doomed else None

    def doomed(self) -> list[Doomed]:
        """Return the files that were renamed to .deleted and wait to be unlinked, for the partition's next owner."""
        return list(self._doomed)

    def doom(self, doomed: list[Doomed]) -> None:
        """Add files to unlink later, which the partition's last owner has renamed to .deleted."""
        self._doomed.extend(doomed)

    def move(self, directory: Path) -> None:
        """Use new paths, because the partition's directory was renamed."""
        for segment in self._segments:
            segment.move(directory)
        self._doomed = deque(Doomed(due_ms, directory / path.name) for due_ms, path in self._doomed)

    def close(self) -> None:
        """Close all descriptors."""
        for segment in self._segments:
            segment.close()
            self.cold.discard(segment)
