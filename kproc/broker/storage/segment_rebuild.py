"""SegmentRebuild: walks over a segment's batches to find its end and its timestamps, and rebuilds its indexes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kproc.broker.storage.batch_scan import BadBatch
from kproc.broker.storage.format import INT32_MAX
from kproc.broker.storage.segment import LogSegment
from kproc.wire.batch_header import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    RECORD_COUNT,
    Header,
    last_offset_of,
)
from kproc.wire.record_batch import LOG_OVERHEAD_BYTES, TRANSACTIONAL

# Index entries of one write. Each write is a system call, and a full segment can have more than 100,000 entries.
_ENTRIES: Final = 4096


class SegmentRebuild:
    """One walk over a segment's batches: finds the next offset, learns timestamps, adds index entries.

    The entries are those that appending the same batches would have written.
    """

    def __init__(self, segment: LogSegment, interval_bytes: int) -> None:
        self._segment = segment
        self._interval_bytes = interval_bytes
        self.next_offset = segment.base_offset
        self.end_position = 0
        self.epoch_starts: list[tuple[int, int]] = []
        self.first_transactional: int | None = None

    def run(self, batches: Iterable[tuple[int, Header]]) -> None:
        """Walk over all batches. If the walk raises BadBatch, the results hold for the batches before that."""
        segment = self._segment
        pairs: list[tuple[int, int]] = []
        times: list[tuple[int, int]] = []
        try:
            for position, header in batches:
                base, last = header[BASE_OFFSET], last_offset_of(header)
                total = header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
                self._check_offsets(position, base, last)
                if position == 0:
                    segment.first_timestamp = header[MAX_TIMESTAMP]
                # Skip a batch without records, because it has no timestamp.
                if header[MAX_TIMESTAMP] > segment.max_timestamp and header[RECORD_COUNT]:
                    segment.max_timestamp, segment.max_timestamp_offset = header[MAX_TIMESTAMP], last
                if segment.bytes_since_index > self._interval_bytes:
                    pairs.append((last, position))
                    times.append((segment.max_timestamp, segment.max_timestamp_offset))
                    segment.bytes_since_index = 0
                segment.bytes_since_index += total
                self.next_offset = last + 1
                self.end_position = position + total
                if header[ATTRIBUTES] & TRANSACTIONAL and self.first_transactional is None:
                    self.first_transactional = base
                if not self.epoch_starts or self.epoch_starts[-1][0] != header[LEADER_EPOCH]:
                    self.epoch_starts.append((header[LEADER_EPOCH], base))
                if len(pairs) >= _ENTRIES:
                    segment.append_index_entries(pairs, times)
                    pairs, times = [], []
        finally:
            if pairs:
                segment.append_index_entries(pairs, times)

    def _check_offsets(self, position: int, base: int, last: int) -> None:
        """Raise BadBatch if the batch at `position` cannot have these offsets."""
        # A power loss has lost the page with the first bytes of the batch: its offset is wrong, and the CRC does not
        # show that, because it does not cover the offset.
        if base < self.next_offset:
            raise BadBatch(position, f"base offset {base} is below the expected {self.next_offset}")
        first = self._segment.base_offset
        # The owner would have rolled before this batch, because offsets in indexes have 32 bits. So the offset is
        # wrong.
        if last - first > INT32_MAX:
            raise BadBatch(position, f"offset {last} is too high for a segment that begins at {first}")
