"""The headers of records as an Arrow column: a list of (key, value) for each record, null for a record without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kproc.errors import ProtocolError
from kproc.spark.binary import binary_array
from kproc.wire.primitives import read_varint

Array = np.ndarray[Any, np.dtype[Any]]


def header_array(
    raw: bytes, at: Array | None, counts: Array | None, ends: Array, arrow_type: pa.DataType
) -> pa.Array:
    """The headers that begin at the positions, `counts` of them in each record; ValueError for damaged ones."""
    assert at is not None
    assert counts is not None
    rows = len(counts)
    has_some = counts > 0
    if not has_some.any():
        return pa.nulls(rows, arrow_type)
    total = int(counts.sum())
    places = np.empty((4, total), np.int64)
    row = 0
    for position, count, end in zip(
        at[has_some].tolist(), counts[has_some].tolist(), ends[has_some].tolist(), strict=True
    ):
        _read_headers(raw, position, count, end, places[:, row : row + count])
        row += count
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
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())


def _read_headers(raw: bytes, position: int, count: int, end: int, places: Array) -> None:
    try:
        for number in range(count):
            key_bytes, key_at = read_varint(raw, position)
            value_bytes, value_at = read_varint(raw, key_at + key_bytes)
            position = value_at + max(value_bytes, 0)
            if key_bytes < 0 or position > end:
                raise ValueError("a record's header runs past the end of its record")
            places[:, number] = key_at, key_bytes, value_at, value_bytes
    except (IndexError, ProtocolError):
        raise ValueError("a record's header runs past the end of its record") from None
    if position != end:
        raise ValueError(f"a record's headers end {end - position} bytes before it does")
