"""PartitionFiles: reader of a partition's segment files for processes that do not own the log.

The files may be kproc's or Apache Kafka's, of a running broker or not. A running broker changes them while this code
reads (segment_directory.py). Therefore:

- Files are read by pread and not mapped, because access to a truncated mapping raises SIGBUS.
- A plan has offsets and no positions, because compaction changes positions.

The log ends with the last complete batch. A torn tail is not an error. Damage before the tail is.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kproc.broker.storage.batch_scan import BadBatch, walk_checked, walk_headers
from kproc.broker.storage.format import (
    DELETED_SUFFIX,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file_name,
    segment_file_name,
)
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.producer_snapshot_codec import decode_snapshot
from kproc.broker.storage.txn_index import TxnIndex
from kproc.common.errors import Corrupt
from kproc.common.reading import READ_COMMITTED
from kproc.spark.segment_directory import LOOKS, SegmentDirectory
from kproc.wire.batch_header import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    Header,
    last_offset_of,
)
from kproc.wire.record_batch import CONTROL, TRANSACTIONAL, decode_records

if TYPE_CHECKING:
    import pyarrow as pa

    from kproc.spark.decode import Decoder

CHUNK_BYTES: Final = 4 << 20
"""Size of a read in bytes. Larger reads save calls, but page faults on new memory cost more than that."""
_CHUNK_BYTES_MAX: Final = 1 << 30
_fs = OsFs()


class OffsetGone(Exception):
    """The offset is below the log's current start. `start` is that start."""

    def __init__(self, what: str, offset: int, start: int) -> None:
        super().__init__(f"{what}: offset {offset} is gone, the log begins at {start} now")
        self.offset, self.start = offset, start


