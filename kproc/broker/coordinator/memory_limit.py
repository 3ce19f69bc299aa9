"""MemoryLimit: a limit for the memory of one kind of state that the coordinators of a Handler keep.

A client with the right to use a group or a transactional id can create any number of them. Each owner of such state has
a CountedMemory, whose bytes count as long as it exists. So nothing has to be subtracted when a member, a group or a
coordinator is discarded.
"""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger(__name__)

# The memory of a string without its characters.
_STRING_BYTES: Final = 50


def bytes_of_texts(*texts: str | None) -> int:
    """Return the memory of some strings. None takes no memory."""
    # One character outside of ASCII can make each character of a text take 4 bytes. `getsizeof` would not do: it grows
    # when Python keeps an encoded copy of the text, so more would be subtracted in the end than was added at first.
    return sum(_STRING_BYTES + len(text) * (1 if text.isascii() else 4) for text in texts if text is not None)


class MemoryLimit:
    """The limit of one setting in bytes, and the bytes that count towards it now."""

    __slots__ = ("_is_full", "_loaded_bytes", "bytes_max", "setting", "used_bytes")

    def __init__(self, setting: str, bytes_max: int) -> None:
        self.setting = setting
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._is_full = False
        self._loaded_bytes = 0  # The largest number of bytes in use after a load.

    def has_room(self, added_bytes: int, *, with_reserve: bool = False) -> bool:
        """Return True if this number of bytes can be added without exceeding the limit, or if nothing is added.

        with_reserve: twice the limit, or twice what a load has counted if that is more. So known owners can still grow
        when new ones are rejected. Log the first time that there is no room, until a tenth of the limit is free again.
        """
        bytes_max = 2 * max(self.bytes_max, self._loaded_bytes) if with_reserve else self.bytes_max
        has_room = added_bytes <= 0 or self.used_bytes + added_bytes <= bytes_max
        if has_room == self._is_full:
            self._report(has_room=has_room)
        return has_room

    def accept_load(self) -> None:
        """Let known owners grow beyond what a coordinator has loaded from its log, which can exceed the limit.

        The limit may have been lowered, or fewer Handlers than before have all coordinators.
        """
        self._loaded_bytes = max(self._loaded_bytes, self.used_bytes)

    def _report(self, *, has_room: bool) -> None:
        if not has_room:
            self._is_full = True
            logger.warning(
                "%s=%d: %d bytes are in use, so requests that need more are rejected. Raise the setting if your "
                "clients need it.",
                self.setting,
                self.bytes_max,
                self.used_bytes,
            )
        elif self.used_bytes < self.bytes_max * 9 // 10:
            self._is_full = False
            logger.info("%s: there is room again, %d bytes are in use.", self.setting, self.used_bytes)


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

    def add(self, size: int) -> None:
        """Count more bytes, or fewer if `size` is negative. It may exceed the limit."""
        self._limit.used_bytes += size
        self.size += size

    def __del__(self) -> None:
        self._limit.used_bytes -= self.size
