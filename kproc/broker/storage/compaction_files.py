"""The files of a compaction: how they are written, and how the opening of a log cleans up after a crash.

    <base>.log.cleaned    the cleaner is writing it, or had. Nobody reads it.
    <base>.log.swap       whole and synced; what it replaces is being renamed to .deleted, or was.
    <base>.log            in force

The owner takes these steps, each a rename, indexes before data each time:

    1  .cleaned -> .swap, the .log last: with it the swap is decided
    2  every old segment's files -> .deleted, oldest segment first, its .log last
    3  .swap -> final, the .log last

A crash leaves a prefix of them. Without a .log.swap nothing was decided: .cleaned and other .swap files go. With
one, old segments whose .log is still there go (2 was not done), then 3 is done. As in Kafka, a .log.swap above
a .log.cleaned does not count: it is part of a replacement by several segments, which Kafka makes and we do not.
The last batch of what is replaced always stays, if need be without records, so the .swap file itself tells up
to which offset it replaces.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from kproc.broker.storage.batch_scan import BadBatch, walk_headers
from kproc.broker.storage.format import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    INT32_MAX,
    LOG_SUFFIX,
    NO_TIMESTAMP,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    AbortedTransaction,
    parse_segment_file_name,
    segment_file_name,
)
from kproc.broker.storage.fs import DiskFull, Fs, StorageFailure
from kproc.broker.storage.index import OffsetIndex, TimeIndex, create_index
from kproc.broker.storage.txn_index import append_aborted
from kproc.wire.batch_header import Header, last_offset_of

logger = logging.getLogger(__name__)

# In the order in which they are renamed: the data last.
SWAPPED_SUFFIXES: Final = (TXN_INDEX_SUFFIX, TIME_INDEX_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX)

_WRITE_BYTES: Final = 1 << 20
# Between two syncs of a file that is being written: one of them must not take long, since the cleaner does
# nothing else meanwhile.
_SYNC_BYTES: Final = 16 << 20


class SegmentIdentity(NamedTuple):
    """Identifies a segment's file by its inode, because it may have been renamed."""

    base_offset: int
    size: int
    inode: int


class CleanedSegment:
    """A segment that the cleaner writes: `.cleaned` files with their indexes. Ends by finish() or remove()."""

    def __init__(self, fs: Fs, directory: Path, base_offset: int, *, interval_bytes: int) -> None:
        self._fs = fs
        self._directory = directory
        self.base_offset = base_offset
        self._interval_bytes = interval_bytes
        self.position = 0
        self._written = self._synced = self._since_index = 0
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._largest, self._largest_offset = NO_TIMESTAMP, base_offset
        self._buffers: list[bytes | memoryview] = []
        self._pairs: list[tuple[int, int]] = []
        self._times: list[tuple[int, int]] = []
        for suffix in SWAPPED_SUFFIXES:
            fs.unlink(self.path(suffix))
        self._fd = fs.open(self.path(LOG_SUFFIX), create=True)
        index_path, time_path = self.path(INDEX_SUFFIX), self.path(TIME_INDEX_SUFFIX)
        try:
            self._index = OffsetIndex(fs, index_path, base_offset, 0, create_index(fs, index_path))
            self._time_index = TimeIndex(fs, time_path, base_offset, 0, create_index(fs, time_path))
        except StorageFailure:
            self.remove()
            raise

    def path(self, suffix: str) -> Path:
        """The path of one of the files."""
        return self._directory / (segment_file_name(self.base_offset, suffix) + CLEANED_SUFFIX)

    def add(self, header: Header, batch: bytes | memoryview, *, largest: int, is_empty: bool) -> None:
        """Append a batch; `largest` is its largest timestamp, which counts unless it is empty."""
        last = last_offset_of(header)
        assert last - self.base_offset <= INT32_MAX, "group_segments() keeps to 32-bit offsets"
        if largest > self._largest and not is_empty:
            self._largest, self._largest_offset = largest, last
        if self._since_index > self._interval_bytes:
            self._pairs.append((last, self.position))
            self._times.append((self._largest, self._largest_offset))
            self._since_index = 0
        self._since_index += len(batch)
        self.position += len(batch)
        self._buffers.append(batch)

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """An abort marker stayed whose transaction's batches were there: readers must be told of it."""
        append_aborted(self._fs, self.path(TXN_INDEX_SUFFIX), aborted)

    def flush(self) -> int:
        """Write what has gathered; returns how many bytes. Syncs now and then."""
        size = self.position - self._written
        if size:
            self._fs.write(self._fd, self._buffers, position=self._written)
            self._written = self.position
            self._buffers = []
        if self._pairs:
            assert self._index is not None
            assert self._time_index is not None
            self._time_index.append(self._times)
            self._index.append(self._pairs)
            self._pairs, self._times = [], []
        if self._written - self._synced >= _SYNC_BYTES:
            self._fs.sync(self._fd)
            self._synced = self._written
        return size

    @property
    def is_flush_due(self) -> bool:
        """True if the buffers hold enough bytes for one write."""
        return self.position - self._written >= _WRITE_BYTES

    def finish(self, modified_ns: int) -> SegmentIdentity:
        """Write the rest, sync everything with the names, close. The file is as old as what it replaces."""
        fs = self._fs
        self.flush()
        assert self._index is not None
        assert self._time_index is not None
        if not self._time_index.append([(self._largest, self._largest_offset)]):
            raise DiskFull(errno.ENOSPC, f"{self.path(TIME_INDEX_SUFFIX)} could not be completed")
        fs.set_modified(self._fd, modified_ns)
        if (rows := fs.read_file(self.path(TXN_INDEX_SUFFIX))) is not None:
            fs.note_aborted(self._fd, crc32(rows))
        fs.sync(self._fd)
        self._index.sync()
        self._time_index.sync()
        facts = fs.facts(self._fd)
        assert facts.st_size == self.position, (facts.st_size, self.position)
        self.close()
        if fs.exists(self.path(TXN_INDEX_SUFFIX)):
            descriptor = fs.open(self.path(TXN_INDEX_SUFFIX))
            try:
                fs.sync(descriptor)
            finally:
                fs.close(descriptor)
        return SegmentIdentity(self.base_offset, facts.st_size, facts.st_ino)

    def close(self) -> None:
        """Close all descriptors."""
        if self._fd >= 0:
            self._fs.close(self._fd)
            self._fd = -1
        for index in (self._index, self._time_index):
            if index is not None:
                index.close()

    def remove(self) -> None:
        """Remove the files: the owner refused the swap, or was never asked."""
        self.close()
        for suffix in SWAPPED_SUFFIXES:
            self._fs.unlink(self.path(suffix))


