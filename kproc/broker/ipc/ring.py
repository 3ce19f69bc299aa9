"""The ring: one producer process, one consumer process, records of bytes.

    head                     tail (published)    written (only the producer knows)
     v                        v                   v
     [ polled ][ to be polled ][ committed         ][ reserved ][ free ... ]
     ^ released up to here

Each side works by the batch: reserve and commit as often as you like, then one `publish()`; one `poll()`, the
work, then one `release()`. The only shared stores are the tail at publish and the head at release, one
aligned 8-byte word each, so a record is never seen torn: what a producer wrote before it was killed lies
beyond the tail. Sequences (tail, head) grow for ever; `sequence & mask` is the slot. A record never wraps: if
it does not fit before the end, padding goes there and the record begins at slot 0.

Nothing blocks. A full ring answers None or False and changes nothing that the consumer can see; what to do
then is the caller's rule (keep the frame and stop reading that connection; keep the answer and take no more
work). A record is at most a quarter of the ring, so that one always fits once the consumer has caught up,
padding included, and so that producer and consumer can be at work on different records.

Record headers are packed with a bound struct, unlike shared words: they are payload, seen after the tail.
Hot loops below are written out, not shared: a Python call costs 50 ns. For 100 B records, in batches of 32:
0.43 us to reserve and commit, or to push, and 0.32 us to poll and release; alone 0.7 us each (CPython 3.11).
"""

from __future__ import annotations

import struct
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
# Plain numbers for the hot loops; checked against the layout right here.
_CAPACITY: Final = RING_HEADER.word["capacity"]
_TAIL: Final = RING_HEADER.word["tail"]
_HEAD: Final = RING_HEADER.word["head"]
_IS_OVER: Final = RING_HEADER.word["is_over"]
# (length + RECORD_ROUND) & -8 = header, payload, alignment.
RECORD_ROUND: Final = RECORD_HEADER_BYTES + WORD_BYTES - 1
assert RECORD_HEADER.size == RECORD_HEADER_BYTES == WORD_BYTES


def is_ring_capacity(capacity: int) -> bool:
    """A power of two within the limits: sequences are masked, and lengths must fit their u32."""
    return RING_CAPACITY_BYTES_MIN <= capacity <= RING_CAPACITY_BYTES_MAX and capacity & (capacity - 1) == 0


def format_ring(region: Region, offset: int, capacity: int) -> None:
    """Make an empty ring at `offset` of a payload. Once, by the region's maker, before it is handed out."""
    if not is_ring_capacity(capacity):
        raise ValueError(f"ring capacity {capacity} is not a power of two from {RING_CAPACITY_BYTES_MIN}")
    assert offset % LINE_BYTES == 0, offset
    if offset + RING_HEADER.total_bytes + capacity > region.payload_bytes:
        raise ValueError(f"a ring of {capacity} at {offset} does not fit into {region.payload_bytes} bytes")
    region.write_word(offset + _CAPACITY * WORD_BYTES, capacity)


