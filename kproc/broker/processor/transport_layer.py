"""Transports read and write a connection, after Kafka's TransportLayer.

PlaintextTransport is here, TLS is in tls_transport.py. A Processor calls methods of a client's socket only in a
transport, except to make it non-blocking, to read its address and TCP counters, and to send it to another Processor.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger(__name__)

FILE_TOO_SHORT: Final = "a segment file is shorter than the answer says"
_SEND_BYTES_MAX: Final = 1 << 20  # Limit of one sendfile call, so that a fast client does not delay others.


class Transport(Protocol):
    """The operations on a client's socket that a Processor uses."""

    fd: int
    sock: socket.socket

    @property
    def can_move(self) -> bool:
        """Return True if the connection can migrate to another Processor."""

    @property
    def recv_into(self) -> Callable[[memoryview], int]:
        """Receive into a buffer; return how many bytes came, 0 at the end of the stream.

        Raises BlockingIOError if no bytes have come.
        """

    @property
    def send(self) -> Callable[..., int]:
        """Send as many bytes as there is room for, with `flags` of send(2); return how many.

        Raises BlockingIOError if there is no room.
        """

    def send_file(self, file_fd: int, position: int, count: int) -> int:
        """Send a file's bytes; return how many were sent. Raises EOFError if the file is too short."""

    def shutdown(self) -> None:
        """Shut the connection down, even if another process has a copy of its descriptor."""

    def close(self) -> None:
        """Close this process's descriptor of the socket."""


class PlaintextTransport:
    """Plain TCP. `recv_into` and `send` are the socket's own methods: a Python function around each costs 0.1 us.

    They raise BlockingIOError when the socket has no bytes, or no room, and OSError when the client is gone.
    """

    __slots__ = ("fd", "recv_into", "send", "sock")

    can_move: Final = True

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.recv_into = sock.recv_into
        self.send = sock.send

    def send_file(self, file_fd: int, position: int, count: int) -> int:
        """Send a file's bytes by sendfile; return how many were sent. Raises EOFError if the file is too short.

        sendfile(2) copies from the page cache to the socket inside the kernel. It returns 0 only at the end of the
        file. The client was promised more bytes by then, so its connection must be closed.
        """
        # Pass the offset: sendfile(2) then leaves the file position alone. Several connections may send from
        # one descriptor.
        sent = os.sendfile(self.fd, file_fd, position, min(count, _SEND_BYTES_MAX))
        if sent == 0:
            raise EOFError(FILE_TOO_SHORT)
        return sent

    def shutdown(self) -> None:
        """Shut the connection down, even if another process (the Acceptor) still has a copy of its descriptor."""
        try:
            # close() alone only drops our reference. The client would see the end only when the last copy is
            # closed.
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            logger.debug("a connection was already closed by its client: %s", error)

    def close(self) -> None:
        """Close our descriptor. The connection stays open if another process has a copy of it."""
        self.sock.close()
