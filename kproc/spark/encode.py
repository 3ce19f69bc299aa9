"""RecordEncoder: Arrow columns to record batches of version 2, as Kafka's clients send them.

    RecordEncoder.encode(rows, partitions) -> one Draft for each batch, in the order of the rows of each partition
    Draft.stamp(producer id, epoch, sequence) -> the batch's bytes with header and CRC

The encoder sorts rows by partition and cuts them into batches. Arrow then joins every record from up to five columns.
Only the varints are computed here, with numpy, one byte position at a time:

    [length | 0 | timestamp delta | offset delta | key length] key [value length] value [header count | headers]

The joined column's buffer contains the records one after another, and a batch is a slice of it. No Python code runs per
row. A Draft has no sequence yet: its records are compressed at once, and the CRC is computed when it is first sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kproc.spark.binary import bytes_scalar, number_array
from kproc.spark.partitioner import Int32s, Int64s, ragged
from kproc.wire import records as record_format
from kproc.wire.batch_header import CRC_AT, CRC_FROM, HEADER, HEADER_BYTES
from kproc.wire.checksum import crc32c
from kproc.wire.compression import compress, decompress
from kproc.wire.record_batch import LOG_OVERHEAD_BYTES, MAGIC, TRANSACTIONAL

# Kafka's DefaultRecord.MAX_RECORD_OVERHEAD: the largest sizes of a record's length, attributes and two deltas. Real
# deltas are several bytes smaller, which makes up for the omitted lengths of key and value and header count.
RECORD_OVERHEAD_BYTES_MAX: Final = 21
# Size of the pieces in which rows are encoded: large enough to hide numpy's fixed costs and to fill a batch for each of
# a few partitions, small enough for the CPU's caches and for Arrow's 32-bit offsets.
PIECE_BYTES: Final = 2 * 1024 * 1024
# Below this number of partitions, partition numbers fit into 16 bits, which numpy sorts by radix sort, several times as
# fast.
_RADIX_PARTITIONS_MAX: Final = 1 << 15

_NO_HEADERS: Final = bytes_scalar(b"\x00")
_NOTHING: Final = bytes_scalar(b"")

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


class RecordTooLarge(Exception):
    """A record is larger than kafka.max.request.size. The message has the record's partition and size."""


class NullHeader(Exception):
    """A header is null or has a null key."""


class RowColumns(NamedTuple):
    """Records as columns of equal length. `keys` and `headers` are None if no record has any."""

    values: pa.Array
    keys: pa.Array | None
    headers: pa.Array | None
    """list<struct<key string, value binary>>; a null row is a record without headers."""
    timestamps_ms: Int64s

    def slice(self, start: int, count: int) -> RowColumns:
        """Return `count` rows from `start` on, without a copy."""
        return RowColumns(
            self.values.slice(start, count),
            None if self.keys is None else self.keys.slice(start, count),
            None if self.headers is None else self.headers.slice(start, count),
            self.timestamps_ms[start : start + count],
        )

    def reordered(self, order: Int64s) -> RowColumns:
        """Return a copy of the rows at these indexes, in this order."""
        indexes = number_array(order, pa.int64())
        return RowColumns(
            self.values.take(indexes),
            None if self.keys is None else self.keys.take(indexes),
            None if self.headers is None else self.headers.take(indexes),
            self.timestamps_ms[order],
        )


@dataclass(slots=True)
class Draft:
    """A batch without its producer id, sequence and CRC. `stamp` adds them."""

    partition: int
    count: int
    payload: bytes | memoryview
    codec: int
    base_timestamp: int
    max_timestamp: int

    @property
    def total_bytes(self) -> int:
        """Bytes of the batch with its header."""
        return HEADER_BYTES + len(self.payload)

    def stamp(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, is_transactional: bool = False
    ) -> list[bytes | memoryview]:
        """Return the batch's bytes as parts to send in this order: a new header, and the records without a copy."""
        header = bytearray(
            HEADER.pack(
                0,
                self.total_bytes - LOG_OVERHEAD_BYTES,
                -1,
                MAGIC,
                0,
                self.codec | (TRANSACTIONAL if is_transactional else 0),
                self.count - 1,
                self.base_timestamp,
                self.max_timestamp,
                producer_id,
                producer_epoch,
                base_sequence,
                self.count,
            )
        )
        crc = crc32c(self.payload, crc32c(memoryview(header)[CRC_FROM:]))
        header[CRC_AT:CRC_FROM] = crc.to_bytes(4, "big")
        return [bytes(header), self.payload]