class _RingEnd:
    """What both ends share: the words, the record bytes, and the check that a ring is there."""

    __slots__ = ("_data", "_mask", "_words", "capacity", "record_bytes_max")

    def __init__(self, region: Region, offset: int) -> None:
        self._words = region.carve_words(offset, RING_HEADER.total_bytes // WORD_BYTES)
        capacity = int(self._words[_CAPACITY])
        if not is_ring_capacity(capacity):
            raise FatalError(f"no ring at {offset} of a region of kind {region.kind}: capacity {capacity}")
        self._data = region.carve(offset + RING_HEADER.total_bytes, capacity)
        self._mask = capacity - 1
        self.capacity = capacity
        self.record_bytes_max = capacity // 4 - RECORD_HEADER_BYTES
        region.before_close(self.drop_views)

    def drop_views(self) -> None:
        """Release the views that were handed out; the region calls this before it unmaps itself."""
        raise NotImplementedError

    def _refuse_record(self, head: int, tail: int, sequence: int) -> NoReturn:
        header = bytes(self._data[sequence & self._mask :][:RECORD_HEADER_BYTES]).hex()
        raise FatalError(
            f"ring is damaged: head {head}, tail {tail}, capacity {self.capacity}, "
            f"record header {header} at sequence {sequence}"
        )


class RingProducer(_RingEnd):
    """The writing end. One per ring, owned by the producing agent."""

    __slots__ = ("_end", "_published", "_reserved", "_run_end", "_start", "_written")

    def __init__(self, region: Region, offset: int = 0) -> None:
        super().__init__(region, offset)
        self._published = self._written = int(self._words[_TAIL])
        # The sequence that we may write up to, by the head as last seen.
        self._end = int(self._words[_HEAD]) + self.capacity
        self._run_end = 0  # What `_end` will be again; itself it is 0 until a run is committed.
        self._start = 0  # Where the reserved record or run begins, padding skipped.
        self._reserved: memoryview | None = None  # Until it is committed.

    def reserve(self, length: int) -> memoryview | None:
        """Contiguous room for a record of up to `length` bytes, to be filled and committed; None if full.

        Reserving again, or pushing, drops a reservation that was not committed: nothing of it is ever seen. Reserved
        again at once, the room still holds what was written there.
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
        # The head as last seen is enough nearly always. To read it takes its cache line from the consumer's CPU.
        if start + need > self._end and not self._has_room(start + need):
            self._reserved = None
            return None
        self._start = start
        slot += RECORD_HEADER_BYTES
        self._reserved = view = self._data[slot : slot + length]
        return view

    def commit(self, length: int, kind: int) -> None:
        """Finish the reserved record with the `length` bytes that were filled; publish() makes it visible."""
        reserved = self._reserved
        assert reserved is not None, "commit without reserve"
        assert length <= len(reserved), (length, len(reserved))
        assert kind > PADDING_KIND, kind
        start = self._start
        # Padding is written here and not by reserve(): a reservation may be dropped, and then the next record, if it is
        # shorter, still fits before the end.
        if start != self._written:
            self._pad()
        _pack_header(self._data, start & self._mask, length, kind)
        self._written = start + ((length + RECORD_ROUND) & -8)
        # Its bytes belong to the consumer soon; a late write must fail here and not over there.
        reserved.release()
        self._reserved = None

    def reserve_run(self, length: int) -> tuple[memoryview, int, int] | None:
        """Room for several records of up to `length` bytes each, whose headers the caller packs, too; None if full.

        Returns the ring's bytes, where the first record begins in them, and where the last one may begin. A record
        takes (its length + RECORD_ROUND) & -8 bytes. Until `commit_run` nothing else may be written.
        """
        if length > self.record_bytes_max:
            self._refuse_length(length)
        self._reserved = None
        capacity = self.capacity
        start = self._written
        slot = start & self._mask
        need = (length + RECORD_ROUND) & -8
        if slot + need > capacity:
            start += capacity - slot
            slot = 0
        if start + need > self._end and not self._has_room(start + need):
            return None
        self._start = start
        self._run_end = end = self._end
        self._end = 0  # So that whoever writes something else comes to `_has_room`.
        room = end - start
        if slot + room > capacity:
            room = capacity - slot
        return self._data, slot, slot + room - need

    def commit_run(self, position: int) -> None:
        """Finish the records that were written up to `position`; publish() makes them visible."""
        self._end = self._run_end
        start = self._start
        length = position - (start & self._mask)
        if length:
            if start != self._written:
                self._pad()
            self._written = start + length

    def _pad(self) -> None:
        """Fill the end of the ring: the next record begins at slot 0."""
        slot = self._written & self._mask
        _pack_header(self._data, slot, self.capacity - slot - RECORD_HEADER_BYTES, PADDING_KIND)

    def try_push(self, kind: int, *parts: Buffer) -> bool:
        """Copy the parts in as one record; publish() makes it visible. False if the ring is full."""
        assert kind > PADDING_KIND, kind
        length = sum(map(len, parts))
        if length > self.record_bytes_max:
            self._refuse_length(length)
        data = self._data
        capacity = self.capacity
        written = start = self._written
        slot = start & self._mask
        need = (length + RECORD_ROUND) & -8
        if slot + need > capacity:
            start += capacity - slot
        following = start + need
        if following > self._end and not self._has_room(following):
            return False
        if start != written:
            _pack_header(data, slot, capacity - slot - RECORD_HEADER_BYTES, PADDING_KIND)
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
        """Make everything committed visible with one store. Wakes nobody: that is the caller's one fence."""
        written = self._written
        if written != self._published:
            if WEAKLY_ORDERED:
                fence()
            self._words[_TAIL] = self._published = written

    def free_bytes(self) -> int:
        """Bytes that the consumer has given back, headers and padding included."""
        self._has_room(self._written)
        return self._end - self._written

    def waiting(self, limit: int) -> int:
        """How many published records the consumer has not given back; counted up to `limit`, by walking over them."""
        data, mask, published = self._data, self._mask, self._published
        sequence = int(self._words[_HEAD])  # The producer's own bytes: only it could write over them.
        count = 0
        while sequence < published and count < limit:
            length, kind = _unpack_header(data, sequence & mask)
            sequence += (length + RECORD_ROUND) & -8
            count += kind != PADDING_KIND
        return count

    def untaken(self) -> list[tuple[int, bytes]] | None:
        """Copies of the records that the consumer never took, published or not; None unless it has ended in order."""
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
        """(sequence up to which was written, sequence up to which the consumer has given back)."""
        return self._written, int(self._words[_HEAD])

    def drop_views(self) -> None:
        """Drop the reservation."""
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None

    def _has_room(self, following: int) -> bool:
        """Look at the consumer's head again: does a record that ends at `following` fit?"""
        assert self._end, "a run of records was not committed"
        head = self._words[_HEAD]
        if WEAKLY_ORDERED:
            fence()  # Its reads of the old records come before our writes over them.
        if not self._end - self.capacity <= head <= self._published:
            raise FatalError(f"ring is damaged: head {head}, tail {self._published}, end {self._end}")
        self._end = head + self.capacity
        return following <= self._end

    def _refuse_length(self, length: int) -> NoReturn:
        raise ValueError(f"record of {length} bytes; this ring takes {self.record_bytes_max}")


class RingConsumer(_RingEnd):
    """The reading end. One per ring, owned by the consuming agent."""

    __slots__ = ("_lent", "_next")

    def __init__(self, region: Region, offset: int = 0) -> None:
        super().__init__(region, offset)
        self._next = int(self._words[_HEAD])
        self._lent: list[tuple[int, memoryview]] = []

    def poll(self, limit: int) -> list[tuple[int, memoryview]]:
        """Take up to `limit` records as (kind, payload); payloads are views of the ring until release()."""
        batch: list[tuple[int, memoryview]] = []
        sequence = self._next
        tail = self._words[_TAIL]
        if sequence == tail or limit <= 0:
            return batch
        if WEAKLY_ORDERED:
            fence()
        data, mask, capacity = self._data, self._mask, self.capacity
        unpack_header, append = _unpack_header, batch.append
        while sequence < tail:
            slot = sequence & mask
            length, kind = unpack_header(data, slot)
            need = (length + RECORD_ROUND) & -8
            sequence += need
            # A length is bytes that a producer wrote: a damaged one must not lead out of what was published.
            if sequence > tail or slot + need > capacity:
                self._refuse_record(self._next, tail, sequence - need)
            if kind:
                slot += RECORD_HEADER_BYTES
                append((kind, data[slot : slot + length]))
                limit -= 1
                if not limit:
                    break
        self._next = sequence
        self._lent += batch
        return batch

    def release(self) -> None:
        """Give all polled records back to the producer with one store; their views end here."""
        # Before the store: from then on the bytes may be another record's, and who kept a view must get an error.
        for _, view in self._lent:
            view.release()
        self._lent.clear()
        if WEAKLY_ORDERED:
            fence()
        self._words[_HEAD] = self._next

    def end(self) -> None:
        """Poll no more, and tell the producer so: what was not polled may go to somebody else."""
        self.release()
        if WEAKLY_ORDERED:
            fence()
        self._words[_IS_OVER] = 1

    def drop_views(self) -> None:
        """End the views of polled records without giving their bytes back."""
        for _, view in self._lent:
            view.release()
        self._lent.clear()

    def is_empty(self) -> bool:
        """True when everything published has been polled."""
        tail: int = self._words[_TAIL]
        return tail == self._next
