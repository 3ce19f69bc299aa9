"""Connection: the state that a Processor keeps for one client's socket.

Input. An incomplete frame is kept outside the rings: a small one in `held`, a large one in an arena block. In a ring it
would block the requests of other clients behind it. Output. Answers are sent in the order of the requests; an early
answer waits in `stash`. Bytes that the socket does not accept wait in `out`. While `out` is not empty the connection is
not read, so a client that does not read its answers cannot make the broker store many of them.

An idle connection has no buffer: `held` is the empty bytes and `out` is None.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kproc.broker.processor.connection_state import (
    ACTIVE,
    NO_PAUSE,
    OPEN,
    PAUSED,
    MuteState,
    Pause,
    mute_state,
)
from kproc.broker.processor.files import FileCache, OpenFile, StaleFile
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.processor.migration_state import MigrationState
from kproc.broker.processor.pending_login import PendingLogin
from kproc.broker.processor.transport_layer import FILE_TOO_SHORT, Transport
from kproc.broker.security.session import NO_SESSION, Session
from kproc.broker.transport.envelope import BLOCK, FLAG_LOGIN, FLAG_SASL, range_answer_of
from kproc.wire.file_range import FileRange

if TYPE_CHECKING:
    from kproc.broker.processor.frame_memory import FrameMemory

# Up to this size, a pread and one send cost no more than a send with MSG_MORE and a sendfile. Measured: 1.9 us against
# 2.1 us at 256 B, equal from 4 to 8 KiB, 2.8 us against 2.4 us at 16 KiB.
_COPY_BYTES_MAX: Final = 8192
# Up to this size an answer leaves as one TCP segment (loopback's MSS, and the most that a network card is given at
# once), so its header waits for its records (MSG_MORE). A longer answer needs several segments. Its header leaves at
# once, so that the client wakes up meanwhile. Measured on loopback, without MSG_MORE relative to with it: 1 consumer of
# 64 KB has 1.14 times the rate at 0.83 of the CPU, 16 consumers of 64 KB have 1.50 at 0.69, and 1 consumer of 48 KB has
# 0.88 at 1.08.
_SEGMENT_BYTES_MAX: Final = 65_400
# Bytes of one connection that are sent before the other connections have their turn.
TURN_BYTES: Final = 4 << 20
# Limit of requests of one connection in work. Kafka serves 1 at a time, and its clients send up to 5 by default.
INFLIGHT_MAX: Final = 64


class Block:
    """A large frame that is being received. `filled` of its `length` bytes have arrived; `view` has room for more.

    The view grows with the bytes that arrive (frame_memory.py), because a client can announce a length and send
    nothing.
    """

    __slots__ = ("filled", "length", "memory", "offset", "view")

    def __init__(self, memory: FrameMemory, offset: int, length: int, view: memoryview) -> None:
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
        """Return the bytes that have arrived."""
        return self.view[: self.filled]

    @property
    def room(self) -> memoryview:
        """Return the part of the view that the next bytes go to. Call `advance` afterwards."""
        return self.view[self.filled :]

    def advance(self, count: int) -> None:
        self.filled += count

    def extend(self, data: bytes | memoryview) -> None:
        """Copy the next bytes, which arrived in another buffer."""
        self.room[: len(data)] = data
        self.advance(len(data))

    def record(self) -> bytes:
        """Return the body of a REQUEST_BLOCK, which tells the Handler where the frame is."""
        return BLOCK.pack(self.offset, self.length)


class FileSend:
    """A file range that is being sent. Each send updates `position` and `remaining`."""

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
    """The time and place at which a connection was accepted. A connection keeps it when it migrates."""

    # Index of the Processor that registered it first, and a counter there: both are part of Kafka's connection id.
    processor: int
    number: int
    listener: int
    flags: int
    address: bytes  # The client's address in the format of handoff.pack_address.
    port: int
    accepted_ms: int  # Since 1970.


class ConnectionCounters(Protocol):
    """Records the events of a connection's life, in metrics and counts: connection_counters.py.

    `is_timed` says whether the times of its requests are metrics.
    """

    is_timed: bool

    def opened(self, connection: Connection) -> None:
        """Record a new connection that was registered here first."""

    def moved_in(self, connection: Connection) -> None:
        """Record a connection that migrated here from another Processor."""

    def is_here(self, connection: Connection) -> None:
        """Record that the connection entered this Processor's tables: it is new, migrated here, or came back."""

    def is_gone(self, connection: Connection) -> None:
        """Record that the connection left this Processor's tables."""

    def moved_away(self, connection: Connection) -> None:
        """Record that the connection migrated to another Processor."""

    def closed(self, connection: Connection) -> None:
        """Record that the connection was closed."""


