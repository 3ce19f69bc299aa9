"""ConnectionHolder: the connections of a Processor, the Handlers they belong to, and what may happen to both.

The part of a Processor that is not per request: registering and closing, what each connection's epoll interest is,
homes and Handlers that come and go, connections that move, are throttled, evicted or killed. `processor.py` adds
reading and answering. One file, because all of it keeps the same tables in step and ends in `_update_interest`.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from typing import Any, Final

import msgspec

from kproc.clock import Clock
from kproc.containment import Containment
from kproc.metrics.slab import MetricsRow
from kproc.metrics.spec import SLOT
from kproc.net.activity import ActivityWheel
from kproc.net.connection import Block, Connection, Origin
from kproc.net.connection_books import ClientBooks, ProbeBooks
from kproc.net.describe import connection_name, describe
from kproc.net.handler_peer import HandlerPeer, Router
from kproc.net.handoff import NO_ADDRESS
from kproc.net.moves import Moves, claim
from kproc.net.slow_frames import SlowFrames, wanted_bytes
from kproc.net.throttle import Throttles
from kproc.net.timed_requests import TimedRequests
from kproc.net.transfer import Channel, Given, unsent_of
from kproc.transport.agent import AgentId, BlockOwner, Doze, Link
from kproc.transport.envelope import (
    ADDRESS,
    DISCONNECTED,
    FLAG_MOVED,
    FLAG_PROBE,
    HEAD,
    HEAD_BYTES,
    MOVED,
    NOTE,
    THROTTLE,
    THROTTLE_MS,
    TIMES,
    unpack_sequences,
)

logger = logging.getLogger(__name__)

_LOOK_NS: Final = 500_000  # So often at most a request is considered for timing.
INFLIGHT_MAX: Final = 64  # Requests of one connection in work. Kafka takes 1, its clients send at most 5.
ACTIVE, PAUSED, WRITING = select.EPOLLIN, 0, select.EPOLLOUT
_DETACHED: Final = (
    -1
)  # Interest of a socket that hung up while nothing is read: epoll would report it for ever.
_NUMBER_MAX: Final = (1 << 31) - 1  # Kafka counts connections in a Java int.
_ID_TIME_SHIFT, _ID_NUMBER_SHIFT = 20, 9


class ConnectionHolder:
    """Base of Processor."""

    __slots__ = (  # More attributes than CPython keeps inline in an object without.
        "_activity",
        "_arena",
        "_books",
        "_by_id",
        "_by_index",
        "_channels",
        "_clock",
        "_closed_listeners",
        "_connections",
        "_containment",
        "_counts",
        "_epoll",
        "_given_router",
        "_handlers",
        "_held_bytes",
        "_is_leaving",
        "_is_pressed",
        "_is_stopping",
        "_lent",
        "_metrics",
        "_moves",
        "_next_id",
        "_next_look_ns",
        "_now_ns",
        "_number",
        "_poll",
        "_probe_books",
        "_reporter",
        "_router",
        "_short_of_memory",
        "_slow_frames",
        "_stalled",
        "_throttles",
        "_timed",
        "id",
    )

    def __init__(
        self,
        agent_id: AgentId,
        *,
        doze: Doze,
        metrics: MetricsRow,
        clock: Clock,
        arena: BlockOwner,
        router: Router | None,
    ) -> None:
        self.id = agent_id
        self._metrics = metrics
        self._counts = metrics.values
        self._containment = Containment()
        self._books = ClientBooks(metrics, agent_id.index)
        self._probe_books = ProbeBooks(metrics)
        self._next_look_ns = 0  # When the next request may be timed.
        self._timed = TimedRequests(metrics.slab.timings(agent_id.index), clock)
        self._clock = clock
        self._arena = arena
        self._given_router = router
        self._router: Router | None = (
            None  # The same while there are several Handlers: with one it is only work.
        )
        self._handlers: dict[AgentId, HandlerPeer] = {}
        # They come in any order when one of them is being restarted. Those that are leaving are not in here.
        self._by_index: dict[int, HandlerPeer] = {}
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._by_id: dict[int, Connection] = {}
        # (connection, sequence) -> arena block
        self._lent: dict[tuple[int, int], tuple[int, HandlerPeer]] = {}
        self._held_bytes = 0  # Of all begun small frames.
        self._stalled: dict[Connection, None] = {}
        self._short_of_memory: dict[Connection, None] = {}
        self._slow_frames = SlowFrames()
        self._activity = ActivityWheel()
        self._throttles = Throttles()
        self._moves = Moves(self, clock)
        self._channels: dict[int, Channel] = {}  # by descriptor
        self._reporter = self._books.reporter
        self._number = -1
        # Unique in the broker, also after a restart: time, count, Processor. A connection keeps it when it moves.
        self._next_id = (clock.wall_ms() << _ID_TIME_SHIFT) | agent_id.index
        self._now_ns = clock.now_ns()
        self._is_stopping = False
        self._is_leaving = False
        self._closed_listeners: set[int] = set()
        # Something waits that no descriptor will announce: stalled, throttled, moving or muted connections.
        self._is_pressed = False
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._epoll.register(doze.fd, select.EPOLLIN | select.EPOLLET)

    # -- Handlers ----------------------------------------------------------------------------------------------

    def attach(self, link: Link) -> None:
        handler = self._handlers.get(link.peer)
        is_new = handler is None
        if handler is None:
            handler = self._handlers[link.peer] = HandlerPeer(link.peer)
        if not handler.is_leaving:
            self._by_index[link.peer.index] = handler
        handler.attach(link)
        for connection in self._connections.values():
            connection.is_introduced = False  # This one knows nothing of it.
        if is_new:
            self._choose_routing()
        if not handler.is_leaving:
            self._spread_homes(handler)

    def detach(self, peer: AgentId) -> None:
        """A role died, or left, and was reaped. What another Processor had not taken is ours again.

        A Handler that dies before it is to leave is detached twice: the second time there will be no successor.
        """
        if self._moves.channel(peer) is not None:
            self._end_channel(peer)
            return
        handler = self._handlers.get(peer)
        if handler is None:
            return
        if handler.link is not None:
            self._lose(handler)
        if handler.is_leaving:
            del self._handlers[peer]
            self._choose_routing()

    def _lose(self, handler: HandlerPeer) -> None:
        """What it had in work ends in closed connections, its blocks come back."""
        handler.detach()
        self._moves.handler_lost(handler)
        self._timed.forget_handler(handler.peer)
        for connection in list(self._connections.values()):
            if connection.target is handler and connection.inflight:
                self._close(connection, "its Handler died")
        for key, (offset, lent_to) in list(self._lent.items()):
            if lent_to is handler:
                self._arena.free(offset)
                del self._lent[key]

    def handler_leaving(self, peer: AgentId) -> None:
        """A Handler is about to end: it gets no new home, and connections leave it when it has nothing of theirs."""
        handler = self._handlers.get(peer)
        if handler is None or handler.is_leaving:
            return
        handler.is_leaving = True
        self._by_index.pop(peer.index, None)
        for connection in list(self._connections.values()):
            if handler in (connection.home, connection.next_home):
                self._plan_home(connection, self._least_busy())

    def uses(self, peer: AgentId) -> bool:
        """Whether anything of ours is at that Handler, or may still go there."""
        handler = self._handlers.get(peer)
        if handler is None:
            return False
        if handler.has_unpublished or (handler.notices is not None and handler.notices.has_overflow):
            return True
        return any(
            handler in (each.home, each.next_home) or (each.inflight and each.target is handler)
            for each in (*self._connections.values(), *self._moves.given())
        ) or any(lent_to is handler for _, lent_to in self._lent.values())

    def _choose_routing(self) -> None:
        """Route frames while there are several Handlers. With one, every connection's requests are at home."""
        self._router = self._given_router if len(self._handlers) > 1 else None
        if len(self._handlers) == 1:
            (only,) = self._handlers.values()
            for connection in (*self._connections.values(), *self._moves.given()):
                connection.home = connection.target = only
                connection.next_home = None
            for connection in list(self._connections.values()):
                self._update_interest(connection)

    def _least_busy(self) -> HandlerPeer:
        """The next home: of the Handlers that live the one with the fewest."""
        return min(
            self._by_index.values() or self._handlers.values(),
            key=lambda each: (each.link is None, each.homes, each.peer.index),
        )

    def _spread_homes(self, handler: HandlerPeer) -> None:
        """Give a Handler that came its share of the connections that are there."""
        share = len(self._connections) // max(1, len(self._by_index))
        for connection in list(self._connections.values()):
            if handler.homes >= share:
                return
            if connection.next_home is None and connection.home.homes > share:
                self._plan_home(connection, handler)

    def _leave_dead_homes(self) -> None:
        """Once a second: what is at home at a Handler that is away longer than a restart takes goes to one that lives.

        Its partitions are answered for there, and those of others served.
        """
        for handler in self._handlers.values():
            was_away, handler.is_away = handler.is_away, handler.link is None
            if not (was_away and handler.is_away and self._least_busy().link is not None):
                continue
            for connection in list(self._connections.values()):
                if handler is (connection.next_home or connection.home):
                    self._plan_home(connection, self._least_busy())

    def _plan_home(self, connection: Connection, home: HandlerPeer) -> None:
        """Move its home as soon as it has nothing in work; until then it is not read."""
        planned = connection.next_home or connection.home
        planned.homes -= 1
        home.homes += 1
        connection.next_home = home
        self._update_interest(connection)

    def _go_home(self, connection: Connection, home: HandlerPeer) -> None:
        connection.home = connection.target = home
        connection.next_home = None

    def _begin_timing(self, connection: Connection, frame: memoryview, target: HandlerPeer) -> int:
        """The first request of a duty cycle, but not of every short one: FLAG_TIMED if its times are wanted."""
        if not connection.books.is_timed:
            return 0
        self._next_look_ns = self._now_ns + _LOOK_NS
        return self._timed.begin(connection, frame, target.peer, self._now_ns)

    # -- sockets -----------------------------------------------------------------------------------------------

    def _register(
        self, sock: socket.socket, listener: int, flags: int, address: bytes, port: int
    ) -> Connection | None:
        """Take a new socket; None if it had to be closed."""
        if not self._handlers or self._is_stopping:
            sock.close()
            return None
        home = self._least_busy()
        self._next_id += 1 << _ID_NUMBER_SHIFT
        self._number = (self._number + 1) & _NUMBER_MAX
        origin = Origin(self.id.index, self._number, listener, flags, address, port, self._clock.wall_ms())
        books = self._probe_books if flags & FLAG_PROBE else self._books
        now_ns = self._clock.now_ns()
        connection = Connection(self._next_id, sock, origin=origin, books=books, home=home, now_ns=now_ns)
        try:
            self._watch(connection)
        except OSError as error:  # This one socket cannot be used; the others can.
            logger.info("closing a connection that cannot be registered: %s", error)
            sock.close()
            return None
        connection.interest = ACTIVE
        self._keep(connection)
        books.opened(connection)
        return connection

    def adopt_probe(self, sock: socket.socket) -> None:
        """The broker itself asks whether it serves, as a client that came by no listener, past every quota."""
        self._register(sock, 0, FLAG_PROBE, NO_ADDRESS, 0)

    def _watch(self, connection: Connection) -> None:
        """See to it that its requests are read. Raises OSError for a socket that cannot be used."""
        connection.transport.set_blocking(False)
        self._epoll.register(connection.fd, ACTIVE)

    def _unwatch(self, connection: Connection) -> None:
        """The opposite: the socket is about to be closed, or given away."""
        if connection.interest != _DETACHED:
            self._epoll.unregister(connection.fd)

    def _keep(self, connection: Connection) -> None:
        """Into every table."""
        (connection.next_home or connection.home).homes += 1
        self._connections[connection.fd] = connection
        self._by_id[connection.id] = connection
        connection.books.is_here(connection)
        self._activity.add(connection)
        self._held_bytes += len(connection.held)

    def _remove(self, connection: Connection) -> None:
        """Out of every table and the epoll; its arena block stays."""
        del self._connections[connection.fd]
        del self._by_id[connection.id]
        connection.books.is_gone(connection)
        self._activity.discard(connection)
        self._stalled.pop(connection, None)
        self._short_of_memory.pop(connection, None)
        self._held_bytes -= len(connection.held)
        self._unwatch(connection)
        (connection.next_home or connection.home).homes -= 1

    def _close(self, connection: Connection, reason: str) -> None:
        """Close one connection and tell the Handlers that its waiting requests are nobody's."""
        logger.debug("closing connection %d: %s", connection.id, reason)
        self._remove(connection)
        if connection.move is not None:
            self._moves.forget(connection)
        self._free_block(connection)
        self._end_socket(connection)
        self._tell_handlers(connection, 0)
        connection.books.closed(connection)

    def _end_socket(self, connection: Connection) -> None:
        connection.transport.end()
        connection.transport.close()

    def _close_failed(self, connection: Connection, error: Exception) -> None:
        """The kernel refused what never fails, or a surprise: this one connection ends, whatever state its descriptor
        is in."""
        if not isinstance(error, OSError):
            self._counts[SLOT["contained_failures"]] += 1
            self._containment.caught(f"the work for connection {connection.id}", error)
        logger.error("closing connection %d: %s", connection.id, error)
        if connection.fd not in self._connections:
            return
        try:
            self._unwatch(connection)
        except OSError as also:
            logger.debug("connection %d is in no epoll: %s", connection.id, also)
        connection.interest = _DETACHED
        self._close(connection, str(error))

    def _free_block(self, connection: Connection) -> None:
        if connection.block is not None:
            connection.block.view.release()
            self._arena.free(connection.block.offset)
            connection.block = None

    def _introduce(self, connection: Connection) -> bool:
        """Tell every Handler the client's address, ahead of the first request; False without room in a ring.

        Each request could carry it, but nearly none needs it.
        """
        head = HEAD.pack(connection.id, 0, 0, 0)
        for handler in self._handlers.values():
            if handler.link is not None:  # Else its successor's link brings us here again.
                if not handler.link.sender.try_push(ADDRESS, head, connection.origin.address):
                    return False
                handler.has_unpublished = True
        connection.is_introduced = True
        return True

    def _tell_handlers(self, connection: Connection, flags: int) -> None:
        """The connection is gone from here. With several Handlers each may remember something of it."""
        for handler in (connection.home,) if self._router is None else self._handlers.values():
            if handler.notices is not None:
                handler.notices.push(DISCONNECTED, HEAD.pack(connection.id, 0, 0, flags))

    def _on_hang_up(self, connection: Connection) -> None:
        """The client is gone while nothing is read. What it sent before is in the socket, and is still served."""
        if connection.interest == PAUSED:
            self._epoll.unregister(connection.fd)
            connection.interest = _DETACHED
        else:
            self._close(connection, "the client is gone")

    def _set_interest(self, connection: Connection, interest: int) -> None:
        before = connection.interest
        if before == interest or (before == _DETACHED and interest == PAUSED):
            return
        connection.interest = interest
        if before == _DETACHED:
            self._epoll.register(connection.fd, interest)
        else:
            self._epoll.modify(connection.fd, interest)

    def _update_interest(self, connection: Connection) -> None:
        """What to wait for: room to write before anything else, then more requests if more are welcome.

        Everything that makes a connection wait ends in here, so here it also goes on: to a new home, to another
        Processor, or to its end.
        """
        if connection.next_home is not None and not connection.inflight:
            self._go_home(connection, connection.next_home)
        if connection.move is not None:
            self._moves.advance(connection)
        if connection.is_stalled and not connection.out and connection.inflight < INFLIGHT_MAX:
            self._stalled[connection] = None
            self._is_pressed = True
        if connection.out:
            self._set_interest(connection, WRITING)
        elif (
            connection.is_stalled
            or connection.inflight >= INFLIGHT_MAX
            or self._is_stopping
            or connection.is_closing
            or connection.is_ended
            or connection.throttled_until_ns
            or connection.move is not None
            or connection.next_home is not None
            or connection.is_short_of_memory
        ):
            self._set_interest(connection, PAUSED)
            if connection.is_ended and not connection.inflight and not connection.is_stalled:
                self._close(connection, "its bytes were not Kafka's protocol")
        else:
            self._set_interest(connection, ACTIVE)

    # -- connections that move (Holder of moves.py) --------------------------------------------------------------

    def attach_transfer(self, peer: AgentId, sock: socket.socket) -> None:
        """Another Processor is there (again): connections can go to it, and come from it."""
        self._end_channel(peer)
        channel = Channel(peer, sock)
        self._channels[channel.fd] = channel
        self._moves.attach(channel)
        self._epoll.register(channel.fd, select.EPOLLIN)

    def begin_leave(self, targets: list[AgentId]) -> None:
        """Give every connection to these Processors, and take no new one. `is_drained` when none is left."""
        self._is_leaving = True
        self._moves.leave(list(self._connections.values()), targets)
        self._is_pressed = True

    def move_connections(self, count: int, target: AgentId) -> int:
        """Give `count` connections to another Processor; how many it will be.

        Evenly chosen between the busiest and the idlest, so that the load that goes is known: about its share.
        """
        if self._is_leaving or self._is_stopping or self._moves.channel(target) is None:
            return 0
        able = [each for each in self._connections.values() if each.move is None and not each.is_closing]
        able.sort(key=lambda each: each.next_sequence)
        count = min(count, len(able))
        self._moves.rebalance([able[at * len(able) // count] for at in range(count)], target)
        self._is_pressed = True
        return count

    @property
    def is_moving(self) -> bool:
        """Whether a connection is on its way to another Processor."""
        return self._moves.is_active

    def take_out(self, connection: Connection) -> None:
        self._remove(connection)

    def take_back(self, connection: Connection) -> None:
        connection.interest = PAUSED
        self._epoll.register(connection.fd, PAUSED)
        if connection.is_stalled:
            self._stalled[connection] = None
        connection.is_short_of_memory = False
        self._keep(connection)
        home = connection.next_home or connection.home
        if home.is_leaving or home.link is None or home.peer not in self._handlers:
            self._plan_home(connection, self._least_busy())

    def let_go(self, connection: Connection) -> None:
        """Without shutdown, which would end the connection for whoever has it now."""
        self._free_block(connection)
        connection.transport.close()
        self._tell_handlers(connection, FLAG_MOVED)
        connection.books.moved_away(connection)
        self._timed.forget_connection(connection.id)

    def resume(self, connection: Connection) -> None:
        self._update_interest(connection)

    def drop(self, connection: Connection, reason: str) -> None:
        self._close(connection, reason)

    def can_adopt(self, given: Given) -> bool:
        state = given.state
        assert state is not None
        target = self._by_index.get(state.target)
        has_handler = bool(self._by_index) and (
            not state.kept or (target is not None and target.link is not None)
        )
        if self._is_stopping or self._is_leaving or not has_handler or given.sock is None:
            if given.block_offset is not None:
                self._arena.free(given.block_offset)
                given.block_offset = None  # Its giver may be asked again, with room for the answer.
            return False
        if state.block is not None and given.block_offset is None:
            given.block_offset = self._arena.allocate(state.block[0])
        return state.block is None or given.block_offset is not None

    def adopt(self, given: Given) -> None:
        state, sock = given.state, given.sock
        assert state is not None
        assert sock is not None
        home = self._by_index.get(state.home)
        if home is None or home.link is None:
            home = self._least_busy()
        last_active_ns = max(state.last_active_ns, 0)
        connection = Connection(
            state.id, sock, origin=state.origin, books=self._books, home=home, now_ns=last_active_ns
        )
        if state.kept:
            connection.target = self._by_index[state.target]
        connection.client = state.client
        connection.next_sequence, connection.next_send = state.next_sequence, state.next_send
        connection.stash = {sequence: (kind, record) for sequence, kind, record in state.stash}
        connection.inflight = len(state.kept) + len(state.stash)
        connection.held = state.held
        connection.out = unsent_of(given)
        connection.is_closing, connection.is_ended = state.is_closing, state.is_ended
        connection.is_stalled = state.is_stalled
        if state.block is not None:
            connection.block = self._adopt_block(given, *state.block)
        sock.setblocking(False)
        self._epoll.register(connection.fd, PAUSED)
        self._keep(connection)
        connection.books.moved_in(connection)
        if connection.is_stalled:
            self._stalled[connection] = None
        if state.throttled_until_ns:
            self._throttle(connection, state.throttled_until_ns)
        if state.kept:
            claim(connection, state.kept)
        self._is_pressed = True
        self._update_interest(connection)
        if connection.listener in self._closed_listeners:
            self._close(connection, "its listener was removed")

    def _adopt_block(self, given: Given, length: int, filled: int) -> Block:
        offset = given.block_offset
        assert offset is not None
        block = Block(offset, length, self._arena.view(offset, length))
        while block.filled < filled:
            count = os.preadv(given.block_fd, [block.view[block.filled : filled]], block.filled)
            assert count > 0, "the giver wrote all of it before it sent the descriptor"
            block.filled += count
        os.close(given.block_fd)
        given.block_fd = -1
        return block

    def _on_channel(self, fd: int) -> int:
        channel = self._channels[fd]
        if not self._moves.on_readable(channel):
            self._end_channel(channel.peer)
        self._is_pressed = True
        return 1

    def _end_channel(self, peer: AgentId) -> None:
        channel = self._moves.channel(peer)
        if channel is not None:
            self._epoll.unregister(channel.fd)
            del self._channels[channel.fd]
            self._moves.detach(peer)
            self._is_pressed = True

    # -- throttled, evicted, killed ------------------------------------------------------------------------------

    def _give_back(self, connection_id: int, sequence: int) -> None:
        """Free the block that a request came in, if it did."""
        lent = self._lent.pop((connection_id, sequence), None)
        if lent is not None:
            self._arena.free(lent[0])

    def _take_word(self, kind: int, view: memoryview) -> None:
        """What a Handler says of a connection beside its answers."""
        connection_id, sequence, _, _ = HEAD.unpack_from(view)
        connection = self._by_id.get(connection_id)
        if kind == MOVED:
            # The Handler keeps nothing of what it has parked, so blocks need not wait for the answers.
            sequences = unpack_sequences(view[HEAD_BYTES:])
            for each in sequences:
                self._give_back(connection_id, each)
            if connection is not None:
                self._moves.on_moved(connection, sequence, sequences)
        elif kind == TIMES:
            self._timed.answered(connection_id, sequence, view[HEAD_BYTES:])
        elif connection is None:
            return  # Closed meanwhile.
        elif kind == THROTTLE:
            self._throttle(
                connection, self._now_ns + THROTTLE_MS.unpack_from(view, HEAD_BYTES)[0] * 1_000_000
            )
            self._update_interest(connection)
        else:
            assert kind == NOTE, kind
            connection.client = msgspec.msgpack.decode(view[HEAD_BYTES:], type=tuple[str, str, str])

    def _throttle(self, connection: Connection, until_ns: int) -> None:
        if until_ns > connection.throttled_until_ns:
            connection.throttled_until_ns = until_ns
            self._throttles.start(connection.id, until_ns)
            self._throttles.forget_gone(self._by_id.__contains__)
            self._is_pressed = True

    def _end_throttles(self, now_ns: int) -> None:
        for connection_id in self._throttles.take_ended(now_ns):
            connection = self._by_id.get(connection_id)
            if connection is not None and connection.throttled_until_ns <= now_ns:
                connection.throttled_until_ns = 0
                self._update_interest(connection)

    def _evict(self, count: int, listener: int) -> None:
        """The broker has too many connections: close those of this listener that have been idle for longest."""
        for victim in self._activity.least_recent(count, lambda each: each.listener == listener):
            self._close(victim, "max.connections is exceeded")

    def begin_stop(self) -> None:
        """Read nothing more; what was read is answered."""
        self._is_stopping = True
        self._moves.cancel_all()
        for connection in list(self._connections.values()):
            if not connection.out:
                self._set_interest(connection, PAUSED)

    def is_drained(self) -> bool:
        """Stopping: nothing is left to answer. Leaving: every connection and every block is elsewhere."""
        if self._is_leaving and not self._is_stopping:
            has_waiting = self._connections or self._moves.is_active or self._lent
            return not has_waiting and not self._reporter.has_unsent
        if not self._is_stopping or self._moves.is_active:
            return False
        # A stalled connection may hold whole requests: frames that wait for another Handler, a large one that waits for
        # room in a ring. Copies, because the thread transport asks from its main thread.
        for connection in list(self._stalled):
            block = connection.block
            if connection.held or (block is not None and block.filled == block.length):
                return False
        return not any(each.inflight or each.out for each in list(self._connections.values()))

    def close_listener(self, listener: int) -> int:
        """That listener was removed: close what came by it, also what another Processor still gives us; how many."""
        self._closed_listeners.add(listener)
        those = [each for each in self._connections.values() if each.origin.listener == listener]
        for connection in those:
            self._close(connection, "its listener was removed")
        return len(those)

    def open_listener(self, listener: int) -> None:
        """Another listener takes the place of one that was removed: nothing that came by that one stays."""
        self.close_listener(listener)
        self._closed_listeners.discard(listener)

    def describe_connections(self) -> list[dict[str, Any]]:
        """One entry for each connection, for people and `kproc clients`."""
        now_ns = self._clock.now_ns()
        return [describe(each, self.id.index, now_ns) for each in list(self._connections.values())]

    def kill_connection(self, name: str) -> bool:
        """Close the connection with that id, as `describe_connections` shows it; False if it is not here."""
        for connection in self._connections.values():
            if connection_name(connection) == name:
                self._close(connection, "an operator asked for it")
                return True
        return False

    def _expire_idle(self, before_ns: int) -> None:
        """Kafka's connections.max.idle.ms: no byte read or written for that long, a request in work or not."""
        for connection in self._activity.idle_since(before_ns):
            self._counts[SLOT["connections_expired"]] += 1
            self._close(connection, "idle for connections.max.idle.ms")

    def _has_budget(self) -> bool:
        """Whether a new request may be read; Processor knows the limits of its memory."""
        raise NotImplementedError

    def _is_short(self, wanted: int) -> bool:
        """Whether there is no block that large, or no memory though somebody waits for it."""
        return not self._arena.has_room(wanted) or (bool(self._short_of_memory) and not self._has_budget())

    def _end_slow_frames(self) -> None:
        """Once a second: frames that hardly get on must not hold for minutes what others wait for."""
        wanted = [size for size in map(wanted_bytes, self._stalled) if size]
        if not self._is_short(max(wanted, default=0)):
            self._slow_frames.forget()
            return
        begun = [
            each
            for each in self._connections.values()
            if each.interest == ACTIVE and (each.block is not None or (each.held and self._short_of_memory))
        ]
        for connection in self._slow_frames.look(begun, self._now_ns):
            if not self._is_short(min(wanted, default=0)):
                return  # For the first in turn; the others are looked after a second later.
            self._counts[SLOT["slow_frames_closed"]] += 1
            logger.warning(
                "closing connection %d: its request gets on too slowly, and others wait for the room",
                connection.id,
            )
            self._close(connection, "its frame makes too little progress")
