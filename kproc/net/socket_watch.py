"""EpollWatch: which sockets the kernel is asked about, and for what. The Processors that are there for comparison
have others: an asyncio loop, a thread for each connection.
"""

from __future__ import annotations

import select
from typing import Final

from kproc.net.connection import Connection

ACTIVE: Final = select.EPOLLIN
PAUSED: Final = 0
WRITING: Final = select.EPOLLOUT
# Interest of a socket that hung up while nothing is read: epoll would report it for ever.
DETACHED: Final = -1


class EpollWatch:
    """One per Processor. `interest` of a connection is written here only."""

    __slots__ = ("epoll",)

    def __init__(self) -> None:
        self.epoll = select.epoll()

    def begin(self, connection: Connection, interest: int = ACTIVE) -> None:
        """Watch a new one, or one that another Processor gave. Raises OSError for a socket that cannot be used."""
        connection.transport.set_blocking(False)
        self.epoll.register(connection.fd, interest)
        connection.interest = interest

    def end(self, connection: Connection) -> None:
        """The socket is about to be closed, or given away."""
        if connection.interest != DETACHED:
            self.epoll.unregister(connection.fd)

    def detach(self, connection: Connection) -> None:
        """The client is gone while nothing is read: be told of nothing until something is wanted again."""
        self.epoll.unregister(connection.fd)
        connection.interest = DETACHED

    def set(self, connection: Connection, interest: int) -> None:
        """From now on be told of this."""
        before = connection.interest
        if before == interest or (before == DETACHED and interest == PAUSED):
            return
        connection.interest = interest
        if before == DETACHED:
            self.epoll.register(connection.fd, interest)
        else:
            self.epoll.modify(connection.fd, interest)
