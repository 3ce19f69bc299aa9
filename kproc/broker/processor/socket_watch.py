"""EpollWatch: asks the kernel which clients' sockets are readable or writable.

The Processors that exist for comparison replace it: one uses an asyncio loop, one a thread for each connection.
"""

from __future__ import annotations

import select

from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_state import ACTIVE, DETACHED, PAUSED


class EpollWatch:
    """One per Processor. Only it writes `Connection.interest`, except when a broken connection is closed."""

    __slots__ = ("epoll",)

    def __init__(self, epoll: select.epoll) -> None:
        self.epoll = epoll

    def begin(self, connection: Connection, interest: int = ACTIVE) -> None:
        """Start watching a connection. Raises OSError for a socket that cannot be used."""
        connection.transport.set_blocking(False)
        self.epoll.register(connection.fd, interest)
        connection.interest = interest

    def end(self, connection: Connection) -> None:
        """Stop watching a connection whose socket is about to be closed or given away."""
        if connection.interest != DETACHED:
            self.epoll.unregister(connection.fd)

    def detach(self, connection: Connection) -> None:
        """Remove a client that hung up from the epoll until its connection is read again."""
        self.epoll.unregister(connection.fd)
        connection.interest = DETACHED

    def set(self, connection: Connection, interest: int) -> None:
        """Watch a connection for `interest` from now on: ACTIVE, PAUSED or WRITING."""
        before = connection.interest
        if before == interest or (before == DETACHED and interest == PAUSED):
            return
        connection.interest = interest
        if before == DETACHED:
            self.epoll.register(connection.fd, interest)
        else:
            self.epoll.modify(connection.fd, interest)
