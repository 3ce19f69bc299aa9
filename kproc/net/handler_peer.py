"""HandlerPeer: one Handler as a Processor sees it, and the Router that says which Handler gets a frame."""

from __future__ import annotations

from typing import Protocol

from kproc.transport.agent import AgentId, Link
from kproc.transport.outbox import Inbox, Outbox


class Router(Protocol):
    """Decides which Handler gets a frame. Supplied from outside, because net/ does not know what a frame means."""

    def route(self, frame: memoryview) -> int:
        """The Handler's index, or -1 for the connection's home Handler."""

    def learn(self, hint: memoryview) -> None:
        """Store a Handler's hint about who owns the partition of frames like this one."""


class HandlerPeer:
    """One Handler as this Processor sees it. It survives a restart of the Handler; its link does not."""

    __slots__ = ("has_unpublished", "homes", "inbox", "is_away", "is_leaving", "link", "notices", "peer")

    def __init__(self, peer: AgentId) -> None:
        self.peer = peer
        self.link: Link | None = None
        self.inbox: Inbox | None = None
        self.notices: Outbox | None = None
        self.homes = 0
        self.has_unpublished = False
        self.is_leaving = False
        self.is_away = False  # As found by the last look, once a second.

    def attach(self, link: Link) -> None:
        self.link = link
        self.inbox = Inbox(link.receiver)
        self.notices = Outbox(link.sender, link.waker)
        self.has_unpublished = False

    def detach(self) -> None:
        self.link = self.inbox = self.notices = None

    def publish(self) -> None:
        """Make this pass's requests visible and wake the Handler if it sleeps."""
        if self.has_unpublished and self.link is not None:
            self.link.sender.publish()
            self.link.waker.wake()
        self.has_unpublished = False
        notices = self.notices
        if notices is not None and notices.is_dirty:
            notices.flush()
