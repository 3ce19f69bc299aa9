"""Arrow columns from numpy arrays, without a loop in Python.

The main case is a binary column whose values are pieces of one buffer. A binary_view column has 16 bytes for each
value: its length and position in a buffer, or the value itself if it has at most 12 bytes. numpy fills these 16 bytes
as four columns of int32. Arrow then casts the column to the plain binary that Spark expects, in one loop of memcpy.

All arrays are built from buffers, because `pa.array` and `pa.scalar` import pandas to recognise its types. That import
costs each of Spark's Python processes 0.4 s of CPU and 40 MB.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = np.ndarray[Any, np.dtype[Any]]

_INLINE_BYTES_MAX: Final = 12


def binary_array(raw: bytes, at: Array | None, sizes: Array | None) -> pa.Array:
    """Return the values `raw[at : at + size]` as a binary column. A size of -1 means null.

    `raw` must have 12 more bytes after the last value, because short values are copied as three words of 4 bytes.
    """
    assert at is not None
    assert sizes is not None
    rows = len(at)
    is_null = sizes < 0
    nulls = int(np.count_nonzero(is_null))
    if nulls == rows:
        return pa.nulls(rows, pa.binary())
    views = np.zeros((rows, 4), np.int32)
    views[:, 0] = np.where(is_null, 0, sizes) if nulls else sizes
    views[:, 3] = at
    short = np.flatnonzero(sizes <= _INLINE_BYTES_MAX)
    if len(short):
        words = np.ndarray((len(raw) - 3,), np.int32, raw, strides=(1,))
        place = at[short]
        for column in range(3):
            views[short, column + 1] = words[place + 4 * column]
    validity = None
    if nulls:
        validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    array = pa.Array.from_buffers(
        pa.binary_view(), rows, [validity, pa.py_buffer(views), pa.py_buffer(raw)], null_count=nulls
    )
    return pc.cast(array, pa.binary())


def number_array(values: Array | None, kind: pa.DataType) -> pa.Array:
    """Return an Arrow column of integers or times without nulls. `values` must have as many bits each as `kind`."""
    assert values is not None
    values = np.ascontiguousarray(values)
    assert values.itemsize * 8 == kind.bit_width
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def bytes_scalar(value: bytes, kind: pa.DataType | None = None) -> pa.Scalar:
    """Return an Arrow scalar of type binary, or of `kind`, without `pa.scalar`, which would import pandas."""
    offsets = np.array([0, len(value)], np.int32)
    return pa.Array.from_buffers(kind or pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(value)])[
        0
    ]
