"""Processor: reads frames from its clients' sockets, passes them to Handlers, writes the answers.

One duty cycle: take answers from the Handlers' rings and send them, one `send` per connection; poll the
sockets; read what is ready straight into the request ring; publish once per ring. It knows frames and
connections, never what is in them: which Handler gets a frame is decided by the `router` it was given.

    socket --recv_into--> request ring (whole frames)            small frames, no copy
    socket --recv_into--> arena block, ring record names it      frames above LARGE_FRAME_BYTES

This file is long because reading, stalling and answering all change the same few fields of a connection, and
because the hot loops are written out: a Python call costs 50 ns, a request passes here twice.
"""

from __future__ import annotations

import logging
import select
import socket
import struct
from typing import Final, Protocol

from kproc.clock import Clock
from kproc.ipc.fdpass import TruncatedDescriptor, recv_fd
from kproc.metrics.slab import MetricsRow
from kproc.metrics.spec import SLOT
from kproc.net.connection import Block, Connection
from kproc.net.files import FileCache, StaleFile
from kproc.net.handoff import ACK, HANDOFF, REFUSED
from kproc.transport.agent import AgentId, BlockOwner, Doze, Link
from kproc.transport.envelope import (
    BLOCK,
    CLOSE,
    DISCONNECTED,
    HEAD,
    HEAD_BYTES,
    HINT,
    NO_OP,
    REQUEST,
    REQUEST_BLOCK,
    SEND,
    SEND_PARTS,
    SEQUENCE_MASK,
    decode_parts,
)
from kproc.transport.outbox import Inbox, Outbox

logger = logging.getLogger(__name__)

# Room reserved per read: several small frames at once, while what is larger bypasses the ring. Neither bound was tuned.
READ_BYTES: Final = 32 * 1024
# What is held of a frame and one read must fit together into a record of the smallest ring.
LARGE_FRAME_BYTES: Final = 16 * 1024
INFLIGHT_MAX: Final = 64  # Requests of one connection in work. Kafka takes 1, its clients send at most 5.
_RESPONSES_PER_PASS: Final = 512
_STUCK_NS: Final = 5_000_000_000  # A sender that lives resends within this long.
_ROOM_BYTES: Final = 2 * (
    READ_BYTES + LARGE_FRAME_BYTES
)  # For one read, with what is held and the ring's padding.
_STALL_POLL_MS: Final = 2  # Answers wake a stalled Processor; this only covers room made by parked requests.
_LENGTH: Final = struct.Struct(">i")
_ACTIVE, _PAUSED, _WRITING = select.EPOLLIN, 0, select.EPOLLOUT
_HTTP_METHODS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE")


class Router(Protocol):
    """Says which Handler should get a frame; supplied by the protocol layer."""

    def route(self, frame: memoryview) -> int:
        """The Handler's index, or -1 for the connection's home Handler."""

    def learn(self, hint: memoryview) -> None:
        """A Handler says where frames like this one belong."""


class HandlerPeer:
    """One Handler as this Processor sees it; stays when the Handler is restarted, its link does not."""

    def __init__(self, peer: AgentId) -> None:
        self.peer = peer
        self.link: Link | None = None
        self.inbox: Inbox | None = None
        self.notices: Outbox | None = None
        self.homes = 0
        self.has_unpublished = False

    def attach(self, link: Link) -> None:
        self.link = link
        self.inbox = Inbox(link.receiver)
        self.notices = Outbox(link.sender, link.waker)
        self.has_unpublished = False

    def detach(self) -> None:
        self.link = self.inbox = self.notices = None

    def publish(self) -> None:
        """Make this pass's requests visible and wake the Handler if it sleeps."""
        if self.has_unpublished and self.link is not None:
            self.link.sender.publish()
            self.link.waker.wake()
        self.has_unpublished = False
        if self.notices is not None:
            self.notices.flush()


