"""Shared words: access, order, and consistent reads of several words as one row.

A shared word is an aligned 64-bit slot of a region, stored by one process and read by others. It must be accessed by
`memoryview.cast("Q")`, whose item assignment is a single 8-byte store. `struct.pack_into` is not: it zeroes the target
before it writes, and a reader saw that zero in 13-25 % of reads.

Order. x86-64 keeps stores in order and loads in order, so that publishing needs no fence there. It does not keep a
store before a later load of another word. Without a fence, both sides of the sleeping-word handshake missed each other
in 522 of 60,000 rounds. Other CPUs may reorder more, so there every publish and every read has a fence, too
(WEAKLY_ORDERED). Only `fence()` knows how to make one.
"""

from __future__ import annotations

import os
import platform
import struct
import threading
from collections.abc import Sequence
from typing import Final

from kproc.broker.ipc.layout import WORD_BYTES

# On any CPU but x86 a fence goes around every publish and every read, because the order is verified only there.
WEAKLY_ORDERED: Final = platform.machine() not in {"x86_64", "AMD64", "i686"}

_lock = threading.Lock()
_acquire = _lock.acquire
_release = _lock.release


def fence() -> None:
    """Order every earlier store before every later load, for all CPUs.

    Pure Python has no fence, but acquiring an uncontended lock is an atomic read-modify-write, which is a full barrier
    on x86 and in practice on ARM. It costs 0.1 us and no system call; `with` would cost twice as much. Do not call it
    in a signal handler, because a handler that interrupts the two calls below would wait for itself.
    """
    _acquire()
    _release()


def _renew_lock() -> None:
    """Give a forked child a lock that no thread of its parent can have held at the fork."""
    global _lock, _acquire, _release
    _lock = threading.Lock()
    _acquire = _lock.acquire
    _release = _lock.release


# A lock that another thread held at the fork stays locked in the child for ever, because that thread does not exist
# there.
os.register_at_fork(after_in_child=_renew_lock)


def cast_words(view: memoryview) -> memoryview:
    """Return the shared words of a byte view, whose length must be a multiple of 8."""
    assert len(view) % WORD_BYTES == 0, len(view)
    return view.cast("Q")


class RowWriter:
    """Publishes several words as one row, a seqlock. Owned by the row's one writer.

        | version | word 0 | word 1 | ...     version is odd while the words are being stored

    A writer that is killed in between leaves the version odd. Readers then get None until a successor makes a RowWriter
    for the same row and publishes again.
    """

    __slots__ = ("_first_byte", "_pack_into", "_start", "_version", "_words")

    def __init__(self, words: memoryview, start: int, count: int) -> None:
        self._words = words
        self._start = start
        self._first_byte = (start + 1) * WORD_BYTES
        self._pack_into = struct.Struct(f"={count}Q").pack_into
        version = int(words[start])
        # The version is odd if the predecessor was killed inside publish().
        self._version = version + (version & 1)

    def publish(self, values: Sequence[int]) -> None:
        """Store all words of the row. A reader sees all of the new words or none of them."""
        words, start, version = self._words, self._start, self._version
        # An odd version tells readers to wait, before the first word changes.
        words[start] = version + 1
        if WEAKLY_ORDERED:
            fence()
        # pack_into is safe here, because readers discard the row while the version is odd. Measured for seven words:
        # 0.5 us instead of 1.0 us word by word.
        self._pack_into(words, self._first_byte, *values)
        if WEAKLY_ORDERED:
            fence()
        words[start] = self._version = version + 2


def read_row(words: memoryview, start: int, count: int, attempts: int = 64) -> list[int] | None:
    """Read a row as one consistent whole. Return None if its writer was storing it at every attempt.

    64 attempts outlast any running publish (a few us). A writer that was preempted or killed inside a publish takes
    longer than a reader should spin, so the caller should answer with a retriable error.
    """
    first, last = start + 1, start + 1 + count
    for _ in range(attempts):
        before = words[start]
        if WEAKLY_ORDERED:
            fence()
        # Try again, because the writer is inside publish(). If it was killed there, the attempts run out.
        if before & 1:
            continue
        values: list[int] = words[first:last].tolist()
        if WEAKLY_ORDERED:
            fence()
        # If the version has changed, the writer published during the read, and the values may be of two rows.
        if words[start] == before:
            return values
    return None
