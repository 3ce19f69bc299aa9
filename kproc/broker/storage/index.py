"""The two sparse indexes of a segment: offset -> position, and timestamp -> offset.

Kafka maps 10 MB per index and trims the file when it is closed. kproc's index files hold only real entries. They are
appended with one small write and read with a binary search over preads. Nothing is mapped, so an EIO is an exception
and not a SIGBUS, and an idle index costs no memory. A crash leaves a whole file, or one with a torn last entry.

An index is only derived data: one with entries that cannot be right (see `is_sane`) is rebuilt from the .log file.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from kproc.broker.storage.format import OFFSET_ENTRY, TIME_ENTRY
from kproc.broker.storage.fs import Fs, Shortage
from kproc.wire.record_batch import NO_TIMESTAMP

# Entries of the block that the last steps of a binary search read at once, at most 768 bytes: one system call instead
# of six.
_BLOCK_ENTRIES: Final = 64
# Cached entries of an offset index. With batches as large as index.interval.bytes, they cover the next two fetches of
# 256 KB.
_WINDOW_ENTRIES: Final = 128

CLOSED: Final = -1


class _SortedFile:
    """An index file: entries of two integers that both increase, of fixed size. Owned by one LogSegment."""

    ENTRY: ClassVar[struct.Struct]

    __slots__ = ("_fd", "_fs", "_is_torn", "base_offset", "count", "path")

    def __init__(self, fs: Fs, path: Path, base_offset: int, count: int, fd: int) -> None:
        self._fs = fs
        self._fd = fd
        self._is_torn = False  # True if a failed write may have left bytes behind the last entry.
        self.path = path
        self.base_offset = base_offset
        self.count = count

    def descriptor(self) -> int:
        """Return the file's descriptor. Open the file if it is closed."""
        if self._fd == CLOSED:
            self._fd = self._fs.open(self.path)
        return self._fd

    def close(self) -> None:
        """Close the descriptor; the next use opens the file again."""
        if self._fd != CLOSED:
            self._fs.close(self._fd)
            self._fd = CLOSED

    def sync(self) -> None:
        """Call fdatasync. Only a clean stop needs it, because recovery after a crash checks or rebuilds indexes."""
        self._fs.sync(self.descriptor())

    def _entry(self, number: int) -> tuple[int, int]:
        size = self.ENTRY.size
        # Read with pread and not through a mapping, so that a read error is an exception, and not a SIGBUS that ends
        # the Handler.
        content = self._fs.read(self.descriptor(), size, position=number * size)
        first, second = self.ENTRY.unpack(content)
        return first, second

    def _narrow(self, target: int, *, column: int) -> tuple[int, int]:
        """Return (low, high): at least `low` and at most `high` entries have a number <= target in this column."""
        low, high = 0, self.count
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if self._entry(middle)[column] <= target:
                low = middle + 1
            else:
                high = middle
        return low, high

    def _floor(self, target: int, *, column: int) -> int:
        """Return the number of the last entry whose column is <= target, or -1 if all entries are above the target."""
        low, high = self._narrow(target, column=column)
        if low == high:
            return low - 1
        size = self.ENTRY.size
        block = self._fs.read(self.descriptor(), (high - low) * size, position=low * size)
        for entry in self.ENTRY.iter_unpack(block):
            if entry[column] > target:
                break
            low += 1
        return low - 1

    def _append(self, content: bytes) -> bool:
        """Add entries at the end. Return False after a Shortage: a sparse index may miss an entry."""
        size = self.ENTRY.size
        try:
            if self._is_torn:
                self._cut_back()
            self._fs.write(self.descriptor(), [content], position=self.count * size)
        except Shortage:
            self._is_torn = True
            # If the truncation fails, too, the next append repeats it before it writes, because entries must not follow
            # an incomplete one.
            with suppress(Shortage):
                self._cut_back()
            return False
        self.count += len(content) // size
        return True

    def _cut_back(self) -> None:
        """Truncate the bytes of a failed write."""
        self._fs.truncate(self.descriptor(), self.count * self.ENTRY.size)
        self._is_torn = False

    def truncate_entries(self, count: int) -> None:
        """Remove all entries but the first `count`."""
        # Truncate only if it is needed, because every opening of a log calls this, and a truncation takes 0.7 ms on a
        # disk.
        if count != self.count:
            self._fs.truncate(self.descriptor(), count * self.ENTRY.size)
            self.count = count


