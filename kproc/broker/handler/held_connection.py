"""HeldConnection: parks the requests of a connection while one of its large requests is handled in steps.

As in Kafka, a request is handled after the one before it on its connection is answered. A HeldConnection takes the
place of the connection's fast path, so that no other connection pays for the check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kproc.broker.request.divided_requests import DividedRequest
from kproc.broker.transport.envelope import BLOCK, HEAD, HEAD_BYTES, REQUEST, REQUEST_BLOCK

# Kind of a REQUEST record that was copied out of the arena.
COPIED: Final = -1


class HeldConnection:
    """The records that one connection sent after a large request.

    Frames in an arena stay there until the Processor recalls them.
    """

    __slots__ = ("copied_bytes", "divided", "misses", "records")

    def __init__(self, divided: DividedRequest | None) -> None:
        # None if its large request is still parked, because too many others are in work.
        self.divided = divided
        self.records: list[tuple[int, bytearray]] = []  # Writable, because offsets are written into batches.
        self.copied_bytes = 0  # Of frames that were recalled from the arena.
        self.misses = 0

    def serve(self, record: memoryview) -> bool:
        """Park a REQUEST record. Return True, as a fast path that has handled its request."""
        self.records.append((REQUEST, bytearray(record)))
        return True

    def serve_frame(
        self, frame: memoryview, connection_id: int, sequence: int, listener: int, flags: int
    ) -> bool:
        """Park a frame that came in the same record as the large request."""
        head = HEAD.pack(connection_id, sequence, listener, flags)
        self.records.append((REQUEST, bytearray(b"".join((head, len(frame).to_bytes(4, "big"), frame)))))
        return True

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