@dataclass(frozen=True)
class PartitionFiles:
    """Reader of the log in one partition's directory."""

    directory: Path
    topic: str
    partition: int
    checkpoint: int = 0
    """Log start offset in the data directory's log-start-offset-checkpoint. Records below it were deleted."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} in {self.directory.parent}"

    @property
    def segments(self) -> SegmentDirectory:
        return SegmentDirectory(self.directory)

    # -- start and end of the log

    def find_start_offset(self) -> int:
        """Return the log's start offset, the first that a reader can read. 0 without segment files."""
        bases = self.segments.bases()
        if not bases:
            return 0
        # Brokers write the checkpoint periodically. For a topic that was deleted and created again it can still have
        # the former topic's offset. Ignore an offset above the log's end.
        return max(bases[0], self.checkpoint) if self.checkpoint <= self.find_end_offset() else bases[0]

    def find_end_offset(self) -> int:
        """Return the offset after the last complete batch. 0 without segment files."""

        def find(bases: list[int]) -> int:
            if not bases:
                return 0
            descriptor = self.segments.open(bases[-1])
            try:
                return self._find_end(bases[-1], descriptor)
            finally:
                os.close(descriptor)

        return self.segments.repeat_until_listed(find)

    def _find_end(self, base: int, descriptor: int) -> int:
        size = os.fstat(descriptor).st_size
        positions = self.segments.offset_index(base)[1]
        last = int(positions[-1]) if len(positions) else 0
        # Start at the last index entry. If there is no batch at that position, the index belongs to another version of
        # the file: start at 0.
        for begin in (last, 0):
            end = None
            try:
                for _, header in walk_checked(_fs, descriptor, begin, size, believed_end=0):
                    end = last_offset_of(header) + 1
            except BadBatch:
                # The log ends before these bytes: a batch that is being written or was torn by a crash, or zeros that
                # Kafka preallocated.
                pass
            if end is not None:
                return end
        return base

    def last_stable_offset(self) -> int:
        """Return the first offset of the oldest open transaction, or the log's end.

        The open transactions come from the newest readable producer snapshot and the batches after it.
        """
        return self.segments.repeat_until_listed(self._last_stable_offset)

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
                # The broker is possibly writing this snapshot. Use an older one, with more batches to read after it.
                continue
            opened = {each.producer_id: each.open_txn_offset for each in entries if each.open_txn_offset >= 0}
            begin = base
            break
        for header in self._headers(bases, begin):
            if header[ATTRIBUTES] & CONTROL:
                opened.pop(header[PRODUCER_ID], None)
            elif header[ATTRIBUTES] & TRANSACTIONAL:
                # KIP-98: a producer has at most one open transaction in a partition. Keep the offset of its first
                # batch.
                opened.setdefault(header[PRODUCER_ID], header[BASE_OFFSET])
        return min([end, *opened.values()])

    def _snapshots(self) -> list[int]:
        parsed = (parse_segment_file_name(name, SNAPSHOT_SUFFIX) for name in os.listdir(self.directory))
        return sorted(base for base in parsed if base is not None)

    def _headers(self, bases: list[int], begin: int) -> Iterator[Header]:
        """Yield headers of the complete batches from offset `begin` on. Raise Corrupt for damage before the tail."""
        for base in bases[max(0, bisect_right(bases, begin) - 1) :]:
            descriptor = self.segments.open(base)
            try:
                size = os.fstat(descriptor).st_size
                for _, header in walk_headers(
                    _fs, descriptor, self.segments.position(base, begin, descriptor), size
                ):
                    if last_offset_of(header) >= begin:
                        yield header
            except BadBatch as error:
                if base != bases[-1]:
                    raise Corrupt(f"{self.segments.path(base)}: {error}") from None
            finally:
                os.close(descriptor)

    # -- finding

    def offset_of_time(self, timestamp_ms: int) -> int | None:
        """Return the first offset whose record has this timestamp or a later one, as ListOffsets does.

        Return None if all records are older.
        """

        def find(bases: list[int]) -> int | None:
            return self._offset_of_time(bases, timestamp_ms)

        return self.segments.repeat_until_listed(find)

    def _offset_of_time(self, bases: list[int], timestamp_ms: int) -> int | None:
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            entries = self.segments.time_index(base)
            # Skip a segment whose newest timestamp is older. Always read the active segment, because its newest records
            # have no entry in the time index yet.
            if following is not None and len(entries) and entries["timestamp"][-1] < timestamp_ms:
                continue
            earlier = int(np.searchsorted(entries["timestamp"], timestamp_ms, side="left")) - 1
            begin = base + int(entries["offset"][earlier]) if earlier >= 0 else base
            found = self._first_since(base, begin, timestamp_ms, is_last=following is None)
            if found is not None:
                return found
        return None

    def _first_since(self, base: int, begin: int, timestamp_ms: int, *, is_last: bool) -> int | None:
        descriptor = self.segments.open(base)
        try:
            size = os.fstat(descriptor).st_size
            start = self.segments.position(base, begin, descriptor)
            for position, header in walk_headers(_fs, descriptor, start, size):
                if header[MAX_TIMESTAMP] >= timestamp_ms and not header[ATTRIBUTES] & CONTROL:
                    batch = os.pread(descriptor, header[BATCH_LENGTH] + 12, position)
                    for record in decode_records(batch):
                        if record.timestamp_ms >= timestamp_ms:
                            return record.offset
        except BadBatch as error:
            # The last segment can end with an incomplete batch, which a broker may be writing. In another segment that
            # is damage.
            if not is_last:
                raise Corrupt(f"{self.segments.path(base)}: {error}") from None
        finally:
            os.close(descriptor)
        return None

    def pieces(self, start: int, end: int, bytes_max: int) -> list[tuple[int, int]]:
        """Divide the offsets start..end into ranges of about `bytes_max` bytes, at entries of the offset indexes."""
        cuts = [start]
        bases = self.segments.bases()
        taken = 0
        for number in range(max(0, bisect_right(bases, start) - 1), len(bases)):
            base = bases[number]
            if base >= end:
                break
            last_offsets, positions = self.segments.offset_index(base)
            size, since = self.segments.size(base), self.segments.indexed(base, start)[1]
            while (entry := int(np.searchsorted(positions, since + bytes_max - taken))) < len(positions):
                # An index entry has the last offset of its batch, so a range can end after that offset.
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
        bases = self.segments.bases()
        names = set(_fs.list_directory(self.directory))
        found: list[tuple[int, int, int]] = []
        for base in bases[max(0, bisect_right(bases, start) - 1) :]:
            name = segment_file_name(base, TXN_INDEX_SUFFIX)
            if name not in names and name + DELETED_SUFFIX not in names:
                continue
            index = TxnIndex(_fs, self.directory / name)
            # `read` opens a deleted segment under its `.deleted` name. The segment's transaction index has that suffix,
            # too.
            if index.is_empty:
                index = TxnIndex(_fs, self.directory / (name + DELETED_SUFFIX))
            overlapping, is_all = index.overlapping(start, end)
            found += [each[:3] for each in overlapping]
            if is_all:
                break
        return found

    # -- reading

    def read(self, decoder: Decoder, *, isolation: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches from `decoder.next_offset` on, until the decoder is done or the files end.

        Afterwards `decoder.next_offset` is the first offset that was not read. Raises OffsetGone if the log starts
        above the first offset, and Corrupt for damage before the tail.
        """
        looks = 0
        while not decoder.is_done:
            before = decoder.next_offset
            bases = self.segments.bases()
            if not bases:
                raise OffsetGone(str(self), before, before)
            if before < bases[0]:
                raise OffsetGone(str(self), before, bases[0])
            aborted = self.aborted(before, decoder.end) if isolation == READ_COMMITTED else []
            is_whole = yield from self._read_segments(bases, decoder, aborted)
            if is_whole:
                break
            # The broker has deleted the segment, or merged it into another one, since the directory was listed: list it
            # again.
            looks = looks + 1 if decoder.next_offset == before else 0
            if looks > LOOKS:
                raise Corrupt(
                    f"{self}: reading stopped at offset {before}: the directory lists a segment whose file does not "
                    f"exist, also after {LOOKS} more tries"
                )
        yield from decoder.flush()

    def _read_segments(
        self, bases: list[int], decoder: Decoder, aborted: list[tuple[int, int, int]]
    ) -> Generator[pa.RecordBatch, None, bool]:
        """Yield Arrow batches from the segment with `decoder.next_offset` on.

        bases: base offsets of all segments. Return False if the file of a segment does not exist any more.
        """
        for base in bases[bisect_right(bases, decoder.next_offset) - 1 :]:
            try:
                descriptor = self.segments.open(base)
            except FileNotFoundError:
                return False
            # All offsets below this segment's base were in earlier segments. Compaction has removed the missing ones,
            # so skip them.
            decoder.next_offset = max(decoder.next_offset, min(base, decoder.end))
            try:
                yield from self._read_segment(base, descriptor, decoder, aborted, base == bases[-1])
            finally:
                os.close(descriptor)
            if decoder.next_offset >= decoder.end:
                break
        return True

    def _read_segment(
        self,
        base: int,
        descriptor: int,
        decoder: Decoder,
        aborted: list[tuple[int, int, int]],
        is_last: bool,
    ) -> Iterator[pa.RecordBatch]:
        position = self.segments.position(base, decoder.next_offset, descriptor)
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
                    f"{self.segments.path(base)}: no whole batch at position {position}, and more segments follow"
                )