class OffsetIndex(_SortedFile):
    """Maps offsets to positions. About one batch per index.interval.bytes has an entry: its last offset, its position.

    The entries around the last look-up are cached, because a consumer that catches up needs them one after the other.
    Only a truncation changes entries, and it clears the cache.
    """

    ENTRY = OFFSET_ENTRY
    __slots__ = ("_lasts", "_positions", "_window_from")

    def __init__(self, fs: Fs, path: Path, base_offset: int, count: int, fd: int) -> None:
        super().__init__(fs, path, base_offset, count, fd)
        self._clear_window()

    def close(self) -> None:
        """Close the descriptor; the next use opens the file again."""
        super().close()
        self._clear_window()

    def truncate_entries(self, count: int) -> None:
        """Remove all entries but the first `count`, and discard the cached entries."""
        self._clear_window()
        super().truncate_entries(count)

    def around(self, offset: int) -> tuple[int, int]:
        """Return the positions of the two entries around an offset.

        The first is of the last indexed batch that ends before the offset, or 0, the segment's beginning. The second is
        of the first indexed batch that ends at or after the offset, or -1 if no indexed batch does.
        """
        target = offset - self.base_offset
        lasts = self._lasts
        # Read another window if the target is outside of the cached one, unless the cached window ends at the file's
        # first or last entry.
        if (
            not lasts
            or (target <= lasts[0] and self._window_from)
            or (target > lasts[-1] and self._window_from + len(lasts) < self.count)
        ):
            self._move_window(target)
            lasts = self._lasts
        number = bisect_left(lasts, target)
        positions = self._positions
        return positions[number - 1] if number else 0, positions[number] if number < len(lasts) else -1

    def _move_window(self, target: int) -> None:
        """Fill the cache with the entries around a relative offset and those behind them."""
        following = self._window_from + len(self._lasts)
        # A consumer's next lookup is usually a little further on. Then the window behind the cached one has its entry,
        # and no binary search is needed.
        if self._lasts and target > self._lasts[-1]:
            self._read_window(following - 1)
            if target <= self._lasts[-1] or self._window_from + len(self._lasts) == self.count:
                return
        self._read_window(max(0, self._narrow(target - 1, column=0)[0] - 1))

    def _read_window(self, first: int) -> None:
        size = self.ENTRY.size
        count = min(_WINDOW_ENTRIES, self.count - first)
        words = array("i")
        if count:
            words.frombytes(self._fs.read(self.descriptor(), count * size, position=first * size))
        # Swap the bytes, because the file is big-endian, as in Kafka, and array("i") has the order of the host.
        if sys.byteorder == "little":
            words.byteswap()
        self._window_from = first
        self._lasts, self._positions = words[::2], words[1::2]

    def _clear_window(self) -> None:
        self._window_from = 0
        self._lasts = self._positions = array("i")

    def append(self, pairs: list[tuple[int, int]]) -> None:
        """Add (offset, position) pairs, each larger than the one before."""
        base = self.base_offset
        self._append(b"".join([OFFSET_ENTRY.pack(offset - base, position) for offset, position in pairs]))

    def lookup(self, offset: int) -> int:
        """Return the position of the last index entry at or before an offset.

        Return 0, the beginning of the segment, if no entry is that early. The batch that contains the offset is at the
        returned position or behind it.
        """
        return self.around(offset + 1)[0]

    def lookup_earlier(self, offset: int, entries: int) -> int:
        """Return the position of the entry that is `entries` before the one that `lookup` finds for `offset`.

        Return 0, the beginning of the segment, if there is no such entry.
        """
        number = self._floor(offset - self.base_offset, column=0) - entries
        return 0 if number < 0 else self._entry(number)[1]

    def offset_at(self, position: int) -> int | None:
        """Return the last offset of the first indexed batch that begins at or behind `position`.

        Return None if no indexed batch begins there.
        """
        number = self._floor(position - 1, column=1) + 1
        return self.base_offset + self._entry(number)[0] if number < self.count else None

    def last(self) -> tuple[int, int] | None:
        """Return (offset, position) of the last entry, or None if the index is empty."""
        if not self.count:
            return None
        relative, position = self._entry(self.count - 1)
        return self.base_offset + relative, position

    def floor(self, offset: int) -> tuple[int, int, int] | None:
        """Return (entry number, offset, position) of the last entry at or before an offset.

        Return None if all entries are behind the offset.
        """
        number = self._floor(offset - self.base_offset, column=0)
        if number < 0:
            return None
        relative, position = self._entry(number)
        return number, self.base_offset + relative, position

    def is_sane(self, log_bytes: int) -> bool:
        """Return True if the last entry's offset is in the segment, and its position is below `log_bytes`.

        Kafka checks the offset in the same way when it loads an index.
        """
        last = self.last()
        return last is None or (last[0] >= self.base_offset and 0 <= last[1] < max(log_bytes, 1))


