"""KeyMap: the newest offset of each key in the dirty section of a log, in bounded memory.

Kafka's map has 24 bytes for each key (an MD5 and the offset) and is an array. A Python dict of exact keys takes 120 to
155 bytes for each (a million keys of 8 to 100 bytes), but needs no probing by Python code. Keys that do not fit are
left to the next pass. Pages of flags hold one byte for each offset. The second reading then mostly counts bytes to find
out which records of a batch survive, and does not walk the records.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Final

from kproc.broker.storage.compaction_records import Newest, OffsetFlags, Survivors, collect_keys
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import BASE_OFFSET, RECORD_COUNT, Header, last_offset_of

# Bytes of memory of a key's object and its offset's object beside the key's own bytes: 33 and 32, which the allocator
# rounds up to 48 and 32.
_OBJECTS_BYTES: Final = 80
_FLAGS_AT_ONCE: Final = 10_000


class KeyMap:
    """The newest offset of each key. Call add() or advance() for each batch from `first_dirty` on, then finish()."""

    def __init__(self, first_dirty: int, *, memory_bytes: int) -> None:
        self._newest: Newest = {}
        self._first_dirty = first_dirty
        self._memory_bytes = memory_bytes
        self._key_bytes = 0
        self.latest = first_dirty - 1
        """All records up to this offset were added or skipped, so a pass with this map ends behind it."""

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def used_bytes(self) -> int:
        """Bytes of memory of keys, offsets, table and flags, as the allocator rounds them."""
        newest = self._newest
        pages = min(len(newest), (self.latest - self._first_dirty) // OffsetFlags.PAGE_OFFSETS + 1)
        flags_bytes = pages * OffsetFlags.PAGE_BYTES
        return sys.getsizeof(newest) + len(newest) * _OBJECTS_BYTES + self._key_bytes + flags_bytes

    @property
    def is_full(self) -> bool:
        """True if the memory is used up: the rest of the section needs another pass. One batch may exceed the limit."""
        return self.used_bytes >= self._memory_bytes

    def add(self, header: Header, raw: bytes, position: int, end: int) -> Iterator[None]:
        """Add the keys of a batch. Yields between steps, so that the cleaner can pause."""
        newest = self._newest
        before = len(newest)
        # Write into the dict of the whole pass. A dict for each batch would cost as much time as the keys.
        if header[BASE_OFFSET] >= self._first_dirty:
            yield from collect_keys(newest, header, raw, position, end)
        else:  # The log's start lies inside this batch.
            inside: Newest = {}
            yield from collect_keys(inside, header, raw, position, end)
            newest.update({key: at for key, at in inside.items() if at >> 1 >= self._first_dirty})
        new_keys = len(newest) - before
        if new_keys:
            # Count an upper limit: a batch's keys are together no longer than its records.
            self._key_bytes += min((end - position) * new_keys // max(1, header[RECORD_COUNT]), new_keys * 32)
        self.advance(last_offset_of(header))

    def advance(self, offset: int) -> None:
        """Set `latest`, the offset up to which the map is complete, to `offset` unless it is larger already.

        The caller must have called add() for all batches up to `offset`, except for control batches, batches of aborted
        transactions and empty batches.
        """
        self.latest = max(self.latest, offset)

    def finish(self) -> Iterator[Survivors | None]:
        """Build the Survivors. Yields None between steps, and the Survivors at the end."""
        first_dirty, flags = self._first_dirty, OffsetFlags()
        offset_count = self.latest - first_dirty + 1
        entries = iter(self._newest.values())
        while part := list(islice(entries, _FLAGS_AT_ONCE)):
            for at in part:
                number = (at >> 1) - first_dirty
                # Produce may have stored the batch without checking its records, so an offset delta can have any value.
                if not 0 <= number < offset_count:
                    raise Corrupt(f"the record at offset {at >> 1} lies outside of its batch")
                flags.set(number, 1 + (at & 1))
            yield None
        yield Survivors(self._newest, first_dirty, self.latest, flags)
