"""ConnectionTable: the connections of a Processor, from the first to the last moment of each.

Registering and closing, and what each waits for: `update_interest` is where everything that makes a connection wait
ends. Reading is request_reader.py's, answering response_writer.py's.
"""

from __future__ import annotations

import logging
import socket
from typing import Any, Final, Protocol

from kproc.clock import Clock
from kproc.containment import Containment
from kproc.metrics.spec import SLOT
from kproc.net.activity import ActivityWheel
from kproc.net.connection import Books, Connection, Origin
from kproc.net.describe import connection_name, describe
from kproc.net.handler_peer import HandlerPeer
from kproc.net.handler_set import HandlerSet
from kproc.net.memory_budget import MemoryBudget
from kproc.net.processor_state import ProcessorState
from kproc.net.socket_watch import ACTIVE, DETACHED, PAUSED, WRITING, EpollWatch
from kproc.net.throttle import Throttles
from kproc.transport.agent import AgentId, BlockOwner

logger = logging.getLogger(__name__)

INFLIGHT_MAX: Final = 64  # Requests of one connection in work. Kafka takes 1, its clients send at most 5.
_NUMBER_MAX: Final = (1 << 31) - 1  # Kafka counts connections in a Java int.
_ID_TIME_SHIFT, _ID_NUMBER_SHIFT = 20, 9


class Mover(Protocol):
    """Who takes connections to other Processors: moves.py."""

    def advance(self, connection: Connection) -> None:
        """Something of a connection that is to move was answered."""

    def forget(self, connection: Connection) -> None:
        """It was closed on its way."""


