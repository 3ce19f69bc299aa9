"""MigrationSteps: the connections of one Processor that migrate to another one, each step by step.

The states of one migration. The connection is not read until the end:

    asked    MOVE_OUT was sent to the Handler that has its requests, behind them. That Handler keeps the answers of
             requests that are parked, or park later, and lists them in MOVED; it answers all others here, as ever
    ready    no answer is outstanding but the kept ones, and every early answer is in the stash
    given    state and socket have been sent (migration_channel.py). The connection is in no table and no epoll, but
             still ours
    gone     TAKEN came: we close our copy and tell the Handlers. The new Processor claims the kept answers with MOVE_IN

If the target refuses or dies, a connection that must leave is sent to the next target. One that was only to be
rebalanced stays: we claim its kept answers with MOVE_IN ourselves, and no other role notices.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from kproc.broker.processor.connection import Connection
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.processor.migration_channel import GIVE, REFUSED, TAKEN, Given, MigrationChannel
from kproc.broker.processor.migration_state import MigrationState
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.envelope import HEAD, MOVE_IN, MOVE_OUT, SEQUENCE_MASK, pack_sequences
from kproc.common.clock import Clock

logger = logging.getLogger(__name__)

# Most connections in the state `asked`: each of them is not read until its Handler has answered.
_ASKED_MAX: Final = 256
_RETRY_NS: Final = 100_000_000  # Pause when the target has no room, or there is no target.


class Holder(Protocol):
    """The operations that a migration needs from the Processor, which owns the tables and the epoll."""

    def take_out(self, connection: Connection) -> None:
        """Take the connection out of every table and epoll without closing it."""

    def take_back(self, connection: Connection) -> None:
        """Undo `take_out`; the connection is still not read."""

    def let_go(self, connection: Connection) -> None:
        """Release a connection that another Processor has adopted. The client must not notice."""

    def resume(self, connection: Connection) -> None:
        """Update what the connection waits for, because its migration has begun or was given up."""

    def drop(self, connection: Connection, reason: str) -> None:
        """Close the connection."""

    def can_adopt(self, given: Given) -> bool:
        """Return True if `adopt` will succeed: memory is reserved and the connection's Handler has a link."""

    def adopt(self, given: Given) -> None:
        """Register a connection that another Processor gave. TAKEN has already been sent."""


