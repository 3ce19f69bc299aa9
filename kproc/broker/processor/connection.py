"""Connection: what a Processor knows of one client's socket.

Input. A frame that has not arrived whole is kept outside the rings: a small one in `held`, a large one in an arena
block. In a ring it would block the requests of other clients behind it. Output. Answers are sent in the order of the
requests; one that comes early waits in `stash`. Bytes that the socket does not take wait in `out`. While `out` is not
empty the connection is not read, so a client that does not read its answers cannot make the broker store many of them.

An idle connection has no buffer: `held` is the empty bytes and `out` is None.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from typing import Final, NamedTuple, Protocol

from kproc.broker.processor.channel_state import MuteState, mute_state
from kproc.broker.processor.files import FileCache, OpenFile, StaleFile
from kproc.broker.processor.gate import Gate
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.processor.migration_state import MigrationState
from kproc.broker.processor.transport_layer import FILE_TOO_SHORT, Transport
from kproc.broker.security.session import NO_SESSION, Session
from kproc.broker.transport.envelope import BLOCK, FLAG_GATED, FLAG_SASL, range_answer_of
from kproc.wire.file_range import FileRange

# Up to this a pread into the header's buffer costs no more than a second system call with MSG_MORE. Measured: 1.9
# against 2.1 us at 256 B, equal from 4 to 8 KiB, 2.8 against 2.4 us at 16 KiB.
_COPY_BYTES_MAX: Final = 8192
# Up to this an answer leaves as one TCP segment (loopback's MSS, and what a network card is given at once), so its
# header waits for its records. A longer one needs several: its header leaves, and the client wakes meanwhile.
# Measured on loopback: 1 consumer of 64 KB 1.14 times the rate at 0.83 of the CPU without MSG_MORE, 16 of them 1.50 at
# 0.69; 1 of 48 KB 0.88 at 1.08.
_SEGMENT_BYTES_MAX: Final = 65_400
INFLIGHT_MAX: Final = 64  # Requests of one connection in work. Kafka takes 1, its clients send at most 5.


class BlockMemory(Protocol):
    """The memory of a Block; see frame_memory.py."""

    def grow(self, connection: Connection, block: Block) -> bool:
        """Make room for more of a frame. Return False if there is none."""

    def release(self, connection: Connection, block: Block) -> None:
        """Free the block of a frame that will not be received."""

    def hand_out(self, connection: Connection, block: Block) -> None:
        """Detach a block from its connection without freeing it."""

    def discard(self, block: Block) -> None:
        """Free a block that was not assigned to a connection."""


class Block:
    """A large frame that is being received. `filled` of its `length` bytes have arrived; `view` has room for more.

    The view grows with the bytes that arrive (frame_memory.py), because a client can announce a length and send
    nothing.
    """

    __slots__ = ("filled", "length", "memory", "offset", "view")

    def __init__(self, memory: BlockMemory, offset: int, length: int, view: memoryview) -> None:
        self.memory = memory
        self.offset = offset
        self.length = length
        self.view = view
        self.filled = 0

    @property
    def is_whole(self) -> bool:
        return self.filled == self.length

    @property
    def must_grow(self) -> bool:
        """True if the frame is incomplete and the view is full."""
        return self.filled == len(self.view) < self.length

    @property
    def received(self) -> memoryview:
        """The bytes that have come."""
        return self.view[: self.filled]

    @property
    def room(self) -> memoryview:
        """Where the next bytes go; `advance` counts them afterwards."""
        return self.view[self.filled :]

    def advance(self, count: int) -> None:
        self.filled += count

    def extend(self, data: bytes | memoryview) -> None:
        """Copy the next bytes, which came to another place."""
        self.room[: len(data)] = data
        self.advance(len(data))

    def record(self) -> bytes:
        """The body of a REQUEST_BLOCK: where the Handler finds the frame."""
        return BLOCK.pack(self.offset, self.length)


class FileSend:
    """A file range that is being sent: `position` moves, `remaining` shrinks."""

    __slots__ = ("file", "position", "remaining")

    def __init__(self, file: OpenFile, position: int, remaining: int) -> None:
        self.file = file
        self.position = position
        self.remaining = remaining

    def __len__(self) -> int:
        return self.remaining

    def send_by(self, transport: Transport) -> int:
        """Send the next bytes with one system call; return how many. Raises EOFError if the file is too short."""
        sent = transport.send_file(self.file.fd, self.position, self.remaining)
        self.position += sent
        self.remaining -= sent
        return sent


class Origin(NamedTuple):
    """Where and when a connection came in; travels with it when it moves."""

    processor: (
        # Index of the Processor that accepted it, and a counter there: both are part of Kafka's connection id.
        int
    )
    number: int
    listener: int
    flags: int
    address: bytes  # The client's, as handoff.pack_address packs it.
    port: int
    accepted_ms: int  # Since 1970.


class Books(Protocol):
    """Who is told about a connection's life: connection_books.py. `is_timed`: its requests' times are metrics."""

    is_timed: bool

    def opened(self, connection: Connection) -> None:
        """An Acceptor brought it."""

    def moved_in(self, connection: Connection) -> None:
        """Another Processor gave it to this one."""

    def is_here(self, connection: Connection) -> None:
        """The connection entered this Processor's tables: it is new, migrated here, or came back."""

    def is_gone(self, connection: Connection) -> None:
        """The connection left this Processor's tables."""

    def moved_away(self, connection: Connection) -> None:
        """The connection migrated to another Processor."""

    def closed(self, connection: Connection) -> None:
        """It has ended."""


