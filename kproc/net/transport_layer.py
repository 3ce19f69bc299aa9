"""What a connection reads and writes by, after Kafka's TransportLayer: one class for each way in which bytes travel.

A Processor never calls a client's socket itself, but to name its address, to count its bytes and to pass it on.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

logger = logging.getLogger(__name__)

FILE_TOO_SHORT: Final = "a segment file is shorter than the answer says"
_SEND_BYTES_MAX: Final = 1 << 20  # One sendfile call; keeps one fast reader from holding the loop.


class PlaintextTransport:
    """Bytes as they are. `recv_into` and `send` are the socket's own: a Python function around each costs 0.1 us.

    They raise BlockingIOError when the socket has nothing, or no room, and OSError when the client is gone.
    """

    __slots__ = ("fd", "recv_into", "send", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.recv_into = sock.recv_into
        self.send = sock.send

    def send_file(self, file_fd: int, position: int, count: int) -> int:
        """Bytes of a file, by the kernel alone; how many were sent. Raises EOFError for a file that is too short."""
        sent = os.sendfile(self.fd, file_fd, position, min(count, _SEND_BYTES_MAX))
        if sent == 0:
            raise EOFError(FILE_TOO_SHORT)
        return sent

    def send_all(self, data: bytes | memoryview, flags: int) -> None:
        """For a blocking socket. `sendall` costs a clock reading more, and nearly always once is enough."""
        sent = self.send(data, flags)
        if sent < len(data):
            self.sock.sendall(memoryview(data)[sent:], flags)

    def set_blocking(self, is_blocking: bool) -> None:
        """Whether `recv_into` and `send` wait. Raises OSError for a socket that cannot be used."""
        self.sock.setblocking(is_blocking)

    def end(self) -> None:
        """End the connection for both sides, whoever else has the descriptor: an Acceptor may still hold its copy."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            logger.debug("a connection was already closed by its client: %s", error)

    def close(self) -> None:
        """Give the descriptor up. Whoever else has one has the connection."""
        self.sock.close()