class RecordEncoder:
    """Encoder of rows to record batches. It has settings only and no state.

    batch_bytes: largest size of a batch of several records, by the upper bound of each record's size.
    bytes_max: largest size of a batch of one record; above it `encode` raises RecordTooLarge.
    codec, level: compression of the batches.
    """

    def __init__(self, *, batch_bytes: int, bytes_max: int, codec: int = 0, level: int | None = None) -> None:
        self._batch_bytes = batch_bytes
        self._bytes_max = bytes_max
        self._codec = codec
        self._level = level

    def encode(self, rows: RowColumns, partitions: Int32s) -> Iterator[Draft]:
        """Yield batches of the rows. `partitions` has each row's partition. Rows of one partition keep their order.

        Raises RecordTooLarge and NullHeader.
        """
        count = len(partitions)
        if not count:
            return
        piece_bytes = max(PIECE_BYTES, self._batch_bytes)
        piece_rows = max(1, count * piece_bytes // max(rows_bytes(rows), 1))
        for start in range(0, count, piece_rows):
            yield from self._encode_piece(
                rows.slice(start, piece_rows), partitions[start : start + piece_rows]
            )

    def _encode_piece(self, rows: RowColumns, partitions: Int32s) -> Iterator[Draft]:
        if (partitions[1:] < partitions[:-1]).any():
            is_small = int(partitions.max()) < _RADIX_PARTITIONS_MAX
            order = np.argsort(partitions.astype(np.int16) if is_small else partitions, kind="stable")
            rows, partitions = rows.reordered(order), partitions[order]
        headers = None if rows.headers is None else encode_headers(rows.headers)
        cuts = self._cuts(rows, headers, partitions)
        records = join_records(rows, headers, cuts)
        offsets = np.frombuffer(records.buffers()[1], np.int32)
        data = memoryview(records.buffers()[2])
        for first, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            payload: bytes | memoryview = data[offsets[first] : offsets[end]]
            if self._codec:
                payload = compress(self._codec, payload, self._level)
            times = rows.timestamps_ms[first:end]
            yield Draft(
                int(partitions[first]), end - first, payload, self._codec, int(times[0]), int(times.max())
            )

    def _cuts(self, rows: RowColumns, headers: pa.Array | None, partitions: Int32s) -> Int64s:
        """Return the first row of each batch, and the number of rows as the last element.

        This uses Kafka's upper bound for the size of a record, because the real size depends on its position in the
        batch. A batch exceeds `batch_bytes` only if it has one record.
        """
        sizes = np.full(len(partitions), RECORD_OVERHEAD_BYTES_MAX, np.int64)
        for column in (rows.keys, rows.values, headers):
            if column is not None:
                sizes += ragged(column)[1]
        largest = int(sizes.argmax())
        # Check the largest record. If it does not fit into a request, smaller batches do not help.
        if sizes[largest] + HEADER_BYTES > self._bytes_max:
            raise RecordTooLarge(
                f"a record of {sizes[largest]} bytes for partition {partitions[largest]} is larger than "
                f"kafka.max.request.size ({self._bytes_max})"
            )
        # With cumulative sizes one binary search finds the end of a batch, instead of a loop over the rows.
        ends = np.cumsum(sizes)
        room = max(self._batch_bytes - HEADER_BYTES, 1)
        cuts = [0]
        for end in [*(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]:
            while cuts[-1] < end:
                start = cuts[-1]
                before = int(ends[start - 1]) if start else 0
                cuts.append(min(max(int(np.searchsorted(ends, before + room, "right")), start + 1), end))
        return np.array(cuts, np.int64)


def split(draft: Draft) -> tuple[Draft, Draft]:
    """Divide a batch into two halves, after the broker has rejected it with MESSAGE_TOO_LARGE."""
    raw = decompress(draft.codec, draft.payload)
    records = record_format.decode_records(raw, draft.count, draft.base_timestamp, 0)
    half = draft.count // 2
    return _again(draft, records[:half]), _again(draft, records[half:])


def _again(draft: Draft, records: list[record_format.Record]) -> Draft:
    base = records[0].timestamp_ms
    rows = ((record.timestamp_ms - base, at, record) for at, record in enumerate(records))
    payload = compress(draft.codec, record_format.encode_records(rows))
    newest = max(record.timestamp_ms for record in records)
    return Draft(draft.partition, len(records), payload, draft.codec, base, newest)


def rows_bytes(rows: RowColumns) -> int:
    """Return approximately how many bytes the rows take on the wire without compression."""
    size = sum(column.nbytes for column in (rows.values, rows.keys, rows.headers) if column is not None)
    return int(size) + RECORD_OVERHEAD_BYTES_MAX * len(rows.values)


def join_records(rows: RowColumns, headers: pa.Array | None, cuts: Int64s) -> pa.Array:
    """Encode rows as records. Return one binary column with a record in each row.

    Its buffer has all records one after another. `cuts` are the batches' first rows, as from `_cuts`: timestamp and
    offset deltas are relative to them.
    """
    count = len(rows.values)
    firsts = np.repeat(cuts[:-1], np.diff(cuts))
    offset_deltas = _zigzag(np.arange(count, dtype=np.int64) - firsts)
    timestamp_deltas = _zigzag(rows.timestamps_ms - rows.timestamps_ms[firsts])
    value_lengths = _payload_lengths(rows.values)
    body = 1 + _widths(timestamp_deltas) + _widths(offset_deltas)
    if rows.keys is None:
        key_lengths = np.full(count, -1, np.int64)
        joined_keys: list[Any] = []
    else:
        key_lengths = _payload_lengths(rows.keys)
        joined_keys = [_without_nulls(rows.keys)]
    key_varints, value_varints = _zigzag(key_lengths), _zigzag(value_lengths)
    body += _widths(key_varints) + np.maximum(key_lengths, 0)
    body += _widths(value_varints) + np.maximum(value_lengths, 0)
    body += 1 if headers is None else ragged(headers)[1]
    head = [_zigzag(body), np.zeros(count, np.int64), timestamp_deltas, offset_deltas, key_varints]
    between: list[Any] = []
    if joined_keys:
        between = [_varints([value_varints])]
    else:
        head.append(value_varints)
    values = _without_nulls(rows.values)
    tail = _NO_HEADERS if headers is None else headers
    return pc.binary_join_element_wise(_varints(head), *joined_keys, *between, values, tail, _NOTHING)


def encode_headers(headers: pa.Array) -> pa.Array:
    """Return each row's header count and headers, encoded, as a binary column without nulls."""
    count = len(headers)
    lengths = np.asarray(headers.value_lengths().fill_null(0)).astype(np.int64)
    # flatten() leaves out the headers of null rows and those outside of a sliced array, as it must.
    flat = headers.flatten()
    keys = flat.field("key").cast(pa.binary())
    values = flat.field("value").cast(pa.binary())
    if keys.null_count or flat.null_count:
        raise NullHeader("a record has a null header, or one with a null key: Kafka requires a key")
    value_lengths = _payload_lengths(values)
    each = pc.binary_join_element_wise(
        _varints([_zigzag(ragged(keys)[1])]),
        keys,
        _varints([_zigzag(value_lengths)]),
        _without_nulls(values),
        _NOTHING,
    )
    # The headers of a row are adjacent in the buffer. So a column with all headers of each row has the same buffer,
    # with fewer offsets.
    item_offsets = np.frombuffer(each.buffers()[1], np.int32)[: len(each) + 1]
    row_ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    row_offsets = np.ascontiguousarray(item_offsets[row_ends].astype(np.int32))
    joined = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(row_offsets), each.buffers()[2]])
    return pc.binary_join_element_wise(_varints([_zigzag(lengths)]), joined, _NOTHING)


