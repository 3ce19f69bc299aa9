"""Digest of a task's rows that does not depend on their order.

If Spark repeats a task, the digest shows if the task has the same rows.

The digest is the sum of a hash of each row's key and value, because a shuffle can deliver the same rows in another
order. Timestamps and partitions are left out, because a row without them gets the current time and the next partition.
Of a value longer than 64 bytes the hash covers eight words, among them the first and the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kproc.spark.partitioner import Int64s, ragged

if TYPE_CHECKING:
    import pyarrow as pa

    from kproc.spark.encode import RowColumns

DIGEST_COUNT: Final = 1 << 32
_WORD: Final = 8
_WORDS_MAX: Final = 8
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(29)

UInt64s = np.ndarray[Any, np.dtype[np.uint64]]


def digest(rows: RowColumns) -> int:
    """Return a digest of these rows, which a repeated task must match.

    For several batches add their digests modulo DIGEST_COUNT.
    """
    hashes = _hashes(rows.values)
    if rows.keys is not None:
        _mix(hashes, _hashes(rows.keys))
    return int(((hashes * _FACTOR) >> np.uint64(32)).sum()) % DIGEST_COUNT


def _hashes(column: pa.Array) -> UInt64s:
    """Return a hash of each row of a binary column."""
    starts, lengths, data = ragged(column)
    padded = np.concatenate((data, np.zeros(_WORD, np.uint8)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WORD)
    sizes = lengths.copy()
    if column.null_count:
        sizes[np.asarray(column.is_null())] = -1
    hashes = np.zeros(len(lengths), np.uint64)
    _mix(hashes, sizes.astype(np.uint64))
    longest = int(lengths.max(initial=0))
    count = min(_WORDS_MAX, -(-longest // _WORD))
    last = np.maximum(lengths - _WORD, 0)
    # Distance between the hashed words of a row. They are adjacent in a row of up to 64 bytes, and spread evenly over a
    # longer one.
    apart = np.where(lengths <= count * _WORD, _WORD, last // max(count - 1, 1))
    masks = None if int(lengths.min(initial=_WORD)) >= _WORD else _masks(lengths)
    for number in range(count):
        at = last if number == count - 1 else np.minimum(number * apart, last)
        words = np.ascontiguousarray(windows[starts + at]).view("<u8")[:, 0]
        _mix(hashes, words if masks is None else words & masks)
    return hashes


def _masks(lengths: Int64s) -> UInt64s:
    """Return a mask for each row: applied to the row's first 8 bytes, it clears the bytes after the row's end.

    It clears nothing if the row has 8 bytes or more.
    """
    bits = (np.minimum(lengths, _WORD) * 8).astype(np.uint64)
    # numpy does not define a shift by 64 bits, so empty rows get the mask 0 separately.
    full = np.uint64(0xFFFFFFFFFFFFFFFF)
    return np.where(bits == 0, np.uint64(0), full >> ((np.uint64(64) - bits) & np.uint64(63)))


def _mix(hashes: UInt64s, words: UInt64s) -> None:
    """Mix a word into each row's hash, in place."""
    hashes ^= words
    hashes *= _FACTOR
    hashes ^= hashes >> _SHIFT