class Connection:
    """One client's connection. It belongs to one Processor at a time and is closed exactly once."""

    __slots__ = (
        "activity_slot",
        "awaits_block",
        "awaits_turn",
        "block",
        "books",
        "client",
        "fd",
        "flags",
        "gate",
        "held",
        "home",
        "id",
        "inflight",
        "interest",
        "is_closing",
        "is_ended",
        "is_introduced",
        "is_short_of_memory",
        "is_stalled",
        "last_active_ns",
        "listener",
        "migration",
        "next_home",
        "next_send",
        "next_sequence",
        "origin",
        "out",
        "ready",
        "recv_into",
        "send",
        "session",
        "stash",
        "target",
        "throttled_until_ns",
        "transport",
    )

    def __init__(
        self,
        connection_id: int,
        transport: Transport,
        *,
        origin: Origin,
        books: Books,
        home: HandlerPeer,
        now_ns: int,
    ) -> None:
        self.id = connection_id
        self.transport = transport
        self.fd = transport.fd
        self.recv_into = transport.recv_into
        self.send = transport.send
        self.origin = origin
        self.books = books
        self.listener = origin.listener
        self.flags = origin.flags
        self.is_introduced = False  # Every Handler has been told of it.
        self.session = NO_SESSION
        self.gate: Gate | None = None  # There is one until the client has logged in.
        if origin.flags & FLAG_SASL:
            self.close_gate(Gate(now_ns))
        self.client: tuple[str, str, str] | None = (
            None  # Client id, software name, software version; once known.
        )
        self.home = home
        self.next_home: HandlerPeer | None = None  # Goes there when it has nothing in work.
        self.target = home  # The Handler that its requests in work went to.
        self.held: bytes | memoryview = b""
        self.block: Block | None = None
        self.inflight = 0
        self.next_sequence = 0
        self.next_send = 0
        self.stash: dict[int, tuple[int, bytes]] = {}
        self.ready: list[bytes | memoryview | FileSend] = []  # Answers of this pass; views die with the pass.
        self.out: deque[bytes | memoryview | FileSend] | None = None
        self.interest = 0
        self.is_closing = False  # Close when everything in `out` has left.
        self.is_ended = (
            False  # Its bytes made no sense: nothing is read any more, what was read before is answered.
        )
        self.is_stalled = False
        self.awaits_block = False  # Its unfinished frame waits for memory.
        self.awaits_turn = False  # Its TLS handshake goes on when it has its turn.
        self.is_short_of_memory = False
        self.throttled_until_ns = 0
        self.migration: MigrationState | None = None
        self.last_active_ns = now_ns
        self.activity_slot = 0

    @property
    def is_full(self) -> bool:
        """Whether as many of its requests are in work as may be."""
        return self.inflight >= (INFLIGHT_MAX if self.gate is None else 1)

    def close_gate(self, gate: Gate) -> None:
        """Let only login requests pass. Mark the connection as not introduced, so that every fast path falls back."""
        self.gate = gate
        self.flags |= FLAG_GATED
        self.is_introduced = False

    def open_gate(self, session: Session) -> None:
        """The client has logged in: introduce it anew."""
        self.session = session
        self.gate = None
        self.flags &= ~FLAG_GATED
        self.is_introduced = False

    def mute_state(self) -> MuteState:
        """Kafka's word for what this connection is doing."""
        return mute_state(
            is_read=self.interest == select.EPOLLIN,
            is_throttled=self.throttled_until_ns > 0,
            has_work=self.inflight > 0,
        )

    def send_ready(self) -> int:
        """Send the answers of this pass; copy into `out` what the socket does not take. Return the bytes sent.

        Afterwards the connection holds no view of a ring. Raises OSError when the client is gone.
        """
        ready = self.ready
        self.ready = []
        if len(ready) == 1 and not self.out and not isinstance(ready[0], FileSend):
            return self._send_only(ready[0])
        out = self.out
        if out is None:
            out = self.out = deque()
        run: list[bytes | memoryview] = []
        for item in ready:
            if isinstance(item, FileSend):
                if run:
                    out.append(b"".join(run))
                    run = []
                out.append(item)
            else:
                run.append(item)
        if run:
            out.append(b"".join(run))
        return self.flush()

    def flush(self) -> int:
        """Send what waits in `out` until the socket is full; return bytes sent. Raises OSError, EOFError."""
        out = self.out
        assert out is not None
        total = 0
        try:
            while out:
                item = out[0]
                if isinstance(item, FileSend):
                    sent = item.send_by(self.transport)
                    if item.remaining == 0:
                        out.popleft()
                else:
                    sent = self.send(item, flags_before(len(item) + len(out[1])) if len(out) > 1 else 0)
                    if sent == len(item):
                        out.popleft()
                    else:
                        # A view: to copy the rest at each send takes minutes for a hundred megabytes.
                        out[0] = memoryview(item)[sent:]
                total += sent
        except BlockingIOError:
            return total
        self.out = None
        return total

    def send_range(self, view: memoryview, files: FileCache) -> int:
        """Send a SEND_PARTS record at once, which nothing waits before or behind; return bytes sent.

        -1, and nothing was done, for what `add_parts` does better: not one range between bytes, or one whose file
        cannot be opened. Raises OSError, EOFError.
        """
        answer = range_answer_of(view)
        if answer is None:
            return -1
        head, wanted, end = answer
        try:
            file = files.get(wanted)
        except (StaleFile, OSError):
            return -1  # `add_parts` meets the same error again and reports it.
        if wanted.length <= _COPY_BYTES_MAX:
            return self._send_only(b"".join((head, _read(file, wanted), end)))
        total, records = 0, FileSend(file, wanted.position, wanted.length)
        try:
            total = self.send(head, flags_before(len(head) + len(records)))
            if total == len(head):
                total += records.send_by(self.transport)
        except BlockingIOError:
            pass  # What has not left waits, below.
        if not records.remaining and not end:
            return total
        self.out = deque()
        if total < len(head):
            self.out.append(bytes(head[total:]))
        if records.remaining:
            self.out.append(records)
        if end:
            self.out.append(bytes(end))
        return total + self.flush()

    def _send_only(self, frame: bytes | memoryview) -> int:
        """Send one answer at once, nothing being queued before it; copy what the socket does not take."""
        try:
            sent = self.send(frame)
        except BlockingIOError:
            sent = 0
        if sent < len(frame):
            self.out = deque((bytes(frame[sent:]),))
        return sent

    def expects_only(self, sequence: int) -> bool:
        """Whether this answer is the next one, nothing is queued before it and no other request is in work."""
        return (
            sequence == self.next_send
            and self.inflight == 1
            and self.interest == select.EPOLLIN
            and not (self.stash or self.ready or self.out or self.is_closing)
        )

    def add_parts(self, parts: list[bytes | FileRange], files: FileCache) -> None:
        """Queue an answer of bytes and file ranges; opens the files now, so that later renames do not matter."""
        ready: list[bytes | FileSend] = []  # All of it or nothing: half an answer must not leave.
        for part in parts:
            if not isinstance(part, FileRange):
                ready.append(part)
                continue
            file = files.get(part)
            # A client that does not read shall not have its answers copied into our memory.
            if part.length <= _COPY_BYTES_MAX and not self.out:
                ready.append(_read(file, part))
            else:
                ready.append(FileSend(file, part.position, part.length))
        self.ready += ready


def flags_before(size: int) -> int:
    """With which flags of send(2) bytes leave that others follow, `size` with these."""
    return socket.MSG_MORE if size <= _SEGMENT_BYTES_MAX else 0


def _read(file: OpenFile, wanted: FileRange) -> bytes:
    """The bytes of a small range. Raises OSError, EOFError."""
    data = os.pread(file.fd, wanted.length, wanted.position)
    if len(data) != wanted.length:
        raise EOFError(FILE_TOO_SHORT)
    return data
