"""MeteredConnections: measures the time spent at the sockets of clients with a request_percentage (KIP-124).

A Handler that serves such a client sends METERED. From then on that connection's transport is wrapped in one that reads
the clock around each call, TLS included. Ten times a second the time is sent to the connection's home Handler, which
charges the client. Other connections pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kproc.broker.processor.connection import Connection
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.transport_layer import Transport
from kproc.broker.transport.envelope import HEAD, SOCKET_NS, SOCKET_TIME


class MeteredTransport:
    """A transport that measures the time spent in its calls, for a client with a request_percentage quota."""

    __slots__ = ("_now_ns", "fd", "inner", "sock", "used_ns")

    def __init__(self, inner: Transport, now_ns: Callable[[], int]) -> None:
        self.inner = inner
        self.fd = inner.fd
        self.sock = inner.sock
        self.used_ns = 0
        self._now_ns = now_ns

    @property
    def can_move(self) -> bool:
        return self.inner.can_move

    def recv_into(self, into: memoryview) -> int:
        begun_ns = self._now_ns()
        try:
            return self.inner.recv_into(into)
        finally:
            self.used_ns += self._now_ns() - begun_ns

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        begun_ns = self._now_ns()
        try:
            return self.inner.send(data, flags)
        finally:
            self.used_ns += self._now_ns() - begun_ns

    def send_file(self, file_fd: int, position: int, count: int) -> int:
        begun_ns = self._now_ns()
        try:
            return self.inner.send_file(file_fd, position, count)
        finally:
            self.used_ns += self._now_ns() - begun_ns

    def shutdown(self) -> None:
        self.inner.shutdown()

    def close(self) -> None:
        self.inner.close()


class MeteredConnections:
    """Measures the time that the Processor spends at the sockets of clients with a request_percentage quota (KIP-124).

    One per Processor.
    """

    __slots__ = ("_by_id", "_handlers", "_metered", "_now_ns")

    def __init__(
        self, by_id: Mapping[int, Connection], handlers: HandlerSet, now_ns: Callable[[], int]
    ) -> None:
        self._by_id = by_id
        self._handlers = handlers
        self._now_ns = now_ns
        self._metered: dict[int, tuple[Connection, MeteredTransport, bytes]] = {}

    def switch(self, connection: Connection, client_id: bytes, *, is_on: bool) -> None:
        """Start or stop measuring a connection. `client_id` is sent with its times from now on."""
        known = self._metered.get(connection.id)
        if not is_on:
            if known is not None:
                del self._metered[connection.id]
                _use(connection, known[1].inner)
        elif known is not None:
            self._metered[connection.id] = (connection, known[1], client_id)
        else:
            wrapped = MeteredTransport(connection.transport, self._now_ns)
            self._metered[connection.id] = (connection, wrapped, client_id)
            _use(connection, wrapped)

    def send_times(self) -> None:
        """Send the measured times to the home Handlers. A time that finds no room in the ring is sent later."""
        if not self._metered:
            return
        for connection_id, (connection, wrapped, client_id) in list(self._metered.items()):
            if self._by_id.get(connection_id) is not connection:  # Closed, or with another Processor.
                del self._metered[connection_id]
                continue
            link = connection.home.link
            head = HEAD.pack(connection_id, 0, 0, 0)
            used = SOCKET_NS.pack(wrapped.used_ns)
            if (
                wrapped.used_ns
                and link is not None
                and link.sender.try_push(SOCKET_TIME, head, used, client_id)
            ):
                wrapped.used_ns = 0
                self._handlers.unpublished[connection.home] = None
        self._handlers.publish()


def _use(connection: Connection, transport: Transport) -> None:
    connection.transport = transport
    # The connection has the transport's methods, too, because each request calls them. Replace them, or they
    # would not be measured.
    connection.recv_into = transport.recv_into
    connection.send = transport.send
