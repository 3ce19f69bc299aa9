"""One pass of compaction over a log: Kafka's Cleaner, for the process that does not own the log.

The first reading stores the keys of the dirty section. The second reading rewrites every segment before the end of that
section, without the records that newer ones replace. Both use the cleaner's own descriptors and write only `.cleaned`
files. The owner continues to append meanwhile, and decides whether to accept the result (log_compact.py).

Every long step is a generator that yields the number of bytes that it read or wrote, every few ms, also inside a large
batch. The cleaner does its other work between two steps, and limits the rate of the sum of these numbers.

As in Kafka, the result for a batch depends on how many of its records stay:

- All: the batch is copied without decompressing it.
- Some: a new batch has the same offsets, producer and codec (compaction_records.rebuild).
- None: the batch is removed, with two exceptions. A batch with the newest sequence of a producer, and the last batch of
  a group of segments, is kept without records. They show the producer's state and where the segment ends.

Tombstones stay for delete.retention.ms from the pass that first found them (KIP-534).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from kproc.broker.storage.compaction_files import CleanedSegment, SegmentIdentity
from kproc.broker.storage.compaction_map import KeyMap
from kproc.broker.storage.compaction_policy import SealedSegment
from kproc.broker.storage.compaction_records import (
    RECORDS_PER_STEP,
    Survivors,
    all_spans,
    emptied,
    rebuild,
    records_of,
)
from kproc.broker.storage.compaction_transactions import CleanedTransactions
from kproc.broker.storage.format import LOG_SUFFIX, AbortedTransaction, segment_file_name
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.validate import read_marker
from kproc.common.errors import Corrupt, KafkaError
from kproc.wire.batch_header import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    HEADER,
    HEADER_BYTES,
    LAST_OFFSET_DELTA,
    MAGIC_BYTE,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    Header,
    last_offset_of,
)
from kproc.wire.record_batch import CONTROL, HAS_DELETE_HORIZON, LOG_OVERHEAD_BYTES, MAGIC

_CHUNK_BYTES_MIN: Final = 64 << 10
# Cost of one step, which takes 2 to 4 ms. Each byte costs 1, and each record _RECORD_COST_BYTES more.
_STEP_COST_BYTES: Final = 512 << 10
_RECORD_COST_BYTES: Final = 128
_unpack_header = HEADER.unpack_from


_Filter = Generator[int, None, bytes | None]
"""A generator that yields how many bytes it has read. It returns the remaining batch, or None if no record remains."""
_T = TypeVar("_T")


def _charged(steps: Generator[None, None, _T], read_bytes: int) -> Generator[int, None, _T]:
    """Run the generator `steps` of one batch, and return its result.

    Yield `read_bytes`, the bytes that were read for the batch, at its first step, and 0 at each later step.
    """
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: _T = done.value
            return result
        yield read_bytes
        read_bytes = 0


class PassFacts(NamedTuple):
    """The state of a log when a compaction pass begins, from the owner's reply and from the files."""

    first_dirty: int
    upper_bound: int
    """The first uncleanable offset. A segment begins at it."""
    segments: Sequence[SealedSegment]
    """All segments that begin before the upper bound, oldest first."""
    producers: Mapping[int, tuple[int, int]]
    """By producer id: the offset of the producer's newest data batch (or -1), and its epoch."""
    aborted: Sequence[AbortedTransaction]


