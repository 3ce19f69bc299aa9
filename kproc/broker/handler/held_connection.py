"""HeldConnection: parks the requests of a connection while one of its large requests is handled in steps, or until its
next turn.

As in Kafka, a request is handled after the one before it on its connection is answered. A HeldConnection takes the
place of the connection's fast path, so that no other connection pays for the check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kproc.broker.request.divided_requests import DividedRequest
from kproc.broker.request.fast_path import FastPath
from kproc.broker.transport.envelope import BLOCK, HEAD, HEAD_BYTES, REQUEST, REQUEST_BLOCK

# Kind of a REQUEST record that was copied out of the arena.
COPIED: Final = -1
# Memory for a parked record besides its bytes.
_RECORD_BYTES: Final = 200


class ParkedBytes:
    """The memory of all records that the held connections of one Handler have sent in a ring."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class HeldConnection:
    """The records that one connection sent after a large request, or while it waits for its next turn.

    Frames in an arena stay there until the Processor recalls them. Records of a ring are copied: up to INFLIGHT_MAX of
    them, of 16 KiB each, which `parked` counts.
    """

    __slots__ = (
        "answered_count", "copied_bytes", "divided", "is_closed", "is_resting", "misses", "parked", "parked_bytes",
        "path", "records",
    )  # fmt: skip

    def __init__(self, divided: DividedRequest | None, parked: ParkedBytes) -> None:
        # The large request that is being handled. None while it is parked because too many others are being handled,
        # and None for a connection that rests.
        self.divided = divided
        self.is_resting = False  # The connection waits for its next turn.
        self.path: FastPath | None = None  # The fast path to restore after the rest.
        self.is_closed = False  # The connection was closed because it had parked too much.
        # Number of first records that have a response and stay only until the next turn.
        self.answered_count = 0
        self.parked = parked
        self.parked_bytes = 0  # This connection's share of `parked`.
        # Writable, because the log writes offsets into batches.
        self.records: list[tuple[int, bytearray]] = []
        self.copied_bytes = 0  # Bytes of frames that were copied because the Processor recalled their blocks.
        self.misses = 0

    def serve(self, record: memoryview) -> bool:
        """Park a REQUEST record. Return True, as a fast path that has handled its request."""
        self._park(bytearray(record))
        return True

    def serve_frame(
        self, frame: memoryview, connection_id: int, sequence: int, listener: int, flags: int
    ) -> bool:
        """Park a frame that came in the same record as the large request."""
        head = HEAD.pack(connection_id, sequence, listener, flags)
        self._park(bytearray(b"".join((head, len(frame).to_bytes(4, "big"), frame))))
        return True

    def _park(self, record: bytearray) -> None:
        if not self.is_closed:
            self.records.append((REQUEST, record))
            self._count(len(record) + _RECORD_BYTES)

    def _count(self, size: int) -> None:
        self.parked_bytes += size
        self.parked.total += size

    def close(self) -> None:
        """Discard the records that came in a ring. Frames in the arena stay, because they have to be freed."""
        self.is_closed = True
        self.records = [each for each in self.records if each[0] != REQUEST]
        self.release()

    def release(self) -> None:
        """Subtract this connection's share from `parked`, because its records are handled or discarded."""
        self._count(-self.parked_bytes)

    @property
    def first_bytes(self) -> int:
        """The length of the first parked request."""
        kind, record = self.records[0]
        return BLOCK.unpack_from(record, HEAD_BYTES)[1] if kind == REQUEST_BLOCK else len(record)

    def keep_block(self, record: memoryview) -> None:
        """Park a REQUEST_BLOCK record. The frame that it names stays in the arena."""
        self.records.append((REQUEST_BLOCK, bytearray(record)))

    def add_records(self, records: list[tuple[int, bytearray]]) -> None:
        """Add records that were parked behind an earlier large request."""
        self.records += records
        self.copied_bytes += sum(len(record) for kind, record in records if kind == COPIED)
        self._count(sum(len(record) + _RECORD_BYTES for kind, record in records if kind == REQUEST))

    def copy_block(self, sequence: int, view_of: Callable[[int, int], memoryview], bytes_max: int) -> bool:
        """Copy a parked frame whose block the Processor recalls. Return False if it is longer than `bytes_max`."""
        for at, (kind, record) in enumerate(self.records):
            connection_id, number, listener, flags = HEAD.unpack_from(record)
            if kind == REQUEST_BLOCK and number == sequence:
                offset, length = BLOCK.unpack_from(record, HEAD_BYTES)
                if length > bytes_max:
                    return False
                head = HEAD.pack(connection_id, number, listener, flags)
                frame = view_of(offset, length)
                copy = bytearray(b"".join((head, length.to_bytes(4, "big"), frame)))
                self.records[at] = COPIED, copy
                self.copied_bytes += len(copy)
                break
        return True
