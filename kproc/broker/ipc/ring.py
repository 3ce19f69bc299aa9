"""The ring: one producer process, one consumer process, records of bytes.

    head                     tail (published)    written (only the producer knows)
     v                        v                   v
     [ polled ][ to be polled ][ committed         ][ reserved ][ free ... ]
     ^ released up to here

Each side works in batches. The producer reserves and commits any number of records and then calls `publish()` once. The
consumer calls `poll()` once, does the work, and then calls `release()` once. The only shared stores are the tail at
publish and the head at release, one aligned 8-byte word each. A record is therefore never seen torn: bytes of a
producer that was killed before it published lie beyond the tail. Sequences (tail, head) grow for ever, and
`sequence & mask` is the slot. A record never wraps: if it does not fit before the end, padding goes there and the
record begins at slot 0.

No operation blocks. A full ring returns None or False and changes nothing that the consumer can see. The caller decides
what to do then: it keeps the frame and stops reading that connection, or keeps the answer and accepts no more work. A
record is at most a quarter of the ring. One therefore always fits, padding included, once the consumer has caught up,
and producer and consumer can work on different records.

Record headers, unlike shared words, are packed with a bound struct, because they are payload that is read only after
the tail. The hot loops below are written out instead of shared, because a Python call costs 50 ns. Measured for 100 B
records in batches of 32 (CPython 3.11): 0.43 us to reserve and commit, or to push, and 0.32 us to poll and release. A
single record takes 0.7 us for each side.
"""

from __future__ import annotations

import operator
import struct
from collections import deque
from typing import Final, NoReturn

from kproc.broker.ipc.layout import (
    LINE_BYTES,
    PADDING_KIND,
    RECORD_HEADER_BYTES,
    RING_CAPACITY_BYTES_MAX,
    RING_CAPACITY_BYTES_MIN,
    RING_HEADER,
    WORD_BYTES,
)
from kproc.broker.ipc.region import Region
from kproc.broker.ipc.words import WEAKLY_ORDERED, fence
from kproc.common.errors import FatalError

Buffer = bytes | bytearray | memoryview

RECORD_HEADER: Final = struct.Struct("=II")  # Length of the payload, kind.
_pack_header = RECORD_HEADER.pack_into
_unpack_header = RECORD_HEADER.unpack_from
_view_of = operator.itemgetter(1)
_release_view = memoryview.release
_exhaust: Final = deque[None](maxlen=0).extend
# Plain numbers, because the hot loops would otherwise look each of them up in a dict.
_CAPACITY: Final = RING_HEADER.word["capacity"]
_TAIL: Final = RING_HEADER.word["tail"]
_HEAD: Final = RING_HEADER.word["head"]
_IS_OVER: Final = RING_HEADER.word["is_over"]
# (length + RECORD_ROUND) & -8 = header, payload, alignment.
RECORD_ROUND: Final = RECORD_HEADER_BYTES + WORD_BYTES - 1
assert RECORD_HEADER.size == RECORD_HEADER_BYTES == WORD_BYTES


def is_ring_capacity(capacity: int) -> bool:
    """Return True for a power of two within the limits, because sequences are masked and lengths must fit a u32."""
    return RING_CAPACITY_BYTES_MIN <= capacity <= RING_CAPACITY_BYTES_MAX and capacity & (capacity - 1) == 0


def format_ring(region: Region, offset: int, capacity: int) -> None:
    """Make an empty ring at `offset` of a payload. The region's maker calls this once, before handing it out.

    Raises ValueError if the capacity is invalid or does not fit.
    """
    if not is_ring_capacity(capacity):
        raise ValueError(
            f"ring capacity {capacity} is not a power of two from {RING_CAPACITY_BYTES_MIN} to "
            f"{RING_CAPACITY_BYTES_MAX} bytes"
        )
    assert offset % LINE_BYTES == 0, offset
    if offset + RING_HEADER.total_bytes + capacity > region.payload_bytes:
        raise ValueError(
            f"a ring of {capacity} bytes at offset {offset} does not fit into a region of {region.payload_bytes} bytes"
        )
    region.write_word(offset + _CAPACITY * WORD_BYTES, capacity)


