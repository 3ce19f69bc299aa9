"""MemoryLimit: a limit for the memory of one kind of state that the coordinators of a Handler keep.

A client with the right to use a group or a transactional id can create any number of them. Each owner of such state has
a CountedMemory, whose bytes count as long as it exists. So nothing has to be subtracted when a member, a group or a
coordinator is discarded.
"""

from __future__ import annotations

from sys import getsizeof


def bytes_of_texts(*texts: str | None) -> int:
    """Return the memory of some strings. None takes no memory."""
    # Python's size of a string, because one unusual character makes each character of a text take 4 bytes.
    return sum(getsizeof(text) for text in texts if text is not None)


class MemoryLimit:
    """A limit in bytes, and the bytes that count towards it now."""

    __slots__ = ("bytes_max", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0

    def has_room(self, added_bytes: int) -> bool:
        """Return True if this number of bytes can be added without exceeding the limit."""
        return self.used_bytes + added_bytes <= self.bytes_max


class CountedMemory:
    """Bytes that count towards a MemoryLimit as long as this object exists."""

    __slots__ = ("_limit", "size")

    def __init__(self, limit: MemoryLimit, size: int = 0) -> None:
        self._limit = limit
        self.size = size
        limit.used_bytes += size

    def resize(self, size: int) -> None:
        """Replace the number of bytes. It may exceed the limit, which only `MemoryLimit.has_room` checks."""
        self._limit.used_bytes += size - self.size
        self.size = size

    def __del__(self) -> None:
        self._limit.used_bytes -= self.size
