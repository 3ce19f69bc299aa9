"""EpollWatch: asks the kernel which clients' sockets are readable or writable.

epoll(7) keeps the set of watched descriptors in the kernel, so that a wait costs as much as there are events, however
many connections are idle. Four of its properties matter here:

- A socket is level-triggered: each wait reports it as long as it has bytes, or room. A connection is therefore read
  once per duty cycle, and the next wait reports the rest. (Only the eventfd of ipc/wait.py is edge-triggered.)
- EPOLLHUP and EPOLLERR are reported for an empty event mask, too. A paused connection whose client has hung up would
  end every wait at once, so it leaves the epoll until it is read again (DETACHED).
- A registration belongs to the open file, not to the descriptor. A socket of which another process has a copy stays
  registered after our close, so it is unregistered before it is closed or sent away.
- The number of a closed descriptor is given to the next file. Events are therefore looked up by number only within the
  cycle whose wait returned them, before any new connection is registered (Processor._on_events).
"""

from __future__ import annotations

import select

from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_state import ACTIVE, DETACHED, PAUSED


class EpollWatch:
    """Registers the connections' sockets with epoll. One per Processor.

    Only it writes `Connection.interest`, except when a broken connection is closed.
    """

    __slots__ = ("epoll",)

    def __init__(self, epoll: select.epoll) -> None:
        self.epoll = epoll

    def register(self, connection: Connection, interest: int = ACTIVE) -> None:
        """Start watching a connection. Raises OSError for a socket that cannot be used."""
        # An event is only a hint: another reader, or a checksum error, can have emptied the socket since
        # (select(2), BUGS). A blocking read would then stop the Processor.
        connection.transport.sock.setblocking(False)
        self.epoll.register(connection.fd, interest)
        connection.interest = interest

    def unregister(self, connection: Connection) -> None:
        """Stop watching a connection whose socket is about to be closed or given away."""
        if connection.interest != DETACHED:
            self.epoll.unregister(connection.fd)

    def detach(self, connection: Connection) -> None:
        """Remove a client that hung up from the epoll until its connection is read again."""
        self.epoll.unregister(connection.fd)
        connection.interest = DETACHED

    def set(self, connection: Connection, interest: int) -> None:
        """Watch a connection for these events from now on: ACTIVE (readable), WRITING or PAUSED."""
        before = connection.interest
        if before == interest or (before == DETACHED and interest == PAUSED):
            return
        connection.interest = interest
        if before == DETACHED:
            self.epoll.register(connection.fd, interest)
        else:
            self.epoll.modify(connection.fd, interest)