class ConnectionTable:
    """One per Processor. A connection is in all of its tables or in none."""

    __slots__ = (
        "_activity", "_arena", "_budget", "_clock", "_closed_listeners", "_containment", "_handlers", "_next_id",
        "_number", "_owner", "_state", "_throttles", "by_fd", "by_id", "mover", "short_of_memory", "stalled", "watch",
    )  # fmt: skip

    mover: Mover  # Set by who makes it, for it needs this table.

    def __init__(
        self,
        owner: AgentId,
        state: ProcessorState,
        *,
        watch: EpollWatch,
        handlers: HandlerSet,
        budget: MemoryBudget,
        arena: BlockOwner,
        clock: Clock,
    ) -> None:
        self._owner = owner
        self._state = state
        self.watch = watch
        self._handlers = handlers
        self._budget = budget
        self._arena = arena
        self._clock = clock
        self._containment = Containment()
        self.by_fd: dict[int, Connection] = {}
        self.by_id: dict[int, Connection] = {}
        self.stalled: dict[Connection, None] = {}
        self.short_of_memory: dict[Connection, None] = {}
        self._activity = ActivityWheel()
        self._throttles = Throttles()
        self._closed_listeners: set[int] = set()
        self._number = -1
        # Unique in the broker, also after a restart: time, count, Processor. A connection keeps it when it moves.
        self._next_id = (clock.wall_ms() << _ID_TIME_SHIFT) | owner.index

    # -- coming and going --------------------------------------------------------------------------------------

    def open(
        self, sock: socket.socket, books: Books, *, listener: int, flags: int, address: bytes, port: int
    ) -> Connection | None:
        """Take a new socket; None if it had to be closed."""
        if not self._handlers.by_id or self._state.is_stopping:
            sock.close()
            return None
        home = self._handlers.least_busy()
        self._next_id += 1 << _ID_NUMBER_SHIFT
        self._number = (self._number + 1) & _NUMBER_MAX
        accepted_ms = self._clock.wall_ms()
        origin = Origin(self._owner.index, self._number, listener, flags, address, port, accepted_ms)
        now_ns = self._clock.now_ns()
        connection = Connection(self._next_id, sock, origin=origin, books=books, home=home, now_ns=now_ns)
        try:
            self.watch.begin(connection)
        except OSError as error:  # This one socket cannot be used; the others can.
            logger.info("closing a connection that cannot be registered: %s", error)
            sock.close()
            return None
        self.keep(connection)
        books.opened(connection)
        return connection

    def keep(self, connection: Connection) -> None:
        """Into every table."""
        (connection.next_home or connection.home).homes += 1
        self.by_fd[connection.fd] = connection
        self.by_id[connection.id] = connection
        connection.books.is_here(connection)
        self._activity.add(connection)
        self._budget.held_bytes += len(connection.held)

    def remove(self, connection: Connection) -> None:
        """Out of every table and the epoll; its arena block stays."""
        del self.by_fd[connection.fd]
        del self.by_id[connection.id]
        connection.books.is_gone(connection)
        self._activity.discard(connection)
        self.stalled.pop(connection, None)
        self.short_of_memory.pop(connection, None)
        self._budget.held_bytes -= len(connection.held)
        self.watch.end(connection)
        (connection.next_home or connection.home).homes -= 1

    def close(self, connection: Connection, reason: str) -> None:
        """Close one connection and tell the Handlers that its waiting requests are nobody's."""
        logger.debug("closing connection %d: %s", connection.id, reason)
        self.remove(connection)
        if connection.move is not None:
            self.mover.forget(connection)
        self.free_block(connection)
        self._end_socket(connection)
        self._handlers.tell_gone(connection, 0)
        connection.books.closed(connection)

    def close_failed(self, connection: Connection, error: Exception) -> None:
        """The kernel refused what never fails, or a surprise: this one connection ends, whatever state its descriptor
        is in."""
        if not isinstance(error, OSError):
            self._state.counts[SLOT["contained_failures"]] += 1
            self._containment.caught(f"the work for connection {connection.id}", error)
        logger.error("closing connection %d: %s", connection.id, error)
        if connection.fd not in self.by_fd:
            return
        try:
            self.watch.end(connection)
        except OSError as also:
            logger.debug("connection %d is in no epoll: %s", connection.id, also)
        connection.interest = DETACHED
        self.close(connection, str(error))

    def hung_up(self, connection: Connection) -> None:
        """The client is gone while nothing is read. What it sent before is in the socket, and is still served."""
        if connection.interest == PAUSED:
            self.watch.detach(connection)
        else:
            self.close(connection, "the client is gone")

    def free_block(self, connection: Connection) -> None:
        """Give back the room of a frame that has begun."""
        if connection.block is not None:
            connection.block.view.release()
            self._arena.free(connection.block.offset)
            connection.block = None

    def _end_socket(self, connection: Connection) -> None:
        connection.transport.end()
        connection.transport.close()

    # -- waiting -----------------------------------------------------------------------------------------------

    def update_interest(self, connection: Connection) -> None:
        """What to wait for: room to write before anything else, then more requests if more are welcome.

        Everything that makes a connection wait ends in here, so here it also goes on: to a new home, to another
        Processor, or to its end.
        """
        if connection.next_home is not None and not connection.inflight:
            connection.home = connection.target = connection.next_home
            connection.next_home = None
        if connection.move is not None:
            self.mover.advance(connection)
        if connection.is_stalled and not connection.out and connection.inflight < INFLIGHT_MAX:
            self.stalled[connection] = None
            self._state.is_pressed = True
        if connection.out:
            self.watch.set(connection, WRITING)
        elif (
            connection.is_stalled
            or connection.inflight >= INFLIGHT_MAX
            or self._state.is_stopping
            or connection.is_closing
            or connection.is_ended
            or connection.throttled_until_ns
            or connection.move is not None
            or connection.next_home is not None
            or connection.is_short_of_memory
        ):
            self.watch.set(connection, PAUSED)
            if connection.is_ended and not connection.inflight and not connection.is_stalled:
                self.close(connection, "its bytes were not Kafka's protocol")
        else:
            self.watch.set(connection, ACTIVE)

    def stall(self, connection: Connection) -> None:
        """No room for this connection's bytes: stop reading it, and TCP pushes back on the client."""
        connection.is_stalled = True
        self.stalled[connection] = None
        self._state.is_pressed = True
        self._state.counts[SLOT["reads_stalled"]] += 1
        self.update_interest(connection)

    def wait_for_memory(self, connection: Connection) -> None:
        """No request may be begun: read nothing of it until there is room in the budget."""
        connection.is_short_of_memory = True
        self.short_of_memory[connection] = None
        self._state.is_pressed = True
        self._state.counts[SLOT["reads_stalled"]] += 1
        self.update_interest(connection)

    def end_shortage(self) -> None:
        """Read again who waited for memory, if there is some."""
        if self.short_of_memory and self._budget.has_room():
            for connection in list(self.short_of_memory):
                del self.short_of_memory[connection]
                connection.is_short_of_memory = False
                self.update_interest(connection)

    def plan_home(self, connection: Connection, home: HandlerPeer) -> None:
        """Move its home as soon as it has nothing in work; until then it is not read."""
        planned = connection.next_home or connection.home
        planned.homes -= 1
        home.homes += 1
        connection.next_home = home
        self.update_interest(connection)

    def pause_all(self) -> None:
        """The broker stops: read nothing more."""
        for connection in list(self.by_fd.values()):
            if not connection.out:
                self.watch.set(connection, PAUSED)

    def has_whole_request(self) -> bool:
        """Whether one that stalled still has a request to pass on: frames that wait for another Handler, a large one
        that waits for room in a ring."""
        for connection in list(
            self.stalled
        ):  # Copies, because the thread transport asks from its main thread.
            block = connection.block
            if connection.held or (block is not None and block.filled == block.length):
                return True
        return False

    def has_unanswered(self) -> bool:
        return any(each.inflight or each.out for each in list(self.by_fd.values()))

    # -- throttled ---------------------------------------------------------------------------------------------

    @property
    def has_throttled(self) -> bool:
        return bool(self._throttles)

    def throttle(self, connection: Connection, until_ns: int) -> None:
        """Not to be read before then. The caller sees to `update_interest`."""
        if until_ns > connection.throttled_until_ns:
            connection.throttled_until_ns = until_ns
            self._throttles.start(connection.id, until_ns)
            self._throttles.forget_gone(self.by_id.__contains__)
            self._state.is_pressed = True

    def end_throttles(self, now_ns: int) -> None:
        """Read again whose time has come."""
        for connection_id in self._throttles.take_ended(now_ns):
            connection = self.by_id.get(connection_id)
            if connection is not None and connection.throttled_until_ns <= now_ns:
                connection.throttled_until_ns = 0
                self.update_interest(connection)

    def throttled_ms(self) -> int:
        """How long until the next throttle ends. Only while `has_throttled`."""
        return self._throttles.wait_ms(self._clock.now_ns())

    # -- evicted, expired, killed ------------------------------------------------------------------------------

    def evict(self, count: int, listener: int) -> None:
        """The broker has too many connections: close those of this listener that have been idle for longest."""
        for victim in self._activity.least_recent(count, lambda each: each.listener == listener):
            self.close(victim, "max.connections is exceeded")

    def expire_idle(self, before_ns: int) -> None:
        """Kafka's connections.max.idle.ms: no byte read or written for that long, a request in work or not."""
        for connection in self._activity.idle_since(before_ns):
            self._state.counts[SLOT["connections_expired"]] += 1
            self.close(connection, "idle for connections.max.idle.ms")

    def close_listener(self, listener: int) -> int:
        """That listener was removed: close what came by it, also what another Processor still gives us; how many."""
        self._closed_listeners.add(listener)
        those = [each for each in self.by_fd.values() if each.origin.listener == listener]
        for connection in those:
            self.close(connection, "its listener was removed")
        return len(those)

    def open_listener(self, listener: int) -> None:
        """Another listener takes the place of one that was removed: nothing that came by that one stays."""
        self.close_listener(listener)
        self._closed_listeners.discard(listener)

    def close_if_listener_is_gone(self, connection: Connection) -> None:
        """One that was on its way while its listener was removed."""
        if connection.listener in self._closed_listeners and connection.fd in self.by_fd:
            self.close(connection, "its listener was removed")

    def kill(self, name: str) -> bool:
        """Close the connection with that id, as `describe` shows it; False if it is not here."""
        for connection in self.by_fd.values():
            if connection_name(connection) == name:
                self.close(connection, "an operator asked for it")
                return True
        return False

    def describe(self) -> list[dict[str, Any]]:
        """One entry for each connection, for people and `kproc clients`."""
        now_ns = self._clock.now_ns()
        return [describe(each, self._owner.index, now_ns) for each in list(self.by_fd.values())]
