"""ConnectionMigration: gives connections to other Processors, each step by step. adoption.py adopts theirs.

The states of one migration. The connection is not read until the end:

    asked    MOVE_OUT was sent to the Handler that has its requests, behind them. That Handler keeps the answers of
             requests that are parked, or park later, and lists them in MOVED; it sends all other answers as before
    ready    no answer is outstanding but the kept ones, and every early answer is in the stash
    given    state and socket have been sent (migration_channel.py). The connection is in no table and no epoll, but
             this Processor still owns it
    gone     TAKEN came: this Processor closes its copy of the socket and sends DISCONNECTED to the Handlers. The new
             Processor claims the kept answers with MOVE_IN

If the target refuses or dies, a connection that must leave is sent to the next target. One that was only to be
rebalanced stays: we claim its kept answers with MOVE_IN ourselves, and no other role notices.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import deque
from typing import Final

from kproc.broker.processor.adoption import ConnectionAdoption, claim
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_state import CLOSING, PAUSED, Pause
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.migration_channel import GIVE, REFUSED, TAKEN, MigrationChannel
from kproc.broker.processor.migration_state import MigrationState
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.timed_requests import TimedRequests
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.envelope import FLAG_MOVED, HEAD, MOVE_OUT, SEQUENCE_MASK
from kproc.common.clock import Clock

logger = logging.getLogger(__name__)

# Limit of the connections that migrate in the state `asked` at one time. The Processor reads no requests from such a
# connection until its Handler has answered, so its client waits.
_ASKED_MAX: Final = 256
_RETRY_NS: Final = 100_000_000  # Pause when the target has no room, or there is no target.


class ConnectionMigration:
    """Migrates connections to other Processors, step by step. Connections from them go to `adoption`.

    One per Processor, which calls `work` in each duty cycle while `is_active`.
    """

    __slots__ = (
        "_adoption", "_asked", "_attempt", "_by_peer", "_clock", "_handlers", "_is_over", "_ready", "_retry_ns",
        "_state", "_table", "_targets", "_timed", "_todo", "_watch", "channels",
    )  # fmt: skip

    def __init__(
        self,
        table: ConnectionTable,
        handlers: HandlerSet,
        state: ProcessorState,
        *,
        adoption: ConnectionAdoption,
        timed: TimedRequests,
        clock: Clock,
    ) -> None:
        self._table = table
        self._handlers = handlers
        self._state = state
        self._watch = table.watch
        self._adoption = adoption
        self._timed = timed
        self._clock = clock
        self.channels: dict[int, MigrationChannel] = {}  # By descriptor.
        self._by_peer: dict[AgentId, MigrationChannel] = {}
        # Connections that migrate, by the state of their migration. Those in `_todo` have not begun.
        self._todo: dict[Connection, None] = {}
        self._asked: dict[Connection, None] = {}
        self._ready: dict[Connection, None] = {}
        self._targets: deque[AgentId] = deque()
        self._attempt = 0
        self._retry_ns = 0
        self._is_over = False
        table.mover = self

    @property
    def is_active(self) -> bool:
        """True while a connection migrates to or from this Processor, or a message about that is unsent."""
        return bool(
            self._todo
            or self._asked
            or self._ready
            or self._adoption.arrived
            or any(channel.given or channel.has_unsent for channel in self._by_peer.values())
        )

    # -- the other Processors ----------------------------------------------------------------------------------

    def attach(self, peer: AgentId, sock: socket.socket) -> None:
        """Use the socket pair with another Processor, which has started."""
        self.detach(peer)
        channel = MigrationChannel(peer, sock)
        self.channels[channel.fd] = channel
        self._by_peer[peer] = channel
        self._watch.epoll.register(channel.fd, select.EPOLLIN)

    def detach(self, peer: AgentId) -> bool:
        """Handle the end of another Processor: take back the connections that it did not acknowledge.

        Return False if `peer` is not a Processor that is attached.
        """
        channel = self._by_peer.get(peer)
        if channel is None:
            return False
        self._watch.epoll.unregister(channel.fd)
        del self.channels[channel.fd]
        # Read the channel first: the other Processor may have sent TAKEN before it died. Those connections were its
        # own, and are not taken back.
        self._read(channel)
        del self._by_peer[peer]
        given = list(channel.given.values())
        channel.given.clear()
        channel.close()
        for connection in given:
            self._came_back(connection)
        self._state.press()
        return True

    def on_readable(self, fd: int) -> bool:
        """Read the messages of another Processor about migrations.

        Return False if the descriptor is not such a socket pair.
        """
        channel = self.channels.get(fd)
        if channel is None:
            return False
        if not self._read(channel):
            self.detach(channel.peer)
        self._state.press()
        return True

    def close(self) -> None:
        """Close the channels and the connections in transit, because this Processor ends.

        In transit are those given away without a TAKEN so far, and those that arrived and are not accepted yet.
        """
        for channel in self._by_peer.values():
            for connection in channel.given.values():
                connection.transport.close()
            channel.close()
        self._adoption.close()
        self.channels.clear()
        self._by_peer.clear()

    # -- starting and cancelling -------------------------------------------------------------------------------

    def migrate_all(self, targets: list[AgentId]) -> None:
        """Give every connection that can migrate to these Processors in turn, and accept no new one.

        Connections that are logging in are closed. TLS connections stay: TlsConnections closes them.
        """
        self._state.is_leaving = True
        for connection in list(self._table.logging_in):
            self._table.close(connection, "its Processor leaves before it has logged in")
        self._targets = deque(targets)
        # If a connection that was already given is refused, it must go to another target.
        for connection in self.given():
            assert connection.migration is not None
            connection.migration.must_leave()
        for connection in [each for each in self._table.by_fd.values() if each.transport.can_move]:
            if connection.migration is not None:
                connection.migration.must_leave()
            else:
                self._plan(connection, None)
        self._state.press()

    def rebalance(self, count: int, target: AgentId) -> int:
        """Give `count` connections to another Processor; return how many will go.

        They are chosen evenly between the busiest and the idlest, so that about their share of the load goes with them.
        """
        if not self._state.keeps_connections or target not in self._by_peer:
            return 0
        able = [
            each
            for each in self._table.by_fd.values()
            if each.migration is None
            and each.state is not CLOSING
            and each.login is None
            and each.transport.can_move
        ]
        # The number of requests so far is the measure of a connection's load.
        able.sort(key=lambda each: each.next_sequence)
        count = min(count, len(able))
        for at in range(count):
            self._plan(able[at * len(able) // count], target)
        self._state.press()
        return count

    def cancel_all(self) -> None:
        """Give up every migration, because the broker stops. Connections that were not sent away are answered here."""
        self._is_over = True
        for connection in [*self._todo, *self._asked, *self._ready]:
            self._keep_here(connection)

    def remove(self, connection: Connection) -> None:
        """Cancel the migration of a connection that was closed, or that stays here."""
        for stage in (self._todo, self._asked, self._ready):
            stage.pop(connection, None)

    def given(self) -> list[Connection]:
        """Return the connections in the state `given`. They are in no table, but come back if the target refuses."""
        return [each for channel in self._by_peer.values() for each in channel.given.values()]

    def handler_lost(self, handler: HandlerPeer) -> None:
        """Record the death of a Handler for the connections in the state `given` whose answers it kept."""
        for connection in self.given():
            if connection.target is handler and connection.inflight and connection.migration is not None:
                connection.migration.mark_lost()

    # -- step by step ------------------------------------------------------------------------------------------

    def work(self) -> int:
        """Start further migrations, send the connections that are ready, and answer those that arrived.

        Return the amount of work.
        """
        done = 0
        while self._todo and len(self._asked) < _ASKED_MAX:
            connection = next(iter(self._todo))
            del self._todo[connection]
            self._move_out(connection)
            done += 1
        if self._ready and self._clock.now_ns() >= self._retry_ns:
            for connection in list(self._ready):
                # The window of the target is full. Try this connection and the rest again later.
                if connection in self._ready and not self._send_to_target(connection):
                    break
                done += 1
        for channel in self._by_peer.values():
            channel.flush()
        return done + self._adoption.work()

    def advance(self, connection: Connection) -> None:
        """Mark the connection as ready if no answer but the kept ones is outstanding. `work` then sends it away."""
        state = connection.migration
        if (
            state is not None
            and connection in self._asked
            and state.is_ready(connection.inflight, len(connection.stash))
            and not connection.ready
        ):
            del self._asked[connection]
            self._ready[connection] = None

    def on_moved(self, connection: Connection, attempt: int, sequences: list[int]) -> None:
        """Record the requests whose answers the Handler keeps for the target Processor.

        This Processor sends all other answers.
        """
        state = connection.migration
        if state is not None and state.keep(attempt, sequences):
            self.advance(connection)

    def _plan(self, connection: Connection, target: AgentId | None) -> None:
        self._attempt = (self._attempt + 1) & SEQUENCE_MASK
        connection.start_migration(MigrationState(target, self._attempt))
        self._todo[connection] = None
        # Stop reading the connection: start_migration has set Pause.MIGRATING.
        self._table.update_interest(connection)

    def _move_out(self, connection: Connection) -> None:
        """Send MOVE_OUT to the Handler, if it has requests of the connection, and go on with the migration."""
        state = connection.migration
        assert state is not None
        self._asked[connection] = None
        if connection.inflight and not state.is_asked:
            assert connection.target.link is not None, "a Handler that died takes its connections with it"
            connection.target.notify(MOVE_OUT, HEAD.pack(connection.id, state.attempt, 0, 0))
            state.is_asked = True
        self.advance(connection)

    def _send_to_target(self, connection: Connection) -> bool:
        """Send a ready connection to its fixed target, or to the next Processor with room if it has none.

        Keep the connection here if its fixed target has no link. Return False if no target can accept it now.
        """
        state = connection.migration
        assert state is not None
        if state.target is not None:
            channel = self._by_peer.get(state.target)
            if channel is None:
                self._keep_here(connection)
                return True
            if not channel.has_window:
                return False
        else:
            channel = self._next_channel()
            if channel is None:
                return False
        del self._ready[connection]
        self._table.remove(connection)
        channel.send_connection(connection, state.kept)
        return True

    def _next_channel(self) -> MigrationChannel | None:
        for _ in range(len(self._targets)):
            channel = self._by_peer.get(self._targets[0])
            self._targets.rotate(-1)
            if channel is not None and channel.has_window:
                return channel
        return None

    def _came_back(self, connection: Connection) -> None:
        """Take back a connection that its target refused, or whose target died before it sent TAKEN."""
        state = connection.migration
        assert state is not None
        self._enter_again(connection)
        # The Handler that kept its answers died while the connection was given away. Nobody can claim them any more.
        if state.is_lost:
            self._table.close(connection, "its Handler died")
        elif state.target is None and not self._is_over:
            self._ready[connection] = None
            self._retry_ns = self._clock.now_ns() + _RETRY_NS
        else:
            self._keep_here(connection)

    def _enter_again(self, connection: Connection) -> None:
        """Enter a connection that was given away in all tables. It is still not read."""
        self._watch.register(connection, PAUSED)
        if Pause.STALLED in connection.pauses:
            self._table.stalled[connection] = None
        connection.pauses &= ~Pause.NO_MEMORY
        self._table.keep(connection)
        # The connection's home may have died or begun to leave during the migration. HandlerAssignment plans a new home
        # only for connections in the table.
        home = connection.next_home or connection.home
        if home.is_leaving or home.link is None or home.peer not in self._handlers.by_id:
            self._table.plan_home(connection, self._handlers.least_busy())

    def _keep_here(self, connection: Connection) -> None:
        """Keep the connection at this Processor, and claim its kept answers from the Handler."""
        self.remove(connection)
        state = connection.migration
        assert state is not None
        connection.finish_migration()
        if state.is_asked and connection.target.link is not None:
            claim(connection, state.kept)
        self._table.update_interest(connection)

    # -- messages of other Processors --------------------------------------------------------------------------

    def _read(self, channel: MigrationChannel) -> bool:
        """Handle another Processor's messages about migrations.

        Connections that it gives are adopted or refused. Ours that it has taken are released, and ours that it refused
        come back. Return False if that Processor has ended.
        """
        while True:
            try:
                message = channel.receive()
            except EOFError:
                return False
            if message is None:
                return True
            kind, connection_id, given = message
            if kind == GIVE:
                assert given is not None
                self._adoption.add(channel, given)
                continue
            connection = channel.given.pop(connection_id)
            if kind == TAKEN:
                connection.finish_migration()
                self._release(connection)
            else:
                assert kind == REFUSED, kind
                self._came_back(connection)

    def _release(self, connection: Connection) -> None:
        """Close our copy of the socket without a shutdown, which would end the connection for the new Processor."""
        self._table.free_block(connection)
        connection.transport.close()
        self._handlers.send_disconnected(connection, FLAG_MOVED)
        connection.counters.moved_away(connection)
        self._timed.discard_connection(connection.id)
