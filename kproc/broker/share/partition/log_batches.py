"""LogBatches: the batches of a log from an offset on. A share partition acquires whole batches of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.broker.storage.segment_lookup import headers_from
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    PRODUCER_ID,
    Header,
    last_offset_of,
)
from kproc.wire.file_range import FileRange
from kproc.wire.record_batch import CONTROL, LOG_OVERHEAD_BYTES, TRANSACTIONAL

if TYPE_CHECKING:
    from kproc.broker.storage.format import AbortedTransaction
    from kproc.broker.storage.log import Log

_KINDS: Final = TRANSACTIONAL | CONTROL


class _Batch(NamedTuple):
    """The first and the last offset of a batch, and the range of a segment file with the bytes of this batch alone."""

    first: int
    last: int
    file: FileRange


class LogBatches:
    """Whole batches that one read has found."""

    __slots__ = ("_batches", "aborted")

    def __init__(self, batches: list[_Batch], aborted: list[tuple[int, int]]) -> None:
        self._batches = batches
        self.aborted = aborted  # (first, last offset) of each batch of an aborted transaction.

    def __len__(self) -> int:
        return len(self._batches)

    def offsets(self) -> list[tuple[int, int]]:
        """Return the first and the last offset of each batch."""
        return [(batch.first, batch.last) for batch in self._batches]

    def ranges(self, first: int, last: int) -> list[FileRange]:
        """Return the file ranges of the batches that have offsets of `first` to `last`. Join adjacent ranges."""
        ranges: list[FileRange] = []
        for batch in self._batches:
            if batch.last < first or batch.first > last:
                continue
            if (
                ranges
                and ranges[-1].path == batch.file.path
                and _end_position(ranges[-1]) == batch.file.position
            ):
                ranges[-1] = ranges[-1]._replace(length=ranges[-1].length + batch.file.length)
            else:
                ranges.append(batch.file)
        return ranges


def read_batches(
    log: Log, offset: int, records_max: int, bytes_max: int, *, minimum_one: bool, is_committed: bool
) -> LogBatches:
    """Read batches from the one with `offset` on, up to about `records_max` offsets and `bytes_max` bytes.

    With `minimum_one` the first batch may exceed the limit of bytes. With `is_committed` the read ends at the last
    stable offset. Raises KafkaError, Corrupt or OSError.
    """
    found = log.read(offset, bytes_max, minimum_one=minimum_one, committed=is_committed)
    transactions = log.aborted_in(offset, found) if is_committed else []
    batches: list[_Batch] = []
    aborted: list[tuple[int, int]] = []
    for header, file in _walk(log, offset, found.ranges):
        first, last = header[BASE_OFFSET], last_offset_of(header)
        batches.append(_Batch(first, last, file))
        if transactions and _is_aborted(header, transactions):
            aborted.append((first, last))
        # Stop at `records_max`. Each further header costs a read of the file, for records that could not be
        # acquired.
        if last - offset + 1 >= records_max:
            break
    return LogBatches(batches, aborted)


def _walk(log: Log, offset: int, ranges: list[FileRange]) -> Iterator[tuple[Header, FileRange]]:
    """Yield the header and the file range of each whole batch in ranges that begin with the batch of an offset."""
    segments = log.state.segments
    number = segments.number_of(offset)
    for part in ranges:
        while (segment := segments.get(number)) is not None and segment.path_bytes != part.path:
            number += 1
        if segment is None:
            raise Corrupt(
                f"{log.state.directory}: a read returned the file {part.path!r}, which no segment of the log has"
            )
        position = part.position
        for header in headers_from(segments.warm(segment), position):
            length = header[BATCH_LENGTH] + LOG_OVERHEAD_BYTES
            # The read has a limit of bytes, so its range can end inside a batch. Skip this batch.
            if position + length > _end_position(part):
                return
            yield header, segment.range(position, length)
            position += length
            if position == _end_position(part):
                break


def _is_aborted(header: Header, transactions: list[AbortedTransaction]) -> bool:
    """Return True for a batch of data of an aborted transaction. Markers are delivered, and clients skip them."""
    return header[ATTRIBUTES] & _KINDS == TRANSACTIONAL and any(
        each.producer_id == header[PRODUCER_ID]
        and each.first_offset <= header[BASE_OFFSET] < each.last_offset
        for each in transactions
    )


def _end_position(part: FileRange) -> int:
    return part.position + part.length
