"""Partitioner: choose the partitions of records like Kafka's Java client, for whole columns at once.

A record with a key goes to partition murmur2(key) modulo the number of partitions. Other producers (Java, kafka-python,
aiokafka, librdkafka with `murmur2_random`) write the same key to the same partition. Records without a key are spread
evenly, in runs of adjacent rows, because a run fills a record batch.

All rows are hashed together, four bytes of each key per step. Keys of more than 256 bytes are hashed one by one,
because a step costs some microseconds even if few keys are that long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_R: Final = 24
_MASK: Final = 0xFFFFFFFF
VECTOR_KEY_BYTES_MAX: Final = 256

_M32: Final = np.uint32(_M)
_R32: Final = np.uint32(_R)

Int32s = np.ndarray[Any, np.dtype[np.int32]]
Int64s = np.ndarray[Any, np.dtype[np.int64]]
UInt32s = np.ndarray[Any, np.dtype[np.uint32]]


def murmur2(key: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of one key, unsigned."""
    length = len(key)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> _R) * _M & _MASK
        h = h * _M & _MASK ^ k
    if length > whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def murmur2_column(keys: pa.Array) -> UInt32s:
    """Return murmur2 of every row of a binary column. A null row gets the hash of the empty key."""
    starts, lengths, data = ragged(keys)
    h = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    # Number of whole four-byte words in each row. 0 for long keys, which the loop at the end hashes.
    whole = np.where(lengths > VECTOR_KEY_BYTES_MAX, 0, lengths) >> 2
    if len(whole) and whole.max() > 0:
        _mix_words(h, starts, whole, data)
    _mix_tails(h, starts, lengths, data)
    h ^= h >> np.uint32(13)
    h *= _M32
    h ^= h >> np.uint32(15)
    # Hash long keys one by one. In the vectorised steps each word of the longest key costs an operation on all rows.
    for row in np.flatnonzero(lengths > VECTOR_KEY_BYTES_MAX):
        h[row] = murmur2(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return h


def _mix_words(h: UInt32s, starts: Int64s, whole: Int64s, data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    # The view has a window of four bytes at each byte of the data, because a word of a key can begin at any position.
    windows = np.lib.stride_tricks.sliding_window_view(data, 4)
    shortest = int(whole.min())
    for step in range(int(whole.max())):
        if step < shortest:
            at = starts + 4 * step
        else:
            rows = np.flatnonzero(whole > step)
            at = starts[rows] + 4 * step
        k = np.ascontiguousarray(windows[at]).view("<u4")[:, 0]
        k *= _M32
        k ^= k >> _R32
        k *= _M32
        if step < shortest:
            h *= _M32
            h ^= k
        else:
            h[rows] = h[rows] * _M32 ^ k


def _mix_tails(
    h: UInt32s, starts: Int64s, lengths: Int64s, data: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    tails = lengths & 3
    if not len(tails) or not tails.any():
        return
    ends = starts + lengths
    for size in (1, 2, 3):
        rows = np.flatnonzero(tails == size)
        if not len(rows):
            continue
        rest = np.zeros(len(rows), np.uint32)
        for byte in range(size):
            rest |= data[ends[rows] - size + byte].astype(np.uint32) << np.uint32(8 * byte)
        h[rows] = (h[rows] ^ rest) * _M32


def ragged(column: pa.Array) -> tuple[Int64s, Int64s, np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return the start and the length of each row of a binary column, and its bytes. A null row has length 0."""
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    if column.null_count:
        # Arrow allows a null row to have bytes in the buffer. They have no meaning, so its length is 0.
        lengths[np.asarray(column.is_null())] = 0
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return starts, lengths, data


def partitions_by_key(keys: pa.Array, count: int) -> Int32s:
    """Return the partition of each row by its key. `count` is the number of partitions.

    The result of a row without a key is meaningless; the caller replaces it.
    """
    return ((murmur2_column(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(count)).astype(np.int32)


class Spread:
    """Chooser of partitions for records without a key. Each topic of a task has one.

    Every call cuts its rows into `count` runs of equal length and gives each run one partition. The first run gets the
    partition after that of the previous call's last run.

    begin: the partition of the first run, modulo `count`. It must not be random, so that a task that Spark runs again
    chooses the same partitions.
    """

    def __init__(self, begin: int) -> None:
        self._next = begin

    def next_partitions(self, rows: int, count: int) -> Int32s:
        """Return the partitions of the next `rows` records. `count` is the number of partitions."""
        runs = np.arange(rows, dtype=np.int64) * count // max(rows, 1)
        chosen = ((self._next + runs) % count).astype(np.int32)
        self._next = (self._next + min(rows, count)) % count
        return chosen
