"""ConnectionMigration: gives connections to other Processors and adopts theirs.

migration_steps.py decides when each step is due, migration_channel.py sends state and socket. This file removes
connections from the tables and enters them.
"""

from __future__ import annotations

import select
import socket

from kproc.broker.processor.connection import Books, Connection
from kproc.broker.processor.connection_state import CLOSING, PAUSED, Pause
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.frame_memory import FrameMemory
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.migration_channel import Given, MigrationChannel, unsent_of
from kproc.broker.processor.migration_steps import MigrationSteps, claim
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.socket_watch import EpollWatch
from kproc.broker.processor.timed_requests import TimedRequests
from kproc.broker.processor.transport_layer import PlaintextTransport
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.envelope import FLAG_MOVED
from kproc.common.clock import Clock


class ConnectionMigration:
    """One per Processor. It is the Holder of its MigrationSteps."""

    __slots__ = (
        "_books", "_handlers", "_memory", "_state", "_table", "_timed", "_watch", "channels", "steps",
    )  # fmt: skip

    def __init__(
        self,
        table: ConnectionTable,
        handlers: HandlerSet,
        state: ProcessorState,
        *,
        watch: EpollWatch,
        books: Books,
        timed: TimedRequests,
        memory: FrameMemory,
        clock: Clock,
    ) -> None:
        self._table = table
        self._handlers = handlers
        self._state = state
        self._watch = watch
        self._books = books
        self._timed = timed
        self._memory = memory
        self.channels: dict[int, MigrationChannel] = {}  # by descriptor
        self.steps = table.mover = MigrationSteps(self, clock)

    # -- the other Processors ----------------------------------------------------------------------------------

    def attach(self, peer: AgentId, sock: socket.socket) -> None:
        """Use the socket pair with another Processor, which has started."""
        self.detach(peer)
        channel = MigrationChannel(peer, sock)
        self.channels[channel.fd] = channel
        self.steps.attach(channel)
        self._watch.epoll.register(channel.fd, select.EPOLLIN)

    def detach(self, peer: AgentId) -> bool:
        """Handle the end of another Processor: take back the connections that it did not acknowledge.

        Return False if `peer` is not a Processor that is attached.
        """
        channel = self.steps.channel(peer)
        if channel is None:
            return False
        self._watch.epoll.unregister(channel.fd)
        del self.channels[channel.fd]
        self.steps.detach(peer)
        self._state.press()
        return True

    def on_readable(self, fd: int) -> bool:
        """Handle the messages of another Processor. Return False if the descriptor is not that of a socket pair."""
        channel = self.channels.get(fd)
        if channel is None:
            return False
        if not self.steps.on_readable(channel):
            self.detach(channel.peer)
        self._state.press()
        return True

    def leave(self, targets: list[AgentId]) -> None:
        """Give every connection that can migrate to these Processors, and accept no new one."""
        self._state.is_leaving = True
        for connection in list(self._table.gated):
            self._table.close(connection, "its Processor leaves before it has logged in")
        able = [each for each in self._table.by_fd.values() if each.transport.can_move]
        self.steps.leave(able, targets)
        self._state.press()

    def rebalance(self, count: int, target: AgentId) -> int:
        """Give `count` connections to another Processor; return how many will go.

        They are chosen evenly between the busiest and the idlest, so that about their share of the load goes with them.
        """
        if not self._state.keeps_connections or self.steps.channel(target) is None:
            return 0
        able = [
            each
            for each in self._table.by_fd.values()
            if each.migration is None
            and each.state is not CLOSING
            and each.gate is None
            and each.transport.can_move
        ]
        able.sort(key=lambda each: each.next_sequence)
        count = min(count, len(able))
        self.steps.rebalance([able[at * len(able) // count] for at in range(count)], target)
        self._state.press()
        return count

    # -- Holder of migration_steps.py --------------------------------------------------------------------------

    def take_out(self, connection: Connection) -> None:
        self._table.remove(connection)

    def take_back(self, connection: Connection) -> None:
        self._watch.begin(connection, PAUSED)
        if Pause.STALLED in connection.pauses:
            self._table.stalled[connection] = None
        connection.pauses &= ~Pause.NO_MEMORY
        self._table.keep(connection)
        # Its home may have died or begun to leave meanwhile. Homes plans a new home only for connections in the table.
        home = connection.next_home or connection.home
        if home.is_leaving or home.link is None or home.peer not in self._handlers.by_id:
            self._table.plan_home(connection, self._handlers.least_busy())

    def let_go(self, connection: Connection) -> None:
        """Close our copy of the socket without a shutdown, which would end the connection for the new Processor."""
        self._table.free_block(connection)
        connection.transport.close()
        self._handlers.tell_gone(connection, FLAG_MOVED)
        connection.books.moved_away(connection)
        self._timed.forget_connection(connection.id)

    def resume(self, connection: Connection) -> None:
        self._table.update_interest(connection)

    def drop(self, connection: Connection, reason: str) -> None:
        self._table.close(connection, reason)

    def can_adopt(self, given: Given) -> bool:
        given_state = given.state
        assert given_state is not None
        by_index = self._handlers.by_index
        target = by_index.get(given_state.target)
        # Only the Handler that keeps the answers can send them, so it must have a link to this Processor.
        has_handler = bool(by_index) and (
            not given_state.kept or (target is not None and target.link is not None)
        )
        if not self._state.keeps_connections or not has_handler or given.sock is None:
            given.give_room_back()
            return False
        return given.has_room(self._memory)

    def adopt(self, given: Given) -> None:
        state, sock = given.state, given.sock
        assert state is not None
        assert sock is not None
        # The home may have died or left since the other Processor packed the state.
        home = self._handlers.by_index.get(state.home)
        if home is None or home.link is None:
            home = self._handlers.least_busy()
        last_active_ns = max(state.last_active_ns, 0)
        connection = Connection(
            state.id,
            PlaintextTransport(sock),
            origin=state.origin,
            books=self._books,
            home=home,
            now_ns=last_active_ns,
        )
        connection.open_gate(state.session)  # A connection that has not logged in does not migrate.
        if state.kept:
            connection.target = self._handlers.by_index[state.target]
        connection.client = state.client
        connection.next_sequence, connection.next_send = state.next_sequence, state.next_send
        connection.stash = {sequence: (kind, record) for sequence, kind, record in state.stash}
        connection.inflight = len(state.kept) + len(state.stash)
        connection.held = state.held
        connection.out = unsent_of(given)
        connection.state = state.state
        if state.is_stalled:
            connection.pauses |= Pause.STALLED
        block = given.read_block()
        if block is not None:
            self._memory.assign(connection, block)
        self._watch.begin(connection, PAUSED)
        self._table.keep(connection)
        connection.books.moved_in(connection)
        if state.is_stalled:
            self._table.stalled[connection] = None
        if state.throttled_until_ns:
            self._table.throttle(connection, state.throttled_until_ns)
        if state.kept:
            claim(connection, state.kept)
        self._state.press()
        self._table.update_interest(connection)
        self._table.close_if_listener_is_gone(connection)