def _without_nulls(column: pa.Array) -> pa.Array:
    return column.fill_null(b"") if column.null_count else column


def _payload_lengths(column: pa.Array) -> Int64s:
    """Return the length of each row of a binary column, and -1 for null, as in the format of records."""
    lengths = ragged(column)[1]
    if column.null_count:
        lengths[np.asarray(column.is_null())] = -1
    return lengths


def _zigzag(numbers: Int64s) -> Int64s:
    return (numbers << 1) ^ (numbers >> 63)


def _widths(numbers: Int64s) -> Int64s:
    """Return how many bytes each unsigned number takes as a varint."""
    widths = np.ones(len(numbers), np.int64)
    if not len(numbers):
        return widths
    unsigned = numbers.view(np.uint64)
    largest = int(unsigned.max())
    limit = 7
    while largest >> limit:
        widths += unsigned >= np.uint64(1 << limit)
        limit += 7
    return widths


def _varints(fields: list[Int64s]) -> pa.Array:
    """Return a binary column with the varints of the fields concatenated in each row."""
    count = len(fields[0])
    widths = [_widths(field) for field in fields]
    total = sum(widths[1:], widths[0])
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(total, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    at = offsets[:-1].astype(np.int64)
    for field, width in zip(fields, widths, strict=True):
        _scatter(data, at, field, width)
        at += width
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _scatter(data: np.ndarray[Any, np.dtype[np.uint8]], at: Int64s, field: Int64s, width: Int64s) -> None:
    """Write each number of `field` as a varint of `width` bytes at its position `at` in `data`."""
    if not len(field):
        return
    widest = int(width.max())
    # Fast path: most deltas and lengths of small records take one byte, and a varint of one byte is the number itself.
    if widest == 1:
        data[at] = field
        return
    unsigned = field.view(np.uint64)
    narrowest = int(width.min())
    for byte in range(widest):
        low = ((unsigned >> np.uint64(7 * byte)) & np.uint64(0x7F)).astype(np.uint8)
        low |= (width > byte + 1).astype(np.uint8) << np.uint8(7)
        if byte < narrowest:
            data[at + byte] = low
        else:
            rows = np.flatnonzero(width > byte)
            data[at[rows] + byte] = low[rows]