class CompactionPass:
    """One compaction pass over a log.

    Call map_keys(), then rewrite() and finish() for each group of the segments before `compacted_end`.
    """

    def __init__(
        self,
        fs: Fs,
        directory: Path,
        facts: PassFacts,
        *,
        interval_bytes: int,
        delete_retention_ms: int,
        record_bytes_max: int,
        now_ms: int,
        memory_bytes: int,
        chunk_bytes: int,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._facts = facts
        self._interval_bytes = interval_bytes
        self._delete_retention_ms = delete_retention_ms
        self._record_bytes_max = record_bytes_max
        self._now_ms = now_ms
        self._chunk_bytes = max(chunk_bytes, _CHUNK_BYTES_MIN)
        self._map = KeyMap(facts.first_dirty, memory_bytes=memory_bytes)
        self._survivors: Survivors | None = None
        self._transactions = CleanedTransactions(facts.aborted)
        self._out: CleanedSegment | None = None
        self._is_changed = False
        self._spent = 0  # Cost of the present step in bytes, for _is_step_over().
        self.records_read = self.records_kept = 0

    @property
    def compacted_end(self) -> int:
        """The offset where this pass ends: the upper bound, or the offset at which the memory for keys was full."""
        return self._map.latest + 1

    @property
    def key_count(self) -> int:
        """The number of different keys from the first dirty offset to `compacted_end`."""
        return len(self._map)

    # -- first reading ---------------------------------------------------------------------------------------

    def map_keys(self) -> Iterator[int]:
        """Store the newest offset of each key from the first dirty offset on, until the memory is full.

        Yields the number of bytes that it has read.
        """
        facts, key_map = self._facts, self._map
        # Skip aborted transactions that ended before the dirty section. Their producers may have committed later
        # transactions.
        open_later = [entry for entry in facts.aborted if entry.last_offset >= facts.first_dirty]
        transactions = CleanedTransactions(open_later)
        for segment in facts.segments:
            if segment.next_offset <= facts.first_dirty:
                continue
            for chunk, batches in self._read(segment):
                yield from self._map_chunk(chunk, batches, transactions)
                yield len(chunk)
                if key_map.is_full:
                    break
            # The memory for keys is full, so end the pass inside this segment. The next pass continues behind the last
            # offset in the map.
            if key_map.is_full:
                break
            key_map.advance(segment.next_offset - 1)
        for done in key_map.finish():
            self._survivors = done
            yield 0

    def _map_chunk(
        self, chunk: bytes, batches: Sequence[tuple[int, Header]], transactions: CleanedTransactions
    ) -> Iterator[int]:
        """Store the offsets of the keys in the batches of a chunk, until the memory is full. Yield 0 after each step.

        batches: (position in `chunk`, header) of each batch.
        """
        key_map = self._map
        for at, header in batches:
            if last_offset_of(header) < self._facts.first_dirty:
                continue
            if header[ATTRIBUTES] & CONTROL:
                transactions.on_marker(header, self._is_abort(header, chunk, at))
                key_map.advance(last_offset_of(header))
            elif transactions.on_batch(header) or not header[RECORD_COUNT]:
                key_map.advance(last_offset_of(header))
            else:
                raw, start, end = records_of(header, chunk, at, self._record_bytes_max)
                self.records_read += header[RECORD_COUNT]
                for _ in key_map.add(header, raw, start, end):
                    if self._is_step_over(header, end - start):
                        yield 0
                if key_map.is_full:
                    return

    # -- second reading --------------------------------------------------------------------------------------

    def rewrite(self, group: Sequence[SealedSegment]) -> Iterator[int]:
        """Write the records of adjacent segments that compaction keeps into one new segment, which `finish` completes.

        Yields the number of bytes that it has read and written.
        """
        assert self._survivors is not None, "map_keys() comes first"
        last = next((segment for segment in reversed(group) if segment.size), group[-1])
        self._is_changed = len(group) > 1
        self._out = CleanedSegment(
            self._fs, self._directory, group[0].base_offset, interval_bytes=self._interval_bytes
        )
        for segment in group:
            position = 0
            for chunk, batches in self._read(segment):
                end_at = -1
                if segment is last and position + batches[-1][0] + _total(batches[-1][1]) == segment.size:
                    end_at = batches[-1][0]
                for at, header in batches:
                    for read_bytes in self._copy(chunk, at, header, at == end_at):
                        if self._is_step_over(header, read_bytes):
                            yield 0
                position += batches[-1][0] + _total(batches[-1][1])
                yield len(chunk) + (self._out.flush() if self._out.is_flush_due else 0)
        yield self._out.flush()

    def finish(self, group: Sequence[SealedSegment]) -> SegmentIdentity | None:
        """Complete and sync the new segment, and return its identity.

        Returns None if the new segment equals the old one or is empty, and removes the new files.
        """
        out = self._out
        assert out is not None, "rewrite() comes first"
        # Keep the old files of an unchanged segment. A swap would make the owner rename files, and readers open them
        # again.
        if not self._is_changed or not out.position:
            self.abandon()
            return None
        identity = out.finish(group[-1].modified_ns, group[-1].next_offset)
        self._out = None
        return identity

    def abandon(self) -> None:
        """Remove the files of a new segment that is not finished."""
        if self._out is not None:
            self._out.remove()
            self._out = None

    def _is_step_over(self, header: Header, read_bytes: int) -> bool:
        """Count the bytes and records of a step. Return True if the cleaner should do its other work now."""
        self._spent += read_bytes + _RECORD_COST_BYTES * min(header[RECORD_COUNT], RECORDS_PER_STEP)
        if self._spent < _STEP_COST_BYTES:
            return False
        self._spent = 0
        return True

    def _copy(self, chunk: bytes, at: int, header: Header, is_end: bool) -> Iterator[int]:
        """Copy the records of one batch that compaction keeps to the new segment. Yields the bytes read in each step.

        is_end: the batch is the last one of the group of segments.
        """
        out, count = self._out, header[RECORD_COUNT]
        assert out is not None
        is_control = header[ATTRIBUTES] & CONTROL
        filtered = self._filter_marker if is_control else self._filter
        kept = yield from filtered(chunk, at, header)
        if kept is not None:
            fields = header if kept is _WHOLE else _unpack_header(kept)
            self.records_kept += fields[12]
            whole = memoryview(chunk)[at : at + _total(header)]
            out.add(fields, whole if kept is _WHOLE else kept, largest=fields[8], is_empty=False)
            self._is_changed = self._is_changed or kept is not _WHOLE
        # Keep a batch without its records in two cases: the last batch shows where the segment ends, and a producer's
        # newest batch has the sequence by which the broker recognizes a retry.
        elif is_end or (header[PRODUCER_ID] >= 0 and self._is_newest_of_producer(header)):
            out.add(header, emptied(header), largest=header[MAX_TIMESTAMP], is_empty=True)
            self._is_changed = self._is_changed or bool(count)
        else:
            self._is_changed = True

    def _filter(self, chunk: bytes, at: int, header: Header) -> _Filter:
        """Filter a data batch. Return _WHOLE if all records stay, a batch of the remaining ones, or None if none do."""
        survivors = self._survivors
        assert survivors is not None
        if self._transactions.on_batch(header) or not header[RECORD_COUNT]:
            return None
        count = survivors.of_batch(header)
        if count is not None:
            return _WHOLE if count else None
        raw, position, end = records_of(header, chunk, at, self._record_bytes_max)
        horizon_ms = header[BASE_TIMESTAMP] if header[ATTRIBUTES] & HAS_DELETE_HORIZON else None
        # KIP-534: a batch gets its delete horizon in the first pass that finds a tombstone in it, and the tombstone is
        # removed when the horizon has passed. Before KIP-534 the wait counted from the file's time, and each pass could
        # begin it anew.
        keep_tombstones = horizon_ms is None or self._now_ms < horizon_ms
        reading = survivors.walk(header, raw, position, end, keep_tombstones=keep_tombstones)
        spans, has_tombstones = yield from _charged(reading, end - position)
        if not spans:
            return None
        needs_horizon = has_tombstones and horizon_ms is None
        if len(spans) == header[RECORD_COUNT] and not needs_horizon:
            return _WHOLE
        rebuilding = rebuild(header, raw, spans, horizon_ms=self._new_horizon() if needs_horizon else None)
        return (yield from _charged(rebuilding, end - position))

    def _filter_marker(self, chunk: bytes, at: int, header: Header) -> _Filter:
        """Filter a control batch. The result has the same meaning as that of `_filter`.

        A marker that no reader needs first gets a delete horizon. A pass after that time removes the marker.
        """
        is_abort = self._is_abort(header, chunk, at)
        if is_abort is None and header[RECORD_COUNT]:
            # Keep a control batch of an unknown type. It ends no transaction, and nothing says when it may be removed.
            return _WHOLE
        may_go, aborted = self._transactions.on_marker(header, is_abort)
        if not header[RECORD_COUNT]:
            return None
        if aborted is not None:
            assert self._out is not None
            self._out.add_aborted(aborted)
        if not may_go:
            return _WHOLE
        if header[ATTRIBUTES] & HAS_DELETE_HORIZON:
            return None if header[BASE_TIMESTAMP] <= self._now_ms else _WHOLE
        raw, position, end = records_of(header, chunk, at)
        spans = all_spans(header, raw, position, end)
        rebuilding = rebuild(header, raw, spans, horizon_ms=self._new_horizon())
        return (yield from _charged(rebuilding, end - position))

    def _new_horizon(self) -> int:
        return self._now_ms + self._delete_retention_ms

    def _is_newest_of_producer(self, header: Header) -> bool:
        """Return True for a producer's newest data batch or, if it has none, for a marker with its newest epoch."""
        known = self._facts.producers.get(header[PRODUCER_ID])
        if known is None:
            return False
        offset, epoch = known
        if offset >= 0:
            return last_offset_of(header) == offset
        return bool(header[ATTRIBUTES] & CONTROL) and header[PRODUCER_EPOCH] == epoch

    def _is_abort(self, header: Header, chunk: bytes, at: int) -> bool | None:
        try:
            marker = read_marker(memoryview(chunk)[at : at + _total(header)], header[ATTRIBUTES])
        except KafkaError as problem:
            raise Corrupt(
                f"the marker at offset {header[BASE_OFFSET]} cannot be decoded: {problem}"
            ) from problem
        return None if marker is None else marker[0]

    # -- files -----------------------------------------------------------------------------------------------

    def _read(self, segment: SealedSegment) -> Iterator[tuple[bytes, list[tuple[int, Header]]]]:
        """Yield (bytes, [(position of a whole batch in them, header)]), one chunk at a time."""
        path = self._directory / segment_file_name(segment.base_offset, LOG_SUFFIX)
        fs = self._fs
        descriptor = fs.open(path, writable=False)
        try:
            # The owner may have swapped or deleted the segment since it sent the inode.
            if fs.facts(descriptor).st_ino != segment.inode:
                raise SegmentChanged(f"{path} was replaced while it was compacted")
            position, wanted = 0, self._chunk_bytes
            while position < segment.size:
                chunk = fs.read(descriptor, min(wanted, segment.size - position), position=position)
                batches, wanted = _split(chunk, path, position)
                if batches:
                    yield chunk, batches
                    position += batches[-1][0] + _total(batches[-1][1])
                    wanted = self._chunk_bytes
                # No batch is whole, and a longer read would not change that: the batch's length is damaged, or the file
                # is shorter than the owner said.
                elif wanted <= len(chunk) or position + wanted > segment.size:
                    raise Corrupt(f"{path}: no whole batch at position {position}")
        finally:
            fs.close(descriptor)


class SegmentChanged(Exception):
    """A segment's file has another inode than the owner named, so the pass must end."""


_WHOLE: Final = b"whole"
"""A placeholder for a batch whose records all stay. It is copied without being encoded again."""


def _total(header: Header) -> int:
    return header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES


def _split(chunk: bytes, path: Path, position: int) -> tuple[list[tuple[int, Header]], int]:
    """Return (the whole batches in a chunk, the number of bytes that the first batch needs if none is whole).

    `path` and `position`, where the chunk begins in the file, are for the error.
    """
    batches: list[tuple[int, Header]] = []
    at, size, total = 0, len(chunk), HEADER_BYTES
    while at + HEADER_BYTES <= size:
        header = _unpack_header(chunk, at)
        total = header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
        if (
            header[MAGIC_BYTE] != MAGIC
            or total < HEADER_BYTES
            or header[BASE_OFFSET] | header[LAST_OFFSET_DELTA] < 0
        ):
            raise Corrupt(f"{path}: no valid batch header at position {position + at}")
        if at + total > size:
            break
        batches.append((at, header))
        at += total
    return batches, total