class Connection:
    """One client's connection. It belongs to one Processor at a time and is closed exactly once."""

    __slots__ = (
        "activity_slot",
        "block",
        "client",
        "counters",
        "fd",
        "flags",
        "held",
        "home",
        "id",
        "inflight",
        "interest",
        "is_introduced",
        "last_active_ns",
        "listener",
        "login",
        "migration",
        "next_home",
        "next_send",
        "next_sequence",
        "origin",
        "out",
        "pauses",
        "ready",
        "recv_into",
        "send",
        "session",
        "stash",
        "state",
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
        counters: ConnectionCounters,
        home: HandlerPeer,
        now_ns: int,
    ) -> None:
        self.id = connection_id
        self.transport = transport
        self.fd = transport.fd
        self.recv_into = transport.recv_into
        self.send = transport.send
        self.origin = origin
        self.counters = counters
        self.listener = origin.listener
        self.flags = origin.flags
        # True once every Handler has the client's address and session. Every fast path checks it.
        self.is_introduced = False
        self.session = NO_SESSION
        # Set until the client has logged in.
        self.login: PendingLogin | None = None
        if origin.flags & FLAG_SASL:
            self.require_login(PendingLogin(now_ns))
        # Client id, software name and software version, once they are known.
        self.client: tuple[str, str, str] | None = None
        self.home = home
        # The connection changes to this home as soon as it has no request in work.
        self.next_home: HandlerPeer | None = None
        self.target = home  # The Handler that has its requests in work.
        self.held: bytes | memoryview = b""
        self.block: Block | None = None
        self.inflight = 0
        self.next_sequence = 0
        self.next_send = 0
        self.stash: dict[int, tuple[int, bytes]] = {}
        # Answers of this pass. Views of a ring are valid only until the pass ends.
        self.ready: list[bytes | memoryview | FileSend] = []
        self.out: deque[bytes | memoryview | FileSend] | None = None
        self.interest = PAUSED
        self.state = OPEN
        self.pauses = NO_PAUSE
        self.throttled_until_ns = 0
        self.migration: MigrationState | None = None
        self.last_active_ns = now_ns
        self.activity_slot = 0

    @property
    def is_full(self) -> bool:
        """Return True if the connection has as many requests in work as it may have."""
        return self.inflight >= (INFLIGHT_MAX if self.login is None else 1)

    def require_login(self, login: PendingLogin) -> None:
        """Let only login requests pass. Mark the connection as not introduced, so that every fast path falls back."""
        self.login = login
        self.flags |= FLAG_LOGIN
        self.is_introduced = False

    def accept_login(self, session: Session) -> None:
        """Let all requests pass, because the client has logged in. Its session is then sent to the Handlers."""
        self.session = session
        self.login = None
        self.flags &= ~FLAG_LOGIN
        self.is_introduced = False

    def start_migration(self, migration: MigrationState) -> None:
        """Mark the connection as migrating. It is not read until the end of the migration."""
        self.migration = migration
        self.pauses |= Pause.MIGRATING

    def end_migration(self) -> None:
        """Mark the connection as not migrating any more."""
        self.migration = None
        self.pauses &= ~Pause.MIGRATING

    def plan_home(self, home: HandlerPeer) -> None:
        """Mark the connection to change to another home. It is not read until it has no request in work."""
        self.next_home = home
        self.pauses |= Pause.NEW_HOME

    def change_home(self, home: HandlerPeer) -> None:
        """Use another home from now on. Requires that no request is in work at the present one."""
        self.home = self.target = home
        self.next_home = None
        self.pauses &= ~Pause.NEW_HOME

    def mute_state(self) -> MuteState:
        """Return Kafka's name for the present state of this connection."""
        return mute_state(
            is_read=self.interest == ACTIVE,
            is_throttled=Pause.THROTTLED in self.pauses,
            has_work=self.inflight > 0,
        )

    def send_ready(self) -> int:
        """Send the answers of this pass. Copy into `out` the bytes that the socket does not accept.

        Return the bytes sent. Afterwards the connection holds no view of a ring. Raises OSError if the client is gone,
        EOFError if a file is too short.
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
        """Send from `out` until the socket is full or TURN_BYTES are sent; return the bytes sent.

        Raises OSError if the client is gone, EOFError if a file is too short.
        """
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
                        # A view, because copying the rest at each send takes minutes for 100 MB.
                        out[0] = memoryview(item)[sent:]
                total += sent
                # A client that reads as fast as we send would never let the loop end.
                if total >= TURN_BYTES and out:
                    return total
        except BlockingIOError:
            return total
        self.out = None
        return total

    def send_range(self, view: memoryview, files: FileCache) -> int:
        """Send the answer of a SEND_PARTS record at once; return the bytes sent. Requires `expects_only`.

        Return -1 and do nothing if the answer is not one range between bytes, or if its file cannot be opened:
        `add_parts` handles these answers. Raises OSError if the client is gone, EOFError if the file is too short.
        """
        answer = range_answer_of(view)
        if answer is None:
            return -1
        head, wanted, end = answer
        try:
            file = files.get(wanted)
        except (StaleFile, OSError):
            return -1  # `add_parts` gets the same error again and raises it.
        if wanted.length <= _COPY_BYTES_MAX:
            return self._send_only(b"".join((head, _read(file, wanted), end)))
        total, records = 0, FileSend(file, wanted.position, wanted.length)
        try:
            total = self.send(head, flags_before(len(head) + len(records)))
            if total == len(head):
                total += records.send_by(self.transport)
        except BlockingIOError:
            pass  # The unsent rest is queued in `out` below.
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
        """Send one answer at once; copy into `out`, which is empty, the bytes that the socket does not accept."""
        try:
            sent = self.send(frame)
        except BlockingIOError:
            sent = 0
        if sent < len(frame):
            self.out = deque((unsent(frame, sent),))
        return sent

    def expects_only(self, sequence: int) -> bool:
        """Return True if this answer is the next one, nothing is queued before it and no other request is in work."""
        return (
            sequence == self.next_send
            and self.inflight == 1
            and self.interest == ACTIVE
            and self.state is OPEN
            and not (self.stash or self.ready or self.out)
        )

    def add_parts(self, parts: list[bytes | FileRange], files: FileCache) -> None:
        """Queue an answer of bytes and file ranges. Open the files now, so that later renames do not matter.

        Raises StaleFile, OSError or EOFError if a file cannot be used. Nothing is queued then.
        """
        # Collect the parts first, because half an answer must not be sent if a file fails.
        ready: list[bytes | FileSend] = []
        for part in parts:
            if not isinstance(part, FileRange):
                ready.append(part)
                continue
            file = files.get(part)
            # If the client does not read, keep the range, so that its answers do not fill our memory.
            if part.length <= _COPY_BYTES_MAX and not self.out:
                ready.append(_read(file, part))
            else:
                ready.append(FileSend(file, part.position, part.length))
        self.ready += ready


def unsent(frame: bytes | memoryview, sent: int) -> bytes | memoryview:
    """Return the rest of an answer behind the bytes that were sent. Copy it if it lies in a ring.

    A message that came in pieces is in memory of its own (outbox.py). Copying 20 MB would take 20 ms.
    """
    rest = memoryview(frame)[sent:]
    return rest if isinstance(rest.obj, (bytes, bytearray)) else bytes(rest)


def flags_before(size: int) -> int:
    """Return the flags of send(2) for bytes that others follow. `size` is the size of both together."""
    return socket.MSG_MORE if size <= _SEGMENT_BYTES_MAX else 0


def _read(file: OpenFile, wanted: FileRange) -> bytes:
    """Return the bytes of a small range. Raises OSError, or EOFError if the file is too short."""
    data = os.pread(file.fd, wanted.length, wanted.position)
    if len(data) != wanted.length:
        raise EOFError(FILE_TOO_SHORT)
    return data
