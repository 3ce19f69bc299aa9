"""HandlerSet: the Handlers that a Processor is linked with, by whom it passes requests on and is answered."""

from __future__ import annotations

from kproc.net.connection import Connection
from kproc.net.handler_peer import HandlerPeer, Router
from kproc.transport.agent import AgentId, Sender
from kproc.transport.envelope import ADDRESS, DISCONNECTED, HEAD


class HandlerSet:
    """One per Processor. Which connection is at home where is decided by homes.py."""

    __slots__ = ("_given_router", "by_id", "by_index", "router")

    def __init__(self, router: Router | None) -> None:
        self._given_router = router
        self.router: Router | None = None  # The same while there are several: with one it is only work.
        self.by_id: dict[AgentId, HandlerPeer] = {}
        # They come in any order when one of them is being restarted. Those that are leaving are not in here.
        self.by_index: dict[int, HandlerPeer] = {}

    def choose_routing(self) -> HandlerPeer | None:
        """Route frames while there are several. With one, which is returned, all requests are at home."""
        self.router = self._given_router if len(self.by_id) > 1 else None
        if len(self.by_id) != 1:
            return None
        (only,) = self.by_id.values()
        return only

    def least_busy(self) -> HandlerPeer:
        """The next home: of the Handlers that live the one with the fewest."""
        return min(
            self.by_index.values() or self.by_id.values(),
            key=lambda each: (each.link is None, each.homes, each.peer.index),
        )

    def senders(self) -> list[Sender]:
        """The request rings that there are."""
        return [each.link.sender for each in self.by_id.values() if each.link is not None]

    def has_answers(self) -> bool:
        """Whether one of them has published something that was not taken."""
        # A loop: any() over a generator costs 0.2 us more, at every sleep.
        for handler in self.by_id.values():
            inbox = handler.inbox
            if inbox is not None and not inbox.is_empty():
                return True
        return False

    def introduce(self, connection: Connection) -> bool:
        """Tell every Handler the client's address, ahead of the first request; False without room in a ring.

        Each request could carry it, but nearly none needs it.
        """
        head = HEAD.pack(connection.id, 0, 0, 0)
        for handler in self.by_id.values():
            if handler.link is not None:  # Else its successor's link brings us here again.
                if not handler.link.sender.try_push(ADDRESS, head, connection.origin.address):
                    return False
                handler.has_unpublished = True
        connection.is_introduced = True
        return True

    def tell_gone(self, connection: Connection, flags: int) -> None:
        """The connection is gone from here. With several Handlers each may remember something of it."""
        for handler in (connection.home,) if self.router is None else self.by_id.values():
            if handler.notices is not None:
                handler.notices.push(DISCONNECTED, HEAD.pack(connection.id, 0, 0, flags))

    def publish(self) -> None:
        """Let them see what this pass has for them."""
        for handler in self.by_id.values():
            if handler.has_unpublished or (handler.notices is not None and handler.notices.is_dirty):
                handler.publish()
