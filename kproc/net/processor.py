"""Processor: reads frames from its clients' sockets, passes them to Handlers, writes the answers.

One duty cycle: take answers from the Handlers' rings and send them, one `send` per connection; poll the
sockets; read what is ready straight into the request ring; publish once per ring. It knows frames and
connections, never what is in them: which Handler gets a frame is decided by the `router` it was given.

    socket --recv_into--> request ring (whole frames)            small frames, no copy
    socket --recv_into--> arena block, ring record names it      frames above LARGE_FRAME_BYTES

What is not per request is in holder.py, the base class. This file is long because reading, stalling and answering
all change the same few fields of a connection, and because the hot loops are written out: a Python call costs
50 ns, a request passes here twice.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from kproc.clock import Clock
from kproc.config.dynamic import DynamicSettings
from kproc.ipc.fdpass import TruncatedDescriptor, recv_fd
from kproc.metrics.slab import MetricsRow
from kproc.metrics.spec import SLOT
from kproc.net.connection import Block, Connection
from kproc.net.describe import client_of, why_refused
from kproc.net.descriptors import descriptor_end
from kproc.net.files import FileCache, StaleFile
from kproc.net.handler_peer import Router
from kproc.net.handoff import EVICT, HANDOFF, REFUSED
from kproc.net.holder import ACTIVE, INFLIGHT_MAX, ConnectionHolder
from kproc.net.queued_requests import QueuedRequests
from kproc.net.slow_frames import LARGE_FRAME_BYTES, in_turn
from kproc.transport.agent import REST_MS, STORE_MS, AgentId, BlockOwner, Doze
from kproc.transport.envelope import (
    BLOCK,
    CLOSE,
    HEAD,
    HEAD_BYTES,
    HINT,
    NO_OP,
    REQUEST,
    REQUEST_BLOCK,
    SEND,
    SEND_PARTS,
    SENDS,
    SEQUENCE_MASK,
    answers_of,
    decode_parts,
)

logger = logging.getLogger(__name__)

# Room reserved per read: several small frames at once, while what is larger bypasses the ring. Neither bound was tuned.
READ_BYTES: Final = 32 * 1024
_RESPONSES_PER_PASS: Final = 512
_ROOM_BYTES: Final = 2 * (READ_BYTES + LARGE_FRAME_BYTES)  # For one read, with what is held and padding.
_STALL_POLL_MS: Final = 2  # Answers wake a stalled Processor; this only covers room made by parked requests.
_COMPLAINT_NS: Final = 10_000_000_000
_LENGTH: Final = struct.Struct(">i")
_INFLIGHT_LAST: Final = INFLIGHT_MAX - 1
_EPOLLIN: Final = select.EPOLLIN
_COUNTED_MAX: Final = 1000  # Records of a ring that are counted ten times a second, at most.


class Processor(ConnectionHolder):
    """Owns the client connections given to it. One instance runs in one role."""

    __slots__ = (
        "_cycle_count", "_descriptor_end", "_doze", "_files", "_handoffs", "_idle_ns_max",
        "_next_complaint_ns", "_next_second_ns", "_next_store_ns", "_processor_count", "_processors_in_all",
        "_queued_bytes_max", "_queued_requests", "_queued_requests_max", "_read", "_request_bytes_max",
        "_sleep_ms_max", "_watched_fd", "is_called",
    )  # fmt: skip

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
        queued_bytes_max: int = -1,
        queued_requests_max: int = -1,
        processors_in_all: Callable[[DynamicSettings], int] = lambda settings: 1,
    ) -> None:
        """Both maxima are the whole broker's, shared evenly by its `processors_in_all`; -1: no limit."""
        super().__init__(agent_id, doze=doze, metrics=metrics, clock=clock, arena=arena, router=router)
        self._doze = doze
        self._request_bytes_max = request_bytes_max
        self._idle_ns_max = idle_ms_max * 1_000_000 if idle_ms_max >= 0 else 0
        self._queued_bytes_max, self._queued_requests_max = queued_bytes_max, queued_requests_max
        self._processors_in_all = processors_in_all
        self._processor_count = processors_in_all(DynamicSettings())
        self._queued_requests = QueuedRequests()
        has_budget = queued_bytes_max > 0 or queued_requests_max > 0
        self._read = self._on_readable_within_budget if has_budget else self._on_readable
        self._handoffs: dict[int, tuple[AgentId, socket.socket]] = {}
        self._files = FileCache()
        self._descriptor_end = descriptor_end()
        self._next_complaint_ns = self._next_second_ns = self._next_store_ns = self._cycle_count = 0
        self._sleep_ms_max = STORE_MS
        self._watched_fd, self.is_called = -1, False

    # -- wiring ------------------------------------------------------------------------------------------------

    def attach_handoff(self, peer: AgentId, sock: socket.socket) -> None:
        """An Acceptor is there (again)."""
        sock.setblocking(False)
        self._handoffs[sock.fileno()] = (peer, sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._reporter.attach(peer, sock)

    def apply_settings(self, settings: DynamicSettings) -> None:
        """The broker's settings were changed: the memory budget has another number of shares."""
        self._processor_count = self._processors_in_all(settings)

    def watch(self, fd: int) -> None:
        self._watched_fd = fd
        self._epoll.register(fd, select.EPOLLIN)

    def poll_fd(self) -> int:
        return self._epoll.fileno()

    def next_deadline_ms(self) -> int:
        if self._throttles:
            return min(self._pressed_ms(), self._throttles.wait_ms(self._clock.now_ns()))
        return self._pressed_ms() if self._is_pressed else 500

    # -- the duty cycle ----------------------------------------------------------------------------------------

    def do_work(self, timeout_ms: int) -> int:
        """Answers out, requests in. Sleeps only when no Handler has answered and no socket is ready."""
        self._cycle_count += 1
        work = self._take_responses()
        sleep_ms_max = STORE_MS if work else self._sleep_ms_max
        if timeout_ms > sleep_ms_max:
            timeout_ms = sleep_ms_max
        if self._is_pressed:
            work += self._relieve()
            timeout_ms = min(timeout_ms, self.next_deadline_ms())
        # Also after work: with something ready it does not sleep, and one system call is saved.
        events = (
            self._doze.wait(self._poll, timeout_ms / 1000, self._has_answers) if timeout_ms else self._poll(0)
        )
        self._now_ns = self._clock.now_ns()
        connections = self._connections
        read = self._read
        others: list[int] = []
        for fd, mask in events:
            connection = connections.get(fd)
            if connection is None:
                others.append(fd)
                continue
            work += 1
            try:
                if mask == _EPOLLIN:
                    read(connection)
                elif mask & select.EPOLLOUT:
                    self._on_writable(connection)
                elif mask & _EPOLLIN:
                    read(connection)
                else:
                    self._on_hang_up(connection)
            except Exception as error:  # noqa: BLE001 - the kernel refuses something for this one, or contained
                self._close_failed(connection, error)
        # Last, because these close connections and bring new ones with the same descriptors: an event that is still
        # to come would hit a stranger.
        for fd in others:
            if fd in self._handoffs:
                work += self._take_sockets(fd)
            elif fd in self._channels:
                work += self._on_channel(fd)
            elif fd == self._watched_fd:
                self.is_called = True
        for handler in self._handlers.values():
            if handler.has_unpublished or (handler.notices is not None and handler.notices.is_dirty):
                handler.publish()
        if self._timed.leaving:
            self._timed.finish(self._by_id)
        if self._reporter.has_unsent:
            self._reporter.flush()
        if self._now_ns >= self._next_store_ns:
            self._on_tick()
        elif work:  # It is to be stored, too.
            self._sleep_ms_max = STORE_MS
        return work

    def _has_answers(self) -> bool:
        # A loop: any() over a generator costs 0.2 us more, at every sleep.
        for handler in self._handlers.values():
            inbox = handler.inbox
            if inbox is not None and not inbox.is_empty():
                return True
        return False

    def _relieve(self) -> int:
        """Go on with what no descriptor announces: room, moves, the end of a throttle."""
        work = 0
        if self._stalled:
            self._retry_stalled()
        if self._short_of_memory and self._has_budget():
            for connection in list(self._short_of_memory):
                del self._short_of_memory[connection]
                connection.is_short_of_memory = False
                self._update_interest(connection)
        if self._throttles:
            self._end_throttles(self._clock.now_ns())
        is_moving = self._moves.is_active
        if is_moving:
            work += self._moves.work()
        for handler in self._handlers.values():
            handler.publish()
        self._is_pressed = bool(is_moving or self._stalled or self._short_of_memory or self._throttles)
        return work

    def _pressed_ms(self) -> int:
        """How long to sleep while something may get room without a word; a throttle alone has its own time."""
        return _STALL_POLL_MS if self._stalled or self._short_of_memory or self._moves.is_active else 500

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection, "the broker stops")
        self._moves.close()
        for _, sock in self._handoffs.values():
            sock.close()
        self._files.close()
        self._epoll.close()

    # -- connections -------------------------------------------------------------------------------------------

    def _take_sockets(self, fd: int) -> int:
        """Register what an Acceptor handed over, acknowledge each socket, evict what it asks for."""
        peer, sock = self._handoffs[fd]
        taken = 0
        while True:
            try:
                message = recv_fd(sock, HANDOFF.size)
            except (EOFError, ConnectionError):  # That Acceptor ended; its successor brings a new pair.
                self._epoll.unregister(fd)
                del self._handoffs[fd]
                self._reporter.detach(peer, sock)
                sock.close()
                return taken
            except TruncatedDescriptor as error:  # Out of descriptors: the Acceptor still has the socket.
                self._complain_of_descriptors(str(error))
                self._reporter.acknowledge(sock, HANDOFF.unpack(error.payload)[0] | REFUSED)
                return taken
            if message is None:
                return taken
            payload, client_fd = message
            serial, listener, flags, address, port = HANDOFF.unpack(payload)
            if serial == EVICT:
                self._evict(flags, listener)
                taken += 1
                continue
            if client_fd is not None and (self._is_leaving or client_fd >= self._descriptor_end):
                if not self._is_leaving:
                    self._complain_of_descriptors("those that are left are for links, not for clients")
                os.close(client_fd)
                serial |= REFUSED
            elif client_fd is not None:
                self._register(socket.socket(fileno=client_fd), listener, flags, address, port)
                taken += 1
            self._reporter.acknowledge(sock, serial)

    def _complain_of_descriptors(self, why: str) -> None:
        """Said now and then: the Acceptor asks again ten times a second, and goes elsewhere meanwhile."""
        if self._now_ns >= self._next_complaint_ns:
            self._next_complaint_ns = self._now_ns + _COMPLAINT_NS
            logger.error("refusing connections: the limit of open files (ulimit -n) is reached: %s", why)

    # -- requests in -------------------------------------------------------------------------------------------

    def _has_budget(self) -> bool:
        """Kafka's queued.max.requests and queued.max.request.bytes: the last read may exceed them, the next waits."""
        senders = [each.link.sender for each in self._handlers.values() if each.link is not None]
        if self._queued_requests_max > 0:
            waiting = self._queued_requests.count(senders)
            if waiting * self._processor_count >= self._queued_requests_max:
                return False
        if self._queued_bytes_max <= 0:
            return True
        queued = sum(sender.capacity - sender.free_bytes() for sender in senders)
        lent = self._arena.lent_bytes
        return (queued + lent + self._held_bytes) * self._processor_count < self._queued_bytes_max

    def _on_readable_within_budget(self, connection: Connection) -> None:
        """A frame that has begun must get on, because only its end gives memory back; a new one waits for room."""
        if connection.block is not None or connection.held or self._has_budget():
            before = self._counts[_REQUESTS]
            self._on_readable(connection)
            self._count_queued(connection, self._counts[_REQUESTS] - before)
            return
        connection.is_short_of_memory = True
        self._short_of_memory[connection] = None
        self._is_pressed = True
        self._counts[SLOT["reads_stalled"]] += 1
        self._update_interest(connection)

    def _count_queued(self, connection: Connection, count: int) -> None:
        """What one read passed on went to one Handler, the target."""
        link = connection.target.link
        if count and link is not None and self._queued_requests_max > 0:
            self._queued_requests.add(link.sender, count)

    def _on_readable(self, connection: Connection) -> None:
        """Read once, straight to where a Handler will look, and pass on every whole frame."""
        if connection.block is not None:
            self._read_block(connection, connection.block)
            return
        link = connection.home.link
        held = connection.held
        start = HEAD_BYTES + len(held)
        view = link.sender.reserve(start + READ_BYTES) if link is not None else None
        if link is None or view is None:
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
        connection.last_active_ns = now_ns = self._now_ns
        self._counts[_BYTES_IN] += count
        if count > 4 and not held and connection.inflight < _INFLIGHT_LAST:
            (length,) = _LENGTH.unpack_from(view, HEAD_BYTES)
            # As most reads bring. With one Handler: what `_pass_on` would do with it.
            is_one = length == count - 4 <= self._request_bytes_max and connection.is_introduced
            if is_one and self._router is not None and self._route(connection, view[HEAD_BYTES:][:count]):
                return
            if is_one and self._router is None and now_ns < self._next_look_ns:
                sequence = connection.next_sequence
                HEAD.pack_into(view, 0, connection.id, sequence, connection.listener, connection.flags)
                link.sender.commit(start + count, REQUEST)
                connection.home.has_unpublished = True
                connection.next_sequence = (sequence + 1) & SEQUENCE_MASK
                connection.inflight += 1
                self._counts[_REQUESTS] += 1
                return
            if LARGE_FRAME_BYTES < length <= self._request_bytes_max and length > count - 4:
                self._hold(connection, view[HEAD_BYTES : HEAD_BYTES + count])  # The beginning of a large one.
                return
        if held:
            view[HEAD_BYTES:start] = held
            connection.held = b""
            self._held_bytes -= len(held)
        self._pass_on(connection, view, start + count)

    def _pass_on(self, connection: Connection, view: memoryview, end: int) -> None:
        """Frame the bytes view[HEAD_BYTES:end], which lie in the home ring, and commit the whole frames."""
        position = HEAD_BYTES
        frames = 0
        length = 0
        room = INFLIGHT_MAX - connection.inflight
        while end - position >= 4 and frames < room:
            (length,) = _LENGTH.unpack_from(view, position)
            if not 0 <= length <= self._request_bytes_max:
                start = bytes(view[position : position + 4])
                self._pass_on(connection, view, position)  # What came before it is served.
                self._refuse(connection, start, length)
                return
            if position + 4 + length > end:
                break
            position += 4 + length
            frames += 1
        rest = bytes(view[position:end]) if position < end else b""
        if frames:
            if not connection.is_introduced:
                self._pass_on_introduced(connection, bytes(view[HEAD_BYTES:end]))
                return
            if self._router is not None:
                self._pass_on_routed(connection, bytes(view[HEAD_BYTES:position]), rest)
                return
            flags = connection.flags
            if self._now_ns >= self._next_look_ns:
                flags |= self._begin_timing(connection, view[HEAD_BYTES + 4 : position], connection.home)
            HEAD.pack_into(view, 0, connection.id, connection.next_sequence, connection.listener, flags)
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
            self._keep_rest(connection, rest)

    def _pass_on_introduced(self, connection: Connection, data: bytes) -> None:
        """Whole frames, and perhaps a begun one, of a connection of which the Handlers do not know yet."""
        if connection.client is None:
            connection.client = client_of(memoryview(data)[4:])
        if not self._introduce(connection):
            self._put_off(connection, data)
            return
        connection.held = data
        self._held_bytes += len(data)
        self._pass_on_held(connection)

    def _pass_on_routed(self, connection: Connection, frames: bytes, rest: bytes) -> None:
        """Several Handlers: each frame goes where the router says.

        Requests of one connection are in work at one Handler only. A frame for another one waits, with all
        that is behind it, until the answers are out.
        """
        view = memoryview(frames)
        position = 0
        while position < len(frames) and connection.inflight < INFLIGHT_MAX:
            end = position + 4 + _LENGTH.unpack_from(frames, position)[0]
            if not self._route(connection, view[position:end]):
                break
            position = end
        if position < len(frames):
            self._put_off(connection, frames[position:] + rest)
        elif rest:
            self._keep_rest(connection, rest)
        if connection.inflight >= INFLIGHT_MAX:
            self._update_interest(connection)

    def _route(self, connection: Connection, frame: memoryview) -> bool:
        """Push one frame, its length before it; False while it has to wait. It may lie in a ring's unused room."""
        assert self._router is not None
        target = self._by_index.get(self._router.route(frame[4:]), connection.home)
        if target.link is None:
            target = connection.home
        link = target.link
        if link is None or (connection.inflight and target is not connection.target):
            return False
        flags = connection.flags
        if self._now_ns >= self._next_look_ns:
            flags |= self._begin_timing(connection, frame[4:], target)
        head = HEAD.pack(connection.id, connection.next_sequence, connection.listener, flags)
        if not link.sender.try_push(REQUEST, head, frame):
            self._timed.cancel(connection)
            return False
        target.has_unpublished = True
        connection.target = target
        connection.next_sequence = (connection.next_sequence + 1) & SEQUENCE_MASK
        connection.inflight += 1
        self._counts[_REQUESTS] += 1
        return True

    def _keep_rest(self, connection: Connection, rest: bytes) -> None:
        """The beginning of a frame; or whole ones, for a read brings a thousand, more than may be in work."""
        if connection.inflight < INFLIGHT_MAX:
            self._hold(connection, rest)
        else:
            self._put_off(connection, rest)

    def _put_off(self, connection: Connection, frames: bytes) -> None:
        """Keep bytes that have been read until there is room for them."""
        connection.held = frames
        self._held_bytes += len(frames)
        self._stall(connection)

    def _hold(self, connection: Connection, rest: bytes | memoryview) -> None:
        """Keep the beginning of a frame; a large one gets its arena block now."""
        if len(rest) >= 4:
            (length,) = _LENGTH.unpack_from(rest)
            if length > LARGE_FRAME_BYTES:
                offset = self._arena.allocate(length)
                if offset is None:
                    self._put_off(connection, bytes(rest))
                    return
                block = Block(offset, length, self._arena.view(offset, length))
                block.filled = len(rest) - 4
                block.view[: block.filled] = rest[4:]
                connection.block = block
                return
        connection.held = bytes(rest)
        self._held_bytes += len(rest)

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
        if connection.client is None:
            connection.client = client_of(block.view)
        target = connection.home
        if self._router is not None:
            index = self._router.route(block.view)
            owner = self._by_index.get(index)
            if owner is not None and owner.link is not None:
                target = owner
        if not connection.is_introduced and not self._introduce(connection):
            self._stall(connection)
            return
        flags = connection.flags
        if self._now_ns >= self._next_look_ns:
            flags |= self._begin_timing(connection, block.view, target)
        head = HEAD.pack(connection.id, connection.next_sequence, connection.listener, flags)
        waits = connection.inflight and target is not connection.target
        link = target.link
        if (
            waits
            or link is None
            or not link.sender.try_push(REQUEST_BLOCK, head, BLOCK.pack(block.offset, block.length))
        ):
            self._timed.cancel(connection)
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
        self._is_pressed = True
        self._counts[SLOT["reads_stalled"]] += 1
        self._update_interest(connection)

    def _retry_stalled(self) -> None:
        """Go on with the connections that had no room; those that still have none stall again."""
        for connection in in_turn(self._stalled):
            if connection.move is not None or (connection.throttled_until_ns and not self._is_stopping):
                continue
            if connection.out or connection.inflight >= INFLIGHT_MAX:
                # Its own client or answers must come first; _update_interest brings it back.
                del self._stalled[connection]
                continue
            link = connection.home.link
            # Without room for a read it would only stall again, and the Processor spin instead of sleep.
            if link is None or link.sender.free_bytes() < _ROOM_BYTES:
                continue
            del self._stalled[connection]
            connection.is_stalled = False
            before = self._counts[_REQUESTS]
            if connection.block is not None:
                self._read_block(connection, connection.block)
            elif connection.held:
                self._pass_on_held(connection)
            self._count_queued(connection, self._counts[_REQUESTS] - before)
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
        self._held_bytes -= len(held)
        view[HEAD_BYTES : HEAD_BYTES + len(held)] = held
        self._pass_on(connection, view, HEAD_BYTES + len(held))

    def _refuse(self, connection: Connection, start: bytes, length: int) -> None:
        """The length word cannot be one: read nothing more, and close when what came before it is answered."""
        self._counts[SLOT["malformed"]] += 1
        reason = why_refused(start, length, self._request_bytes_max)
        logger.warning("closing connection %d: %s", connection.id, reason)
        connection.is_ended = True
        self._update_interest(connection)

    # -- answers out -------------------------------------------------------------------------------------------

    def _take_responses(self) -> int:
        """Send what the Handlers answered; the rings' views are given back before this returns."""
        work = 0
        for handler in self._handlers.values():
            inbox = handler.inbox
            if inbox is None or inbox.is_empty():
                continue
            batch = inbox.poll(_RESPONSES_PER_PASS)
            if not batch:
                continue
            work += len(batch)
            touched: dict[Connection, None] = {}
            lent = self._lent
            for kind, view in batch:
                if kind <= CLOSE:
                    connection_id, sequence, _, _ = HEAD.unpack_from(view)
                    if lent:
                        self._give_back(connection_id, sequence)
                    if kind == SEND:  # Nearly all answers leave at once.
                        self._pass_back(((connection_id, sequence, view[HEAD_BYTES:]),), touched)
                    elif kind != SEND_PARTS or not self._pass_back_range(view, touched):
                        self._take_response(kind, view, touched)
                elif kind == SENDS:  # Of known Produce requests, none of which came in a block.
                    self._pass_back(answers_of(view), touched)
                elif kind != HINT:
                    self._take_word(kind, view)
                elif self._router is not None:
                    self._router.learn(view)
            for connection in touched:
                try:
                    self._send(connection)
                except OSError as error:
                    self._close_failed(connection, error)
            inbox.release()
            if self._timed.leaving:
                self._timed.finish(self._by_id)
        return work

    def _pass_back(
        self, answers: Iterable[tuple[int, int, bytes | memoryview]], touched: dict[Connection, None]
    ) -> None:
        """Whole answers: the only one of its connection leaves at once, others with all of this pass."""
        by_id = self._by_id
        now_ns = self._now_ns
        count = size = 0
        for connection_id, sequence, frame in answers:
            connection = by_id.get(connection_id)
            if connection is None:
                continue  # Closed meanwhile.
            if sequence != connection.next_send or connection.stash or connection.is_closing:
                head = HEAD.pack(connection_id, sequence, 0, 0)
                self._take_response(SEND, memoryview(head + bytes(frame)), touched)
                continue
            count += 1
            connection.next_send = (sequence + 1) & SEQUENCE_MASK
            connection.inflight -= 1
            if connection.inflight or connection.ready or connection.out or connection.interest != ACTIVE:
                touched[connection] = None
                connection.ready.append(frame)
                continue
            try:
                sent = connection.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._close(connection, str(error))
                continue
            size += sent
            connection.last_active_ns = now_ns
            if sent != len(frame):
                connection.out = deque((bytes(frame[sent:]),))
                touched[connection] = None  # To wait for room.
        self._counts[_RESPONSES] += count
        self._counts[_BYTES_OUT] += size

    def _pass_back_range(self, view: memoryview, touched: dict[Connection, None]) -> bool:
        """Records of one file, the only answer of its connection: it leaves at once. False: nothing was done."""
        connection_id, sequence, _, _ = HEAD.unpack_from(view)
        connection = self._by_id.get(connection_id)
        if connection is None or not connection.expects_only(sequence):
            return False
        try:
            sent = connection.send_range(view, self._files)
        except (OSError, EOFError) as error:
            self._close(connection, str(error))
            return True
        if sent < 0:
            return False
        connection.next_send = (sequence + 1) & SEQUENCE_MASK
        connection.inflight = 0
        connection.last_active_ns = self._now_ns
        self._counts[_RESPONSES] += 1
        self._counts[_BYTES_OUT] += sent
        if connection.out:
            touched[connection] = None  # To wait for room.
        return True

    def _take_response(self, kind: int, view: memoryview, touched: dict[Connection, None]) -> None:
        connection_id, sequence, _, _ = HEAD.unpack_from(view)
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
        if connection.is_closing or connection.out or connection.interest != ACTIVE:
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
        elif connection.out or connection.interest != ACTIVE:
            self._update_interest(connection)

    # -- now and then ------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        """Ten times a second, idle every REST_MS: the metrics row. Once a second: idle connections, deleted files."""
        now_ns = self._now_ns
        self._next_store_ns = now_ns + STORE_MS * 1_000_000
        self._sleep_ms_max = STORE_MS if self._reporter.has_unsent else REST_MS
        counts = self._counts
        counts[SLOT["heartbeat_ns"]] = now_ns
        counts[SLOT["duty_cycles"]] = self._cycle_count
        counts[SLOT["wakeups_rescued"]] = self._doze.rescued_count
        counts[SLOT["slept_ns"]] += self._doze.slept_ns
        self._doze.slept_ns = 0
        counts[SLOT["connections"]] = len(self._connections)
        senders = [handler.link.sender for handler in self._handlers.values() if handler.link is not None]
        counts[SLOT["ring_capacity_bytes"]] = sum(sender.capacity for sender in senders)
        counts[SLOT["ring_fill_bytes"]] = sum(sender.capacity - sender.free_bytes() for sender in senders)
        counts[SLOT["ring_records"]] = sum(sender.waiting(_COUNTED_MAX) for sender in senders)
        self._books.ledger.store()
        if now_ns >= self._next_second_ns:
            self._next_second_ns = now_ns + 1_000_000_000
            counts[SLOT["requests_inflight"]] = sum(c.inflight for c in self._connections.values())
            self._files.drop_unlinked()
            self._leave_dead_homes()
            self._end_slow_frames()
            if self._idle_ns_max:
                self._expire_idle(now_ns - self._idle_ns_max)
        self._metrics.store()


_BYTES_IN: Final = SLOT["bytes_in"]
_BYTES_OUT: Final = SLOT["bytes_out"]
_REQUESTS: Final = SLOT["requests"]
_RESPONSES: Final = SLOT["responses"]