class _RingEnd:
    """Base of RingProducer and RingConsumer: the ring's words and record bytes, and the check that a ring is there."""

    __slots__ = ("_data", "_mask", "_words", "capacity", "record_bytes_max")

    def __init__(self, region: Region, offset: int) -> None:
        self._words = region.carve_words(offset, RING_HEADER.total_bytes // WORD_BYTES)
        capacity = int(self._words[_CAPACITY])
        if not is_ring_capacity(capacity):
            raise FatalError(
                f"no ring at offset {offset} of a region of kind {region.kind}: found the invalid capacity {capacity}"
            )
        self._data = region.carve(offset + RING_HEADER.total_bytes, capacity)
        self._mask = capacity - 1
        self.capacity = capacity
        self.record_bytes_max = capacity // 4 - RECORD_HEADER_BYTES
        region.before_close(self.drop_views)

    def drop_views(self) -> None:
        """Release the views that were handed out. The region calls this before it unmaps itself."""
        raise NotImplementedError

    def _refuse_record(self, head: int, tail: int, sequence: int) -> NoReturn:
        header = bytes(self._data[sequence & self._mask :][:RECORD_HEADER_BYTES]).hex()
        raise FatalError(
            f"ring is damaged: head {head}, tail {tail}, capacity {self.capacity}, "
            f"record header {header} at sequence {sequence}"
        )


class RingProducer(_RingEnd):
    """The writing end of a ring. One per ring, owned by the agent that sends."""

    __slots__ = ("_end", "_reserved", "_run_end", "_start", "_written")

    def __init__(self, region: Region, offset: int = 0) -> None:
        super().__init__(region, offset)
        self._written = int(self._words[_TAIL])
        # The sequence that we may write up to, by the head as last read.
        self._end = int(self._words[_HEAD]) + self.capacity
        # While a run is open, `_end` is 0 and this has its value, which `commit_run` restores.
        self._run_end = 0
        self._start = 0  # Sequence of the reserved record or run, behind any padding.
        self._reserved: memoryview | None = None  # Set from reserve() to commit().

    def reserve(self, length: int) -> memoryview | None:
        """Return contiguous room for a record of up to `length` bytes, to be filled and committed; None if full.

        Reserving again, or pushing, drops a reservation that was not committed. The consumer never sees it. A
        reservation that is repeated at once returns the same room, which still holds the bytes written there.
        """
        if length > self.record_bytes_max:
            self._refuse_length(length)
        capacity = self.capacity
        start = self._written
        slot = start & self._mask
        need = (length + RECORD_ROUND) & -8
        if slot + need > capacity:
            start += capacity - slot
            slot = 0
        # Use the head as last read, which nearly always suffices, because reading the word takes its cache line from
        # the consumer's CPU.
        if start + need > self._end and not self._has_room(start + need):
            self._reserved = None
            return None
        self._start = start
        slot += RECORD_HEADER_BYTES
        self._reserved = view = self._data[slot : slot + length]
        return view

    def commit(self, length: int, kind: int) -> None:
        """Finish the reserved record with the `length` bytes that were filled. publish() makes it visible."""
        reserved = self._reserved
        assert reserved is not None, "commit without reserve"
        assert length <= len(reserved), (length, len(reserved))
        assert kind > PADDING_KIND, kind
        start = self._start
        # Write the padding here and not in reserve(), because a reservation may be dropped. A shorter next record may
        # then still fit before the end.
        if start != self._written:
            self._pad()
        _pack_header(self._data, start & self._mask, length, kind)
        self._written = start + ((length + RECORD_ROUND) & -8)
        # The bytes will soon belong to the consumer, so a late write must fail here instead of damaging them.
        reserved.release()
        self._reserved = None

    def reserve_run(self, length: int) -> tuple[memoryview, int, int] | None:
        """Return room for several records of up to `length` bytes each, or None if full. The caller packs the headers.

        The result is the ring's bytes, the position of the first record in them, and the last position at which a
        record may begin. A record takes (its length + RECORD_ROUND) & -8 bytes. Until `commit_run` nothing else may be
        written.
        """
        if length > self.record_bytes_max:
            self._refuse_length(length)
        self._reserved = None
        start = self._written
        slot = start & self._mask
        need = (length + RECORD_ROUND) & -8
        gap = self.capacity - slot
        if need > gap:
            start += gap
            slot, gap = 0, self.capacity
        if start + need > self._end and not self._has_room(start + need):
            return None
        self._start = start
        self._run_end = end = self._end
        self._end = 0  # Any other write during the run then calls `_has_room`, whose assertion fails.
        # The caller packs the records next to each other and never wraps, so the run must end where the ring ends.
        room = end - start
        if room > gap:
            room = gap
        return self._data, slot, slot + room - need

    def commit_run(self, position: int) -> None:
        """Finish the records that were written up to `position` of the bytes. publish() makes them visible."""
        self._end = self._run_end
        start = self._start
        length = position - (start & self._mask)
        if length:
            if start != self._written:
                self._pad()
            self._written = start + length

    def _pad(self) -> None:
        """Fill the end of the ring with a padding record, so that the next record begins at slot 0."""
        slot = self._written & self._mask
        _pack_header(self._data, slot, self.capacity - slot - RECORD_HEADER_BYTES, PADDING_KIND)

    def try_push(self, kind: int, *parts: Buffer) -> bool:
        """Copy the parts into one record, which publish() makes visible. Return False if the ring is full."""
        assert kind > PADDING_KIND, kind
        length = sum(map(len, parts))
        if length > self.record_bytes_max:
            self._refuse_length(length)
        data = self._data
        start = self._written
        slot = start & self._mask
        need = (length + RECORD_ROUND) & -8
        # A record lies in one piece, because readers get a view of it. If it does not fit before the end of the ring,
        # padding fills the rest.
        following = start + need
        gap = self.capacity - slot
        if need > gap:
            following += gap
        # `_end` is where the consumer's last known head lets us write. Only beyond it is the shared word read again.
        if following > self._end and not self._has_room(following):
            return False
        if need > gap:
            _pack_header(data, slot, gap - RECORD_HEADER_BYTES, PADDING_KIND)
            slot = 0
        _pack_header(data, slot, length, kind)
        slot += RECORD_HEADER_BYTES
        for part in parts:
            end = slot + len(part)
            data[slot:end] = part
            slot = end
        self._written = following
        self._reserved = None
        return True

    def publish(self) -> None:
        """Make all committed records visible with one store. The caller must then wake the consumer (ipc/wait.py)."""
        if WEAKLY_ORDERED:
            fence()
        # One aligned 8-byte store. On x86-64 no reader sees it before the bytes in front of it; WEAKLY_ORDERED covers
        # the others.
        self._words[_TAIL] = self._written

    def free_bytes(self) -> int:
        """Return how many bytes may be written, headers and padding included."""
        # Read the head again, because the cached one may be as old as the last full ring.
        self._has_room(self._written)
        return self._end - self._written

    def waiting(self, limit: int) -> int:
        """Return how many published records the consumer has not released. Walks over them, up to `limit`."""
        data, mask, published = self._data, self._mask, self._words[_TAIL]
        # The producer may read these bytes, even if they are released meanwhile, because only it overwrites them.
        sequence = int(self._words[_HEAD])
        count = 0
        while sequence < published and count < limit:
            length, kind = _unpack_header(data, sequence & mask)
            sequence += (length + RECORD_ROUND) & -8
            count += kind != PADDING_KIND
        return count

    def untaken(self) -> list[tuple[int, bytes]] | None:
        """Return copies of the records that the consumer never polled, published or not.

        Return None unless the consumer has ended in order: after a crash it is unknown which records it has processed.
        """
        # Without the flag, the consumer may have died while it handled a record. It is unknown which effects that
        # record had.
        if not self._words[_IS_OVER]:
            return None
        if WEAKLY_ORDERED:
            fence()
        records: list[tuple[int, bytes]] = []
        sequence = int(self._words[_HEAD])
        while sequence < self._written:
            slot = sequence & self._mask
            length, kind = _unpack_header(self._data, slot)
            if kind != PADDING_KIND:
                slot += RECORD_HEADER_BYTES
                records.append((kind, bytes(self._data[slot : slot + length])))
            sequence += (length + RECORD_ROUND) & -8
        return records

    def progress(self) -> tuple[int, int]:
        """Return (sequence up to which records were written, sequence up to which the consumer has released them)."""
        return self._written, int(self._words[_HEAD])

    def drop_views(self) -> None:
        """Discard a reservation that was not committed."""
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None

    def _has_room(self, following: int) -> bool:
        """Read the consumer's head again. Return True if a record that ends at the sequence `following` fits.

        Raise FatalError if the head is impossible, because the consumer then works wrongly.
        """
        assert self._end, "a run of records was not committed"
        head = self._words[_HEAD]
        if WEAKLY_ORDERED:
            fence()  # The consumer's reads of the old records must come before our writes over them.
        # The head comes from another process. Outside of these bounds that process is broken, and to write on would
        # destroy records that it has not read.
        tail = self._words[_TAIL]
        if not self._end - self.capacity <= head <= tail:
            raise FatalError(
                f"ring is damaged: head {head}, expected {self._end - self.capacity} to {tail} (the tail)"
            )
        self._end = head + self.capacity
        return following <= self._end

    def _refuse_length(self, length: int) -> NoReturn:
        raise ValueError(f"record of {length} bytes; this ring takes {self.record_bytes_max} bytes at most")


class RingConsumer(_RingEnd):
    """The reading end of a ring. One per ring, owned by the agent that receives."""

    __slots__ = ("_lent", "_next")

    def __init__(self, region: Region, offset: int = 0) -> None:
        super().__init__(region, offset)
        self._next = int(self._words[_HEAD])
        self._lent: list[tuple[int, memoryview]] = []

    def poll(self, limit: int) -> list[tuple[int, memoryview]]:
        """Return up to `limit` records as (kind, payload). Payloads are views of the ring until release()."""
        batch: list[tuple[int, memoryview]] = []
        sequence = self._next
        tail = self._words[_TAIL]
        if sequence == tail or not limit:
            return batch
        if WEAKLY_ORDERED:
            fence()
        data = self._data
        # Records never wrap, so walk over the published bytes up to the end of the ring.
        slot = sequence & self._mask
        sequence -= slot  # That of slot 0.
        end = tail - sequence
        if end > self.capacity:
            end = self.capacity
        while slot < end:
            length, kind = _unpack_header(data, slot)
            begin = slot + RECORD_HEADER_BYTES
            slot += (length + RECORD_ROUND) & -8
            # Skip padding, which has kind 0, because it is not a record of the producer.
            if kind:
                batch.append((kind, data[begin : begin + length]))
                limit -= 1
                if not limit:
                    break
        # The length comes from another process. A damaged one must not lead beyond the published bytes.
        if slot > end:
            self._refuse_record(self._next, tail, sequence + begin - RECORD_HEADER_BYTES)
        self._next = sequence = sequence + slot
        self._lent += batch
        if limit and sequence != tail:
            batch += self.poll(limit)  # The records from slot 0 on.
        return batch

    def release(self) -> None:
        """Release all polled records to the producer with one store. Their views end here."""
        # Release the views before the store, because the producer may overwrite the bytes from then on. A caller that
        # kept a view gets an error instead of another record's bytes.
        _exhaust(map(_release_view, map(_view_of, self._lent)))
        self._lent = []
        if WEAKLY_ORDERED:
            fence()
        self._words[_HEAD] = self._next

    def finish(self) -> None:
        """End the consumer in order. The producer may then send the unpolled records to another consumer."""
        self.release()
        if WEAKLY_ORDERED:
            fence()
        # Store this last, so that a producer that sees the flag also finds the final head.
        self._words[_IS_OVER] = 1

    def drop_views(self) -> None:
        """End the views of polled records without releasing their bytes to the producer."""
        # A loop of C code, because a loop of Python code would cost each record ten bytecodes.
        _exhaust(map(_release_view, map(_view_of, self._lent)))
        self._lent.clear()

    def is_empty(self) -> bool:
        """Return True if all published records have been polled."""
        return self._words[_TAIL] == self._next
