"""Look-ups in one segment: find a batch by its offset or its time, and walk the headers of batches.

A look-up begins at an index entry, because the index has an entry only for every few kB. The batch of that entry is
checked against the entry, because only look-ups notice damage inside an index: the opening of a log does not read all
entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kproc.broker.storage.batch_scan import LOOKUP_CHUNK_BYTES, BadBatch, read_header, walk_headers
from kproc.broker.storage.format import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from kproc.broker.storage.timestamp_search import SearchPaused, TimestampSearch
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import (
    BASE_OFFSET,
    BATCH_LENGTH,
    HEADER_BYTES,
    MAX_TIMESTAMP,
    RECORD_COUNT,
    Header,
    last_offset_of,
)
from kproc.wire.record_batch import LOG_OVERHEAD_BYTES, NO_TIMESTAMP

if TYPE_CHECKING:
    from kproc.broker.storage.segment import LogSegment

_SHOWN_TOGETHER_BYTES: Final = LOOKUP_CHUNK_BYTES - HEADER_BYTES


def locate(segment: LogSegment, offset: int) -> tuple[int, int] | None:
    """Return (position, size in bytes) of the first batch that ends at or after an offset. None if no batch does.

    Every Fetch that misses the tail cache calls this. Raises Corrupt for a damaged batch or index.
    """
    before, at = segment.index.around(offset)
    if at - before > _SHOWN_TOGETHER_BYTES:
        # The index entries are far apart, so each large batch has one. Usually the batch at `at` is the wanted one, and
        # one small read shows it.
        try:
            header = read_header(segment.fs, segment.descriptor(), at, segment.size)
        except BadBatch as problem:
            raise Corrupt(f"{segment.path(LOG_SUFFIX)}: {problem}") from problem
        if header[BASE_OFFSET] <= offset <= last_offset_of(header):
            return at, header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
    for position, header in _walk_from(segment, before, offset):
        if last_offset_of(header) >= offset:
            return position, header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
    return None


def headers_before(segment: LogSegment, offset: int, entries: int) -> Iterator[Header]:
    """Yield the headers of batches before `offset`, in order. Begin `entries` entries of the offset index before it."""
    for _, header in _walk_from(segment, segment.index.lookup_earlier(offset - 1, entries), offset):
        if header[BASE_OFFSET] >= offset:
            return
        yield header


def headers_from(segment: LogSegment, position: int) -> Iterator[Header]:
    """Yield the headers of the batches from `position` on, where a batch must begin."""
    return (header for _, header in _walk_from(segment, position))


def _walk_from(segment: LogSegment, start: int, offset: int | None = None) -> Iterator[tuple[int, Header]]:
    """Yield (position, header) from a position on. With `offset`, `start` comes from an index entry.

    Raises Corrupt for a damaged batch or index. A bad batch is new damage, because opening the log has checked the
    batches.
    """
    headers = walk_headers(
        segment.fs, segment.descriptor(), start, segment.size, chunk_bytes=LOOKUP_CHUNK_BYTES
    )
    try:
        if start and offset is not None:
            # Check the index entry: its batch must end before `offset`, because the look-up chose the last entry below
            # it.
            first = next(headers, None)
            if first is None or last_offset_of(first[1]) >= offset:
                raise _index_damage(segment, INDEX_SUFFIX)
            yield first
        yield from headers
    except BadBatch as problem:
        raise Corrupt(f"{segment.path(LOG_SUFFIX)}: {problem}") from problem


def _index_damage(segment: LogSegment, suffix: str) -> Corrupt:
    return Corrupt(
        f"{segment.path(suffix)} is damaged: remove it and restart the broker, which builds it again"
    )


def find_timestamp(
    segment: LogSegment, timestamp: int, *, from_offset: int, search: TimestampSearch
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record at or after `timestamp` and `from_offset`, or None.

    At the limit of the search, return the offset that it has reached. Raises SearchPaused when the present slice of
    work is done. Call again with the same `search` to continue.
    """
    search.from_offset = max(search.from_offset, from_offset)
    # Begin at an entry with an earlier timestamp. With an equal timestamp a damaged entry could name a later batch, and
    # the check of the entry against its batch would not notice that.
    entry = segment.time_index.floor(timestamp - 1)
    if entry is not None and entry[1] <= search.from_offset:
        entry = None
    after = search.from_offset if entry is None else entry[1]
    for position, header in _walk_from(segment, segment.index.lookup(after), after + 1):
        is_late = header[MAX_TIMESTAMP] >= timestamp and header[RECORD_COUNT] > 0
        if entry is not None and (is_late or last_offset_of(header) >= entry[1]):
            # By the time index no record before the entry's batch is late enough. Rely on that only if this batch is
            # the entry's.
            if entry != (header[MAX_TIMESTAMP], last_offset_of(header)):
                raise _index_damage(segment, TIME_INDEX_SUFFIX)
            entry = None
        if header[MAX_TIMESTAMP] >= timestamp and last_offset_of(header) >= search.from_offset:
            length = header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
            batch = segment.fs.read(segment.descriptor(), length, position=position)
            found = search.search_batch(header, batch, timestamp)
            if found is not None:
                return found
    if entry is not None:
        raise _index_damage(segment, TIME_INDEX_SUFFIX)
    return None


def max_timestamp_from(segment: LogSegment, offset: int, search: TimestampSearch) -> int:
    """Return the largest timestamp in ms of the records from an offset on, or -1 if none of them has a timestamp.

    Used if DeleteRecords has deleted the record with the segment's largest timestamp. Reads all headers from the offset
    on, and the records of the first batch, which may begin before the offset. Raises SearchPaused when the present
    slice of work is done. Call again with the same `search` to continue.
    """
    base, start, position, largest = search.scanned
    if (base, start) != (segment.base_offset, offset):
        found = locate(segment, offset)
        position, largest = (segment.size if found is None else found[0]), NO_TIMESTAMP
    for at, header in _walk_from(segment, position):
        if search.count_header():
            search.scanned = segment.base_offset, offset, at, largest
            raise SearchPaused
        if header[BASE_OFFSET] >= offset:
            largest = max(largest, header[MAX_TIMESTAMP])
            continue
        length = header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
        batch = segment.fs.read(segment.descriptor(), length, position=at)
        largest = max(largest, search.largest_in(header, batch, offset))
    search.scanned = segment.base_offset, offset, segment.size, largest
    return largest
