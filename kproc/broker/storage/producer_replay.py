"""ProducerReplay: rebuilds a log's producers at its opening, from the newest good snapshot and later batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from kproc.broker.storage.batch_scan import walk_headers
from kproc.broker.storage.format import SNAPSHOT_SUFFIX, segment_file_name
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.producer_snapshot_codec import decode_snapshot
from kproc.broker.storage.producer_state import BATCHES_KEPT, BatchMark, ProducerTable
from kproc.broker.storage.segment import LogSegment
from kproc.broker.storage.segment_lookup import headers_before, locate
from kproc.broker.storage.validate import read_marker
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    BATCH_LENGTH,
    LAST_OFFSET_DELTA,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    Header,
    last_offset_of,
)
from kproc.wire.record_batch import CONTROL, LOG_OVERHEAD_BYTES, TRANSACTIONAL

logger = logging.getLogger(__name__)

# How far before a snapshot to search for batches of its producers, in index entries (4 KiB or one larger batch each).
# First search 16 entries, about 64 KiB. Search 256 entries, about 1 MiB, if the first search found too few batches of a
# producer to detect its retries (`_is_enough`), and the producer was active within the clients' default
# delivery.timeout.ms.
_RECALLED_ENTRIES: Final = (16, 256)
_DELIVERY_TIMEOUT_MS: Final = 120_000

Marks = dict[tuple[int, int], list[BatchMark]]  # (producer id, epoch) -> batches, the oldest first.


def _mark_of(header: Header) -> BatchMark:
    """Return the BatchMark of a batch: (last sequence, last offset, last offset delta, max timestamp)."""
    first, delta = header[BASE_SEQUENCE], header[LAST_OFFSET_DELTA]
    last = (first + delta) & 0x7FFFFFFF if first >= 0 else -1
    return last, last_offset_of(header), delta, header[MAX_TIMESTAMP]


def _is_enough(marks: Sequence[BatchMark]) -> bool:
    """Return True if these BatchMarks of a producer are enough to detect every retry of a batch.

    They are enough if there are BATCHES_KEPT of them, or if the oldest one is of the batch with sequence 0.
    """
    return len(marks) >= BATCHES_KEPT or bool(marks and marks[0][0] == marks[0][2])


class ProducerReplay:
    """Rebuilds the producers of one log, once.

    first_transactional: the first transactional offset among the batches that recovery scanned, or None.
    """

    def __init__(
        self,
        fs: Fs,
        directory: Path,
        config: LogConfig,
        segments: list[LogSegment],
        first_transactional: int | None,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._config = config
        self._segments = segments
        self._first_transactional = first_transactional

    def load(
        self, snapshots: list[int], end_offset: int, now_ms: int, *, known_none: int = 0
    ) -> ProducerTable:
        """Return the producers at `end_offset`: load the newest good snapshot and replay the batches behind it.

        Deletes damaged snapshots and removes them from `snapshots`. If recovery scanned transactions, the snapshot must
        be from before them, because the replay of their markers fills the .txnindex. `known_none` is an offset below
        which the dead owner knew no producer, so that the replay can begin there.
        """
        table = ProducerTable(self._segments[0].base_offset)
        usable = end_offset if self._first_transactional is None else self._first_transactional
        # Try the newest snapshot first, because requests wait until all batches behind the snapshot are replayed.
        for offset in reversed(snapshots.copy()):
            path = self._directory / segment_file_name(offset, SNAPSHOT_SUFFIX)
            try:
                # The snapshot contains batches that were truncated with a torn tail.
                if offset > end_offset:
                    raise Corrupt(f"the snapshot is of offset {offset}, but the log ends at {end_offset}")
                # Skip a snapshot from behind the first scanned transactional batch. A replay from there would miss
                # scanned markers, whose rows would be missing in the transaction index.
                if offset > usable:
                    continue
                table.load(decode_snapshot(self._fs.read_file(path) or b""))
            except Corrupt as problem:
                logger.warning("snapshot=dropped path=%s reason=%s", path, problem)
                self._fs.unlink(path)
                snapshots.remove(offset)
                continue
            table.end_offset = offset
            self._recall(table, now_ms)
            break
        if known_none > table.end_offset:
            table = ProducerTable(known_none)
        table.expire(now_ms, self._config.producer_id_expiration_ms)
        for segment, position, header in self._headers_from(table.end_offset):
            # The file's modification time is not earlier than the arrival of any of its batches.
            self._replay(table, segment, position, header, segment.created_ms)
        table.end_offset = end_offset
        return table

    def _recall(self, table: ProducerTable, now_ms: int) -> None:
        """Add the batches before each producer's newest one. Snapshots lack them, but clients may retry them.

        Search the log near the snapshot first. Search further back for producers with too few batches that were active
        within delivery.timeout.ms.
        """
        if not len(table):
            return
        marks: Marks = {}
        for entries in _RECALLED_ENTRIES:
            marks = self._marks_before(table.end_offset, entries)
            recent = (each for each in table.entries() if now_ms - each.last_timestamp < _DELIVERY_TIMEOUT_MS)
            if all(_is_enough(marks.get((each.producer_id, each.epoch), ())) for each in recent):
                break
        for entry in table.entries():
            for newest in entry.batches:
                found = marks.get((entry.producer_id, entry.epoch), ())
                earlier = [mark for mark in found if mark[1] < newest[1]]
                batches = (*earlier[1 - BATCHES_KEPT :], newest)
                table.restore(entry.producer_id, msgspec.structs.replace(entry, batches=batches))

    def _marks_before(self, offset: int, entries: int) -> Marks:
        """Return the BatchMarks of batches before `offset` by (producer id, epoch), in the order of the log.

        The search begins about `entries` entries of the offset indexes before `offset`.
        """
        headers: list[Header] = []
        for segment in reversed([each for each in self._segments if each.base_offset < offset]):
            # Segments are read from the newest back, but the marks must be in the order of the log.
            headers[:0] = headers_before(segment, offset, entries)
            if segment is not self._segments[-1]:
                segment.close()
            # The bytes behind the segment's last index entry count as one more entry.
            entries -= segment.index.count + 1
            if entries <= 0:
                break
        marks: Marks = {}
        for header in headers:
            if header[BASE_SEQUENCE] >= 0 and not header[ATTRIBUTES] & CONTROL:
                marks.setdefault((header[PRODUCER_ID], header[PRODUCER_EPOCH]), []).append(_mark_of(header))
        return marks

    def _headers_from(self, offset: int) -> Iterator[tuple[LogSegment, int, Header]]:
        for segment, following in zip(self._segments, [*self._segments[1:], None], strict=True):
            if following is not None and following.base_offset <= offset:
                continue
            # A log without a snapshot is replayed from its first batch on.
            found = locate(segment, offset) if offset > segment.base_offset else (0, 0)
            if found is not None:
                for position, header in walk_headers(self._fs, segment.descriptor(), found[0], segment.size):
                    yield segment, position, header
            if following is not None:
                segment.close()

    def _replay(
        self, table: ProducerTable, segment: LogSegment, position: int, header: Header, heard_ms: int
    ) -> None:
        """Apply one batch of the log to the state of its producer. Skip batches without a producer id.

        position: the batch's place in the file of `segment`. heard_ms: wall time that counts as the batch's arrival.
        """
        producer_id, epoch, attributes = header[PRODUCER_ID], header[PRODUCER_EPOCH], header[ATTRIBUTES]
        # Most batches of a usual log are from producers without an id, so return before anything is unpacked.
        if producer_id < 0:
            return
        last_offset = last_offset_of(header)
        if not attributes & CONTROL:
            table.record(
                producer_id,
                epoch,
                _mark_of(header),
                transactional=bool(attributes & TRANSACTIONAL),
                heard_ms=heard_ms,
            )
            return
        length = header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
        content = self._fs.read(segment.descriptor(), length, position=position)
        marker = read_marker(memoryview(content), attributes)
        # Compaction has removed the marker, or this control batch is no transaction marker. In both cases no
        # transaction ends.
        if marker is None:
            return
        aborted = table.record_marker(
            producer_id, epoch, marker[1], offset=last_offset, timestamp=heard_ms, is_abort=marker[0]
        )
        if aborted is not None:
            segment.txn_index.complete(aborted)
