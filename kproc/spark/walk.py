"""find_fields: positions of all fields of all records of many batches, by numpy over whole columns.

Only the chain of lengths is sequential, because a record begins where the one before it ends. One loop follows it,
which can be compiled (chain.py). In Python the loop skips over runs of records of equal size. All fields are then read
column by column: one gather reads the first byte of a varint in every record, the next one the second byte where there
is one, and so on.

The records need PADDING after them, because a gather can read past the last record.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from kproc.spark import chain
from kproc.wire.records import HEADER_COUNT_MAX, RECORD_BYTES_MIN

Array = np.ndarray[Any, np.dtype[Any]]

PADDING: Final = bytes(16)
_VARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10
# Least number of records that are checked as a run. Fewer are read one by one, which is as fast.
_RUN_MIN: Final = 12
# Largest number of records of equal size that are checked together.
_RUN_MAX: Final = 1024


class WantedFields(NamedTuple):
    """The record fields that the query reads. The positions of other fields are not computed."""

    timestamp: bool
    offset: bool
    key: bool
    value: bool
    headers: bool


class Fields(NamedTuple):
    """Columns of positions and numbers, a row per record. Unwanted columns are None. A negative length means null."""

    end: Array
    timestamp_delta: Array | None
    offset_delta: Array | None
    key_at: Array | None
    key_bytes: Array | None
    value_at: Array | None
    value_bytes: Array | None
    headers_at: Array | None
    header_count: Array | None

    @property
    def rows(self) -> int:
        """Number of records."""
        return len(self.end)

    def filtered(self, rows: Array) -> Fields:
        """Return the fields of those records for which the mask `rows` is True."""
        return Fields._make(None if column is None else column[rows] for column in self)


def find_fields(raw: bytes, begins: Array, ends: Array, counts: Array, wanted: WantedFields) -> Fields | None:
    """Return the fields of all records, or None if a record is damaged.

    begins, ends, counts: one entry per batch: begin and end of its bytes in `raw`, and its number of records.
    wanted: the fields to return.
    """
    # Reject a record count that its batch's bytes cannot hold, because memory is allocated by the count.
    if (counts > (ends - begins) // RECORD_BYTES_MIN).any():
        return None
    try:
        starts = _record_starts(raw, begins, ends, counts)
        if starts is None:
            return None
        return _find(np.frombuffer(raw, np.uint8), starts, ends, counts, wanted)
    except IndexError:
        # A damaged length or varint leads beyond the bytes.
        return None


def _record_starts(raw: bytes, begins: Array, ends: Array, counts: Array) -> Array | None:
    """Return the position of each record in `raw`, or None if a batch's records do not fill the batch exactly.

    begins, ends: positions where the records of each batch begin and end. counts: records of each batch.
    """
    if chain.IS_COMPILED:
        starts = np.empty(int(counts.sum()), np.int64)
        return starts if chain.record_starts(raw, begins, ends, counts, starts) else None  # type: ignore[no-untyped-call]
    return _starts_by_runs(raw, begins.tolist(), ends.tolist(), counts.tolist())


def _starts_by_runs(raw: bytes, begins: list[int], ends: list[int], counts: list[int]) -> Array | None:
    """Return the position of each record, like chain.record_starts. In Python this is faster.

    Records of equal size have equal length bytes at a constant distance. After two such records, a slice with that
    distance as its step shows how many more follow: the first different byte ends the run. The result is exact, because
    each record of the run begins where the one before it ends, by the length that was compared.
    """
    pieces: list[Array] = []
    singles: list[int] = []
    append = singles.append
    for position, end, left in zip(begins, ends, counts, strict=True):
        before = 0
        while left > 0:
            first = raw[position]
            if first < 128:
                step, size = 1 + (first >> 1), 1
            elif (second := raw[position + 1]) < 128:
                step, size = 2 + ((first & 127 | second << 7) >> 1), 2
            else:
                step, size = _long_step(raw, position)
            # Lengths are zigzag-encoded, so an odd first byte is a negative length: damage.
            if first & 1 or position >= end:
                return None
            if step != before or left < _RUN_MIN or size > 2:
                append(position)
                position += step
                left -= 1
                before = step
                continue
            run = _run(raw, position, step, size, min(left, _RUN_MAX))
            pieces.append(np.array(singles, np.int64))
            pieces.append(np.arange(position, position + run * step, step, dtype=np.int64))
            singles.clear()
            position += run * step
            left -= run
            # A run of _RUN_MAX records can continue with the next record. After a shorter run, a record of another
            # length follows.
            before = step if run == _RUN_MAX else 0
        if position != end:
            return None
    pieces.append(np.array(singles, np.int64))
    return np.concatenate(pieces)


def _long_step(raw: bytes, position: int) -> tuple[int, int]:
    """Return (size of the record at `position` with its length field, size of that field) in bytes.

    Called for length fields of more than two bytes. Raises IndexError if the field is too long or leads beyond `raw`.
    """
    length = raw[position] & 127
    size = 1
    while size < _VARINT_BYTES_MAX:
        byte = raw[position + size]
        length |= (byte & 127) << (7 * size)
        size += 1
        if byte < 128:
            return size + (length >> 1), size
    raise IndexError(f"the record batch is damaged: a length field has more than {_VARINT_BYTES_MAX} bytes")


def _run(raw: bytes, position: int, step: int, size: int, limit: int) -> int:
    """Return how many records from `position` on, at most `limit`, have equal length fields.

    size: bytes of the first record's length field. step: bytes of that record with this field.
    """
    for at in range(position, position + size):
        column = raw[at : at + step * limit : step]
        limit = len(column) - len(column.lstrip(column[:1]))
    return limit


def _find(data: Array, starts: Array, ends: Array, counts: Array, wanted: WantedFields) -> Fields | None:
    """Return the wanted fields of all records, or None if a record is damaged.

    starts: position of each record. ends: position where each batch ends. counts: records of each batch.

    The array `position` has the current position in every record and moves from field to field.
    """
    record_end = _record_ends(starts, ends, counts)
    position = _skip(data, starts, _VARINT_BYTES_MAX)
    position += 1  # attributes
    timestamp_delta, position = _read_or_skip(data, position, _VARLONG_BYTES_MAX, is_wanted=wanted.timestamp)
    offset_delta, position = _read_or_skip(data, position, _VARINT_BYTES_MAX, is_wanted=wanted.offset)
    if offset_delta is not None and not _rises(offset_delta, counts):
        return None
    key_bytes, key_at, position = _length_and_place(data, position)
    # Reject a record that ends with its key: at least the byte of the value's length must follow.
    if (position >= record_end).any():
        return None
    value_bytes, value_at, position = _length_and_place(data, position)
    if (position >= record_end).any():
        return None
    header_count, headers_at = _varints(data, position)
    header_count = _signed(header_count)
    if not _can_have_headers(header_count, headers_at, record_end) or _has_too_many_headers(
        header_count, counts
    ):
        return None
    return Fields(
        record_end,
        timestamp_delta,
        offset_delta,
        key_at if wanted.key else None,
        key_bytes if wanted.key else None,
        value_at if wanted.value else None,
        value_bytes if wanted.value else None,
        headers_at if wanted.headers else None,
        header_count if wanted.headers else None,
    )


def _record_ends(starts: Array, ends: Array, counts: Array) -> Array:
    """Return the end of each record: the start of the next one, or for the last record of a batch the batch's end.

    starts: start of each record. ends: end of each batch. counts: records of each batch.
    """
    record_end = np.empty_like(starts)
    record_end[:-1] = starts[1:]
    record_end[np.cumsum(counts)[counts > 0] - 1] = ends[counts > 0]
    return record_end


def _length_and_place(data: Array, position: Array) -> tuple[Array, Array, Array]:
    """Return (length, position, position after it) of a key or a value in every record. Null has the length -1."""
    length, place = _varints(data, position)
    length = _signed(length)
    return length, place, place + np.maximum(length, 0)


def _can_have_headers(header_count: Array, headers_at: Array, record_end: Array) -> bool:
    """Return True if every record has room for its headers, and a record without headers ends where they would begin.

    A header has at least two bytes.
    """
    if (header_count < 0).any() or (headers_at + 2 * header_count > record_end).any():
        return False
    is_bare = header_count == 0
    return not (headers_at[is_bare] != record_end[is_bare]).any()


def _rises(offset_delta: Array, counts: Array) -> bool:
    """Return True if the offsets of each batch increase strictly, from the batch's base offset on.

    offset_delta: of each record. counts: records of each batch.
    """
    rises = np.empty(len(offset_delta), bool)
    rises[1:] = offset_delta[1:] > offset_delta[:-1]
    firsts = np.cumsum(counts) - counts
    rises[firsts] = offset_delta[firsts] >= 0
    return bool(rises.all())


def _has_too_many_headers(header_count: Array, counts: Array) -> bool:
    """Return True if a batch has more headers in total than the broker and the commands accept.

    header_count: headers of each record. counts: records of each batch.
    """
    if header_count.max(initial=0) == 0:
        return False
    totals = np.concatenate(([0], np.cumsum(header_count)))
    lasts = np.cumsum(counts)
    return bool((totals[lasts] - totals[lasts - counts] > HEADER_COUNT_MAX).any())


def _signed(values: Array) -> Array:
    """Decode zig-zag: 0, -1, 1, -2, ... are encoded as 0, 1, 2, 3, ..."""
    return (values >> 1) ^ -(values & 1)


def _varints(data: Array, position: Array, bytes_max: int = _VARINT_BYTES_MAX) -> tuple[Array, Array]:
    """Return the unsigned varints at the positions, and the positions after them.

    Raises IndexError if one has more than `bytes_max` bytes.
    """
    first = data[position]
    if first.max(initial=0) < 128:
        return first.astype(np.int64), position + 1
    values = (first & 127).astype(np.int64)
    position = position + 1
    rows = np.flatnonzero(first > 127)
    for number in range(1, bytes_max):
        if not len(rows):
            return values, position
        byte = data[position[rows]]
        values[rows] |= (byte & 127).astype(np.int64) << (7 * number)
        position[rows] += 1
        rows = rows[byte > 127]
    if len(rows):
        raise IndexError(f"the record batch is damaged: a varint has more than {bytes_max} bytes")
    return values, position


def _read_or_skip(
    data: Array, position: Array, bytes_max: int, *, is_wanted: bool
) -> tuple[Array | None, Array]:
    """Return the zig-zag coded varints at the positions, or None if they are not wanted, and the positions after them.

    Raises IndexError if a varint has more than `bytes_max` bytes.
    """
    if not is_wanted:
        return None, _skip(data, position, bytes_max)
    values, position = _varints(data, position, bytes_max)
    return _signed(values), position


def _skip(data: Array, position: Array, bytes_max: int) -> Array:
    """Return the positions after the varints at the positions.

    Raises IndexError if one has more than `bytes_max` bytes.
    """
    more = data[position] > 127
    position = position + 1
    rows = np.flatnonzero(more)
    for _ in range(1, bytes_max):
        if not len(rows):
            return position
        byte = data[position[rows]]
        position[rows] += 1
        rows = rows[byte > 127]
    if len(rows):
        raise IndexError(f"the record batch is damaged: a varint has more than {bytes_max} bytes")
    return position
