"""HandoffReceiver: registers the client sockets that Acceptors hand over to a Processor, and acknowledges them.

An Acceptor keeps its copy of a socket until the acknowledgement, so a client is not lost if this Processor dies before.
A socket that this Processor cannot keep is refused, and the Acceptor offers it to another one.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from typing import TYPE_CHECKING, Final

from kproc.broker.config.descriptor_limit import descriptor_end
from kproc.broker.ipc.fdpass import TruncatedDescriptor, recv_fd
from kproc.broker.processor.transport_layer import PlaintextTransport, Transport
from kproc.broker.role.handoff import EVICT, HANDOFF, REFUSED
from kproc.broker.transport.envelope import FLAG_TLS

if TYPE_CHECKING:
    from kproc.broker.processor.connection_counters import ClientCounters
    from kproc.broker.processor.connection_table import ConnectionTable
    from kproc.broker.processor.processor_state import ProcessorState
    from kproc.broker.processor.tls_connections import TlsConnections
    from kproc.broker.processor.tls_listeners import TlsListeners
    from kproc.broker.transport.agent import AgentId
    from kproc.common.clock import Clock

logger = logging.getLogger(__name__)

_LOG_NS: Final = 10_000_000_000


class HandoffReceiver:
    """The socket pairs with Acceptors, and the transports of new connections. One per Processor."""

    __slots__ = (
        "_clock", "_counters", "_descriptor_end", "_epoll", "_next_log_ns", "_reporter", "_state", "_table",
        "_tls_listeners", "by_fd", "tls",
    )  # fmt: skip

    def __init__(
        self,
        table: ConnectionTable,
        state: ProcessorState,
        *,
        epoll: select.epoll,
        counters: ClientCounters,
        clock: Clock,
        tls_listeners: TlsListeners | None,
    ) -> None:
        self._table, self._state, self._epoll, self._clock = table, state, epoll, clock
        self._counters, self._reporter = counters, counters.reporter
        self._tls_listeners = tls_listeners
        self.by_fd: dict[
            int, tuple[AgentId, socket.socket]
        ] = {}  # The Acceptors, by the descriptor of their pair.
        self.tls: TlsConnections | None = None  # None until the first TLS connection.
        self._descriptor_end = descriptor_end()
        self._next_log_ns = 0

    def attach(self, peer: AgentId, sock: socket.socket) -> None:
        """Receive sockets from an Acceptor that has started."""
        sock.setblocking(False)
        self.by_fd[sock.fileno()] = (peer, sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._reporter.attach(peer, sock)

    def receive(self, fd: int) -> int:
        """Register and acknowledge the sockets of an Acceptor. Close idle connections if it requests that (EVICT).

        Return how many sockets were registered and how many such requests were carried out, as one sum.
        """
        peer, sock = self.by_fd[fd]
        taken = 0
        while True:
            try:
                message = recv_fd(sock, HANDOFF.size)
            # The Acceptor has ended or died. Its successor comes with a new pair.
            except (EOFError, ConnectionError):
                self._epoll.unregister(fd)
                del self.by_fd[fd]
                self._reporter.detach(peer, sock)
                sock.close()
                return taken
            # This process has no free descriptor. The Acceptor still has the socket and offers it to another Processor.
            except TruncatedDescriptor as error:
                self._log_shortage(str(error))
                self._reporter.acknowledge(sock, HANDOFF.unpack(error.payload)[0] | REFUSED)
                return taken
            if message is None:
                return taken
            payload, client_fd = message
            serial, listener, flags, address, port = HANDOFF.unpack(payload)
            if serial == EVICT:
                self._table.evict(flags, listener)
                taken += 1
                continue
            if client_fd is not None:
                if self._can_keep(client_fd):
                    self._open(client_fd, listener, flags, address, port)
                    taken += 1
                else:
                    os.close(client_fd)
                    serial |= REFUSED
            self._reporter.acknowledge(sock, serial)

    def _open(self, client_fd: int, listener: int, flags: int, address: bytes, port: int) -> None:
        """Register the socket of a client, unless its TLS cannot be set up."""
        transport = self._transport(socket.socket(fileno=client_fd), listener, flags)
        if transport is not None:
            self._table.open(
                transport, self._counters, listener=listener, flags=flags, address=address, port=port
            )

    def _can_keep(self, client_fd: int) -> bool:
        """Return False if this Processor leaves, or if the free descriptors are reserved for links (descriptor_end)."""
        # A Processor that leaves passes its connections to others, so a further one would only delay its end.
        if self._state.is_leaving:
            return False
        if client_fd >= self._descriptor_end:
            self._log_shortage("the remaining descriptors are reserved for links between processes")
            return False
        return True

    def _transport(self, sock: socket.socket, listener: int, flags: int) -> Transport | None:
        """Return the transport of a new connection, or None if it was closed because its listener has no usable key."""
        if not flags & FLAG_TLS:
            return PlaintextTransport(sock)
        if self.tls is None:
            assert self._tls_listeners is not None
            self.tls = self._tls_listeners.make(self._table, self._state, self._clock, self._tls_listeners)
        return self.tls.transport(sock, listener)

    def _log_shortage(self, why: str) -> None:
        """Log that descriptors ran out, at most every 10 s, because the Acceptor tries again ten times a second."""
        if self._state.now_ns >= self._next_log_ns:
            self._next_log_ns = self._state.now_ns + _LOG_NS
            logger.error(
                "accepting no more connections, new clients wait: raise the limit of open files (ulimit -n): %s",
                why,
            )

    def close(self) -> None:
        """Close the socket pairs. The Acceptors notice it."""
        for _, sock in self.by_fd.values():
            sock.close()
