"""The files of a compaction: the cleaner writes them, and opening a log cleans them up after a crash.

    <base>.log.cleaned    The cleaner is writing it, or has died. No other role reads it.
    <base>.log.swap       Complete and synced. The segments that it replaces are being renamed to .deleted.
    <base>.log            A segment of the log.

The owner takes these steps. Each is a series of renames, indexes before the .log file:

    1  .cleaned -> .swap. The rename of the .log file decides the swap.
    2  All files of each old segment -> .deleted, oldest segment first.
    3  .swap -> the final names.

A crash leaves a prefix of these renames, and finish_swaps() completes or undoes the swap:

- No .log.swap: the crash came before the end of step 1. The .cleaned files and other .swap files are removed.
- A .log.swap: the crash came in step 2 or 3. Old segments that still have their .log file are removed, then step 3 is
  taken.
- As in Kafka, a .log.swap above a .log.cleaned does not count. It belongs to a replacement by several segments, which
  Kafka makes and kproc does not.

The last batch of the replaced segments always stays, if necessary without records. The .swap file itself therefore
shows up to which offset it replaces.
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
from kproc.wire.record_batch import NO_TIMESTAMP

logger = logging.getLogger(__name__)

# Suffixes in the order of the renames. The .log file is last, because its rename decides the swap.
SWAPPED_SUFFIXES: Final = (TXN_INDEX_SUFFIX, TIME_INDEX_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX)

_WRITE_BYTES: Final = 1 << 20
# Bytes between two syncs of a file that is being written. A sync blocks the cleaner, so each must be short.
_SYNC_BYTES: Final = 16 << 20


class SegmentIdentity(NamedTuple):
    """Identifies a segment's file by its inode, because it may have been renamed."""

    base_offset: int
    size: int
    inode: int


class CleanedSegment:
    """A segment that the cleaner writes, as `.cleaned` files with indexes. End it with finish() or remove()."""

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
        self._end_offset = base_offset
        self._buffers: list[bytes | memoryview] = []
        self._pairs: list[tuple[int, int]] = []
        self._times: list[tuple[int, int]] = []
        # Remove the .cleaned files of a pass that died, because open(create=True) fails for an existing file.
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
        """Return the path of the segment's .cleaned file with this suffix."""
        return self._directory / (segment_file_name(self.base_offset, suffix) + CLEANED_SUFFIX)

    def add(self, header: Header, batch: bytes | memoryview, *, largest: int, is_empty: bool) -> None:
        """Buffer a batch. `largest` is its largest timestamp in ms, which is ignored if the batch has no records."""
        last = last_offset_of(header)
        self._end_offset = last + 1
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

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Add a row to the new transaction index, for an abort marker that compaction keeps."""
        append_aborted(self._fs, self.path(TXN_INDEX_SUFFIX), aborted)

    def flush(self) -> int:
        """Write the buffered batches, and return the number of bytes. Syncs after every 16 MiB."""
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

    def finish(self, modified_ns: int, next_offset: int) -> SegmentIdentity:
        """Write the rest, sync all files and close them. Return the new segment's identity.

        `next_offset` is the base offset of the next segment. If the new segment ends there, its size is recorded in an
        attribute, so that the opening of the log notices a truncated file. If it ends before, Kafka's cleaner has
        removed the last records. Then no size is recorded, because the opening would take the gap for lost records. The
        .log file gets the modification time `modified_ns`, because retention may use it. The caller must sync the
        directory. Raises DiskFull if the time index cannot be completed.
        """
        fs = self._fs
        self.flush()
        assert self._index is not None
        assert self._time_index is not None
        if not self._time_index.append([(self._largest, self._largest_offset)]):
            raise DiskFull(errno.ENOSPC, f"no space for the last entry of {self.path(TIME_INDEX_SUFFIX)}")
        fs.set_modified(self._fd, modified_ns)
        # Write the checksum of the transaction index before the sync of the .log file, which makes its attribute
        # durable, too.
        if (rows := fs.read_file(self.path(TXN_INDEX_SUFFIX))) is not None:
            fs.write_aborted_mark(self._fd, crc32(rows))
        # The mark of synced bytes precedes the sync. If the sync fails, the file never gets a name in the log.
        if self._end_offset == next_offset:
            fs.write_synced_mark(self._fd, self.position)
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
        """Close and remove the files, because the pass failed or no swap is needed."""
        self.close()
        for suffix in SWAPPED_SUFFIXES:
            self._fs.unlink(self.path(suffix))


def remove_cleaned(fs: Fs, directory: Path) -> None:
    """Remove the .cleaned files of a pass that was not finished.

    Called only by the cleaner, or by an owner that opens the log.
    """
    for name in fs.list_directory(directory):
        if name.endswith(CLEANED_SUFFIX):
            fs.unlink(directory / name)


def deleted_files(directory: Path, base_offset: int) -> list[Path]:
    """Return the paths of a segment's replaced files, which wait to be unlinked. The .log file is last."""
    names = (segment_file_name(base_offset, suffix) + DELETED_SUFFIX for suffix in SEGMENT_SUFFIXES)
    return [directory / name for name in names]


