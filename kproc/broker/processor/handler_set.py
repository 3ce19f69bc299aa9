"""HandlerSet: the Handlers that a Processor has links to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kproc.broker.processor.connection import Connection
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.transport.agent import AgentId, Sender
from kproc.broker.transport.envelope import DISCONNECTED, FLAG_NEW_HOME, HEAD, IDENTITY
from kproc.broker.transport.outbox import Inbox

if TYPE_CHECKING:
    from kproc.broker.request.routing import ProduceRouter

_REPEATED_MAX: Final = 1000  # Limit of DISCONNECTED records that are sent to a restarted Handler again.


class HandlerSet:
    """The Handlers of a Processor, with their links and the router that chooses among them.

    One per Processor. handler_assignment.py chooses each connection's home.
    """

    __slots__ = (
        "_disconnected", "_given_router", "_looks", "by_id", "by_index", "inboxes", "may_have_answers", "only",
        "router", "unpublished",
    )  # fmt: skip

    def __init__(self, router: ProduceRouter | None) -> None:
        self._given_router = router
        # None with one Handler, because routing would only cost time.
        self.router: ProduceRouter | None = None
        # The Handler, if there is only one. All connections then have it as their home.
        self.only: HandlerPeer | None = None
        self.by_id: dict[AgentId, HandlerPeer] = {}
        # The Handlers that are not leaving. Do not rely on the order: a restarted Handler comes last.
        self.by_index: dict[int, HandlerPeer] = {}
        # Handlers whose rings have records that are not published yet.
        self.unpublished: dict[HandlerPeer, None] = {}
        self._disconnected: deque[tuple[int, int]] = deque(
            maxlen=_REPEATED_MAX
        )  # Ids and flags, the newest last.
        self.inboxes: list[Inbox] = []  # Of the Handlers that have a link.
        self._looks: list[Callable[[], bool]] = []
        # True if the next pass must take answers before it polls: the last check found some, or the eventfd announced
        # some. A pass that does not take them loses nothing, because every sleep begins with a check (ipc/wait.py).
        self.may_have_answers = False

    def links_changed(self) -> None:
        """Update the list of response rings after a Handler got or lost its link."""
        self.inboxes = [each.inbox for each in self.by_id.values() if each.inbox is not None]
        self._looks = [inbox.is_empty for inbox in self.inboxes]

    def choose_routing(self) -> HandlerPeer | None:
        """Route requests by partition if there are several Handlers.

        Return the Handler if there is only one, which is then every connection's home.
        """
        self.router = self._given_router if len(self.by_id) > 1 else None
        self.only = next(iter(self.by_id.values())) if len(self.by_id) == 1 else None
        return self.only

    def least_busy(self) -> HandlerPeer:
        """Return the Handler to be the next connection's home: if possible a live one, with the fewest connections."""
        return min(
            self.by_index.values() or self.by_id.values(),
            key=lambda each: (each.link is None, each.homes, each.peer.index),
        )

    def senders(self) -> list[Sender]:
        """Return the sending ends of the request rings of all Handlers that have a link."""
        return [each.link.sender for each in self.by_id.values() if each.link is not None]

    def has_answers(self) -> bool:
        """Return True, and set `may_have_answers`, if a response ring has records that this Processor has not read.

        Called at every sleep.
        """
        # A loop, because any() over a generator costs 0.2 us more.
        for is_empty in self._looks:
            if not is_empty():
                self.may_have_answers = True
                return True
        return False

    def introduce(self, connection: Connection) -> bool:
        """Send the client's address and session to every Handler. Return False if a ring has no room.

        Called before the connection's first request is forwarded.

        Each request could carry them instead, but hardly any request needs them.
        """
        # Skip Handlers without a link. When a successor's link is attached, HandlerAssignment.attach has all
        # connections introduced again.
        if not all(
            self.introduce_to(each, connection) for each in self.by_id.values() if each.link is not None
        ):
            return False
        connection.is_introduced = True
        return True

    def introduce_to(self, handler: HandlerPeer, connection: Connection) -> bool:
        """Send the client's address and session to one Handler with a link. Return False if its ring has no room."""
        assert handler.link is not None
        head = HEAD.pack(connection.id, 0, 0, 0)
        identity = connection.origin.address + connection.session.pack()
        if not handler.link.sender.try_push(IDENTITY, head, identity):
            return False
        self.unpublished[handler] = None
        return True

    def send_disconnected(self, connection: Connection, flags: int) -> None:
        """Tell Handlers that a connection is closed or has migrated (FLAG_MOVED in `flags`).

        With a router every Handler is told, because each may have had its requests. Otherwise only its home is told.
        """
        self._disconnected.append((connection.id, flags))
        for handler in (connection.home,) if self.router is None else self.by_id.values():
            handler.notify(DISCONNECTED, HEAD.pack(connection.id, 0, 0, flags))

    def change_home(self, connection: Connection, home: HandlerPeer) -> None:
        """Use another home Handler for a connection from now on, and tell the former one.

        Requires that no request is in work at the former home. That home has the connection's share sessions, which the
        client cannot continue at the new one.
        """
        if connection.home is not home:
            connection.home.notify(DISCONNECTED, HEAD.pack(connection.id, 0, 0, FLAG_NEW_HOME))
        connection.set_home(home)

    def repeat_disconnected(self, handler: HandlerPeer) -> None:
        """Tell the successor of a Handler which connections have ended lately.

        Its predecessor may have died before it read these records, and connections can end while no Handler runs. The
        successor removes what a predecessor stored in files for these connections (fault rules).
        """
        for connection_id, flags in self._disconnected:
            handler.notify(DISCONNECTED, HEAD.pack(connection_id, 0, 0, flags))

    def publish(self) -> None:
        """Publish the records that this pass has written into request rings, and wake the Handlers that sleep.

        If a ring had no room for all of them, its Handler stays in `unpublished`.
        """
        unpublished = self.unpublished
        full: list[HandlerPeer] = []
        for handler in unpublished:
            if handler.notices.is_dirty:
                handler.notices.flush()  # This publishes the whole ring, including the requests.
                if handler.notices.is_dirty:
                    full.append(handler)  # Some records did not fit.
            else:
                handler.publish()
                handler.wake()
        unpublished.clear()
        for handler in full:
            unpublished[handler] = None
