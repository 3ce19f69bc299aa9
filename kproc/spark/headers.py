"""Record headers as an Arrow column: a list of (key, value) for each record, null for a record without headers."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kproc.common.errors import ProtocolError
from kproc.spark.binary import binary_array
from kproc.wire.primitives import read_unsigned_varint

Array = np.ndarray[Any, np.dtype[Any]]


def header_array(
    raw: bytes, at: Array | None, counts: Array | None, ends: Array, arrow_type: pa.DataType
) -> pa.Array:
    """Return the column of headers, with null for a record without headers.

    at: position of each record's first header in `raw`. counts: number of headers of each record. ends: position after
    each record.

    Raises ValueError if headers do not fill their record exactly.
    """
    assert at is not None
    assert counts is not None
    rows = len(counts)
    has_some = counts > 0
    if not has_some.any():
        return pa.nulls(rows, arrow_type)
    # Four numbers for each header: key position, key bytes, value position, value bytes. They are in one flat array, to
    # save a Python object for each header.
    flat = array("q")
    for position, count, end in zip(
        at[has_some].tolist(), counts[has_some].tolist(), ends[has_some].tolist(), strict=True
    ):
        _read_headers(raw, position, count, end, flat.append)
    places = np.frombuffer(flat, np.int64).reshape(-1, 4).T.copy()
    keys = _text(binary_array(raw, places[0], places[1]))
    values = binary_array(raw, places[2], places[3])
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    entries = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=arrow_type, mask=pa.array(~has_some))


def _text(keys: pa.Array) -> pa.Array:
    """Return the keys as strings. Bytes that are not UTF-8 become U+FFFD, as Java's clients show them."""
    try:
        return pc.cast(keys, pa.string())
    except pa.ArrowInvalid:
        # A key is not UTF-8. Decode each key by itself, which is slow but rare.
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())


def _read_headers(raw: bytes, position: int, count: int, end: int, append: Callable[[int], None]) -> None:
    """Append position and length of each key and value of one record's headers to a flat array.

    Nearly every varint has one byte. That case is decoded inline, because a function call costs several times as much.
    """
    try:
        for _ in range(count):
            size = raw[position]
            position += 1
            if size > 127:
                size, position = read_unsigned_varint(raw, position - 1)
            # Lengths are zigzag-encoded, so an odd number is a negative length, which means null.
            if size & 1:
                raise ValueError("a record's header has no key")
            append(position)
            append(size >> 1)
            position += size >> 1
            size = raw[position]
            position += 1
            if size > 127:
                size, position = read_unsigned_varint(raw, position - 1)
            append(position)
            if size & 1:
                append(-1)
            else:
                append(size >> 1)
                position += size >> 1
            if position > end:
                raise ValueError("a record's header runs past the end of its record")
    except (IndexError, ProtocolError):
        raise ValueError("a record's header runs past the end of its record") from None
    if position != end:
        raise ValueError(f"a record's headers end {end - position} bytes before the end of the record")
