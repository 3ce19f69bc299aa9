"""MigrationChannel: sends connections to another Processor over a socket pair: state as bytes, and descriptors.

    giver -> taker   FILE   | kind u8 | connection id u64 |           + a segment file of which a range is unsent
                     BLOCK  | kind u8 | connection id u64 |           + a memfd with the begun large frame
                     STATE  | kind u8 | connection id u64 |           + a memfd with a state too long for GIVE
                     GIVE   | kind u8 | connection id u64 | state |   + the client's socket
    taker -> giver   TAKEN, REFUSED   | kind u8 | connection id u64 |

The pair is AF_UNIX SOCK_SEQPACKET: messages keep their borders and each carries at most one descriptor
(ipc/fdpass.py). GIVE is the last of a connection's messages. The giver owns the connection until it reads TAKEN,
REFUSED or the end of the pair, which counts as REFUSED. A TAKEN that was sent stays in the pair's buffer when its
sender dies, so a connection never has two owners, and never none.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.ipc.fdpass import TruncatedDescriptor, recv_fd, send_fd
from kproc.broker.processor.answer_parts import FileSend, Part
from kproc.broker.processor.connection import Block, Connection, Origin
from kproc.broker.processor.connection_state import ConnectionState, Pause
from kproc.broker.processor.files import OpenFile
from kproc.broker.processor.frame_memory import FrameMemory
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.processor.transport_layer import PlaintextTransport
from kproc.broker.security.session import Session
from kproc.broker.transport.agent import AgentId

if TYPE_CHECKING:
    from kproc.broker.processor.connection_counters import ConnectionCounters

FILE: Final = 1
BLOCK: Final = 2
STATE: Final = 3
GIVE: Final = 4
TAKEN: Final = 5
REFUSED: Final = 6

_HEAD: Final = struct.Struct("=BQ")
# Longest state in bytes that a GIVE message contains; STATE transports a longer one. The kernel's buffer of a socket
# pair has room for ten such messages.
_STATE_BYTES_MAX: Final = 16 * 1024
# Limit of connections that were given and not acknowledged, per socket pair. The pair's buffer has room for so many
# acknowledgements.
WINDOW: Final = 16


class MigratedConnection(msgspec.Struct, array_like=True, frozen=True):
    """The state of a connection that migrates, as it is sent to its new Processor; descriptors are sent beside it."""

    id: int
    origin: Origin
    client: tuple[str, str, str] | None
    session: Session
    home: int  # Index of its home Handler, which has its fetch session.
    target: int  # Index of the Handler that has the requests in work.
    next_sequence: int
    next_send: int
    kept: list[int]  # Requests whose answers that Handler keeps until they are claimed (MOVE_IN).
    stash: list[tuple[int, int, bytes]]  # Sequence, kind, record: answers that came before their turn.
    held: bytes
    block: tuple[int, int] | None  # Length and filled; the bytes are in BLOCK's memfd.
    out: list[bytes | tuple[int, int]]  # Unsent bytes, or position and length in the next FILE.
    is_stalled: bool
    state: ConnectionState
    throttled_until_ns: int  # In CLOCK_MONOTONIC, which all processes of the host share.
    last_active_ns: int
    throttled_ns: dict[str, int] | None


_decode: Final = msgspec.msgpack.Decoder(MigratedConnection).decode


class ArrivedConnection:
    """A connection that another Processor gives, with the descriptors that came. Call `close` unless it is adopted."""

    def __init__(self, connection_id: int, peer: AgentId) -> None:
        self.id = connection_id
        self.peer = peer
        self.state: MigratedConnection | None = None
        self.sock: socket.socket | None = None
        self.files: list[OpenFile] = []
        self.block_fd = -1
        self.block: Block | None = None  # Reserved by the Processor that adopts the connection.
        self.is_whole = True  # False if a descriptor was lost, because this process had too many open.

    def has_room(self, memory: FrameMemory) -> bool:
        """Reserve memory for the unfinished large frame, if there is one. Return False if there is no room."""
        if self.state is not None and self.state.block is not None and self.block is None:
            self.block = memory.reserve(*self.state.block)
            return self.block is not None
        return True

    def release_block(self) -> None:
        """Free the memory that `has_room` reserved, because the connection is refused."""
        if self.block is not None:
            self.block.memory.discard(self.block)
            self.block = None

    def read_block(self) -> Block | None:
        """Return the unfinished large frame, read into the memory that `has_room` reserved; None if there is none."""
        if self.state is None or self.state.block is None:
            return None
        _, filled = self.state.block
        block = self.block
        assert block is not None
        while block.filled < filled:
            count = os.preadv(self.block_fd, [block.view[block.filled : filled]], block.filled)
            assert count > 0, "the giver wrote all of it before it sent the descriptor"
            block.advance(count)
        self._close_block_fd()
        return block

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
        self.files.clear()
        self._close_block_fd()

    def _close_block_fd(self) -> None:
        if self.block_fd >= 0:
            os.close(self.block_fd)
            self.block_fd = -1


class MigrationChannel:
    """The socket pair with one other Processor. Messages that the kernel does not accept yet are queued in order."""

    def __init__(self, peer: AgentId, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.peer = peer
        self.sock = sock
        self.fd = sock.fileno()
        # Connections that are ours until the other Processor acknowledges them.
        self.given: dict[int, Connection] = {}
        self.is_open = True
        self._unsent: deque[tuple[bytes, int, OpenFile | None]] = deque()
        self._own_fds: set[int] = set()  # Memfds to close once they are sent.
        self._arriving: ArrivedConnection | None = None

    def close(self) -> None:
        self.is_open = False
        for fd in self._own_fds:
            os.close(fd)
        self._own_fds.clear()
        self._unsent.clear()
        if self._arriving is not None:
            self._arriving.close()
            self._arriving = None
        self.sock.close()

    # -- giving ------------------------------------------------------------------------------------------------

    @property
    def has_window(self) -> bool:
        return self.is_open and len(self.given) < WINDOW

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send_connection(self, connection: Connection, kept: list[int]) -> None:
        """Queue the messages of one connection. It must have been removed from every epoll.

        kept: as in `state_of`.
        """
        self.given[connection.id] = connection
        for item in connection.out or ():
            if isinstance(item, FileSend):
                self._queue(FILE, connection.id, b"", item.file.fd, item.file)
        block = connection.block
        if block is not None:
            # The bytes travel as a file in memory, because the other Processor cannot read our arena, and a message is
            # too small.
            self._queue_memfd(BLOCK, connection.id, block.received)
        state = msgspec.msgpack.encode(state_of(connection, kept))
        # SEQPACKET has no partial messages: one that is larger than the socket's buffer can never be sent.
        if len(state) > _STATE_BYTES_MAX:
            self._queue_memfd(STATE, connection.id, state)
            state = b""
        self._queue(GIVE, connection.id, state, connection.fd, None)
        self.flush()

    def try_answer(self, kind: int, connection_id: int) -> bool:
        """Send TAKEN or REFUSED, ahead of queued messages. Return False if the kernel has no room now.

        Return True, too, if the other Processor has ended, because nobody waits for the answer then.
        """
        if not self.is_open:
            return True
        try:
            return send_fd(self.sock, _HEAD.pack(kind, connection_id))
        except OSError:
            return True  # The giver has died, so this Processor is the only owner of the connection.

    def flush(self) -> None:
        """Send queued messages as far as the kernel accepts them. The next read reports a peer that has died."""
        while self._unsent:
            payload, fd, _ = self._unsent[0]
            try:
                if not send_fd(self.sock, payload, fd if fd >= 0 else None):
                    return
            except OSError:
                self._unsent.clear()
                return
            self._unsent.popleft()
            if fd in self._own_fds:
                self._own_fds.remove(fd)
                os.close(fd)

    def _queue(self, kind: int, connection_id: int, rest: bytes, fd: int, file: OpenFile | None) -> None:
        # The reference to `file` keeps its descriptor open until it is sent.
        self._unsent.append((_HEAD.pack(kind, connection_id) + rest, fd, file))

    def _queue_memfd(self, kind: int, connection_id: int, content: bytes | memoryview) -> None:
        # The content goes into a memfd, whose descriptor is sent with SCM_RIGHTS, because a message of the socket pair
        # is too small for it.
        fd = os.memfd_create("kproc-migration", os.MFD_CLOEXEC)
        self._own_fds.add(fd)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        self._queue(kind, connection_id, b"", fd, None)

    # -- taking ------------------------------------------------------------------------------------------------

    def receive(self) -> tuple[int, int, ArrivedConnection | None] | None:
        """Return the next GIVE, TAKEN or REFUSED as (kind, connection id, connection), or None if none has come.

        `connection` is None except for GIVE. The messages FILE, BLOCK and STATE are collected until their GIVE.

        Raises EOFError when the peer has ended and everything that it sent was received.
        """
        while True:
            try:
                message = recv_fd(self.sock, _HEAD.size + _STATE_BYTES_MAX)
            except TruncatedDescriptor as error:
                # The receiver is at its limit of descriptors. Refuse the connection, so that its giver keeps it.
                message = error.payload, None
            if message is None:
                return None
            payload, fd = message
            kind, connection_id = _HEAD.unpack_from(payload)
            if kind in (TAKEN, REFUSED):
                return kind, connection_id, None
            given = self._arriving
            if given is None:
                given = self._arriving = ArrivedConnection(connection_id, self.peer)
            assert given.id == connection_id, "two connections' messages are mixed"
            if fd is None:
                given.is_whole = False
            elif kind == FILE:
                given.files.append(OpenFile.of_descriptor(fd))
            elif kind == BLOCK:
                given.block_fd = fd
            elif kind == STATE:
                given.state = _decode(_read_all(fd))
            else:
                given.sock = socket.socket(fileno=fd)
            if kind == GIVE:
                self._arriving = None
                if len(payload) > _HEAD.size:
                    given.state = _decode(payload[_HEAD.size :])
                return kind, connection_id, given


def state_of(connection: Connection, kept: list[int]) -> MigratedConnection:
    """Return the state that another Processor needs to continue exactly where this one stopped.

    kept: the sequences of the requests whose responses the Handler keeps for the other Processor.
    """
    block = connection.block
    return MigratedConnection(
        id=connection.id,
        origin=connection.origin,
        client=connection.client,
        session=connection.session,
        home=(connection.next_home or connection.home).peer.index,
        target=connection.target.peer.index,
        next_sequence=connection.next_sequence,
        next_send=connection.next_send,
        kept=kept,
        stash=[(sequence, kind, record) for sequence, (kind, record) in connection.stash.items()],
        held=bytes(connection.held),
        block=(block.length, block.filled) if block is not None else None,
        out=[
            (item.position, item.remaining) if isinstance(item, FileSend) else bytes(item)
            for item in connection.out or ()
        ],
        is_stalled=Pause.STALLED in connection.pauses,
        state=connection.state,
        throttled_until_ns=connection.throttled_until_ns,
        last_active_ns=connection.last_active_ns,
        throttled_ns=connection.throttled_ns,
    )


def restore_connection(
    given: ArrivedConnection, home: HandlerPeer, counters: ConnectionCounters
) -> Connection:
    """Create the connection at its new Processor, with the state that `state_of` returned at the former one.

    The caller must set the connection's target (the Handler of its requests), its block and its throttle, and add it to
    the tables.
    """
    state, sock = given.state, given.sock
    assert state is not None
    assert sock is not None
    # A TLS connection does not migrate, because its session cannot be exported.
    connection = Connection(
        state.id,
        PlaintextTransport(sock),
        origin=state.origin,
        counters=counters,
        home=home,
        now_ns=max(state.last_active_ns, 0),
    )
    connection.accept_login(state.session)  # A connection that has not logged in does not migrate.
    connection.client = state.client
    connection.next_sequence, connection.next_send = state.next_sequence, state.next_send
    connection.stash = {sequence: (kind, record) for sequence, kind, record in state.stash}
    connection.inflight = len(state.kept) + len(state.stash)
    connection.held = state.held
    connection.out = _unsent_of(state, given.files)
    connection.state = state.state
    if state.is_stalled:
        connection.pauses |= Pause.STALLED
    return connection


def _unsent_of(state: MigratedConnection, files: list[OpenFile]) -> list[Part] | None:
    """Return the answers that were not sent yet, with their open files, or None if all were sent."""
    if not state.out:
        return None
    left = iter(files)
    return [item if isinstance(item, bytes) else FileSend(next(left), *item) for item in state.out]


def _read_all(fd: int) -> bytes:
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)