class MigrationSteps:
    """One per Processor, which calls `work` in each duty cycle while `is_active`."""

    def __init__(self, holder: Holder, clock: Clock) -> None:
        self._holder = holder
        self._clock = clock
        self._channels: dict[AgentId, MigrationChannel] = {}
        self._todo: dict[Connection, None] = {}
        self._asked: dict[Connection, None] = {}
        self._ready: dict[Connection, None] = {}
        self._targets: deque[AgentId] = deque()
        self._arrived: deque[tuple[MigrationChannel, Given]] = deque()
        self._attempt = 0
        self._retry_ns = 0
        self._is_over = False

    @property
    def is_active(self) -> bool:
        """True while a connection migrates away, or a message could not be sent."""
        return bool(
            self._todo
            or self._asked
            or self._ready
            or self._arrived
            or any(channel.given or channel.has_unsent for channel in self._channels.values())
        )

    # -- wiring ------------------------------------------------------------------------------------------------

    def attach(self, channel: MigrationChannel) -> None:
        self._channels[channel.peer] = channel

    def channel(self, peer: AgentId) -> MigrationChannel | None:
        return self._channels.get(peer)

    def detach(self, peer: AgentId) -> int:
        """Handle the end of another Processor: take back the connections that it did not acknowledge.

        Return the closed descriptor, or -1 if `peer` is not attached.
        """
        channel = self._channels.get(peer)
        if channel is None:
            return -1
        # Read first: before it died it may have sent TAKEN for connections. These are no longer ours.
        self.on_readable(channel)
        del self._channels[peer]
        given = list(channel.given.values())
        channel.given.clear()
        fd = channel.fd
        channel.close()
        for connection in given:
            self._came_back(connection)
        return fd

    def close(self) -> None:
        """Close all connections that are still ours, because the Processor ends."""
        for channel in self._channels.values():
            for connection in channel.given.values():
                connection.transport.close()
            channel.close()
        for _, given in self._arrived:
            given.close()
        self._channels.clear()

    # -- starting and cancelling -------------------------------------------------------------------------------

    def leave(self, connections: Iterable[Connection], targets: Iterable[AgentId]) -> None:
        """Give every connection away, to these Processors in turn."""
        self._targets = deque(targets)
        # If a connection that was already given is refused, it must go to another target.
        for connection in self.given():
            assert connection.migration is not None
            connection.migration.must_leave()
        for connection in connections:
            if connection.migration is not None:
                connection.migration.must_leave()
            else:
                self._plan(connection, None)

    def rebalance(self, connections: Iterable[Connection], target: AgentId) -> None:
        for connection in connections:
            self._plan(connection, target)

    def cancel_all(self) -> None:
        """Give up every migration, because the broker stops. Connections that are still here are answered here."""
        self._is_over = True
        for connection in [*self._todo, *self._asked, *self._ready]:
            self._give_up(connection)

    def forget(self, connection: Connection) -> None:
        """Remove a connection that was closed, or whose migration was given up."""
        for stage in (self._todo, self._asked, self._ready):
            stage.pop(connection, None)

    def given(self) -> list[Connection]:
        """Return the connections in the state `given`. They are in no table, but come back if the target refuses."""
        return [each for channel in self._channels.values() for each in channel.given.values()]

    def handler_lost(self, handler: HandlerPeer) -> None:
        """Mark the given connections whose answers were kept by a Handler that has died."""
        for connection in self.given():
            if connection.target is handler and connection.inflight and connection.migration is not None:
                connection.migration.lose()

    # -- step by step ------------------------------------------------------------------------------------------

    def work(self) -> int:
        """Start further migrations, give away the connections that are ready, and send queued messages."""
        done = 0
        while self._todo and len(self._asked) < _ASKED_MAX:
            connection = next(iter(self._todo))
            del self._todo[connection]
            self._ask(connection)
            done += 1
        if self._ready and self._clock.now_ns() >= self._retry_ns:
            for connection in list(self._ready):
                if connection in self._ready and not self._give(connection):
                    break
                done += 1
        for channel in self._channels.values():
            channel.flush()
        while self._arrived and self._take(*self._arrived[0]):
            self._arrived.popleft()
            done += 1
        return done

    def advance(self, connection: Connection) -> None:
        """Give the connection away if no answer but the kept ones is outstanding any more."""
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
        """Handle a Handler's list of the requests whose answers it keeps. The other requests are answered here."""
        state = connection.migration
        if state is not None and state.keep(attempt, sequences):
            self.advance(connection)

    def _plan(self, connection: Connection, target: AgentId | None) -> None:
        self._attempt = (self._attempt + 1) & SEQUENCE_MASK
        connection.start_migration(MigrationState(target, self._attempt))
        self._todo[connection] = None
        self._holder.resume(connection)  # This stops reading it, because `migration` is set.

    def _ask(self, connection: Connection) -> None:
        state = connection.migration
        assert state is not None
        self._asked[connection] = None
        if connection.inflight and not state.is_asked:
            assert connection.target.link is not None, "a Handler that died takes its connections with it"
            connection.target.notify(MOVE_OUT, HEAD.pack(connection.id, state.attempt, 0, 0))
            state.is_asked = True
        self.advance(connection)

    def _give(self, connection: Connection) -> bool:
        """Send a ready connection to its target. Return False if no target can accept one now."""
        state = connection.migration
        assert state is not None
        if state.target is not None:
            channel = self._channels.get(state.target)
            if channel is None:
                self._give_up(connection)
                return True
            if not channel.has_window:
                return False
        else:
            channel = self._next_channel()
            if channel is None:
                return False
        del self._ready[connection]
        self._holder.take_out(connection)
        channel.give(connection, state.kept)
        return True

    def _next_channel(self) -> MigrationChannel | None:
        for _ in range(len(self._targets)):
            channel = self._channels.get(self._targets[0])
            self._targets.rotate(-1)
            if channel is not None and channel.has_window:
                return channel
        return None

    def _came_back(self, connection: Connection) -> None:
        """Take back a given connection that was refused, or whose target died before it sent TAKEN."""
        state = connection.migration
        assert state is not None
        self._holder.take_back(connection)
        # The Handler that kept its answers died while the connection was given away. Nobody can claim them any more.
        if state.is_lost:
            self._holder.drop(connection, "its Handler died")
        elif state.target is None and not self._is_over:
            self._ready[connection] = None
            self._retry_ns = self._clock.now_ns() + _RETRY_NS
        else:
            self._give_up(connection)

    def _give_up(self, connection: Connection) -> None:
        """Keep the connection here and claim its kept answers."""
        self.forget(connection)
        state = connection.migration
        assert state is not None
        connection.end_migration()
        if state.is_asked and connection.target.link is not None:
            claim(connection, state.kept)
        self._holder.resume(connection)

    # -- messages of other Processors --------------------------------------------------------------------------

    def on_readable(self, channel: MigrationChannel) -> bool:
        """Handle the messages of another Processor. Return False if it has ended."""
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
                if self._arrived or not self._take(channel, given):
                    self._arrived.append((channel, given))
                continue
            connection = channel.given.pop(connection_id)
            if kind == TAKEN:
                connection.end_migration()
                self._holder.let_go(connection)
            else:
                assert kind == REFUSED, kind
                self._came_back(connection)

    def _take(self, channel: MigrationChannel, given: Given) -> bool:
        """Send TAKEN and adopt the connection, or send REFUSED. Return False if the answer cannot be sent yet."""
        if not given.is_whole or given.state is None or not self._holder.can_adopt(given):
            if not channel.try_answer(REFUSED, given.id):
                return False
            given.close()
            return True
        # Send TAKEN first. If we die right after it, the giver still reads it and gives the connection to nobody else.
        # Only after TAKEN may we read the connection and claim its kept answers.
        if not channel.try_answer(TAKEN, given.id):
            return False
        self._holder.adopt(given)
        return True


def claim(connection: Connection, kept: list[int]) -> None:
    """Send MOVE_IN, so that the Handler sends the kept answers of these requests to us."""
    assert connection.target.link is not None
    head = HEAD.pack(connection.id, 0, connection.listener, connection.flags)
    connection.target.notify(MOVE_IN, head, pack_sequences(kept))
