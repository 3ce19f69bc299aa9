"""HandlerPeer: one Handler as a Processor sees it."""

from __future__ import annotations

from collections.abc import Callable

from kproc.broker.transport.agent import AgentId, Link
from kproc.broker.transport.outbox import Buffer, Inbox, Outbox


def _without_link(_: int) -> None:
    """Do nothing, as `reserve_run` and `commit_run` of a Handler without a link: None means that there is no room.

    The methods of its last link would keep the memory of the dead ring.
    """


class HandlerPeer:
    """One Handler as this Processor sees it. It survives a restart of the Handler; its link does not.

    `unpublished` has the Handlers whose rings have unpublished records. Whoever writes into this Handler's ring must
    add the Handler to it. `notify` does this itself.
    """

    __slots__ = (
        "_unpublished", "commit_run", "homes", "inbox", "is_away", "is_leaving", "link", "notices", "peer", "publish",
        "reserve_run", "wake",
    )  # fmt: skip

    # The first link sets these five: the queue of `notify`, and methods of the link's sender and waker.
    notices: Outbox
    publish: Callable[[], None]
    wake: Callable[[], None]
    reserve_run: Callable[[int], tuple[memoryview, int, int] | None]
    commit_run: Callable[[int], None]

    def __init__(self, peer: AgentId, unpublished: dict[HandlerPeer, None]) -> None:
        self.peer = peer
        self._unpublished = unpublished
        self.link: Link | None = None
        self.inbox: Inbox | None = None
        self.homes = 0
        self.is_leaving = False
        self.is_away = False  # True if it had no link at the last check, which happens once a second.

    def attach(self, link: Link) -> None:
        self.link = link
        self.inbox = Inbox(link.receiver)
        self.notices = Outbox(link.sender, link.waker)
        self.publish, self.wake = link.sender.publish, link.waker.wake
        self.reserve_run, self.commit_run = link.sender.reserve_run, link.sender.commit_run
        self._unpublished.pop(self, None)

    def detach(self) -> None:
        if self.link is not None:
            self.notices.close()
            self.publish, self.wake = self.notices.flush, self.notices.flush
            self.reserve_run = self.commit_run = _without_link
        self.link = self.inbox = None
        self._unpublished.pop(self, None)

    def mark_leaving(self) -> None:
        """Mark the Handler as leaving, so that it gets no more connections."""
        self.is_leaving = True

    def stays_away(self) -> bool:
        """Check whether the Handler has a link. Return True if it had none at the last check either."""
        was_away, self.is_away = self.is_away, self.link is None
        return was_away and self.is_away

    def notify(self, kind: int, *parts: Buffer) -> None:
        """Send a record, or queue it here if the ring is full. Do nothing if the Handler has no link."""
        if self.link is not None:
            self.notices.push(kind, *parts)
            self._unpublished[self] = None
