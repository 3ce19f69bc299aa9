"""HeldConnections: the connections whose requests a Handler parks.

A connection's requests are parked while a large one before them is handled in steps, while that one waits because too
many others are being handled, and while the connection rests: from its second request in a duty cycle to a later cycle.
As in Kafka, a request is handled after the one before it on its connection is answered. A HeldConnection takes the
place of the connection's fast path, so that no other connection pays for the check.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from kproc.broker.request.divided_request import DividedRequest
from kproc.broker.request.divided_requests import DividedRequests, Job
from kproc.broker.request.fast_path import CONNECTION_BYTES, FastPath
from kproc.broker.transport.envelope import (
    BLOCK,
    CLOSE,
    HEAD,
    HEAD_BYTES,
    NO_OP,
    REQUEST,
    REQUEST_BLOCK,
)
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.handler.processor_peer import ProcessorPeer
    from kproc.broker.request.context import Services
    from kproc.broker.request.request import HandlerRequest

logger = logging.getLogger(__name__)

# A connection of a Processor: the Processor, and the bytes of the connection's id.
Place = tuple["ProcessorPeer", bytes]
# APIs whose requests are never divided into slices. They need no room among the large requests, however long they are.
_NEVER_LARGE: Final = (int(ApiKey.PRODUCE), int(ApiKey.FETCH))
# Limit of bytes that were copied because their Processor recalled the blocks. Beyond it the Handler keeps the blocks,
# whose number the Processor limits.
_COPIED_BYTES_MAX: Final = 32 << 20
# Limit of the parked bytes of all connections of a Handler. A client that waits for each response parks
# nothing, and Kafka's clients park up to five requests.
_PARKED_BYTES_MAX: Final = 32 << 20
# Kind of a REQUEST record that was copied out of the arena.
COPIED: Final = -1
# Memory for a parked record besides its bytes.
_RECORD_BYTES: Final = 200


class ParkedBytes:
    """The bytes of all records that one Handler has parked, without frames in the arena."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class HeldConnection:
    """The parked records of one connection: a large request that waits, those behind one, or those sent while it rests.

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
        self.is_resting = False  # The connection waits until a later duty cycle handles its next request.
        self.path: FastPath | None = None  # The fast path to restore after the rest.
        self.is_closed = False  # The connection was closed because it had parked too much.
        # Number of parked records, from the first on, that have their response already. 1 after a CLOSE for a record of
        # the arena, else 0.
        self.answered_count = 0
        self.parked = parked
        self.parked_bytes = 0  # This connection's share of `parked`.
        # The parked records, as kind and bytes. Writable, because the log writes offsets into batches.
        self.records: list[tuple[int, bytearray]] = []
        self.copied_bytes = 0  # Bytes of frames that were copied because the Processor recalled their blocks.
        self.misses = 0

    def handle(self, record: memoryview) -> bool:
        """Park a REQUEST record. Return True, as a fast path that has handled its request."""
        self._park(bytearray(record))
        return True

    def handle_frame(
        self, frame: memoryview, connection_id: int, sequence: int, listener: int, flags: int
    ) -> bool:
        """Park a frame of a record with several frames. Return True, as a fast path that has handled its request."""
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
        """The length of the first parked request, in bytes."""
        kind, record = self.records[0]
        return BLOCK.unpack_from(record, HEAD_BYTES)[1] if kind == REQUEST_BLOCK else len(record)

    def keep_block(self, record: memoryview) -> None:
        """Park a REQUEST_BLOCK record. The frame that it names stays in the arena."""
        self.records.append((REQUEST_BLOCK, bytearray(record)))

    def add_records(self, records: list[tuple[int, bytearray]]) -> None:
        """Add records that were parked before the connection was released and parked again."""
        self.records += records
        self.copied_bytes += sum(len(record) for kind, record in records if kind == COPIED)
        self._count(sum(len(record) + _RECORD_BYTES for kind, record in records if kind == REQUEST))

    def copy_block(self, sequence: int, view_of: Callable[[int, int], memoryview], bytes_max: int) -> bool:
        """Copy a parked frame whose block the Processor recalls, if it is parked here.

        Return False only if the frame is longer than `bytes_max` and was not copied.
        """
        for at, (kind, record) in enumerate(self.records):
            connection_id, number, listener, flags = HEAD.unpack_from(record)
            if kind == REQUEST_BLOCK and number == sequence:
                offset, length = BLOCK.unpack_from(record, HEAD_BYTES)
                if length > bytes_max:
                    return False
                head = HEAD.pack(connection_id, number, listener, flags)
                frame = view_of(offset, length)
                # Give the record the form of a ring record, so that it is handled like one when the connection is
                # released.
                copy = bytearray(b"".join((head, length.to_bytes(4, "big"), frame)))
                self.records[at] = COPIED, copy
                self.copied_bytes += len(copy)
                break
        return True


class HeldConnections:
    """The connections of one Handler with a large request, with one that waits for admission, or at rest.

    It decides when a connection is released. ClientRequests then handles the records that the connection has parked.
    """

    __slots__ = (
        "_admitted",
        "_copied_bytes",
        "_holders",
        "_parked",
        "_released",
        "_services",
        "divided",
        "resting",
        "without_room",
    )

    def __init__(self, services: Services, refuse: Callable[[HandlerRequest, str], None]) -> None:
        """Create the empty queues. `refuse` rejects a large request that turns out to be malformed."""
        self._services = services
        self.divided = DividedRequests(services.containment, refuse, self._on_end)
        # The connection of each divided request. Its later requests are parked.
        self._holders: dict[Job, Place] = {}
        # Connections whose large request has its response.
        self._released: deque[Place] = deque()
        # Connections whose large request is parked because too many others are being handled, in their order.
        self.without_room: deque[Place] = deque()
        # Connections with further requests that a later duty cycle handles, in their order.
        self.resting: deque[Place] = deque()
        # The first connection of `without_room`, while its request is handled.
        self._admitted: Place | None = None
        self._parked = ParkedBytes()
        self._copied_bytes = 0  # Bytes of parked frames that were copied out of the arena.

    # -- parking -----------------------------------------------------------------------------------------------

    def hold(self, client: ProcessorPeer, key: bytes, request: HandlerRequest) -> None:
        """Park everything that the connection sends until its divided request is answered."""
        divided, self.divided.newest = self.divided.newest, None
        assert divided is not None, "the caller has checked"
        assert divided.request is request, "requests before the login have no rows"
        self._holders[divided] = client, key
        client.paths[key] = client.held[key] = HeldConnection(divided, self._parked)

    def rest(self, client: ProcessorPeer, key: bytes, path: FastPath | None) -> HeldConnection:
        """Park the requests of a connection until a later duty cycle. Return the object that parks them.

        Kafka handles one request of a connection at a time. A ring of kproc has space for INFLIGHT_MAX requests of one
        connection. Without this, other connections would wait for all of them. Produce requests are exempt, because
        they are queued and appended together, and producers usually have several in flight.
        """
        held = HeldConnection(None, self._parked)
        held.is_resting, held.path = True, path
        client.paths[key] = client.held[key] = held
        self.resting.append((client, key))
        return held

    def must_wait(self, client: ProcessorPeer, record: memoryview, frame: memoryview) -> bool:
        """Park a large frame and return True if its connection is parked or too many large requests are being handled.

        Only the first reason applies to Produce and Fetch.
        """
        key = record[:CONNECTION_BYTES].tobytes()
        held = client.held.get(key)
        if held is None:
            api_key = int.from_bytes(frame[:2], "big")
            # A new request waits behind the parked ones. Otherwise smaller requests could overtake a large one forever.
            is_next = not self.without_room or self._admitted == (client, key)
            if api_key in _NEVER_LARGE or (is_next and self.divided.has_room(len(frame))):
                return False
            client.paths[key] = client.held[key] = held = HeldConnection(None, self._parked)
            self.without_room.append((client, key))
        held.keep_block(record)
        return True

    def park_again(self, held: HeldConnection, records: list[tuple[int, bytearray]]) -> None:
        """Park the remaining records of a released connection that rests again or has another large request."""
        held.add_records(records)
        self._copied_bytes += held.copied_bytes

    def copy_block(self, client: ProcessorPeer, key: bytes, sequence: int) -> bool:
        """Copy a parked frame of a connection out of the arena. Return False if the limit of copies is reached."""
        arena, held = client.link.arena, client.held[key]
        assert arena is not None, "a Processor's link comes with its arena"
        before = held.copied_bytes
        is_free = held.copy_block(sequence, arena.view, _COPIED_BYTES_MAX - self._copied_bytes)
        self._copied_bytes += held.copied_bytes - before
        return is_free

    # -- releasing ---------------------------------------------------------------------------------------------

    def has_steps(self) -> bool:
        """Return True if a large request can be continued or admitted now."""
        return self.divided.is_ready() or bool(self.without_room and self._has_room_for_first())

    def can_resume(self) -> bool:
        """Return True if the next request of a resting connection can be handled now."""
        return any(not client.outbox.has_overflow for client, _ in self.resting)

    def answered(self) -> Iterator[Place]:
        """Yield the connections whose large request has its response."""
        while self._released:
            yield self._released.popleft()

    def admitted(self) -> Iterator[Place]:
        """Yield the connections whose parked large request can be handled now.

        It waits until another large request ends by its response, its client's disconnect or its Processor's death.
        """
        while self.without_room and self._has_room_for_first():
            self._admitted = self.without_room.popleft()
            yield self._admitted
            self._admitted = None

    def resumed(self) -> Iterator[Place]:
        """Yield each resting connection once, unless its Processor has not read our earlier responses."""
        for _ in range(len(self.resting)):
            client, key = self.resting.popleft()
            if client.outbox.has_overflow:
                self.resting.append((client, key))
                continue
            client.had_turn.discard(key)
            yield client, key

    def release(self, client: ProcessorPeer, key: bytes) -> list[tuple[int, bytearray]]:
        """Stop parking the requests of a connection, and return its parked records to handle now.

        If the connection was closed, return none, and let the Processor free the blocks of its parked frames.
        """
        held = client.held.pop(key, None)
        if held is None:
            return []
        client.paths.pop(key, None)
        if held.path is not None:
            client.paths[key] = held.path
        self._copied_bytes -= held.copied_bytes
        held.release()
        if held.is_closed or (held.divided is not None and held.divided.request.is_closed):
            _free_blocks(client, held)
            return []
        return held.records

    def abandon(self, client: ProcessorPeer, key: bytes) -> None:
        """Abandon the large request of a closed connection, and discard everything that it sent after that request."""
        held = client.held.pop(key, None)
        if held is None:
            return
        self._copied_bytes -= held.copied_bytes
        held.release()
        if held.is_resting:
            self.resting.remove((client, key))
        elif held.divided is None:
            self.without_room.remove((client, key))
        else:
            self._holders.pop(held.divided, None)
            self.divided.abandon(held.divided)
        _free_blocks(client, held)

    def limit_parked_bytes(self) -> None:
        """Close the connections with the most parked bytes, until the total of the others is within the limit."""
        if self._parked.total <= _PARKED_BYTES_MAX:
            return
        places = (*self._holders.values(), *self.without_room, *self.resting)
        held = [(client, client.held[key]) for client, key in places]
        # Close the connection with the most bytes first, because closing few connections then frees enough.
        held.sort(key=lambda each: each[1].parked_bytes, reverse=True)
        for client, each in held:
            if self._parked.total <= _PARKED_BYTES_MAX:
                return
            connection_id, sequence, _, _ = HEAD.unpack_from(each.records[0][1])
            if self._services.clients.refusals.has_room(self._services.clock.host_ns()):
                logger.warning(
                    "closing connection %d: its parked requests have %d bytes, and those of all connections exceed %d "
                    "bytes",
                    connection_id,
                    each.parked_bytes,
                    _PARKED_BYTES_MAX,
                )
            if each.divided is not None:
                each.divided.close()
            else:
                # The Processor sends responses in the order of the requests, so the CLOSE takes the place of the first
                # parked one's response. It also frees that request's block.
                client.outbox.push(CLOSE, HEAD.pack(connection_id, sequence, 0, 0))
                each.answered_count = int(each.records[0][0] == REQUEST_BLOCK)
            each.close()

    def _has_room_for_first(self) -> bool:
        client, key = self.without_room[0]
        return self.divided.has_room(client.held[key].first_bytes)

    def _on_end(self, job: Job) -> None:
        """Queue the connection of a finished large request for release."""
        if job in self._holders:
            self._released.append(self._holders.pop(job))


def _free_blocks(client: ProcessorPeer, held: HeldConnection) -> None:
    """Send NO_OP for each discarded frame in the arena, because the Processor frees a block at its response."""
    for kind, record in held.records[held.answered_count :]:
        if kind == REQUEST_BLOCK:
            connection_id, sequence, _, _ = HEAD.unpack_from(record)
            client.outbox.push(NO_OP, HEAD.pack(connection_id, sequence, 0, 0))
