"""OffsetMemory: counts the memory of the committed and pending offsets of one coordinator, for the Handler's limit."""

from __future__ import annotations

from typing import Final

from kproc.broker.config.group_settings import OFFSETS_BYTES_MAX
from kproc.broker.coordinator.memory_limit import CountedMemory, MemoryLimit, bytes_of_texts
from kproc.broker.group.records import CommittedOffset

# The memory of an offset without its metadata, and of a group that has offsets, without its id.
OFFSET_BYTES: Final = 512
GROUP_BYTES: Final = 3 << 10


def offset_limit(bytes_max: int = OFFSETS_BYTES_MAX) -> MemoryLimit:
    """Return the limit that the offsets of all groups of a Handler share."""
    return MemoryLimit("kproc.group.offsets.max.bytes", bytes_max)


def bytes_of_offset(value: CommittedOffset) -> int:
    """Return the memory of one offset."""
    return OFFSET_BYTES + bytes_of_texts(value.metadata)


class OffsetMemory:
    """The memory of the offsets of one coordinator."""

    __slots__ = ("_counted", "limit")

    def __init__(self, limit: MemoryLimit) -> None:
        self.limit = limit
        self._counted = CountedMemory(limit)

    def replace(self, old: CommittedOffset | None, new: CommittedOffset | None) -> None:
        """Count the memory of `new` instead of that of `old`. None: there was, or there will be, no offset."""
        if new is not None:
            self._counted.add(bytes_of_offset(new))
        if old is not None:
            self._counted.add(-bytes_of_offset(old))

    def add_group(self, group_id: str) -> None:
        """Count a group that has got its first offset."""
        self._counted.add(GROUP_BYTES + bytes_of_texts(group_id))

    def remove_group(self, group_id: str) -> None:
        """Remove a group that has lost its last offset from the memory count."""
        self._counted.add(-GROUP_BYTES - bytes_of_texts(group_id))

    def release(self) -> None:
        """Count nothing any more, because the coordinator has discarded its offsets.

        Do not wait until the garbage collection finds the coordinator, because the next one can be loaded before.
        """
        self._counted.resize(0)