def remove_cleaned(fs: Fs, directory: Path) -> None:
    """Remove the files that an earlier cleaner left. Called only by the cleaner, or by an owner that opens the log."""
    for name in fs.list_directory(directory):
        if name.endswith(CLEANED_SUFFIX):
            fs.unlink(directory / name)


def deleted_files(directory: Path, base_offset: int) -> list[Path]:
    """The names under which a segment's replaced files wait: their data last."""
    names = (segment_file_name(base_offset, suffix) + DELETED_SUFFIX for suffix in SEGMENT_SUFFIXES)
    return [directory / name for name in names]


def finish_swaps(fs: Fs, directory: Path) -> list[str]:
    """Bring a swap that a crash interrupted to its end, or take back one that was not decided.

    Returns the names that are in the directory then: after a crash thousands of logs are opened, nearly all of which
    were not being compacted.
    """
    names = fs.list_directory(directory)
    if not any(name.endswith((SWAP_SUFFIX, CLEANED_SUFFIX)) for name in names):
        return names
    cleaned = [
        base
        for name in names
        if (base := parse_segment_file_name(name, LOG_SUFFIX + CLEANED_SUFFIX)) is not None
    ]
    oldest_cleaned = min(cleaned, default=None)
    for name in names:
        if not name.endswith(SWAP_SUFFIX):
            continue
        base = parse_segment_file_name(name, LOG_SUFFIX + SWAP_SUFFIX)
        if base is not None and (oldest_cleaned is None or base < oldest_cleaned):
            _finish_swap(fs, directory, base)
    # What is left is of no swap that was decided: a .log.swap above a .log.cleaned, and index files whose .log.swap
    # was never made. It goes before the .cleaned files: without these the next opening, if we died in between, would
    # take such a .log.swap for a decided one.
    for name in fs.list_directory(directory):
        if name.endswith(SWAP_SUFFIX):
            fs.unlink(directory / name)
    remove_cleaned(fs, directory)
    return fs.list_directory(directory)


def _finish_swap(fs: Fs, directory: Path, base: int) -> None:
    """Steps 2 and 3 for the segment whose .log.swap is there."""
    end_offset = _end_of_swap(fs, directory, base)
    if end_offset is None:
        if fs.exists(directory / segment_file_name(base, LOG_SUFFIX)):
            # The oldest is renamed first, so all old segments are still there: remove the swap instead.
            return
        end_offset = base
    logger.info("swap=finished directory=%s base=%d end=%d", directory, base, end_offset)
    names = fs.list_directory(directory)
    replaced = sorted(
        old
        for name in names
        if (old := parse_segment_file_name(name, LOG_SUFFIX)) is not None and base <= old < end_offset
    )
    for old in replaced:
        for suffix in SWAPPED_SUFFIXES:
            fs.unlink(directory / segment_file_name(old, suffix))
    for suffix in SWAPPED_SUFFIXES:
        final = segment_file_name(base, suffix)
        fs.rename(directory / (final + SWAP_SUFFIX), directory / final)


def _end_of_swap(fs: Fs, directory: Path, base: int) -> int | None:
    """The offset behind the last batch of a .log.swap file, or None if it is damaged.

    It was synced before it got its name, so that does not happen; the log's opening says so then.
    """
    descriptor = fs.open(directory / (segment_file_name(base, LOG_SUFFIX) + SWAP_SUFFIX), writable=False)
    end_offset = base
    try:
        for _, header in walk_headers(fs, descriptor, 0, fs.facts(descriptor).st_size):
            end_offset = last_offset_of(header) + 1
    except BadBatch as problem:
        logger.error("swap=damaged directory=%s base=%d reason=%s", directory, base, problem)
        return None
    finally:
        fs.close(descriptor)
    return end_offset