class Processor:
    """Owns the client connections given to it. One instance runs in one role."""

    def __init__(
        self,
        agent_id: AgentId,
        *,
        doze: Doze,
        metrics: MetricsRow,
        clock: Clock,
        arena: BlockOwner,
        request_bytes_max: int,
        idle_ms_max: int,
        router: Router | None = None,
    ) -> None:
        self.id = agent_id
        self._doze = doze
        self._metrics = metrics
        self._counts = metrics.values
        self._clock = clock
        self._arena = arena
        self._request_bytes_max = request_bytes_max
        self._idle_ns_max = idle_ms_max * 1_000_000 if idle_ms_max >= 0 else 0
        self._router = router
        self._handlers: dict[AgentId, HandlerPeer] = {}
        self._by_index: dict[
            int, HandlerPeer
        ] = {}  # They come in any order when one of them is being restarted.
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._by_id: dict[int, Connection] = {}
        self._lent: dict[
            tuple[int, int], tuple[int, HandlerPeer]
        ] = {}  # (connection, sequence) -> arena block
        self._stalled: dict[Connection, None] = {}
        self._handoffs: dict[int, tuple[AgentId, socket.socket]] = {}
        self._files = FileCache()
        self._next_id = clock.wall_ms() << 20  # A restarted Processor never repeats an id of its predecessor.
        self._now_ns = clock.now_ns()
        self._next_second_ns = 0
        self._next_store_ns = 0
        self._is_stopping = False
        self._watched_fd = -1
        self.is_called = False
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._epoll.register(doze.fd, select.EPOLLIN | select.EPOLLET)

    # -- wiring ------------------------------------------------------------------------------------------------

    def attach(self, link: Link) -> None:
        handler = self._handlers.setdefault(link.peer, HandlerPeer(link.peer))
        self._by_index[link.peer.index] = handler
        handler.attach(link)

    def detach(self, peer: AgentId) -> None:
        """A Handler died and was reaped: what it had in work ends in closed connections, its blocks come back."""
        handler = self._handlers.get(peer)
        if handler is None or handler.link is None:
            return
        handler.detach()
        for connection in list(self._connections.values()):
            if connection.target is handler and connection.inflight:
                self._close(connection, "its Handler died")
        for key, (offset, lent_to) in list(self._lent.items()):
            if lent_to is handler:
                self._arena.free(offset)
                del self._lent[key]

    def attach_handoff(self, peer: AgentId, sock: socket.socket) -> None:
        """An Acceptor is there (again)."""
        sock.setblocking(False)
        self._handoffs[sock.fileno()] = (peer, sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def watch(self, fd: int) -> None:
        self._watched_fd = fd
        self._epoll.register(fd, select.EPOLLIN)

    def poll_fd(self) -> int:
        return self._epoll.fileno()

    def next_deadline_ms(self) -> int:
        return _STALL_POLL_MS if self._stalled else 500

    # -- the duty cycle ----------------------------------------------------------------------------------------

    def do_work(self, timeout_ms: int) -> int:
        """Answers out, requests in. Sleeps only when no Handler has answered and no socket is ready."""
        work = self._take_responses()
        if self._stalled:
            self._retry_stalled()
            for handler in self._handlers.values():
                handler.publish()
            timeout_ms = min(timeout_ms, _STALL_POLL_MS)
        # Also after work: with something ready it does not sleep, and one system call is saved.
        events = (
            self._doze.wait(self._poll, timeout_ms / 1000, self._has_answers) if timeout_ms else self._poll(0)
        )
        self._now_ns = self._clock.now_ns()
        connections = self._connections
        for fd, mask in events:
            connection = connections.get(fd)
            if connection is None:
                if fd in self._handoffs:
                    work += self._take_sockets(fd)
                elif fd == self._watched_fd:
                    self.is_called = True
            elif mask & select.EPOLLOUT:
                work += 1
                self._on_writable(connection)
            elif mask & select.EPOLLIN:
                work += 1
                self._on_readable(connection)
            else:
                self._close(connection, "the client is gone")
        for handler in self._handlers.values():
            handler.publish()
        if self._now_ns >= self._next_store_ns:
            self._on_tick()
        return work

    def _has_answers(self) -> bool:
        # A loop: any() over a generator costs 0.2 us more, at every sleep.
        for handler in self._handlers.values():  # noqa: SIM110
            if handler.inbox is not None and not handler.inbox.is_empty():
                return True
        return False

    def begin_stop(self) -> None:
        """Read nothing more; what was read is answered."""
        self._is_stopping = True
        for connection in list(self._connections.values()):
            if not connection.out:
                self._set_interest(connection, _PAUSED)

    def is_drained(self) -> bool:
        if not self._is_stopping:
            return False
        # A stalled connection may hold whole requests: frames that wait for another Handler, a large one that waits for
        # room in a ring. Copies, because the thread transport asks from its main thread.
        for connection in list(self._stalled):
            block = connection.block
            if connection.held or (block is not None and block.filled == block.length):
                return False
        return not any(each.inflight or each.out for each in list(self._connections.values()))

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection, "the broker stops")
        for _, sock in self._handoffs.values():
            sock.close()
        self._files.close()
        self._epoll.close()

    # -- connections -------------------------------------------------------------------------------------------

    def _take_sockets(self, fd: int) -> int:
        """Register what an Acceptor handed over, and acknowledge each socket."""
        peer, sock = self._handoffs[fd]
        taken = 0
        while True:
            try:
                message = recv_fd(sock, HANDOFF.size)
            except (EOFError, ConnectionError):  # That Acceptor ended; its successor brings a new pair.
                self._epoll.unregister(fd)
                self._handoffs.pop(fd)[1].close()
                return taken
            except TruncatedDescriptor as error:  # Out of descriptors: the Acceptor still has the socket.
                logger.error("cannot take a connection from %s: %s", peer, error)
                self._acknowledge(peer, sock, HANDOFF.unpack(error.payload)[0] | REFUSED)
                return taken
            if message is None:
                return taken
            payload, client_fd = message
            serial, listener, flags, _address, _port = HANDOFF.unpack(payload)
            if client_fd is not None:
                self._register(socket.socket(fileno=client_fd), listener, flags)
                taken += 1
            self._acknowledge(peer, sock, serial)

    def _acknowledge(self, peer: AgentId, sock: socket.socket, answer: int) -> None:
        try:
            sock.send(ACK.pack(answer))
        except OSError as error:  # That Acceptor ended; a connection that it gave us is ours all the same.
            logger.info("%s cannot be told of a connection: %s", peer, error)

    def _register(self, sock: socket.socket, listener: int, flags: int) -> None:
        handlers = self._handlers.values()
        if not handlers or self._is_stopping:
            sock.close()
            return
        home = min(handlers, key=lambda each: each.homes)
        self._next_id += 1
        connection = Connection(
            self._next_id, sock, listener=listener, flags=flags, home=home, now_ns=self._clock.now_ns()
        )
        try:
            sock.setblocking(False)
            self._epoll.register(connection.fd, _ACTIVE)
        except OSError as error:  # This one socket cannot be used; the others can.
            logger.info("closing a connection that cannot be registered: %s", error)
            sock.close()
            return
        connection.interest = _ACTIVE
        home.homes += 1
        self._connections[connection.fd] = connection
        self._by_id[connection.id] = connection
        self._counts[SLOT["connections_accepted"]] += 1

    def _close(self, connection: Connection, reason: str) -> None:
        """Close one connection and tell the Handlers that its waiting requests are nobody's."""
        logger.debug("closing connection %d: %s", connection.id, reason)
        del self._connections[connection.fd]
        del self._by_id[connection.id]
        self._stalled.pop(connection, None)
        if connection.block is not None:
            connection.block.view.release()
            self._arena.free(connection.block.offset)
        self._epoll.unregister(connection.fd)
        try:
            # The Acceptor may not have closed its copy yet; without this the client would not see the end.
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("connection %d was already closed by its client", connection.id)
        connection.sock.close()
        connection.home.homes -= 1
        # With several Handlers each may remember something of it: it has been at any of them.
        for handler in (connection.home,) if self._router is None else self._handlers.values():
            if handler.notices is not None:
                handler.notices.push(DISCONNECTED, HEAD.pack(connection.id, 0, 0, 0))
        self._counts[SLOT["connections_closed"]] += 1

    def _set_interest(self, connection: Connection, interest: int) -> None:
        if connection.interest != interest:
            connection.interest = interest
            self._epoll.modify(connection.fd, interest)

    def _update_interest(self, connection: Connection) -> None:
        """What to wait for: room to write before anything else, then more requests if more are welcome."""
        if connection.out:
            self._set_interest(connection, _WRITING)
        elif (
            connection.is_stalled
            or connection.inflight >= INFLIGHT_MAX
            or self._is_stopping
            or connection.is_closing
        ):
            self._set_interest(connection, _PAUSED)
        else:
            self._set_interest(connection, _ACTIVE)

    # -- requests in -------------------------------------------------------------------------------------------

    def _on_readable(self, connection: Connection) -> None:
        """Read once, straight to where a Handler will look, and pass on every whole frame."""
        if connection.block is not None:
            self._read_block(connection, connection.block)
            return
        link = connection.home.link
        held = connection.held
        start = HEAD_BYTES + len(held)
        view = link.sender.reserve(start + READ_BYTES) if link is not None else None
        if view is None:
            self._stall(connection)
            return
        try:
            count = connection.recv_into(view[start:])
        except BlockingIOError:
            return
        except OSError as error:
            self._close(connection, str(error))
            return
        if count == 0:
            self._close(connection, "the client closed it")
            return
        connection.last_active_ns = self._now_ns
        self._counts[_BYTES_IN] += count
        if held:
            view[HEAD_BYTES:start] = held
            connection.held = b""
        self._pass_on(connection, view, start + count)

    def _pass_on(self, connection: Connection, view: memoryview, end: int) -> None:
        """Frame the bytes view[HEAD_BYTES:end], which lie in the home ring, and commit the whole frames."""
        position = HEAD_BYTES
        frames = 0
        length = 0
        while end - position >= 4:
            (length,) = _LENGTH.unpack_from(view, position)
            if not 0 <= length <= self._request_bytes_max:
                self._refuse(connection, bytes(view[position : position + 4]), length)
                return
            if position + 4 + length > end:
                break
            position += 4 + length
            frames += 1
        rest = bytes(view[position:end]) if position < end else b""
        if frames:
            if self._router is not None:
                self._pass_on_routed(connection, bytes(view[HEAD_BYTES:position]), rest)
                return
            HEAD.pack_into(
                view, 0, connection.id, connection.next_sequence, connection.listener, connection.flags
            )
            link = connection.home.link
            assert link is not None
            link.sender.commit(position, REQUEST)
            connection.home.has_unpublished = True
            connection.next_sequence = (connection.next_sequence + frames) & SEQUENCE_MASK
            connection.inflight += frames
            self._counts[_REQUESTS] += frames
            if connection.inflight >= INFLIGHT_MAX:
                self._update_interest(connection)
        if rest:
            self._hold(connection, rest)

    def _pass_on_routed(self, connection: Connection, frames: bytes, rest: bytes) -> None:
        """Several Handlers: each frame goes where the router says.

        Requests of one connection are in work at one Handler only. A frame for another one waits, with all
        that is behind it, until the answers are out.
        """
        assert self._router is not None
        view = memoryview(frames)
        position = 0
        while position < len(frames):
            end = position + 4 + _LENGTH.unpack_from(frames, position)[0]
            index = self._router.route(view[position + 4 : end])
            target = self._by_index.get(index, connection.home)
            if target.link is None:
                target = connection.home
            if connection.inflight and target is not connection.target:
                break
            link = target.link
            head = HEAD.pack(connection.id, connection.next_sequence, connection.listener, connection.flags)
            if link is None or not link.sender.try_push(REQUEST, head, view[position:end]):
                break
            target.has_unpublished = True
            connection.target = target
            connection.next_sequence = (connection.next_sequence + 1) & SEQUENCE_MASK
            connection.inflight += 1
            self._counts[_REQUESTS] += 1
            position = end
        if position < len(frames):
            connection.held = frames[position:] + rest
            self._stall(connection)
        elif rest:
            self._hold(connection, rest)
        if connection.inflight >= INFLIGHT_MAX:
            self._update_interest(connection)

    def _hold(self, connection: Connection, rest: bytes) -> None:
        """Keep the beginning of a frame; a large one gets its arena block now."""
        if len(rest) >= 4:
            (length,) = _LENGTH.unpack_from(rest)
            if length > LARGE_FRAME_BYTES:
                offset = self._arena.allocate(length)
                if offset is None:
                    connection.held = rest
                    self._stall(connection)
                    return
                block = Block(offset, length, self._arena.view(offset, length))
                block.filled = len(rest) - 4
                block.view[: block.filled] = rest[4:]
                connection.block = block
                return
        connection.held = rest

    def _read_block(self, connection: Connection, block: Block) -> None:
        """Read on into the arena; pass the frame on when its last byte is there."""
        if block.filled < block.length:
            try:
                count = connection.recv_into(block.view[block.filled :])
            except BlockingIOError:
                return
            except OSError as error:
                self._close(connection, str(error))
                return
            if count == 0:
                self._close(connection, "the client closed it in the middle of a frame")
                return
            connection.last_active_ns = self._now_ns
            block.filled += count
            self._counts[_BYTES_IN] += count
        if block.filled == block.length:
            self._pass_on_block(connection, block)

    def _pass_on_block(self, connection: Connection, block: Block) -> None:
        target = connection.home
        if self._router is not None:
            index = self._router.route(block.view)
            owner = self._by_index.get(index)
            if owner is not None and owner.link is not None:
                target = owner
        head = HEAD.pack(connection.id, connection.next_sequence, connection.listener, connection.flags)
        waits = connection.inflight and target is not connection.target
        link = target.link
        if (
            waits
            or link is None
            or not link.sender.try_push(REQUEST_BLOCK, head, BLOCK.pack(block.offset, block.length))
        ):
            self._stall(connection)
            return
        target.has_unpublished = True
        connection.target = target
        self._lent[connection.id, connection.next_sequence] = (block.offset, target)
        connection.next_sequence = (connection.next_sequence + 1) & SEQUENCE_MASK
        connection.inflight += 1
        block.view.release()
        connection.block = None
        self._counts[_REQUESTS] += 1
        self._update_interest(connection)

    def _stall(self, connection: Connection) -> None:
        """No room for this connection's bytes: stop reading it, and TCP pushes back on the client."""
        connection.is_stalled = True
        self._stalled[connection] = None
        self._counts[SLOT["reads_stalled"]] += 1
        self._update_interest(connection)

    def _retry_stalled(self) -> None:
        """Go on with the connections that had no room; those that still have none stall again."""
        for connection in list(self._stalled):
            link = connection.home.link
            # Without room for a read it would only stall again, and the Processor spin instead of sleep.
            if link is None or link.sender.free_bytes() < _ROOM_BYTES:
                continue
            del self._stalled[connection]
            connection.is_stalled = False
            if connection.block is not None:
                self._read_block(connection, connection.block)
            elif connection.held:
                self._pass_on_held(connection)
            if connection.fd in self._connections:
                self._update_interest(connection)

    def _pass_on_held(self, connection: Connection) -> None:
        """Held bytes may be whole frames (they waited for another Handler) or a frame that waits for a block."""
        held = bytes(connection.held)
        link = connection.home.link
        view = link.sender.reserve(HEAD_BYTES + len(held)) if link is not None else None
        if view is None:
            self._stall(connection)
            return
        connection.held = b""
        view[HEAD_BYTES : HEAD_BYTES + len(held)] = held
        self._pass_on(connection, view, HEAD_BYTES + len(held))

    def _refuse(self, connection: Connection, start: bytes, length: int) -> None:
        """Close a connection whose length word cannot be one, with a word for the usual mistakes."""
        self._counts[SLOT["malformed"]] += 1
        if start in _HTTP_METHODS:
            reason = "an HTTP request came to a Kafka listener"
        elif start[:2] == b"\x16\x03":
            reason = "a TLS handshake came to a PLAINTEXT listener"
        else:
            reason = f"invalid frame length {length} (socket.request.max.bytes is {self._request_bytes_max})"
        logger.warning("closing connection %d: %s", connection.id, reason)
        self._close(connection, reason)

    # -- answers out -------------------------------------------------------------------------------------------

    def _take_responses(self) -> int:
        """Send what the Handlers answered; the rings' views are given back before this returns."""
        work = 0
        for handler in self._handlers.values():
            inbox = handler.inbox
            if inbox is None:
                continue
            batch = inbox.poll(_RESPONSES_PER_PASS)
            if not batch:
                continue
            work += len(batch)
            touched: dict[Connection, None] = {}
            for kind, view in batch:
                if kind <= CLOSE:
                    self._take_response(kind, view, touched)
                elif kind == HINT and self._router is not None:
                    self._router.learn(view)
            for connection in touched:
                self._send(connection)
            inbox.release()
        return work

    def _take_response(self, kind: int, view: memoryview, touched: dict[Connection, None]) -> None:
        connection_id, sequence, _, _ = HEAD.unpack_from(view)
        if self._lent:
            lent = self._lent.pop((connection_id, sequence), None)
            if lent is not None:
                self._arena.free(lent[0])
        connection = self._by_id.get(connection_id)
        if connection is None:
            return  # Closed meanwhile.
        touched[connection] = None
        if sequence != connection.next_send:
            connection.stash[sequence] = (kind, bytes(view))
            return
        self._deliver(connection, kind, view)
        stash = connection.stash
        while stash and connection.next_send in stash:
            kind, kept = stash.pop(connection.next_send)
            self._deliver(connection, kind, memoryview(kept))

    def _deliver(self, connection: Connection, kind: int, view: memoryview) -> None:
        """Append one answer, whose turn it is, to what leaves in this pass."""
        connection.next_send = (connection.next_send + 1) & SEQUENCE_MASK
        connection.inflight -= 1
        if connection.is_closing:
            return
        if kind == SEND:
            connection.ready.append(view[HEAD_BYTES:])
        elif kind == SEND_PARTS:
            try:
                connection.add_parts(decode_parts(view[HEAD_BYTES:]), self._files)
            except (StaleFile, OSError, EOFError) as error:
                # The segment is gone or shorter than the answer says. Half an answer must not leave.
                logger.warning("closing connection %d: cannot send a fetched range: %s", connection.id, error)
                connection.is_closing = True
        elif kind == CLOSE:
            connection.is_closing = True
        else:
            assert kind == NO_OP, kind
        self._counts[_RESPONSES] += 1

    def _send(self, connection: Connection) -> None:
        if connection.fd not in self._connections:
            return
        try:
            if connection.ready:
                self._counts[_BYTES_OUT] += connection.send_ready()
                connection.last_active_ns = self._now_ns
        except (OSError, EOFError) as error:
            self._close(connection, str(error))
            return
        self._after_send(connection)

    def _on_writable(self, connection: Connection) -> None:
        try:
            self._counts[_BYTES_OUT] += connection.flush()
        except (OSError, EOFError) as error:
            self._close(connection, str(error))
            return
        connection.last_active_ns = self._now_ns
        self._after_send(connection)

    def _after_send(self, connection: Connection) -> None:
        if connection.is_closing and not connection.out:
            self._close(connection, "a Handler asked for it")
        elif connection.out or connection.interest != _ACTIVE:
            self._update_interest(connection)

    # -- now and then ------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        """Ten times a second: the metrics row. Once a second: idle connections, deleted files."""
        now_ns = self._now_ns
        self._next_store_ns = now_ns + 100_000_000
        counts = self._counts
        counts[SLOT["heartbeat_ns"]] = now_ns
        counts[SLOT["wakeups_rescued"]] = self._doze.rescued_count
        counts[SLOT["connections"]] = len(self._connections)
        links = [handler.link for handler in self._handlers.values() if handler.link is not None]
        counts[SLOT["ring_capacity_bytes"]] = sum(link.sender.capacity for link in links)
        counts[SLOT["ring_fill_bytes"]] = sum(
            link.sender.capacity - link.sender.free_bytes() for link in links
        )
        if now_ns >= self._next_second_ns:
            self._next_second_ns = now_ns + 1_000_000_000
            counts[SLOT["requests_inflight"]] = sum(c.inflight for c in self._connections.values())
            self._files.drop_unlinked()
            if self._stalled:
                self._close_stuck(now_ns - _STUCK_NS)
            if self._idle_ns_max:
                self._expire_idle(now_ns - self._idle_ns_max)
        self._metrics.store()

    def _close_stuck(self, before_ns: int) -> None:
        """Somebody waits for room. A large frame that makes no progress must not keep it for ten minutes."""
        for connection in list(self._connections.values()):
            block = connection.block
            if (
                block is not None
                and block.filled < block.length
                and not connection.is_stalled
                and connection.last_active_ns < before_ns
            ):
                self._close(connection, "its frame makes no progress and others wait for the room")

    def _expire_idle(self, before_ns: int) -> None:
        """Kafka's connections.max.idle.ms: no byte read or written for that long, a request in work or not."""
        idle = [each for each in self._connections.values() if each.last_active_ns < before_ns]
        for connection in idle:
            self._close(connection, "idle for connections.max.idle.ms")


_BYTES_IN: Final = SLOT["bytes_in"]
_BYTES_OUT: Final = SLOT["bytes_out"]
_REQUESTS: Final = SLOT["requests"]
_RESPONSES: Final = SLOT["responses"]