def finish_swaps(fs: Fs, directory: Path) -> list[str]:
    """Complete the swaps of compacted segments that a crash interrupted, or undo those without a .log.swap file.

    Returns the names in the directory afterwards, so that the caller needs no second listing: after a crash thousands
    of logs are opened.
    """
    names = fs.list_directory(directory)
    # In the usual case no swap was interrupted. A start opens thousands of logs, so this case costs one listing only.
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
        # Skip a .log.swap above a .log.cleaned: Kafka crashed while it still wrote a replacement by several segments,
        # so that swap was never decided.
        if base is not None and (oldest_cleaned is None or base < oldest_cleaned):
            _finish_swap(fs, directory, base)
    # The remaining .swap files belong to undecided swaps: a .log.swap above a .log.cleaned, or index files that were
    # renamed to .swap before a crash, while the .log file was not. Remove them before the .cleaned files. In the other
    # order a crash could leave a .log.swap without a .log.cleaned, which would count as decided.
    for name in fs.list_directory(directory):
        if name.endswith(SWAP_SUFFIX):
            fs.unlink(directory / name)
    remove_cleaned(fs, directory)
    return fs.list_directory(directory)


def _finish_swap(fs: Fs, directory: Path, base: int) -> None:
    """Finish a swap for which a crash left a .log.swap file: remove the old segments, then rename .swap to final names.

    If the .log.swap file is damaged, the oldest old segment decides. If it exists, all old segments exist: do nothing,
    and the caller removes the .log.swap file. If it is missing, the crash came during the last renames: finish them.
    """
    end_offset = _read_swap_end(fs, directory, base)
    if end_offset is None:
        if fs.exists(directory / segment_file_name(base, LOG_SUFFIX)):
            # The .swap file is damaged. The oldest segment is the first one that a swap renames to .deleted, and it
            # still exists, so all old segments still exist. Undo the swap.
            return
        # The .swap file is damaged, and the oldest old segment is removed already. Assume that the crash came during
        # the renames from .swap to the final names, and finish them.
        end_offset = base
    logger.info(
        "swap=finished directory=%s base=%d end=%d: finished a compaction that a crash had interrupted",
        directory,
        base,
        end_offset,
    )
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


def _read_swap_end(fs: Fs, directory: Path, base: int) -> int | None:
    """Return the offset behind the last batch of a .log.swap file, or None if it is damaged.

    No crash damages it, because it was synced before it got its name.
    """
    descriptor = fs.open(directory / (segment_file_name(base, LOG_SUFFIX) + SWAP_SUFFIX), writable=False)
    end_offset = base
    try:
        for _, header in walk_headers(fs, descriptor, 0, fs.facts(descriptor).st_size):
            end_offset = last_offset_of(header) + 1
    except BadBatch as problem:
        logger.error(
            "swap=damaged directory=%s base=%d: discarding the .log.swap file if the old segment exists, else "
            "keeping it; reason=%s",
            directory,
            base,
            problem,
        )
        return None
    finally:
        fs.close(descriptor)
    return end_offset
