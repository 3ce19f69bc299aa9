"""Checks of a segment's indexes against its batches, when recovery believes the batches without verifying them.

An index can differ from its .log file: a file was changed outside the broker, or a power loss has lost pages of one of
them. A wrong entry would hide records from look-ups by offset or time, so such indexes are built again.
"""

from __future__ import annotations

from kproc.broker.storage.batch_scan import LOOKUP_CHUNK_BYTES, BadBatch, walk_headers
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.segment import LogSegment
from kproc.broker.storage.segment_lookup import headers_from
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import MAX_TIMESTAMP, RECORD_COUNT, Header, last_offset_of
from kproc.wire.record_batch import NO_TIMESTAMP


def rewind_indexes(fs: Fs, segment: LogSegment, believed_end: int) -> int:
    """Remove the index entries behind the last one that is below the offset `believed_end`.

    Recovery believes the batches below that offset, and verifies the others. Returns the position in that last entry,
    from which on recovery must read the batches, or 0 if the indexes must be rebuilt.
    """
    entry = segment.index.floor(believed_end - 1)
    if entry is None or segment.needs_index or not _names_batch(fs, segment, *entry[1:]):
        return 0
    if not _has_right_last_time(fs, segment):
        return 0
    number, offset, position = entry
    segment.index.truncate_entries(number + 1)
    segment.time_index.truncate_to(offset + 1)
    last = segment.time_index.last()
    segment.max_timestamp, segment.max_timestamp_offset = last or (NO_TIMESTAMP, segment.base_offset)
    segment.bytes_since_index = 0
    return position


def has_right_times(fs: Fs, segment: LogSegment) -> bool:
    """Return True if the last entry of the time index has the largest timestamp of the segment.

    It must have the timestamp and offset of an existing batch, and no batch behind the last entry of the offset index
    may have a later timestamp. Retention and searches by time rely on the entry, and do not read the records.
    """
    if not _has_right_last_time(fs, segment):
        return False
    last, indexed = segment.time_index.last(), segment.index.last()
    latest = NO_TIMESTAMP if last is None else last[0]
    try:
        headers = headers_from(segment, 0 if indexed is None else indexed[1])
        return all(header[MAX_TIMESTAMP] <= latest or not header[RECORD_COUNT] for header in headers)
    # A batch is damaged. The caller rebuilds the indexes then, and reports the damage because it reads every batch.
    except Corrupt:
        return False


def _has_right_last_time(fs: Fs, segment: LogSegment) -> bool:
    """Return True if a time index is empty, or its last entry has the timestamp and offset of an existing batch."""
    last = segment.time_index.last()
    if last is None:
        return True
    try:
        found = _next_header(fs, segment, segment.index.lookup(last[1]), last[1])
    except BadBatch:
        return False
    return found is not None and (found[MAX_TIMESTAMP], last_offset_of(found)) == last


def _next_header(fs: Fs, segment: LogSegment, position: int, offset: int) -> Header | None:
    """Return the header of the first batch from a position on that ends at or behind an offset, or None without one."""
    headers = walk_headers(fs, segment.descriptor(), position, segment.size, chunk_bytes=LOOKUP_CHUNK_BYTES)
    return next((header for _, header in headers if last_offset_of(header) >= offset), None)


def _names_batch(fs: Fs, segment: LogSegment, offset: int, position: int) -> bool:
    try:
        for _, header in walk_headers(fs, segment.descriptor(), position, segment.size, chunk_bytes=64):
            return last_offset_of(header) == offset
    # The entry points into the middle of a batch: a power loss has lost its page of the index, which then has zeroes or
    # older bytes.
    except BadBatch:
        return False
    return False
