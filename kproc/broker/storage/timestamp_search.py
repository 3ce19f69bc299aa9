"""TimestampSearch: one look-up by time, which may have to decompress many batches.

A batch's header has its largest timestamp, so the first batch whose header is late enough holds the record, and no
other batch has to be decompressed. But headers are not compared with the records: false headers could make a search
decompress every batch of a log. So a search runs in slices and has a limit of decompressed bytes and records. At the
limit it returns the offset that it has reached: no earlier record matches, and a reader that begins there misses none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kproc.broker.storage.format import INT32_MAX
from kproc.common.errors import ProtocolError
from kproc.wire.batch_header import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    HEADER_BYTES,
    MAX_TIMESTAMP,
    RECORD_COUNT,
    Header,
    last_offset_of,
)
from kproc.wire.compression import DECOMPRESSED_BYTES_MAX, InflatesTooMuch, decompress, inflation_limit
from kproc.wire.primitives import as_int64, read_unsigned_varint, read_unsigned_varlong
from kproc.wire.record_batch import CODEC_MASK, LOG_APPEND_TIME, NO_TIMESTAMP
from kproc.wire.record_check import record_too_large

# Limits of one slice, and of the records of a whole search. A search runs in slices because a Handler does nothing else
# during a slice. It is limited because false headers could otherwise make it read the whole log.
SLICE_BYTES: Final = 4 << 20
SLICE_RECORDS: Final = 20_000
SEARCH_RECORDS_MAX: Final = 200_000

Found = tuple[int, int]


class SearchPaused(Exception):
    """The present slice is used up. Call again with the same search, which continues where it stopped."""


class TimestampSearch:
    """The state of a search for a record by its timestamp.

    Call `start_slice` before each slice, and `search_batch` for each batch that can have the record by its header.
    """

    __slots__ = (
        "_bytes_left", "_open", "_record_bytes_max", "_records_left", "_slice_bytes", "_slice_records", "from_offset",
        "scanned",
    )  # fmt: skip

    def __init__(self) -> None:
        self.from_offset = 0  # All records below this offset have been searched.
        # Progress of segment_lookup.max_timestamp_from: (segment, from offset, next position, largest so far).
        self.scanned = (-1, -1, 0, NO_TIMESTAMP)
        self._bytes_left, self._records_left = DECOMPRESSED_BYTES_MAX, SEARCH_RECORDS_MAX
        self._slice_bytes = self._slice_records = 0
        self._record_bytes_max = INT32_MAX
        # The batch in which the last slice ended: its base offset, and an iterator over its remaining records.
        self._open: tuple[int, Iterator[Found]] | None = None

    def start_slice(self, record_bytes_max: int = INT32_MAX) -> None:
        """Start the next slice. At least one batch is decompressed in it.

        The search fails with INVALID_RECORD at a record of a compressed batch that is larger than `record_bytes_max`.
        """
        self._slice_bytes, self._slice_records = SLICE_BYTES, SLICE_RECORDS
        self._record_bytes_max = record_bytes_max

    def search_batch(self, header: Header, batch: bytes, timestamp: int) -> Found | None:
        """Return (offset, timestamp) of the batch's first record at or after `timestamp`, or None.

        If the search has reached its limit of bytes or records, return the first offset that it has not searched, with
        the header's largest timestamp. Raises SearchPaused when the slice is used up. The next slice continues inside
        the batch, because a batch of a few kB can hold 200,000 records.
        """
        # Pause before a batch is decompressed, because one batch can take as long as a whole slice.
        if self._slice_bytes <= 0 or self._slice_records <= 0:
            raise SearchPaused
        first = max(header[BASE_OFFSET], self.from_offset)
        if self._open is not None and self._open[0] == header[BASE_OFFSET]:
            walk = self._open[1]
        else:
            raw = self._inflate(header, batch) if self._records_left > 0 else None
            # The search has reached one of its limits, or the batch would exceed them. Return the batch's first offset:
            # no earlier record matches.
            if raw is None:
                return first, header[MAX_TIMESTAMP]
            walk = _walk(raw, header, self._record_bytes_max)
        self._open = None
        for offset, dated in walk:
            # The search has reached its limit of records. Return the present offset: no earlier record matches, so a
            # reader that begins there misses none.
            if self._records_left <= 0:
                return max(first, offset), header[MAX_TIMESTAMP]
            self._records_left -= 1
            self._slice_records -= 1
            if dated >= timestamp and offset >= self.from_offset:
                return offset, dated
            if self._slice_records <= 0:
                self._open = header[BASE_OFFSET], walk
                raise SearchPaused
        self.from_offset = max(self.from_offset, last_offset_of(header) + 1)
        return None

    def largest_in(self, header: Header, batch: bytes, from_offset: int) -> int:
        """Return the largest timestamp of the batch's records from an offset on, or -1 if the batch has no such record.

        A batch that is too long for a slice, or for the limit of the search, is not read: return its header's maximum.
        """
        is_short = header[RECORD_COUNT] <= min(self._records_left, SLICE_RECORDS)
        raw = self._inflate(header, batch) if is_short else None
        if raw is None:
            return header[MAX_TIMESTAMP]
        self._records_left -= header[RECORD_COUNT]
        self._slice_records -= header[RECORD_COUNT]
        return max(
            (dated for offset, dated in _walk(raw, header, self._record_bytes_max) if offset >= from_offset),
            default=NO_TIMESTAMP,
        )

    def count_header(self) -> bool:
        """Count a header that was read. Return True if the slice is used up."""
        self._slice_records -= 1
        return self._slice_records < 0 or self._slice_bytes <= 0

    def _inflate(self, header: Header, batch: bytes) -> bytes | None:
        """Decompress the batch's records. Return None if that would exceed the search's limit of bytes."""
        payload = memoryview(batch)[HEADER_BYTES:]
        limit_bytes = min(self._bytes_left, inflation_limit(len(payload)))
        if limit_bytes <= 0:
            return None
        try:
            raw = decompress(header[ATTRIBUTES] & CODEC_MASK, payload, limit_bytes)
        except InflatesTooMuch:
            return None
        self._bytes_left -= len(raw)
        self._slice_bytes -= len(raw)
        return raw


def _walk(raw: bytes, header: Header, record_bytes_max: int) -> Iterator[Found]:
    """Yield (offset, timestamp) of each record until one is malformed, because Produce may not have checked them.

    Raises INVALID_RECORD for a record of a compressed batch above `record_bytes_max`, which can be less than it was
    when the batch was produced.
    """
    limit = record_bytes_max if header[ATTRIBUTES] & CODEC_MASK else INT32_MAX
    position = 0
    try:
        for _ in range(header[RECORD_COUNT]):
            length, body = read_unsigned_varint(raw, position)
            if length >> 1 > limit:
                raise record_too_large(length >> 1, limit)
            delta, at = read_unsigned_varlong(raw, body + 1)
            offset = header[BASE_OFFSET] + (read_unsigned_varint(raw, at)[0] >> 1)
            if header[ATTRIBUTES] & LOG_APPEND_TIME:
                yield offset, header[MAX_TIMESTAMP]
            else:
                yield offset, as_int64(header[BASE_TIMESTAMP] + (delta >> 1 ^ -(delta & 1)))
            position = body + (length >> 1)
    except (ProtocolError, IndexError):
        return
