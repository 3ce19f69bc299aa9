"""PartitionFiles: reader of a partition's segment files for processes that do not own the log.

The files may be kproc's or Apache Kafka's, of a running broker or not. A running broker appends, rolls, deletes by
retention, and replaces segments by compaction while this code reads. Therefore:

- Files are read by pread and not mapped, because access to a truncated mapping raises SIGBUS.
- A plan has offsets and no positions, because compaction changes positions.
- A missing file is looked for under its `.deleted` name, and then the directory is listed again.
- An open file stays complete when it is renamed or deleted. But an index can already belong to its replacement, so the
  batch at an index's position is checked before it is used.

The log ends with the last complete batch. A torn tail is not an error. Damage before the tail is.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from kproc.broker.storage.batch_scan import BadBatch, walk_checked, walk_headers
from kproc.broker.storage.format import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file_name,
    segment_file_name,
)
from kproc.broker.storage.fs import OsFs
from kproc.broker.storage.producer_state import decode_snapshot
from kproc.broker.storage.txn_index import TxnIndex
from kproc.common.errors import Corrupt
from kproc.common.reading import READ_COMMITTED
from kproc.common.regular_file import open_regular
from kproc.spark.brokers import pause
from kproc.wire.batch_header import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    HEADER,
    HEADER_BYTES,
    MAGIC_BYTE,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    Header,
    last_offset_of,
)
from kproc.wire.record_batch import CONTROL, MAGIC, TRANSACTIONAL, decode_records

if TYPE_CHECKING:
    from typing import Any

    import pyarrow as pa

    from kproc.spark.decode import Decoder

    Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_BYTES: Final = 4 << 20
"""Size of a read. With larger reads page faults on new memory cost more than the saved calls."""
_CHUNK_BYTES_MAX: Final = 1 << 30
_LOOKS: Final = 20
"""Number of consecutive failures to open a listed file after which the log counts as corrupt."""

_TIME_INDEX: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_SWAP_LOOKS: Final = 100
_SWAP_PAUSE_MS: Final = 20
"""The renames of a replacement take less than a millisecond, on a busy host a few more: after 2 s nobody does them."""
# Errors of a sync on a read-only medium and on file systems without syncs.
_NO_SYNC: Final = frozenset({errno.EROFS, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_fs = OsFs()
_Found = TypeVar("_Found")


class OffsetGone(Exception):
    """The offset is below the log's current start. `start` is that start."""

    def __init__(self, what: str, offset: int, start: int) -> None:
        super().__init__(f"{what}: offset {offset} is gone, the log begins at {start} now")
        self.offset, self.start = offset, start


class HalfReplaced(Exception):
    """A crash interrupted compaction between its renames. Only the broker's next start decides which files count."""


def _sync(descriptor: int) -> None:
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


