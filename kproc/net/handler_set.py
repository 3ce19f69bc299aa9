"""HandlerSet: the Handlers that a Processor is linked with, by whom it passes requests on and is answered."""

from __future__ import annotations

from collections.abc import Callable

from kproc.net.connection import Connection
from kproc.net.handler_peer import HandlerPeer, Router
from kproc.transport.agent import AgentId, Sender
from kproc.transport.envelope import ADDRESS, DISCONNECTED, HEAD
from kproc.transport.outbox import Inbox


class HandlerSet:
    """One per Processor. Which connection is at home where is decided by homes.py."""

    __slots__ = (
        "_given_router",
        "_looks",
        "by_id",
        "by_index",
        "inboxes",
        "may_have_answers",
        "router",
        "unpublished",
    )

    def __init__(self, router: Router | None) -> None:
        self._given_router = router
        self.router: Router | None = None  # The same while there are several: with one it is only work.
        self.by_id: dict[AgentId, HandlerPeer] = {}
        # They come in any order when one of them is being restarted. Those that are leaving are not in here.
        self.by_index: dict[int, HandlerPeer] = {}
        self.unpublished: dict[HandlerPeer, None] = {}  # Those that this pass has something for.
        self.inboxes: list[Inbox] = []  # Of those that are there.
        self._looks: list[Callable[[], bool]] = []
        # Found at the last look, or announced by the eventfd. Otherwise there is nothing that the next look would miss:
        # who answers stores first and asks then whether the Processor sleeps, the Processor the other way round.
        self.may_have_answers = False

    def links_changed(self) -> None:
        """A Handler came or went."""
        self.inboxes = [each.inbox for each in self.by_id.values() if each.inbox is not None]
        self._looks = [inbox.is_empty for inbox in self.inboxes]

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
        for is_empty in self._looks:
            if not is_empty():
                self.may_have_answers = True
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
                self.unpublished[handler] = None
        connection.is_introduced = True
        return True

    def tell_gone(self, connection: Connection, flags: int) -> None:
        """The connection is gone from here. With several Handlers each may remember something of it."""
        for handler in (connection.home,) if self.router is None else self.by_id.values():
            handler.notify(DISCONNECTED, HEAD.pack(connection.id, 0, 0, flags))

    def publish(self) -> None:
        """Let those in `unpublished` see what this pass has for them; who had no room for all is entered again."""
        waiting = list(self.unpublished)
        self.unpublished.clear()
        for handler in waiting:
            handler.publish()
