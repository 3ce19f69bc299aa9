"""LogSegment: the files of one segment of a log. It knows positions and indexes, but not what may be appended."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from kproc.broker.storage.batch_scan import walk_headers
from kproc.broker.storage.format import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file_name,
)
from kproc.broker.storage.fs import DiskFull, Fs, Shortage, StorageFailure, is_unlinked
from kproc.broker.storage.index import (
    CLOSED,
    OffsetIndex,
    TimeIndex,
    create_index,
    open_offset_index,
    open_time_index,
)
from kproc.broker.storage.txn_index import TxnIndex
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import MAX_TIMESTAMP
from kproc.wire.file_range import FileRange
from kproc.wire.record_batch import NO_TIMESTAMP

# A segment reserves disk blocks after it has grown by RESERVE_FROM_BYTES since it was opened: as many as it holds, but
# at most RESERVE_BYTES_MAX at a time. 4 MiB at a time instead of 16 MiB would keep 90% of the gain.
RESERVE_FROM_BYTES: Final = 4 << 20
RESERVE_BYTES_MAX: Final = 16 << 20
# The page size of the kernel: a power loss keeps or loses whole pages of a file.
_PAGE_BYTES: Final = 4096
# Growth (bytes) of a segment after which a reservation that the file system refused is tried again.
_ASK_AGAIN_BYTES: Final = 64 << 20


class LogSegment:
    """One segment, owned by its Log. The last segment of a log is appended to; the others are sealed.

    `fd` is the descriptor of the .log file. It may be CLOSED, and `descriptor()` opens the file again. A segment that a
    sync thread works on is pinned: its descriptor stays open until the last unpin(). Otherwise the kernel could give
    the descriptor's number to another file before the fdatasync.
    """

    __slots__ = (
        "_closing",
        "_pins",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "directory",
        "fd",
        "first_timestamp",
        "fs",
        "index",
        "inode",
        "is_joined",
        "marked_bytes",
        "max_timestamp",
        "max_timestamp_offset",
        "needs_index",
        "path_bytes",
        "reserve_at",
        "reserved_end",
        "size",
        "synced_bytes",
        "time_index",
        "txn_index",
    )  # fmt: skip

    def __init__(self, fs: Fs, directory: Path, base_offset: int) -> None:
        self.fs = fs
        self._pins = 0
        self._closing = False
        self.directory = directory
        self.base_offset = base_offset
        self.fd = CLOSED
        # Encode the path once, because every Fetch response contains it.
        self.path_bytes = os.fsencode(self.path(LOG_SUFFIX))
        self.inode = 0
        self.size = 0
        self.reserve_at = RESERVE_FROM_BYTES  # Call reserve() before a write that ends beyond this.
        self.reserved_end = 0  # End of the reserved blocks, or 0 if none are reserved.
        self.synced_bytes = 0  # Bytes that are known to be on the disk since this process opened the file.
        # The number of synced bytes in the file's attribute. The sync thread sets it, and the owner between two rounds.
        self.marked_bytes = 0
        # True if this process has sealed the segment, or has seen that its records end where the next segment begins.
        self.is_joined = False
        self.bytes_since_index = 0
        self.created_ms = 0
        # The first batch's largest timestamp (ms). None if the segment is empty or it was not read yet.
        self.first_timestamp: int | None = None
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        # True if the indexes were missing or implausible and are empty now. Recovery fills them.
        self.needs_index = False
        self.index = OffsetIndex(fs, self.path(INDEX_SUFFIX), base_offset, 0, CLOSED)
        self.time_index = TimeIndex(fs, self.path(TIME_INDEX_SUFFIX), base_offset, 0, CLOSED)
        self.txn_index = TxnIndex(fs, self.path(TXN_INDEX_SUFFIX))

    @classmethod
    def create(cls, fs: Fs, directory: Path, base_offset: int, *, now_ms: int) -> LogSegment:
        """Create an empty segment with its three files. If that fails, remove the files that were created."""
        segment = cls(fs, directory, base_offset)
        index_path, time_path = segment.path(INDEX_SUFFIX), segment.path(TIME_INDEX_SUFFIX)
        made: list[tuple[int, Path]] = []
        # Open the directory before files are created. Undoing a failed creation must sync it, and might find no free
        # descriptor then.
        names = fs.open_directory(directory)
        try:
            made.append((_create_log(fs, segment.path(LOG_SUFFIX)), segment.path(LOG_SUFFIX)))
            segment.inode = fs.facts(made[0][0]).st_ino
            made.append((create_index(fs, index_path), index_path))
            made.append((create_index(fs, time_path), time_path))
        except StorageFailure:
            for descriptor, path in made:
                fs.close(descriptor)
                fs.unlink(path)
            # The previous segment stays active and may grow beyond this base offset. Sync the removal, so that a power
            # loss does not bring back a segment that overlaps the previous one.
            if made:
                fs.sync(names)
            raise
        finally:
            fs.close(names)
        segment.fd = made[0][0]
        segment.index = OffsetIndex(fs, index_path, base_offset, 0, made[1][0])
        segment.time_index = TimeIndex(fs, time_path, base_offset, 0, made[2][0])
        segment.close_indexes()
        segment.created_ms = now_ms
        # Record that a new segment has no transaction index, which spares every later Fetch a system call.
        segment.txn_index.mark_absent()
        return segment

    @classmethod
    def open(cls, fs: Fs, directory: Path, base_offset: int) -> LogSegment:
        """Open a segment on the disk. Missing, torn or implausible indexes are replaced with empty ones.

        Recovery then fills the empty indexes: see `needs_index`.
        """
        segment = cls(fs, directory, base_offset)
        segment.fd = fs.open(segment.path(LOG_SUFFIX))
        try:
            segment._read_facts()
        except StorageFailure:
            segment.close()
            raise
        return segment

    def _read_facts(self) -> None:
        """Read the file's size and inode, and open the indexes.

        If one of the two indexes is missing, torn or implausible, replace both with empty ones.
        """
        fs, base_offset = self.fs, self.base_offset
        facts = fs.facts(self.descriptor())
        self.inode, self.size = facts.st_ino, facts.st_size
        # Count growth from the present size, because a log that is only read needs no reserved blocks.
        self.reserve_at += self.size
        self.created_ms = facts.st_mtime_ns // NS_PER_MS
        index_path, time_path = self.path(INDEX_SUFFIX), self.path(TIME_INDEX_SUFFIX)
        index = open_offset_index(fs, index_path, base_offset, self.size)
        time_index = open_time_index(fs, time_path, base_offset)
        if index is not None and time_index is not None:
            self.index, self.time_index = index, time_index
        else:
            self.index = OffsetIndex(fs, index_path, base_offset, 0, create_index(fs, index_path))
            self.time_index = TimeIndex(fs, time_path, base_offset, 0, create_index(fs, time_path))
            self.needs_index = True
        last = self.time_index.last()
        if last is not None:
            self.max_timestamp, self.max_timestamp_offset = last

    def export(self) -> list[int | None]:
        """Return the segment's state, for adopt() in another process."""
        return [
            self.base_offset, self.size, self.inode, self.max_timestamp, self.max_timestamp_offset,
            self.first_timestamp, self.created_ms, self.bytes_since_index,
        ]  # fmt: skip

    @classmethod
    def adopt(cls, fs: Fs, directory: Path, exported: list[int]) -> LogSegment:
        """Open a segment with the state that its last owner exported.

        Raises Corrupt if the file has another size or inode, or if its indexes are missing or implausible.
        """
        segment = cls.open(fs, directory, exported[0])
        # With another inode it is another file: the directory was replaced since the export. With another size it was
        # written to since the export.
        if [segment.size, segment.inode] != exported[1:3] or segment.needs_index:
            segment.close()
            raise Corrupt(
                f"{segment.path(LOG_SUFFIX)} or an index of it has changed since the log's last owner closed it"
            )
        (
            segment.max_timestamp, segment.max_timestamp_offset, segment.first_timestamp,
            segment.created_ms, segment.bytes_since_index,
        ) = exported[3:]  # fmt: skip
        segment.close_indexes()
        return segment

    def path(self, suffix: str) -> Path:
        """Return the path of one of this segment's files."""
        return self.directory / segment_file_name(self.base_offset, suffix)

    def descriptor(self) -> int:
        """Return the descriptor of the .log file. Open the file if it is closed."""
        if self.fd == CLOSED:
            self.fd = self.fs.open(self.path(LOG_SUFFIX))
        return self.fd

    def range(self, position: int, length: int) -> FileRange:
        """Return a range of the .log file, which a Processor can send with sendfile."""
        return FileRange(self.path_bytes, self.inode, position, length)

    def load_first_timestamp(self) -> int | None:
        """Return the largest timestamp of the first batch in ms, from which segment.ms counts. None: no batch."""
        if self.first_timestamp is None and self.size:
            _, header = next(walk_headers(self.fs, self.descriptor(), 0, self.size, chunk_bytes=64))
            self.first_timestamp = header[MAX_TIMESTAMP]
        return self.first_timestamp

    def append_index_entries(self, pairs: list[tuple[int, int]], times: list[tuple[int, int]]) -> None:
        """Add index entries for batches that are in the file.

        Write the time entry first. If that fails, write no offset entry: a walk from an offset entry assumes that the
        last time entry before it has the largest timestamp so far.
        """
        if self.time_index.append(times):
            self.index.append(pairs)

    def is_index_full(self, index_bytes: int) -> bool:
        """Return True if an index has reached segment.index.bytes. In the time index one entry stays free for seal().

        The limit is at least two time entries. With a smaller one Kafka rolls at every record.
        """
        index_bytes = max(index_bytes, 2 * TimeIndex.ENTRY.size)
        return (
            self.index.count >= index_bytes // OffsetIndex.ENTRY.size
            or self.time_index.count >= index_bytes // TimeIndex.ENTRY.size - 1
        )

    def reserve(self, end: int, segment_bytes: int) -> None:
        """Reserve disk blocks for a write up to the position `end` and for the writes after it."""
        # Reserve at most as much as the segment holds, so that thousands of small logs do not fill the disk with
        # reservations.
        length = min(RESERVE_BYTES_MAX, self.size, segment_bytes - end)
        if length > 0 and self.fs.reserve(self.descriptor(), self.size, end - self.size + length):
            self.reserved_end = self.reserve_at = end + length
        else:
            self.reserve_at = end + _ASK_AGAIN_BYTES

    def release_reserved(self) -> None:
        """Release the reserved disk blocks beyond the file's end, including those of a killed previous owner."""
        modified_ns = self.fs.facts(self.descriptor()).st_mtime_ns
        self.truncate(self.size)
        # The truncation changed the modification time. Restore it, because retention may use it.
        self.fs.set_modified(self.descriptor(), modified_ns)

    def seal(self) -> None:
        """Seal the segment: add the largest timestamp to the time index, which retention and look-ups use.

        Raises DiskFull if the disk has no space for the entry, because no later write would add it to a sealed segment.
        """
        self.finish_time_index()
        # Leave the indexes of a pinned segment open, because a sync thread may be using them. A later close() closes
        # them.
        if not self._pins:
            self.close_indexes()

    def close_indexes(self) -> None:
        """Close the indexes until their next use, so that a small log costs one descriptor instead of three."""
        self.index.close()
        self.time_index.close()

    def finish_time_index(self) -> None:
        """Add the largest timestamp so far, unless the last entry has it. Raises DiskFull if the disk has no space."""
        if not self.time_index.append([(self.max_timestamp, self.max_timestamp_offset)]):
            raise DiskFull(errno.ENOSPC, f"no space for the last entry of {self.path(TIME_INDEX_SUFFIX)}")

    def truncate(self, size: int) -> None:
        """Truncate the .log file to `size` bytes. The caller must truncate or rebuild the indexes."""
        self.fs.truncate(self.descriptor(), size)
        self.size = size
        self.reserved_end = 0
        self.reserve_at = size + RESERVE_FROM_BYTES
        if size == 0:
            self.first_timestamp = None

    def reset_indexes(self) -> None:
        """Empty the indexes and reset the timestamps that came from them."""
        self.index.truncate_entries(0)
        self.time_index.truncate_entries(0)
        self.bytes_since_index = 0
        self.first_timestamp = None
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset

    def largest_timestamp(self) -> int:
        """Return the time in ms that retention.ms counts from: the largest timestamp, or without one modified_ms()."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.modified_ms()

    def modified_ms(self) -> int:
        """Return the time in ms of the last write to the .log file."""
        return self.fs.facts(self.descriptor()).st_mtime_ns // NS_PER_MS

    def pin(self, *, indexes: bool) -> list[int]:
        """Keep the descriptors open for a sync thread, and return them, with those of the indexes if `indexes`."""
        descriptors = [self.descriptor()]
        if indexes:
            descriptors += [self.index.descriptor(), self.time_index.descriptor()]
        self._pins += 1
        return descriptors

    def write_synced_mark(self) -> None:
        """Record in the file's attribute how many bytes are synced. A sync thread calls this before the next sync.

        Recovery reads the mark: a bad batch below it is damage, and one above it is a torn write of a power loss.
        Changes of less than a page are not recorded.
        """
        if self.synced_bytes - self.marked_bytes >= _PAGE_BYTES:
            self.fs.write_synced_mark(self.fd, self.synced_bytes)
            self.marked_bytes = self.synced_bytes

    def write_whole_mark(self) -> None:
        """Record in the file's attribute how many bytes are synced, also after growth of less than a page.

        `write_synced_mark` skips such growth. The owner calls this while no sync thread works on the log.
        """
        self.fs.write_synced_mark(self.descriptor(), self.synced_bytes)
        self.marked_bytes = self.synced_bytes

    def write_sealed_mark(self) -> None:
        """Record in a sealed file's attribute that all of it is synced. The caller must have pinned the segment.

        A segment gets no mark if Kafka's cleaner may have removed its last records, because recovery would take these
        for lost records.
        """
        if self.is_joined and self.marked_bytes < self.size:
            self.fs.write_synced_mark(self.fd, self.size)
            self.marked_bytes = self.size

    def read_synced_mark(self) -> int:
        """Return the number of bytes that this or an earlier owner of the file recorded as synced."""
        return self.fs.read_synced_mark(self.descriptor())

    def write_aborted_mark(self) -> None:
        """Record the checksum of the transaction index, because the segment is sealed or its log is closed.

        The mark distinguishes a lost .txnindex from a segment without aborted transactions. A segment that never had
        a .txnindex gets no mark.
        """
        if self.txn_index.exists or self.fs.read_aborted_mark(self.descriptor()) is not None:
            self.fs.write_aborted_mark(self.descriptor(), self.txn_index.checksum())

    def has_right_aborts(self) -> bool:
        """Return False if the transaction index has changed since the segment was sealed or its log closed."""
        noted = self.fs.read_aborted_mark(self.descriptor())
        return noted is None or noted == self.txn_index.checksum()

    def unpin(self) -> None:
        """Undo pin(): the sync thread has finished with the descriptor."""
        assert self._pins > 0, "unpin without pin"
        self._pins -= 1
        if self._closing and not self._pins:
            self.close()

    def close(self) -> None:
        """Close all descriptors, or let the last unpin() close them. Any use opens them again."""
        # Keep the descriptor of a pinned segment. If it were closed during an fdatasync, its number could belong to
        # another file, and the sync would confirm bytes that are not on the disk.
        self._closing = self._pins > 0
        if self._closing:
            return
        self.close_indexes()
        self.txn_index.close()
        if self.fd != CLOSED:
            self.fs.close(self.fd)
            self.fd = CLOSED

    def mark_deleted(self, *, with_snapshot: bool = True) -> list[Path]:
        """Rename all files to .deleted and return the new paths, which the caller unlinks later.

        Open descriptors stay valid, so that a Processor in the middle of a sendfile is not disturbed. After a Shortage
        the files have their old names again. `with_snapshot=False` keeps the .snapshot file.
        """
        doomed: list[Path] = []
        for suffix in SEGMENT_SUFFIXES:
            if suffix == SNAPSHOT_SUFFIX and not with_snapshot:
                continue
            source = self.path(suffix)
            target = _deleted(source)
            try:
                is_there = self.fs.rename(source, target)
            # The directory has no space for a longer name. Undo the renames, because otherwise the log would open
            # without some of the segment's indexes.
            except Shortage:
                for renamed in doomed:
                    self.fs.rename(renamed, renamed.with_suffix(""))
                raise
            if is_there:
                doomed.append(target)
        return doomed

    def is_removed(self) -> bool:
        """Return True if another program deleted or replaced the open .log file, whose records are thus lost."""
        return self.fd != CLOSED and is_unlinked(self.fs, self.fd, self.path(LOG_SUFFIX))

    def is_in_place(self) -> bool:
        """Return True if the path still leads to the whole .log file, so that a Processor can send from it."""
        facts = self.fs.facts_at(self.path(LOG_SUFFIX))
        return facts is not None and facts.st_ino == self.inode and facts.st_size >= self.size

    def deleted_paths(self) -> list[Path]:
        """Return the paths that the files have after mark_deleted()."""
        return [_deleted(self.path(suffix)) for suffix in SEGMENT_SUFFIXES]

    def move(self, directory: Path) -> None:
        """Use new paths, because the partition's directory was renamed."""
        self.close()
        self.directory = directory
        self.path_bytes = os.fsencode(self.path(LOG_SUFFIX))
        self.index.path = self.path(INDEX_SUFFIX)
        self.time_index.path = self.path(TIME_INDEX_SUFFIX)
        self.txn_index.path = self.path(TXN_INDEX_SUFFIX)

    @property
    def txn_index_path(self) -> Path:
        """The path of the transaction index, which exists only if a marker in the segment aborted a transaction."""
        return self.txn_index.path


def _create_log(fs: Fs, path: Path) -> int:
    """Create a .log file. Replace an empty one, which is left by a roll that failed and could not be undone."""
    facts = fs.facts_at(path)
    if facts is not None and not facts.st_size:
        fs.unlink(path)
    return fs.open(path, create=True)


def _deleted(path: Path) -> Path:
    return path.with_name(path.name + DELETED_SUFFIX)