class TimeIndex(_SortedFile):
    """Maps timestamps to offsets. No record up to an entry's offset has a larger timestamp than the entry."""

    ENTRY = TIME_ENTRY
    __slots__ = ("last_timestamp",)

    def __init__(self, fs: Fs, path: Path, base_offset: int, count: int, fd: int) -> None:
        super().__init__(fs, path, base_offset, count, fd)
        self.last_timestamp = self._entry(count - 1)[0] if count else NO_TIMESTAMP

    def append(self, pairs: list[tuple[int, int]]) -> bool:
        """Add those (timestamp, offset) pairs whose timestamp is larger than all earlier timestamps.

        Return False after a Shortage: the index then lacks some pairs.
        """
        content = b""
        largest = self.last_timestamp
        for timestamp, offset in pairs:
            # Timestamps in the index must increase strictly, because a binary search relies on it. Skip the others.
            if timestamp > largest:
                content += TIME_ENTRY.pack(timestamp, offset - self.base_offset)
                largest = timestamp
        if content:
            if not self._append(content):
                return False
            self.last_timestamp = largest
        return True

    def floor(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last (timestamp, offset) at or before a timestamp, or None if all entries are later.

        The batch that ends at the offset has this timestamp, and no earlier record has a larger one.
        """
        number = self._floor(timestamp, column=0)
        if number < 0:
            return None
        found, relative = self._entry(number)
        return found, self.base_offset + relative

    def last(self) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the last entry, or None if the index is empty."""
        if not self.count:
            return None
        timestamp, relative = self._entry(self.count - 1)
        return timestamp, self.base_offset + relative

    def truncate_entries(self, count: int) -> None:
        """Remove all entries but the first `count`."""
        super().truncate_entries(count)
        self.last_timestamp = self._entry(count - 1)[0] if count else NO_TIMESTAMP

    def truncate_to(self, offset: int) -> None:
        """Remove the entries for records at or after an offset, because these records were removed."""
        self.truncate_entries(self._floor(offset - self.base_offset - 1, column=1) + 1)

    def is_sane(self) -> bool:
        """Return True if the last entry's offset is in the segment, and its timestamp is not below the first entry's.

        Kafka makes the same check when it loads an index.
        """
        if not self.count:
            return True
        timestamp, relative = self._entry(self.count - 1)
        return relative >= 0 and timestamp >= self._entry(0)[0]


def create_index(fs: Fs, path: Path) -> int:
    """Create an empty index file and return its descriptor. Replace a file that a failed roll has left."""
    fs.unlink(path)
    return fs.open(path, create=True)


def open_offset_index(fs: Fs, path: Path, base_offset: int, log_bytes: int) -> OffsetIndex | None:
    """Return the offset index of a file, closed. Return None if it is missing, torn or implausible."""
    count = _entry_count(fs, path, OFFSET_ENTRY.size)
    if count is None:
        return None
    index = OffsetIndex(fs, path, base_offset, count, CLOSED)
    try:
        return index if index.is_sane(log_bytes) else None
    finally:
        # Close the file, because a start opens the indexes of thousands of segments, more than it may have descriptors.
        index.close()


def open_time_index(fs: Fs, path: Path, base_offset: int) -> TimeIndex | None:
    """Return the time index of a file, closed. Return None if it is missing, torn or implausible."""
    count = _entry_count(fs, path, TIME_ENTRY.size)
    if count is None:
        return None
    index = TimeIndex(fs, path, base_offset, count, CLOSED)
    try:
        return index if index.is_sane() else None
    finally:
        index.close()


def _entry_count(fs: Fs, path: Path, entry_bytes: int) -> int | None:
    facts = fs.facts_at(path)
    # A file whose size is no multiple of an entry is torn: its owner crashed in the middle of an append.
    if facts is None or facts.st_size % entry_bytes:
        return None
    return facts.st_size // entry_bytes
