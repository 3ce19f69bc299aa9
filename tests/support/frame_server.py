"""FrameServer: a loopback port for brokers of a few lines. Each client has a thread that reads its frames."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self


class FrameServer:
    """Listens until the `with` block ends. A subclass handles frames."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.errors: list[
            BaseException
        ] = []  # Raised by `handle`. The end of the `with` block asserts that there are none.
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.bootstrap = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def handle(self, frame: bytes) -> bytes | None:
        """Return the bytes to send for a frame without its length. b"" sends nothing, None closes the connection."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        if problem is None:
            assert not self.errors, self.errors

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._tls is not None:
                try:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                except OSError:
                    continue  # The client does not trust us.
            self._connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while len(prefix := stream.read(4)) == 4:
                    answer = self.handle(stream.read(struct.unpack(">i", prefix)[0]))
                    if answer is None:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    connection.sendall(answer)
            except OSError:
                return
            except BaseException as error:
                self.errors.append(error)
                raise
