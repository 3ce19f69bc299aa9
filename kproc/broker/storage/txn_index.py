"""The .txnindex of a segment: its rows are the transactions that markers in the segment aborted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

from kproc.broker.storage.format import TXN_ENTRY, TXN_ENTRY_VERSION, AbortedTransaction
from kproc.broker.storage.fs import Fs
from kproc.common.errors import Corrupt

# Limit of the bytes of a segment's cached rows: 7,700 rows. A larger index is read at each look-up, as in Kafka.
KEPT_BYTES_MAX: Final = 256 << 10
_MARKER: Final = 3  # The column with the offset of the abort marker; the rows are in its order.


class TxnIndex:
    """The transaction index of one segment. It caches its rows, because every read_committed Fetch needs them.

    Rows are in the order of their markers' offsets. Their last stable offsets increase in the same order.
    """

    __slots__ = ("_fs", "_is_absent", "_rows", "path")

    def __init__(self, fs: Fs, path: Path) -> None:
        self._fs = fs
        self._rows: bytes | None = None  # The file's rows. None: not read yet, or too many to cache.
        self._is_absent = False
        self.path = path

    @property
    def exists(self) -> bool:
        """Return True if the file exists. It may have no rows."""
        return not self._is_absent and self._fs.exists(self.path)

    @property
    def is_empty(self) -> bool:
        """Return True if no marker in the segment aborted a transaction. Does not read the rows."""
        if self._rows is not None:
            return not self._rows
        facts = self._fs.facts_at(self.path)
        return facts is None or facts.st_size < TXN_ENTRY.size

    def close(self) -> None:
        """Discard the cached rows. The next use reads them again."""
        # Keep an empty value: it takes no memory, and reading the file again would cost a system call.
        if self._rows:
            self._rows = None

    @property
    def last_marker(self) -> int:
        """Offset of the newest marker that aborted a transaction, or -1 without rows."""
        rows = self._load()
        return _marker_at(rows, len(rows) - TXN_ENTRY.size) if rows else -1

    def checksum(self) -> int:
        """Return the CRC-32 of all rows, or 0 without rows."""
        return crc32(self._load())

    def mark_absent(self) -> None:
        """Record that the file does not exist, so that no later call looks for it."""
        self._rows, self._is_absent = b"", True

    def overlapping(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """Find the aborted transactions that a read_committed Fetch of fetch_offset..upper_bound must skip.

        Returns (transactions, is_complete). If `is_complete` is True, the indexes of later segments have no more.
        """
        rows = self._load()
        size, found = TXN_ENTRY.size, []
        for row in range(_row_of(rows, fetch_offset), len(rows) // size):
            entry = _entry(self.path, TXN_ENTRY.unpack_from(rows, row * size))
            if entry.first_offset < upper_bound:
                found.append(entry)
            # Stop at this row. The transaction of a later row was open at this marker or began after it, so its records
            # begin at or behind this last stable offset, which is behind the range of the Fetch.
            if entry.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a row. Its marker must be behind the markers of all other rows."""
        self._is_absent = False
        append_aborted(self._fs, self.path, aborted)
        if self._rows is not None:
            rows = self._rows + _pack(aborted)
            self._rows = rows if len(rows) <= KEPT_BYTES_MAX else None

    def complete(self, aborted: AbortedTransaction) -> None:
        """Add the row of a marker that the log contains, unless a row for the marker exists.

        Keep an existing row as it is: compaction may have removed the transaction's first records, and only the old
        row names their offset.
        """
        rows, size = self._load(), TXN_ENTRY.size
        behind = rows[_row_of(rows, aborted.last_offset) * size :]
        if not behind:
            self.append(aborted)
        elif _marker_at(behind, 0) != aborted.last_offset:
            self._overwrite(len(rows) - len(behind), _pack(aborted) + behind)

    def _overwrite(self, position: int, content: bytes) -> None:
        """Overwrite the file from `position` on."""
        descriptor = self._fs.open(self.path)
        try:
            self._fs.write(descriptor, [content], position=position)
        finally:
            self._fs.close(descriptor)
        self._rows = None

    def truncate_to(self, offset: int) -> None:
        """Remove the rows of markers at or behind `offset`, and all rows from the first implausible one on.

        A power loss can replace a page of the file with zeros, and it can cut the log's tail together with markers.
        """
        rows = self._load()
        if not rows:
            return
        kept, before = 0, -1
        for _, _, first_offset, marker, _ in TXN_ENTRY.iter_unpack(rows):
            # Stop at a row that breaks one of two rules: rows are in the order of their markers, and a transaction
            # begins before its marker. A page of zeros after a power loss does.
            if not max(before, first_offset) < marker < offset:
                break
            kept, before = kept + 1, marker
        size = kept * TXN_ENTRY.size
        descriptor = self._fs.open(self.path)
        try:
            if self._fs.facts(descriptor).st_size > size:
                self._fs.truncate(descriptor, size)
        finally:
            self._fs.close(descriptor)
        self._rows = None

    def _load(self) -> bytes:
        rows = self._rows
        if rows is None:
            rows = _whole_rows(self._fs, self.path)
            if len(rows) <= KEPT_BYTES_MAX:
                self._rows = rows
        return rows


def read_aborted(fs: Fs, path: Path) -> list[AbortedTransaction]:
    """Return all entries in the order of their markers. Ignore an incomplete last entry, which a crash can leave."""
    return list(_entries(path, _whole_rows(fs, path)))


def append_aborted(fs: Fs, path: Path, aborted: AbortedTransaction) -> None:
    """Append one entry. Opens the file each time, because an abort is rare: one entry per transaction and partition."""
    descriptor = fs.open(path, create=not fs.exists(path))
    try:
        size = fs.facts(descriptor).st_size
        # Overwrite a part of a row that a crash left at the end, because every row must begin at a multiple of the row
        # size.
        fs.write(descriptor, [_pack(aborted)], position=size - size % TXN_ENTRY.size)
    finally:
        fs.close(descriptor)


def _pack(aborted: AbortedTransaction) -> bytes:
    return TXN_ENTRY.pack(TXN_ENTRY_VERSION, *aborted)


def _row_of(rows: bytes, offset: int) -> int:
    """Return the number (from 0) of the first row whose marker is at or behind `offset`, or the number of all rows."""
    size = TXN_ENTRY.size
    return bisect_left(range(len(rows) // size), offset, key=lambda row: _marker_at(rows, row * size))


def _marker_at(rows: bytes, position: int) -> int:
    marker: int = TXN_ENTRY.unpack_from(rows, position)[_MARKER]
    return marker


def _whole_rows(fs: Fs, path: Path) -> bytes:
    content = fs.read_file(path) or b""
    return content[: len(content) - len(content) % TXN_ENTRY.size]


def _entries(path: Path, rows: bytes) -> Iterator[AbortedTransaction]:
    for fields in TXN_ENTRY.iter_unpack(rows):
        yield _entry(path, fields)


def _entry(path: Path, fields: tuple[int, ...]) -> AbortedTransaction:
    version, *rest = fields
    if version != TXN_ENTRY_VERSION:
        raise Corrupt(f"{path}: an entry has version {version}, but only {TXN_ENTRY_VERSION} is known")
    return AbortedTransaction(*rest)
