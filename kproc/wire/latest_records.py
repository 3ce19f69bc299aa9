"""LatestRecords: finds the last record of each key in batches, without a Python loop over all records.

Most batches of a coordinator's log are runs of records that differ only in their values, because a consumer commits the
same partitions again and again. Records of one shape (all fields with the same widths and lengths) have the same size.
A regular expression finds the length of such a run, and one `struct` call reads it.

record   length varint | attributes | timestamp delta varlong | offset delta varint | key length varint | key
         | value length varint | value | header count varint | header*
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from kproc.common.errors import ErrorCode, KafkaError, ProtocolError
from kproc.wire.primitives import read_unsigned_varint, read_unsigned_varlong, read_varint
from kproc.wire.records import RECORD_BYTES_MIN, read_record

# (offset delta, key, value) of a record. The offset delta is a number, or the undecoded bytes of its varint.
Row = tuple[int | bytes, bytes | None, bytes | None]

_key_of = itemgetter(1)
# A regular expression for a shape is compiled after this many records of its length were read one by one, because
# compiling takes as long as reading about 200 records.
_COMPILED_AFTER: Final = 200
# Limit of shapes that one LatestRecords compiles.
_SHAPES_MAX: Final = 256


class _Shape(NamedTuple):
    """A group of records whose fields have the same widths and lengths, so that one regular expression matches them."""

    # Matches a run of zero or more records of this shape.
    match: Callable[[bytes, int], re.Match[bytes] | None]
    layout: Struct  # Of one record.


class LatestRecords:
    """Finds the last record of each key in the batches of one log. Learns the log's frequent record shapes."""

    def __init__(self) -> None:
        # By the first one or two bytes of a record's length varint: the compiled shape, and the number of records that
        # were read one by one.
        self._shapes: dict[int, _Shape] = {}
        self._counts: dict[int, int] = {}
        self._compiled = 0

    def of(self, raw: bytes, count: int) -> dict[bytes | None, Row]:
        """Return the last record of each key among the `count` records in `raw`.

        Raises INVALID_RECORD unless the records fill `raw` exactly. Headers and timestamps are not checked.
        """
        if not 0 <= count <= len(raw) // RECORD_BYTES_MIN:
            raise _invalid(f"batch claims {count} records, which cannot fit into its {len(raw)} bytes")
        rows: dict[bytes | None, Row] = {}
        shapes = self._shapes
        position, left, size = 0, count, len(raw)
        while left:
            start = position
            if start >= size:
                raise _cut_off()
            kind = raw[start]
            if kind > 127 and start + 1 < size:
                kind |= raw[start + 1] << 8
            shape = shapes.get(kind)
            if shape is not None:
                found = shape.match(raw, start)
                assert found is not None
                # CPython before 3.11.5 has a bug: a last repetition of `*+` that fails in the middle stays in the
                # match. Cut it off.
                matched = found.end() - start
                position += matched - matched % shape.layout.size
                if position > start:
                    run = list(shape.layout.iter_unpack(raw[start:position]))
                    rows.update(zip(map(_key_of, run), run, strict=True))
                    left -= len(run)
                    if left < 0:
                        raise _invalid(f"batch has more records than the {count} that its header claims")
                    continue
            position, row = read_row(raw, start)
            rows[row[1]] = row
            left -= 1
            seen = self._counts[kind] = self._counts.get(kind, 0) + 1
            if seen >= _COMPILED_AFTER and self._compiled < _SHAPES_MAX:
                # Restart the count, because a record of another shape but the same length may become the frequent one
                # later.
                self._counts[kind] = 0
                self._compile(raw[start:position], kind)
        if position != size:
            raise _invalid(f"{size - position} bytes follow the last record of the batch")
        return rows

    def _compile(self, record: bytes, kind: int) -> None:
        """Store the regular expression and the Struct of a record's shape, unless it has headers, no key or no value.

        They replace those of an earlier shape with the same `kind`: the first one or two bytes of the length varint.
        """
        shape = _shape_of(record)
        if shape is not None:
            self._shapes[kind] = shape
            self._compiled += 1


def offset_delta_of(row: Row) -> int:
    """Return the offset delta of a row that `of` or `read_row` has returned, as a number."""
    delta = row[0]
    return read_varint(delta, 0)[0] if isinstance(delta, bytes) else delta


def read_row(raw: bytes, start: int) -> tuple[int, Row]:
    """Decode the record at `start`. Return (its end, (offset delta, key, value)). Raises INVALID_RECORD."""
    try:
        record, end = read_record(raw, start, 0, 0)
    except (ProtocolError, IndexError):
        raise _cut_off() from None
    return end, (record.offset, record.key, record.value)


def _shape_of(record: bytes) -> _Shape | None:
    """Return the shape of one whole record; None if it has headers, no key or no value."""
    _, at = read_unsigned_varint(record, 0)
    _, delta_at = read_unsigned_varlong(record, at + 1)
    _, key_length_at = read_unsigned_varint(record, delta_at)
    key, key_at = read_varint(record, key_length_at)
    value_length_at = key_at + key
    if key < 0:
        return None
    value, value_at = read_varint(record, value_length_at)
    if value < 0 or value_at + value + 1 != len(record) or record[-1]:
        return None
    delta = key_length_at - delta_at
    # All bytes of the offset delta's varint except the last have the high bit. The possessive `*+` avoids backtracking,
    # because the longest run is always right.
    pattern = b"(?s)(?:%b[\x80-\xff]{%d}[\x00-\x7f]%b.{%d}%b.{%d}\x00)*+" % (
        re.escape(record[:delta_at]),
        delta - 1,
        re.escape(record[key_length_at:key_at]),
        key,
        re.escape(record[value_length_at:value_at]),
        value,
    )
    key_length, value_length = key_at - key_length_at, value_at - value_length_at
    layout = Struct(f"{delta_at}x{delta}s{key_length}x{key}s{value_length}x{value}sx")
    return _Shape(re.compile(pattern).match, layout)


def _cut_off() -> KafkaError:
    return _invalid("a field runs past the end of its record")


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, why)
