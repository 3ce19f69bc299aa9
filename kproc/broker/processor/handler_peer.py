"""HandlerPeer: one Handler as a Processor sees it."""

from __future__ import annotations

from collections.abc import Callable

from kproc.broker.transport.agent import AgentId, Link
from kproc.broker.transport.outbox import Buffer, Inbox, Outbox


def _without_link(_: int) -> None:
    """Replace `reserve_run` and `commit_run` without a link: there is no room. Bound methods would keep a dead ring."""


class HandlerPeer:
    """One Handler as this Processor sees it. It survives a restart of the Handler; its link does not.

    After putting a record into its ring, enter the Handler in `unpublished`. `notify` does both.
    """

    __slots__ = (
        "_notices", "_publish", "_unpublished", "_wake", "commit_run", "homes", "inbox", "is_away", "is_leaving",
        "link", "peer", "reserve_run",
    )  # fmt: skip

    # The first link sets these three. The last two are methods of the link's sender.
    _notices: Outbox
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
        self._notices = Outbox(link.sender, link.waker)
        self._publish, self._wake = link.sender.publish, link.waker.wake
        self.reserve_run, self.commit_run = link.sender.reserve_run, link.sender.commit_run
        self._unpublished.pop(self, None)

    def detach(self) -> None:
        if self.link is not None:
            self._notices.close()
            self._publish, self._wake = self._notices.flush, self._notices.flush
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
            self._notices.push(kind, *parts)
            self._unpublished[self] = None

    def publish(self) -> None:
        """Publish the records in the ring, and wake the Handler if it sleeps."""
        notices = self._notices
        if notices.is_dirty:
            notices.flush()  # This publishes the whole ring, including the requests.
            if notices.is_dirty:
                self._unpublished[self] = None  # Some records did not fit.
        else:
            self._publish()
            self._wake()