@dataclass(frozen=True)
class PartitionFiles:
    """The directory of one partition."""

    directory: Path
    topic: str
    partition: int
    checkpoint: int = 0
    """Log start offset in the data directory's checkpoint. Records below it were deleted."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} in {self.directory.parent}"

    # -- where it begins and ends

    def bases(self) -> list[int]:
        """Return the sorted base offsets of the segments; empty if the partition was deleted.

        Raises HalfReplaced if `.swap` files stay for 2 s.
        """
        for _ in range(_SWAP_LOOKS):
            try:
                names = os.listdir(self.directory)
            except FileNotFoundError:
                return []
            # The broker is between the renames of a compaction: the old segments are renamed to `.deleted` already, and
            # their replacement still has its `.swap` name. Wait until it is done.
            swaps = [name for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
            if not swaps:
                break
            pause(_SWAP_PAUSE_MS)
        else:
            raise HalfReplaced(
                f"{self}: {swaps[0]} is neither in force nor gone: its broker ended while it compacted the log, "
                "and sets that right when it starts"
            )
        parsed = (parse_segment_file_name(name, LOG_SUFFIX) for name in names)
        return sorted(base for base in parsed if base is not None)

    def find_start_offset(self) -> int:
        """Return the first offset that a reader can read."""
        bases = self.bases()
        if not bases:
            return 0
        # Brokers write the checkpoint periodically. After a topic was deleted and created again, it can still have the
        # former topic's offset. An offset above the end shows that.
        return max(bases[0], self.checkpoint) if self.checkpoint <= self.find_end_offset() else bases[0]

    def find_end_offset(self) -> int:
        """Return the offset behind the last complete batch."""

        def find(bases: list[int]) -> int:
            if not bases:
                return 0
            descriptor = self._open(bases[-1])
            try:
                return self._find_end(bases[-1], descriptor)
            finally:
                os.close(descriptor)

        return self._repeat_until_listed(find)

    def _find_end(self, base: int, descriptor: int) -> int:
        size = os.fstat(descriptor).st_size
        positions = self._offset_index(base)[1]
        last = int(positions[-1]) if len(positions) else 0
        # Start at the last index entry. If no batch is found there, the index is of another file: start at 0.
        for begin in (last, 0):
            end = None
            try:
                for _, header in walk_checked(_fs, descriptor, begin, size, believed_end=0):
                    end = last_offset_of(header) + 1
            except BadBatch:
                # The tail is being written now, was torn by a crash, or consists of zeros that Kafka preallocated.
                pass
            if end is not None:
                return end
        return base

    def sync(self) -> None:
        """Sync the segments and their names.

        The files do not show how far the broker has synced them. Without a sync of our own a power loss could take
        records of acks=all that a job has read. A medium without syncs has no unsynced records.
        """

        def sync_all(bases: list[int]) -> None:
            for base in bases:
                descriptor = self._open(base)
                try:
                    _sync(descriptor)
                finally:
                    os.close(descriptor)

        self._repeat_until_listed(sync_all)
        # A name that is not synced can be lost, and with it all records of its segment. So the directory is synced,
        # too.
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def last_stable_offset(self) -> int:
        """Return the first offset of the oldest open transaction, or the log's end.

        The state comes from the newest readable producer snapshot and the batches behind it.
        """
        return self._repeat_until_listed(self._last_stable_offset)

    def _last_stable_offset(self, bases: list[int]) -> int:
        end = self.find_end_offset()
        opened: dict[int, int] = {}
        begin = bases[0] if bases else 0
        for base in reversed(self._snapshots()):
            content = _fs.read_file(self.directory / segment_file_name(base, SNAPSHOT_SUFFIX))
            if base > end or content is None:
                continue
            try:
                entries = decode_snapshot(content)
            except Corrupt:
                # The broker is writing this snapshot. An older one works as well, with more batches to walk.
                continue
            opened = {each.producer_id: each.open_txn_offset for each in entries if each.open_txn_offset >= 0}
            begin = base
            break
        for header in self._headers(bases, begin):
            if header[ATTRIBUTES] & CONTROL:
                opened.pop(header[PRODUCER_ID], None)
            elif header[ATTRIBUTES] & TRANSACTIONAL:
                # A producer has at most one open transaction in a partition (KIP-98), and its first batch is where it
                # begins.
                opened.setdefault(header[PRODUCER_ID], header[BASE_OFFSET])
        return min([end, *opened.values()])

    def _snapshots(self) -> list[int]:
        parsed = (parse_segment_file_name(name, SNAPSHOT_SUFFIX) for name in os.listdir(self.directory))
        return sorted(base for base in parsed if base is not None)

    def _headers(self, bases: list[int], begin: int) -> Iterator[Header]:
        """Yield headers of the complete batches from offset `begin` on. Raise Corrupt for damage before the tail."""
        for base in bases[max(0, bisect_right(bases, begin) - 1) :]:
            descriptor = self._open(base)
            try:
                size = os.fstat(descriptor).st_size
                for _, header in walk_headers(_fs, descriptor, self._position(base, begin, descriptor), size):
                    if last_offset_of(header) >= begin:
                        yield header
            except BadBatch as error:
                if base != bases[-1]:
                    raise Corrupt(f"{self._path(base)}: {error}") from None
            finally:
                os.close(descriptor)

    # -- finding

    def offset_of_time(self, timestamp_ms: int) -> int | None:
        """Return the first offset whose record has this timestamp or a later one, as ListOffsets does, or None."""

        def find(bases: list[int]) -> int | None:
            return self._offset_of_time(bases, timestamp_ms)

        return self._repeat_until_listed(find)

    def _offset_of_time(self, bases: list[int], timestamp_ms: int) -> int | None:
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            entries = self._time_index(base)
            # Skip a segment whose newest timestamp is older. Always read the active one, whose time index lags behind
            # its records.
            if following is not None and len(entries) and entries["timestamp"][-1] < timestamp_ms:
                continue
            earlier = int(np.searchsorted(entries["timestamp"], timestamp_ms, side="left")) - 1
            begin = base + int(entries["offset"][earlier]) if earlier >= 0 else base
            found = self._first_since(base, begin, timestamp_ms, is_last=following is None)
            if found is not None:
                return found
        return None

    def _first_since(self, base: int, begin: int, timestamp_ms: int, *, is_last: bool) -> int | None:
        descriptor = self._open(base)
        try:
            size = os.fstat(descriptor).st_size
            start = self._position(base, begin, descriptor)
            for position, header in walk_headers(_fs, descriptor, start, size):
                if header[MAX_TIMESTAMP] >= timestamp_ms and not header[ATTRIBUTES] & CONTROL:
                    batch = os.pread(descriptor, header[BATCH_LENGTH] + 12, position)
                    for record in decode_records(batch):
                        if record.timestamp_ms >= timestamp_ms:
                            return record.offset
        except BadBatch as error:
            # The tail of the last segment can be incomplete, because its owner may be writing it. Anywhere else it is
            # damage.
            if not is_last:
                raise Corrupt(f"{self._path(base)}: {error}") from None
        finally:
            os.close(descriptor)
        return None

    def pieces(self, start: int, end: int, bytes_max: int) -> list[tuple[int, int]]:
        """Return the offsets start..end as ranges of about `bytes_max` bytes. Cuts are at entries of the index."""
        cuts = [start]
        bases = self.bases()
        taken = 0
        for number in range(max(0, bisect_right(bases, start) - 1), len(bases)):
            base = bases[number]
            if base >= end:
                break
            last_offsets, positions = self._offset_index(base)
            size, since = self._size(base), self._indexed(base, start)[1]
            while (entry := int(np.searchsorted(positions, since + bytes_max - taken))) < len(positions):
                # An entry has the last offset of its batch, so the range can end behind it.
                cuts.append(int(last_offsets[entry]) + 1)
                since, taken = int(positions[entry]), 0
            taken += max(0, size - since)
            if taken >= bytes_max and number + 1 < len(bases):
                cuts.append(bases[number + 1])
                taken = 0
        cuts = sorted({cut for cut in cuts if start <= cut < end})
        return list(zip(cuts, [*cuts[1:], end], strict=True)) if start < end else []

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (producer id, first offset, last offset) of the aborted transactions that overlap start..end.

        The last offset is that of the abort marker.
        """
        bases = self.bases()
        names = set(_fs.list_directory(self.directory))
        found: list[tuple[int, int, int]] = []
        for base in bases[max(0, bisect_right(bases, start) - 1) :]:
            name = segment_file_name(base, TXN_INDEX_SUFFIX)
            if name not in names and name + DELETED_SUFFIX not in names:
                continue
            index = TxnIndex(_fs, self.directory / name)
            # The segment itself can be open under its `.deleted` name.
            if index.is_empty:
                index = TxnIndex(_fs, self.directory / (name + DELETED_SUFFIX))
            overlapping, is_all = index.overlapping(start, end)
            found += [each[:3] for each in overlapping]
            if is_all:
                break
        return found

    # -- files

    def _path(self, base: int) -> Path:
        return self.directory / segment_file_name(base, LOG_SUFFIX)

    def _open(self, base: int) -> int:
        """Open a segment by its base offset. Raise FileNotFoundError if it was deleted or merged into another one."""
        path = self._path(base)
        try:
            return open_regular(path, os.O_RDONLY)
        except FileNotFoundError:
            return open_regular(path.with_name(path.name + DELETED_SUFFIX), os.O_RDONLY)

    def _repeat_until_listed(self, look: Callable[[list[int]], _Found]) -> _Found:
        """Return the result of `look(bases)`. Repeat it if a segment disappears meanwhile.

        Raises Corrupt if a listed segment is missing _LOOKS times in a row.
        """
        for _ in range(_LOOKS):
            try:
                return look(self.bases())
            except FileNotFoundError:
                continue
        raise Corrupt(f"{self}: a segment is in the directory's list, but its file does not exist")

    def _size(self, base: int) -> int:
        try:
            return self._path(base).stat().st_size
        except FileNotFoundError:
            return 0

    def _offset_index(self, base: int) -> tuple[Array, Array]:
        """Return (last offsets, positions) of the index's entries. Both are empty if the index is missing."""
        content = _fs.read_file(self.directory / segment_file_name(base, INDEX_SUFFIX)) or b""
        pairs = np.frombuffer(content[: len(content) // 8 * 8], ">i4").reshape(-1, 2).astype(np.int64)
        rows = _growing(pairs[:, 1])
        return pairs[:rows, 0] + base, pairs[:rows, 1]

    def _time_index(self, base: int) -> Array:
        content = _fs.read_file(self.directory / segment_file_name(base, TIME_INDEX_SUFFIX)) or b""
        entries = np.frombuffer(content[: len(content) // 12 * 12], _TIME_INDEX)
        entries = entries[: _growing(entries["timestamp"])]
        # A single entry with timestamp 0 is preallocated space.
        return entries[1:] if len(entries) == 1 and entries["timestamp"][0] == 0 else entries

    def _indexed(self, base: int, offset: int) -> tuple[int, int]:
        """Return (last offset, position) of the last index entry at or below the offset, or (base, 0)."""
        last_offsets, positions = self._offset_index(base)
        entry = int(np.searchsorted(last_offsets, offset, side="right")) - 1
        return (int(last_offsets[entry]), int(positions[entry])) if entry >= 0 else (base, 0)

    def _position(self, base: int, offset: int, descriptor: int) -> int:
        """Return a position in the open segment at or before the batch that contains the offset.

        The index can belong to another file than the descriptor. Return 0 if the batch at the position does not fit.
        """
        last_offset, position = self._indexed(base, offset)
        raw = os.pread(descriptor, HEADER_BYTES, position) if position else b""
        if len(raw) < HEADER_BYTES:
            return 0
        header = HEADER.unpack(raw)
        # If Kafka appends several batches at once, their entry has the last offset of all of them.
        is_it = (
            header[MAGIC_BYTE] == MAGIC
            and base <= header[BASE_OFFSET] <= last_offset_of(header) <= last_offset
        )
        return position if is_it else 0

    # -- reading

    def read(self, decoder: Decoder, *, isolation: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches from `decoder.next_offset` on, until the decoder is done or the files end.

        Afterwards `decoder.next_offset` is the first offset that was not read. Raises OffsetGone if the log starts
        behind the offset, and Corrupt for damage before the tail.
        """
        looks = 0
        while not decoder.is_done:
            before = decoder.next_offset
            bases = self.bases()
            if not bases:
                raise OffsetGone(str(self), before, before)
            if before < bases[0]:
                raise OffsetGone(str(self), before, bases[0])
            aborted = self.aborted(before, decoder.end) if isolation == READ_COMMITTED else []
            is_whole = True
            for base in bases[bisect_right(bases, before) - 1 :]:
                try:
                    descriptor = self._open(base)
                except FileNotFoundError:
                    is_whole = False
                    break
                # All earlier offsets were in the segments before this one. Compaction removed those that are missing.
                decoder.next_offset = max(decoder.next_offset, min(base, decoder.end))
                try:
                    yield from self._read_segment(base, descriptor, decoder, aborted, base == bases[-1])
                finally:
                    os.close(descriptor)
                if decoder.next_offset >= decoder.end:
                    break
            if is_whole:
                break
            looks = looks + 1 if decoder.next_offset == before else 0
            if looks > _LOOKS:
                raise Corrupt(f"{self}: no file exists for the listed segment with offset {before}")
        yield from decoder.flush()

    def _read_segment(
        self,
        base: int,
        descriptor: int,
        decoder: Decoder,
        aborted: list[tuple[int, int, int]],
        is_last: bool,
    ) -> Iterator[pa.RecordBatch]:
        position = self._position(base, decoder.next_offset, descriptor)
        wanted = CHUNK_BYTES
        while not decoder.is_done:
            chunk = os.pread(descriptor, wanted, position)
            if not chunk:
                return
            open_here = [each[:2] for each in aborted if each[2] >= decoder.next_offset]
            yield from decoder.feed(chunk, open_here)
            position += decoder.consumed
            if decoder.consumed:
                wanted = CHUNK_BYTES
            elif len(chunk) == wanted and wanted < _CHUNK_BYTES_MAX:
                wanted *= 2
            elif is_last:
                return
            else:
                raise Corrupt(
                    f"{self._path(base)}: no whole batch at position {position}, and more segments follow"
                )


def _growing(numbers: Array) -> int:
    """Return the length of the increasing prefix. Kafka preallocates an active segment's index with zeros behind it."""
    stops = np.flatnonzero(numbers[1:] <= numbers[:-1])
    if len(stops):
        return int(stops[0]) + 1
    return len(numbers)
