"""HandlerAssignment: chooses the home of each connection, as Handlers come and go.

The home is the Handler that gets a connection's requests unless the router knows a better one.
"""

from __future__ import annotations

from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.lent_blocks import LentBlocks
from kproc.broker.processor.migration import ConnectionMigration
from kproc.broker.processor.timed_requests import TimedRequests
from kproc.broker.transport.agent import AgentId, Link


class HandlerAssignment:
    """Chooses the home Handler of each connection, as Handlers come and go. One per Processor."""

    __slots__ = ("_blocks", "_handlers", "_migration", "_table", "_timed")

    def __init__(
        self,
        table: ConnectionTable,
        handlers: HandlerSet,
        *,
        blocks: LentBlocks,
        migration: ConnectionMigration,
        timed: TimedRequests,
    ) -> None:
        self._table = table
        self._handlers = handlers
        self._blocks = blocks
        self._migration = migration
        self._timed = timed

    def attach(self, link: Link) -> None:
        """Use the link of a Handler that has started, and make it the home of its share of the connections."""
        handlers = self._handlers
        handler = handlers.by_id.get(link.peer)
        is_new = handler is None
        if handler is None:
            handler = handlers.by_id[link.peer] = HandlerPeer(link.peer, handlers.unpublished)
        if not handler.is_leaving:
            handlers.by_index[link.peer.index] = handler
        handler.attach(link)
        handlers.links_changed()
        for connection in self._table.by_fd.values():
            connection.is_introduced = False  # The new Handler process knows no connection.
        if is_new:
            self._choose_routing()
        else:
            handlers.repeat_disconnected(handler)
        if not handler.is_leaving:
            # A restarted Processor may have had links only to Handlers that are leaving, and used them as homes. Give
            # their connections a home that stays.
            for leaving in [each for each in handlers.by_id.values() if each.is_leaving]:
                self._move_connections(leaving)
            self._spread(handler)

    def detach(self, peer: AgentId) -> None:
        """Handle the end of a Handler.

        A Handler that dies and is scaled away before its restart is detached twice. The second call removes it.
        """
        handler = self._handlers.by_id.get(peer)
        if handler is None:
            return
        if handler.link is not None:
            self._on_handler_death(handler)
        if handler.is_leaving:
            del self._handlers.by_id[peer]
            self._choose_routing()

    def _on_handler_death(self, handler: HandlerPeer) -> None:
        """Close the connections that had requests in work at a Handler that died, and free its blocks."""
        handler.detach()
        self._handlers.links_changed()
        self._migration.handler_lost(handler)
        self._timed.discard_handler(handler.peer)
        for connection in list(self._table.by_fd.values()):
            # A dead Handler never answers these requests. Kafka's protocol sends answers in the order of the requests,
            # so the connection cannot go on without them.
            if (connection.target is handler and connection.inflight) or _logs_in_at(connection, handler):
                self._table.close(connection, "its Handler died")
        self._blocks.release_all_of(handler)

    def drain(self, peer: AgentId) -> None:
        """Choose other home Handlers for the connections of a Handler that will end.

        Each connection changes its home when it has no request in work.
        """
        handler = self._handlers.by_id.get(peer)
        if handler is None or handler.is_leaving:
            return
        handler.mark_leaving()
        self._handlers.by_index.pop(peer.index, None)
        self._move_connections(handler)

    def _move_connections(self, handler: HandlerPeer) -> None:
        """Choose another home Handler for each connection of a Handler that is leaving.

        Close the connections whose login has begun there, because no other Handler can continue it.
        """
        for connection in list(self._table.by_fd.values()):
            if _logs_in_at(connection, handler):
                self._table.close(connection, "its Handler leaves before it has logged in")
            elif handler in (connection.home, connection.next_home):
                self._table.plan_home(connection, self._handlers.least_busy())

    def uses(self, peer: AgentId) -> bool:
        """Return True if a Handler has requests, connections or blocks of this Processor, or may still get some."""
        handler = self._handlers.by_id.get(peer)
        if handler is None:
            return False
        if handler in self._handlers.unpublished:
            return True
        return self._blocks.has_any_at(handler) or any(
            handler in (each.home, each.next_home) or (each.inflight and each.target is handler)
            for each in self._all()
        )

    def replace_dead_homes(self) -> None:
        """Give connections other homes if their Handler is away longer than a restart takes. Called once a second.

        The new home rejects requests for the dead Handler's partitions and serves all others.
        """
        least_busy = self._handlers.least_busy
        for handler in self._handlers.by_id.values():
            if not handler.stays_away() or least_busy().link is None:
                continue
            for connection in list(self._table.by_fd.values()):
                if handler is (connection.next_home or connection.home):
                    self._table.plan_home(connection, least_busy())

    def _choose_routing(self) -> None:
        only = self._handlers.choose_routing()
        if only is None:
            return
        # RequestReader._read_runs requires that an only Handler is the home of all connections.
        for connection in self._all():
            if connection.home is not only and _logs_in_at(connection, connection.home):
                self._table.close(connection, "its Handler is gone before it has logged in")
                continue
            # The former home is gone, and its share sessions with it, so send no DISCONNECTED.
            connection.set_home(only)
        for connection in list(self._table.by_fd.values()):
            self._table.update_interest(connection)

    def _spread(self, handler: HandlerPeer) -> None:
        """Make a new Handler the home of its share of the connections."""
        connections = list(self._table.by_fd.values())
        share = len(connections) // max(1, len(self._handlers.by_index))
        for connection in connections:
            if handler.homes >= share:
                return
            if (
                connection.next_home is None
                and connection.home.homes > share
                and not _logs_in_at(connection, connection.home)
            ):
                self._table.plan_home(connection, handler)

    def _all(self) -> list[Connection]:
        """Return all connections, including those that were sent to another Processor and may come back."""
        return [*self._table.by_fd.values(), *self._migration.given()]


def _logs_in_at(connection: Connection, handler: HandlerPeer) -> bool:
    """Return True if a login has begun at that Handler, because no other Handler can continue it."""
    return connection.login is not None and connection.login.is_begun and connection.home is handler
