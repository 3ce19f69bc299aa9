"""Connection: the state that a Processor keeps for one client's socket.

Input. An incomplete frame is kept outside the rings: a small one in `held`, a large one in an arena block. In a ring it
would block the requests of other clients behind it. Output. Answers are sent in the order of the requests; an answer
that comes before an earlier one waits in `stash`. Bytes that the socket does not accept wait in `out`. While `out` is
not empty the connection is not read, so a client that does not read its answers cannot make the broker store many.

An idle connection has no buffer: `held` is the empty bytes and `out` is None.
"""

from __future__ import annotations

from socket import MSG_MORE
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.broker.processor.answer_parts import SEGMENT_BYTES_MAX, FileSend, Part, detached
from kproc.broker.processor.connection_state import (
    ACTIVE,
    NO_PAUSE,
    OPEN,
    PAUSED,
    MuteState,
    Pause,
    mute_state,
)
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.processor.migration_state import MigrationState
from kproc.broker.processor.pending_login import PendingLogin
from kproc.broker.processor.transport_layer import Transport
from kproc.broker.security.session import NO_SESSION, Session
from kproc.broker.transport.envelope import BLOCK, FLAG_LOGIN, FLAG_SASL

if TYPE_CHECKING:
    from kproc.broker.processor.connection_counters import ConnectionCounters
    from kproc.broker.processor.frame_memory import FrameMemory

_BYTES: Final = frozenset({bytes, memoryview})
# Limit of bytes that are sent to one connection before other connections are handled.
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
        """Return the bytes of the frame that have arrived in this block."""
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


class Origin(NamedTuple):
    """The Processor, listener, client address and time with which a connection was accepted. A migration keeps it."""

    # `processor` is the index of the Processor that registered the connection first, `number` a counter there. Both are
    # part of Kafka's connection id.
    processor: int
    number: int
    listener: int
    flags: int
    address: bytes  # The client's address in the format of handoff.pack_address.
    port: int
    accepted_ms: int  # Since 1970.


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
        "throttled_ns",
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
        # Not None while the client has to log in (SASL).
        self.login: PendingLogin | None = None
        if origin.flags & FLAG_SASL:
            self.require_login(PendingLogin(now_ns))
        # Client id, software name and software version, once they are known.
        self.client: tuple[str, str, str] | None = None
        self.home = home
        # The connection changes to this home as soon as it has no request in work.
        self.next_home: HandlerPeer | None = None
        self.target = home  # The Handler that has the connection's requests in work.
        self.held: bytes | memoryview = b""
        self.block: Block | None = None
        self.inflight = 0
        self.next_sequence = 0
        self.next_send = 0
        self.stash: dict[int, tuple[int, bytes]] = {}
        # Answers of this pass. Views of a ring are valid only until the pass ends.
        self.ready: list[Part] = []
        self.out: list[Part] | None = None
        self.interest = PAUSED
        self.state = OPEN
        self.pauses = NO_PAUSE
        self.throttled_until_ns = 0
        # For how long each quota has kept this connection from being read. None for most connections.
        self.throttled_ns: dict[str, int] | None = None
        self.migration: MigrationState | None = None
        self.last_active_ns = now_ns
        self.activity_slot = 0

    @property
    def is_full(self) -> bool:
        """Return True if the connection has as many requests in work as it may have."""
        # A login has one request in work, because its result decides with which flags, and to which Handler, the next
        # one goes.
        return self.inflight >= (INFLIGHT_MAX if self.login is None else 1)

    def require_login(self, login: PendingLogin) -> None:
        """Let only requests of a login pass, until `accept_login`.

        Also record that the Handlers do not have the client's identity. Every fast path checks this flag and falls
        back.
        """
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

    def finish_migration(self) -> None:
        """Mark the connection as not migrating any more."""
        self.migration = None
        self.pauses &= ~Pause.MIGRATING

    def plan_home(self, home: HandlerPeer) -> None:
        """Mark the connection to change to another home Handler. It is not read until it has no request in work."""
        self.next_home = home
        self.pauses |= Pause.NEW_HOME

    def set_home(self, home: HandlerPeer) -> None:
        """Use another home Handler from now on. Requires that no request is in work at the present one."""
        self.home = self.target = home
        self.next_home = None
        self.pauses &= ~Pause.NEW_HOME

    def count_throttle(self, quota: str, duration_ns: int) -> None:
        """Count for how long a quota keeps the connection from being read."""
        times = self.throttled_ns = self.throttled_ns or {}
        # Move the quota to the end of the dictionary, because `describe` expects the latest one there.
        times[quota] = times.pop(quota, 0) + duration_ns

    def mute_state(self) -> MuteState:
        """Return Kafka's name for the present state of this connection."""
        return mute_state(
            is_read=self.interest == ACTIVE,
            is_throttled=Pause.THROTTLED in self.pauses,
            has_work=self.inflight > 0,
        )

    def send_ready(self) -> int:
        """Send the answers of this pass; return the bytes sent. Afterwards the connection holds no view of a ring.

        Raises OSError if the client is gone, EOFError if a file is too short.
        """
        ready = self.ready
        self.ready = []
        out = self.out
        if out is not None:
            out += map(detached, ready)
            return self._send_parts(out)
        if len(ready) > 1 and type(ready[1]) is not FileSend and _BYTES.issuperset(map(type, ready)):
            ready = [b"".join(ready)]  # type: ignore[arg-type]
        sent = self._send_parts(ready)
        if self.out is not None:
            self.out = [detached(part) for part in self.out]
        return sent

    def flush(self) -> int:
        """Send from `out`; return the bytes sent. Raises OSError and EOFError as `send_ready` does."""
        assert self.out is not None
        return self._send_parts(self.out)

    def _send_parts(self, parts: list[Part]) -> int:
        """Send parts until the socket is full or TURN_BYTES are sent; return the bytes sent. Keep the rest in `out`."""
        total = at = 0
        last = len(parts) - 1
        try:
            # Without the limit a client that reads as fast as we send would never let the loop end.
            while at <= last and total < TURN_BYTES:
                part = parts[at]
                if type(part) is FileSend:
                    sent = self.transport.send_file(part.file.fd, part.position, part.remaining)
                    total += sent
                    part.position += sent
                    part.remaining -= sent
                    if part.remaining:
                        continue
                else:
                    size = len(part)
                    has_room = at < last and size + len(parts[at + 1]) <= SEGMENT_BYTES_MAX
                    sent = self.send(part, MSG_MORE if has_room else 0)
                    total += sent
                    if sent < size:
                        # Keep the rest as a view, because copying it at each send takes minutes for 100 MB.
                        parts[at] = memoryview(part)[sent:]
                        break
                at += 1
        except BlockingIOError:
            pass  # The socket is full.
        self.out = parts[at:] or None
        return total
