"""TimestampSearch: one look-up by time, which may have to look into many batches.

A batch's header names its largest timestamp, so that the first one that is late enough holds the record, and nothing
else has to be looked into. But nobody has compared it with the records: headers that promise what is not there would
have every batch of a log inflated. So a search goes on in slices, and looks into so much in all. After that the offset
it has come to is the answer: no record before it is meant, and whoever reads from there misses none.
"""

from __future__ import annotations

from typing import Final

from kproc.errors import KafkaError, ProtocolError
from kproc.storage.batch_scan import Header
from kproc.wire.compression import DECOMPRESSED_BYTES_MAX, decompress
from kproc.wire.primitives import as_int64, read_unsigned_varint, read_unsigned_varlong
from kproc.wire.record_batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME

SLICE_BYTES: Final = 4 << 20
SLICE_RECORDS: Final = 20_000
SEARCH_RECORDS_MAX: Final = 200_000

Found = tuple[int, int]


class SearchPaused(Exception):
    """A slice is used up; the same search goes on where it stopped."""


class TimestampSearch:
    """Where a search is. `begin` before each slice, `look_into` for each batch whose header promises something."""

    __slots__ = ("_bytes_left", "_records_left", "_slice_bytes", "_slice_records", "from_offset")

    def __init__(self) -> None:
        self.from_offset = 0  # Below it, all has been looked at.
        self._bytes_left, self._records_left = DECOMPRESSED_BYTES_MAX, SEARCH_RECORDS_MAX
        self._slice_bytes = self._slice_records = 0

    def begin(self) -> None:
        """The next slice: one batch in any case."""
        self._slice_bytes, self._slice_records = SLICE_BYTES, SLICE_RECORDS

    def look_into(self, header: Header, batch: bytes, timestamp: int) -> Found | None:
        """(offset, timestamp) of its first record at or after `timestamp`, or None; SearchPaused: not in this slice."""
        if self._slice_bytes <= 0 or self._slice_records <= 0:
            raise SearchPaused
        base, attributes, count = header[0], header[5], header[12]
        first = max(base, self.from_offset)
        if self._bytes_left <= 0 or self._records_left <= 0:
            return first, header[8]
        try:
            raw = decompress(attributes & CODEC_MASK, memoryview(batch)[HEADER_BYTES:], self._bytes_left)
        except KafkaError:
            if self._bytes_left == DECOMPRESSED_BYTES_MAX:
                raise
            return first, header[8]  # More than may still be looked into.
        self._bytes_left -= len(raw)
        self._slice_bytes -= len(raw)
        position = walked = 0
        found = None
        try:
            while walked < count and found is None and walked < self._records_left:
                length, body = read_unsigned_varint(raw, position)
                delta, at = read_unsigned_varlong(raw, body + 1)
                offset = base + (read_unsigned_varint(raw, at)[0] >> 1)
                dated = as_int64(header[7] + (delta >> 1 ^ -(delta & 1)))
                if attributes & LOG_APPEND_TIME:
                    dated = header[8]
                if dated >= timestamp and offset >= self.from_offset:
                    found = offset, dated
                position = body + (length >> 1)
                walked += 1
        except (ProtocolError, IndexError):
            pass  # Such records were never looked at: there are no more of them than could be read.
        self._records_left -= walked
        self._slice_records -= walked
        if found is None and walked < count and self._records_left <= 0:
            return max(first, offset), header[8]
        if found is None:
            self.from_offset = max(self.from_offset, base + header[6] + 1)
        return found
