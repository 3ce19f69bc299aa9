"""ConnectionTable: the connections of a Processor. It registers and closes them, and decides what each waits for.

`update_interest` makes that decision, by the table in connection_state.py. `pause`, `resume` and `drain` call it; every
other function that changes one of its conditions must call it, too.
request_reader.py reads from the connections, response_writer.py sends their answers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.activity import ActivityWheel
from kproc.broker.processor.connection import Connection, Origin
from kproc.broker.processor.connection_state import (
    ACTIVE,
    DETACHED,
    DRAINING,
    OPEN,
    PAUSED,
    WRITING,
    Pause,
)
from kproc.broker.processor.describe import connection_name, describe
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.memory_budget import MemoryBudget
from kproc.broker.processor.pending_login import DEFAULT_LIMITS, PendingLogin
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.socket_watch import EpollWatch
from kproc.broker.processor.transport_layer import Transport
from kproc.broker.role.handoff import share_key
from kproc.broker.security.session import Session
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import NS_PER_MS, Clock
from kproc.common.deadlines import Deadlines

if TYPE_CHECKING:
    from kproc.broker.processor.connection_counters import ConnectionCounters
    from kproc.broker.processor.migration import ConnectionMigration

logger = logging.getLogger(__name__)

_NUMBER_MAX: Final = (1 << 31) - 1  # Kafka counts connections in a Java int.
_AGAIN_NS: Final = 1_000_000_000
_ID_TIME_SHIFT, _ID_NUMBER_SHIFT = 20, 9


class ConnectionTable:
    """The connections of one Processor: registers, pauses and closes them.

    A connection is in all of its tables or in none.
    """

    __slots__ = (
        "_activity", "_budget", "_clock", "_closed_listeners", "_handlers",
        "_next_id", "_number", "_owner", "_sessions", "_state", "_throttles", "awaiting_block", "by_fd", "by_id",
        "logging_in", "logins", "mover",
        "short_of_memory", "stalled", "watch",
    )  # fmt: skip

    mover: ConnectionMigration  # Set by ConnectionMigration, which needs this table to make it.

    def __init__(
        self,
        owner: AgentId,
        state: ProcessorState,
        *,
        watch: EpollWatch,
        handlers: HandlerSet,
        budget: MemoryBudget,
        clock: Clock,
    ) -> None:
        self._owner = owner
        self._state = state
        self.watch = watch
        self._handlers = handlers
        self._budget = budget
        self._clock = clock
        self.by_fd: dict[int, Connection] = {}
        self.by_id: dict[int, Connection] = {}
        self.stalled: dict[Connection, None] = {}
        self.short_of_memory: dict[Connection, None] = {}
        # By address (share_key): the connections whose unfinished frames wait for memory.
        self.awaiting_block: dict[bytes, dict[Connection, None]] = {}
        self.logging_in: dict[Connection, None] = {}  # Connections whose clients have to log in.
        self._sessions: Deadlines[Connection] = Deadlines()  # The ends of sessions, in ns.
        self.logins = DEFAULT_LIMITS
        self._activity = ActivityWheel()
        self._throttles: Deadlines[Connection] = Deadlines()
        self._closed_listeners: set[int] = set()
        self._number = -1
        # An id is made of the time, a count and the Processor, so that it is unique in the broker, also after a
        # restart. A connection keeps its id when it migrates.
        self._next_id = (clock.wall_ms() << _ID_TIME_SHIFT) | owner.index

    # -- opening and closing -----------------------------------------------------------------------------------

    def open(
        self,
        transport: Transport,
        counters: ConnectionCounters,
        *,
        listener: int,
        flags: int,
        address: bytes,
        port: int,
    ) -> Connection | None:
        """Register a new socket. Close it and return None if epoll rejects it, no Handler exists or the broker ends."""
        if not self._handlers.by_id or self._state.is_stopping:
            transport.close()
            return None
        home = self._handlers.least_busy()
        self._next_id += 1 << _ID_NUMBER_SHIFT
        self._number = (self._number + 1) & _NUMBER_MAX
        accepted_ms = self._clock.wall_ms()
        origin = Origin(self._owner.index, self._number, listener, flags, address, port, accepted_ms)
        now_ns = self._clock.now_ns()
        connection = Connection(
            self._next_id, transport, origin=origin, counters=counters, home=home, now_ns=now_ns
        )
        try:
            self.watch.register(connection)
        except OSError as error:  # This one socket cannot be used; the others can.
            logger.info("closing a new connection, because epoll cannot watch its socket: %s", error)
            transport.close()
            return None
        self.keep(connection)
        counters.opened(connection)
        return connection

    def keep(self, connection: Connection) -> None:
        """Add the connection to every table: it is new, migrated here, or came back from a failed migration."""
        (connection.next_home or connection.home).homes += 1
        self.by_fd[connection.fd] = connection
        self.by_id[connection.id] = connection
        connection.counters.is_here(connection)
        self._activity.add(connection)
        if connection.login is not None:
            self.logging_in[connection] = None
        elif connection.session.ends_ns:
            self.start_session(connection)
        # A connection that comes back from a failed migration may still be throttled.
        if Pause.THROTTLED in connection.pauses:
            self._await_throttle(connection)
        if Pause.NO_BLOCK in connection.pauses:
            self._await_block(connection)
        self._budget.held_bytes += len(connection.held)

    def remove(self, connection: Connection) -> None:
        """Remove the connection from every table and from the epoll. It keeps its arena block."""
        del self.by_fd[connection.fd]
        del self.by_id[connection.id]
        connection.counters.is_gone(connection)
        self._activity.discard(connection)
        self.stalled.pop(connection, None)
        self.logging_in.pop(connection, None)
        self._sessions.discard(connection)
        self._throttles.discard(connection)
        self.short_of_memory.pop(connection, None)
        self._await_no_block(connection)
        self._budget.held_bytes -= len(connection.held)
        self.watch.unregister(connection)
        (connection.next_home or connection.home).homes -= 1

    def close(self, connection: Connection, reason: str) -> None:
        """Close a connection, and tell the Handlers that its client is gone."""
        logger.debug("closing connection %d: %s", connection.id, reason)
        self.remove(connection)
        if connection.migration is not None:
            self.mover.remove(connection)
        self.free_block(connection)
        self._close_socket(connection)
        self._handlers.send_disconnected(connection, 0)
        connection.counters.closed(connection)

    def close_failed(self, connection: Connection, error: Exception) -> None:
        """Close a connection after an unexpected error. Its descriptor may be in any state."""
        if not isinstance(error, OSError):
            self.contain(f"the work for connection {connection.id}", error)
        logger.error("closing connection %d after an unexpected error: %s", connection.id, error)
        if connection.fd not in self.by_fd:
            return
        try:
            self.watch.unregister(connection)
        except OSError as also:
            # epoll_ctl(2) fails if the descriptor was closed or is not registered. Close the connection all the same.
            logger.debug(
                "epoll cannot stop watching connection %d, closing it anyway: %s", connection.id, also
            )
        connection.interest = DETACHED
        self.close(connection, str(error))

    def contain(self, what: str, error: Exception) -> None:
        """Count and log an unexpected error of the work `what`, and let the Processor continue. Raise a FatalError."""
        self._state.containment.caught(what, error)

    def hung_up(self, connection: Connection) -> None:
        """Handle a hang-up of a client. A paused connection stays open, because its socket may hold unread requests."""
        if connection.interest == PAUSED:
            self.watch.detach(connection)
        else:
            self.close(connection, "the client is gone")

    def free_block(self, connection: Connection) -> None:
        """Free the memory of an unfinished frame."""
        if connection.block is not None:
            connection.block.memory.release(connection, connection.block)

    def _close_socket(self, connection: Connection) -> None:
        connection.transport.shutdown()
        connection.transport.close()

    # -- waiting -----------------------------------------------------------------------------------------------

    def update_interest(self, connection: Connection) -> None:
        """Set the events that epoll reports for the connection, by the table in connection_state.py.

        Continue a paused connection first: it may change its home, migrate, or forward stalled requests. Close a
        draining connection after its last answer.
        """
        if connection.pauses:
            self._resume_paused(connection)
        if connection.out:
            self.watch.set(connection, WRITING)
        elif (
            connection.pauses or connection.is_full or connection.state is not OPEN or self._state.is_stopping
        ):
            self.watch.set(connection, PAUSED)
            if (
                connection.state is DRAINING
                and not connection.inflight
                and Pause.STALLED not in connection.pauses
            ):
                self.close(connection, "its last request is answered")
        else:
            self.watch.set(connection, ACTIVE)

    def _resume_paused(self, connection: Connection) -> None:
        """Continue a paused connection as far as it can be now.

        That can be a change of its home, a step of its migration, or stalled requests.
        """
        if connection.next_home is not None and not connection.inflight:
            self._handlers.change_home(connection, connection.next_home)
        if connection.migration is not None:
            self.mover.advance(connection)
        if Pause.STALLED in connection.pauses and not connection.out and not connection.is_full:
            self.stalled[connection] = None
            self._state.press()

    def pause(self, connection: Connection, reason: Pause) -> None:
        """Stop reading a connection. TCP then pushes back on the client."""
        connection.pauses |= reason
        self.update_interest(connection)

    def resume(self, connection: Connection, reason: Pause) -> None:
        """End one reason not to read a connection. It is read again if that was the last one."""
        connection.pauses &= ~reason
        self.update_interest(connection)

    def drain(self, connection: Connection) -> None:
        """Read nothing more from a connection, and close it after its last answer."""
        if connection.state is OPEN:
            connection.state = DRAINING
        self.update_interest(connection)

    def stall(self, connection: Connection) -> None:
        """Stop reading a connection. Its received bytes wait for room in a ring, or for answers of another Handler."""
        self.stalled[connection] = None
        self._state.press()
        self._state.counts[SLOT["reads_stalled"]] += 1
        self.pause(connection, Pause.STALLED)

    def wait_for_memory(self, connection: Connection) -> None:
        """Pause a connection until the memory budget has room for a new request."""
        self.short_of_memory[connection] = None
        self._state.press()
        self._state.counts[SLOT["reads_stalled"]] += 1
        self.pause(connection, Pause.NO_MEMORY)

    def wait_for_block(self, connection: Connection) -> None:
        """Pause a connection until there is memory for more of its unfinished frame."""
        self._await_block(connection)
        self._state.counts[SLOT["reads_stalled"]] += 1
        self.pause(connection, Pause.NO_BLOCK)

    def _await_block(self, connection: Connection) -> None:
        self.awaiting_block.setdefault(share_key(connection.origin.address), {})[connection] = None
        self._state.press()

    def _await_no_block(self, connection: Connection) -> None:
        key = share_key(connection.origin.address)
        waiting = self.awaiting_block.get(key, {})
        if connection in waiting:
            del waiting[connection]
            if not waiting:
                del self.awaiting_block[key]

    def resume_with_block(self, connection: Connection) -> None:
        """Resume reading a connection whose frame has received memory."""
        self._await_no_block(connection)
        self.resume(connection, Pause.NO_BLOCK)

    def resume_short_of_memory(self) -> None:
        """Resume reading the connections that wait for memory, if the budget has room."""
        if self.short_of_memory and self._budget.has_room():
            for connection in list(self.short_of_memory):
                del self.short_of_memory[connection]
                self.resume(connection, Pause.NO_MEMORY)

    def plan_home(self, connection: Connection, home: HandlerPeer) -> None:
        """Change the connection's home Handler as soon as it has no request in work. Until then it is not read."""
        planned = connection.next_home or connection.home
        planned.homes -= 1
        home.homes += 1
        connection.plan_home(home)
        self.update_interest(connection)

    def pause_all(self) -> None:
        """Stop reading all connections, because the broker stops."""
        for connection in list(self.by_fd.values()):
            if not connection.out:
                self.watch.set(connection, PAUSED)

    def has_whole_request(self) -> bool:
        """Return True if a stalled connection has a whole request that waits for room, or for another Handler."""
        # A copy, because with the thread transport the main thread calls this while the Processor changes `stalled`.
        for connection in list(self.stalled):
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

    def throttle(self, connection: Connection, until_ns: int, quota: str = "") -> None:
        """Do not read the connection before `until_ns`. The caller calls `update_interest`.

        `quota` is the quota that the client exceeds; "" for a connection that migrated here with its throttle, because
        its former Processor has counted that.
        """
        if until_ns > connection.throttled_until_ns:
            if quota:
                connection.count_throttle(
                    quota, until_ns - max(connection.throttled_until_ns, self._state.moved_ns())
                )
            connection.throttled_until_ns = until_ns
            connection.pauses |= Pause.THROTTLED
            self._await_throttle(connection)

    def _await_throttle(self, connection: Connection) -> None:
        self._throttles.move(connection, connection.throttled_until_ns)
        self._state.press()

    def resume_throttled(self) -> None:
        """Resume reading the connections whose throttle has ended."""
        for connection in self._throttles.pop_due(self._state.moved_ns()):
            connection.throttled_until_ns = 0
            self.resume(connection, Pause.THROTTLED)

    def throttled_ms(self) -> int:
        """Return the milliseconds until the next throttle ends, rounded up. Requires `has_throttled`."""
        return max(0, -(-(self._throttles.first - self._state.moved_ns()) // NS_PER_MS))

    # -- logins ------------------------------------------------------------------------------------------------

    def authenticated(self, connection: Connection, session: Session) -> None:
        """Let a client's requests pass: it has logged in, or has prolonged its session."""
        connection.accept_login(session)
        self.logging_in.pop(connection, None)
        if session.ends_ns:
            self.start_session(connection)

    def start_session(self, connection: Connection) -> None:
        """Make the client log in again when its session ends (KIP-368)."""
        self._sessions.move(connection, connection.session.ends_ns)

    def expire_sessions(self) -> None:
        """Have the clients of ended sessions log in again. Requests in work are answered."""
        now_ns = self._state.moved_ns()
        for connection in self._sessions.pop_due(now_ns):
            if connection.login is not None:
                continue
            # A connection that has to log in cannot migrate. If this one reaches another Processor, that Processor ends
            # the session. Try again later in case the migration fails.
            if connection.migration is not None:
                self._sessions.move(connection, now_ns + _AGAIN_NS)
                continue
            connection.require_login(PendingLogin(self._clock.now_ns(), has_session=True))
            self.logging_in[connection] = None
            self.update_interest(connection)

    def expire_logins(self, now_ns: int) -> None:
        """Close connections whose clients did not log in within kproc.authentication.timeout.ms (0: no limit)."""
        longest_ns = self.logins.ns_max
        for connection in list(self.logging_in) if longest_ns else ():
            login = connection.login
            if login is not None and login.is_late(now_ns, longest_ns):
                self._state.counts[SLOT["logins_failed"]] += 1
                if self._state.refusals.has_room(now_ns):
                    logger.info(
                        "closing connection %s: no login within kproc.authentication.timeout.ms",
                        connection_name(connection),
                    )
                self.close(connection, "it did not log in in time")

    # -- evicted, expired, killed ------------------------------------------------------------------------------

    def evict(self, count: int, listener: int) -> None:
        """Close the `count` longest idle connections of a listener: the broker exceeds max.connections (KIP-402)."""
        for victim in self._activity.least_recent(count, lambda each: each.listener == listener):
            self.close(victim, "max.connections is exceeded")

    def expire_idle(self, before_ns: int) -> None:
        """Close connections without a byte since `before_ns` (connections.max.idle.ms), even with requests in work."""
        for connection in self._activity.idle_since(before_ns):
            self._state.counts[SLOT["connections_expired"]] += 1
            self.close(connection, "idle for connections.max.idle.ms")

    def close_listener(self, listener: int) -> int:
        """Close all connections of a removed listener. Return how many were at this Processor.

        A connection of the listener that migrates here later is closed when it arrives.
        """
        self._closed_listeners.add(listener)
        those = [each for each in self.by_fd.values() if each.origin.listener == listener]
        for connection in those:
            self.close(connection, "its listener was removed")
        return len(those)

    def open_listener(self, listener: int) -> None:
        """Let a new listener use the index of a removed one. First close the connections of the removed one."""
        self.close_listener(listener)
        self._closed_listeners.discard(listener)

    def close_if_listener_is_gone(self, connection: Connection) -> None:
        """Close a connection whose listener was removed while it migrated."""
        if connection.listener in self._closed_listeners and connection.fd in self.by_fd:
            self.close(connection, "its listener was removed")

    def kill(self, name: str) -> bool:
        """Close the connection with the id that `describe` shows. Return False if it is not here."""
        for connection in self.by_fd.values():
            if connection_name(connection) == name:
                self.close(connection, "an operator asked for it")
                return True
        return False

    def describe(self) -> list[dict[str, Any]]:
        """Return a description of each connection, for `kproc clients`."""
        now_ns, moved_ns = self._clock.now_ns(), self._state.moved_ns()
        return [describe(each, self._owner.index, now_ns, moved_ns) for each in list(self.by_fd.values())]
