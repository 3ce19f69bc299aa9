"""TimestampSearch: one look-up by time, which may have to look into many batches.

A batch's header names its largest timestamp, so that the first one that is late enough holds the record, and nothing
else has to be looked into. But nobody has compared it with the records: headers that promise what is not there would
have every batch of a log inflated. So a search goes on in slices, and looks into so much in all. After that the offset
it has come to is the answer: no record before it is meant, and whoever reads from there misses none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from kproc.errors import KafkaError, ProtocolError
from kproc.storage.format import NO_TIMESTAMP
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
from kproc.wire.compression import DECOMPRESSED_BYTES_MAX, decompress
from kproc.wire.primitives import as_int64, read_unsigned_varint, read_unsigned_varlong
from kproc.wire.record_batch import CODEC_MASK, LOG_APPEND_TIME

SLICE_BYTES: Final = 4 << 20
SLICE_RECORDS: Final = 20_000
SEARCH_RECORDS_MAX: Final = 200_000

Found = tuple[int, int]


class SearchPaused(Exception):
    """A slice is used up; the same search goes on where it stopped."""


class TimestampSearch:
    """Where a search is. `begin` before each slice, `look_into` for each batch whose header promises something."""

    __slots__ = ("_bytes_left", "_records_left", "_slice_bytes", "_slice_records", "from_offset", "scanned")

    def __init__(self) -> None:
        self.from_offset = 0  # Below it, all has been looked at.
        # How far Segment.max_timestamp_from is: (segment, from offset, next position, largest so far).
        self.scanned = (-1, -1, 0, NO_TIMESTAMP)
        self._bytes_left, self._records_left = DECOMPRESSED_BYTES_MAX, SEARCH_RECORDS_MAX
        self._slice_bytes = self._slice_records = 0

    def begin(self) -> None:
        """The next slice: one batch in any case."""
        self._slice_bytes, self._slice_records = SLICE_BYTES, SLICE_RECORDS

    def look_into(self, header: Header, batch: bytes, timestamp: int) -> Found | None:
        """(offset, timestamp) of its first record at or after `timestamp`, or None; SearchPaused: not in
        this slice.
        """
        if self._slice_bytes <= 0 or self._slice_records <= 0:
            raise SearchPaused
        first, count = max(header[BASE_OFFSET], self.from_offset), header[RECORD_COUNT]
        raw = self._inflate(header, batch) if self._records_left > 0 else None
        if raw is None:
            return first, header[MAX_TIMESTAMP]
        walked, offset = 0, first
        found = None
        for offset, dated in islice(_walk(raw, header), self._records_left):
            walked += 1
            if dated >= timestamp and offset >= self.from_offset:
                found = offset, dated
                break
        self._records_left -= walked
        self._slice_records -= walked
        if found is None and walked < count and self._records_left <= 0:
            return max(first, offset), header[MAX_TIMESTAMP]
        if found is None:
            self.from_offset = max(self.from_offset, last_offset_of(header) + 1)
        return found

    def largest_in(self, header: Header, batch: bytes, from_offset: int) -> int:
        """The largest timestamp of its records from an offset on; what the header says where that is too
        much to do.
        """
        raw = self._inflate(header, batch) if header[RECORD_COUNT] <= self._records_left else None
        if raw is None:
            return header[MAX_TIMESTAMP]
        self._records_left -= header[RECORD_COUNT]
        self._slice_records -= header[RECORD_COUNT]
        return max(
            (dated for offset, dated in _walk(raw, header) if offset >= from_offset), default=NO_TIMESTAMP
        )

    def note_header(self) -> bool:
        """Count a header that was only read; whether the slice is used up."""
        self._slice_records -= 1
        return self._slice_records < 0 or self._slice_bytes <= 0

    def _inflate(self, header: Header, batch: bytes) -> bytes | None:
        """None: more than may still be looked into."""
        if self._bytes_left <= 0:
            return None
        try:
            raw = decompress(
                header[ATTRIBUTES] & CODEC_MASK, memoryview(batch)[HEADER_BYTES:], self._bytes_left
            )
        except KafkaError:
            if self._bytes_left == DECOMPRESSED_BYTES_MAX:
                raise
            return None
        self._bytes_left -= len(raw)
        self._slice_bytes -= len(raw)
        return raw


def _walk(raw: bytes, header: Header) -> Iterator[Found]:
    """(offset, timestamp) of record after record, as far as they can be read: nobody has ever looked at them."""
    position = 0
    try:
        for _ in range(header[RECORD_COUNT]):
            length, body = read_unsigned_varint(raw, position)
            delta, at = read_unsigned_varlong(raw, body + 1)
            offset = header[BASE_OFFSET] + (read_unsigned_varint(raw, at)[0] >> 1)
            if header[ATTRIBUTES] & LOG_APPEND_TIME:
                yield offset, header[MAX_TIMESTAMP]
            else:
                yield offset, as_int64(header[BASE_TIMESTAMP] + (delta >> 1 ^ -(delta & 1)))
            position = body + (length >> 1)
    except (ProtocolError, IndexError):
        return
