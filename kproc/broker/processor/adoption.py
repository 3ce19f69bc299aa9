"""ConnectionAdoption: registers the connections that other Processors give to this one, or refuses them.

migration.py has the states of a migration as its giver sees them. Here it has two: a connection that has arrived waits
until its answer can be sent, and is then adopted (TAKEN) or refused (REFUSED).
"""

from __future__ import annotations

from collections import deque

from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_counters import ConnectionCounters
from kproc.broker.processor.connection_state import PAUSED
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.frame_memory import FrameMemory
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.migration_channel import (
    REFUSED,
    TAKEN,
    ArrivedConnection,
    MigrationChannel,
    restore_connection,
)
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.transport.envelope import HEAD, MOVE_IN, pack_sequences


class ConnectionAdoption:
    """Adopts or refuses the connections that other Processors give to this one. One per Processor."""

    __slots__ = ("_counters", "_handlers", "_memory", "_state", "_table", "_watch", "arrived")

    def __init__(
        self,
        table: ConnectionTable,
        handlers: HandlerSet,
        state: ProcessorState,
        *,
        counters: ConnectionCounters,
        memory: FrameMemory,
    ) -> None:
        self._table = table
        self._handlers = handlers
        self._state = state
        self._watch = table.watch
        self._counters = counters
        self._memory = memory
        # Connections whose answer the kernel had no room for, in the order of their arrival.
        self.arrived: deque[tuple[MigrationChannel, ArrivedConnection]] = deque()

    def add(self, channel: MigrationChannel, given: ArrivedConnection) -> None:
        """Adopt or refuse a connection that has arrived over `channel`, now or in a later `work`."""
        # Answer in the order of arrival, so that no connection waits behind later ones.
        if self.arrived or not self._accept_or_refuse(channel, given):
            self.arrived.append((channel, given))

    def work(self) -> int:
        """Adopt or refuse the connections in `arrived`, as far as their answers can be sent. Return their number."""
        done = 0
        while self.arrived and self._accept_or_refuse(*self.arrived[0]):
            self.arrived.popleft()
            done += 1
        return done

    def close(self) -> None:
        """Close the connections in `arrived`, because this Processor ends. Their givers then keep them."""
        for _, given in self.arrived:
            given.close()

    def _accept_or_refuse(self, channel: MigrationChannel, given: ArrivedConnection) -> bool:
        """Send TAKEN and adopt the connection, or send REFUSED. Return False if the answer cannot be sent yet."""
        if not given.is_whole or given.state is None or not self._can_adopt(given):
            if not channel.try_answer(REFUSED, given.id):
                return False
            given.close()
            return True
        # Send TAKEN first. If we die right after it, the giver still reads it and gives the connection to nobody else.
        # Only after TAKEN may we read the connection and claim its kept answers.
        if not channel.try_answer(TAKEN, given.id):
            return False
        self._adopt(given)
        return True

    def _can_adopt(self, given: ArrivedConnection) -> bool:
        """Return True if `_adopt` will succeed: the memory for the frame is now reserved, and the Handler has a link.

        Otherwise nothing stays reserved.
        """
        given_state = given.state
        assert given_state is not None
        by_index = self._handlers.by_index
        target = by_index.get(given_state.target)
        # Only the Handler that keeps the answers can send them, so it must have a link to this Processor.
        has_handler = bool(by_index) and (
            not given_state.kept or (target is not None and target.link is not None)
        )
        if not self._state.keeps_connections or not has_handler or given.sock is None:
            given.release_block()
            return False
        return given.has_room(self._memory)

    def _adopt(self, given: ArrivedConnection) -> None:
        """Register a connection that another Processor gave. TAKEN has already been sent."""
        state = given.state
        assert state is not None
        # The home may have died or left since the other Processor packed the state.
        home = self._handlers.by_index.get(state.home)
        if home is None or home.link is None:
            home = self._handlers.least_busy()
        connection = restore_connection(given, home, self._counters)
        if state.kept:
            connection.target = self._handlers.by_index[state.target]
        block = given.read_block()
        if block is not None:
            self._memory.assign(connection, block)
        self._watch.register(connection, PAUSED)
        self._table.keep(connection)
        connection.counters.moved_in(connection)
        if state.is_stalled:
            self._table.stalled[connection] = None
        connection.throttled_ns = state.throttled_ns
        if state.throttled_until_ns:
            self._table.throttle(connection, state.throttled_until_ns)
        if state.kept:
            claim(connection, state.kept)
        self._state.press()
        self._table.update_interest(connection)
        self._table.close_if_listener_is_gone(connection)


def claim(connection: Connection, kept: list[int]) -> None:
    """Send MOVE_IN, so that the Handler sends the kept answers to this Processor. kept: their requests' sequences."""
    assert connection.target.link is not None
    head = HEAD.pack(connection.id, 0, connection.listener, connection.flags)
    connection.target.notify(MOVE_IN, head, pack_sequences(kept))
