"""Handshakes: the TLS handshakes of one Processor, and what they may cost those who are served already.

    a socket comes      it has `kproc.tls.handshake.timeout.ms` to finish
    its first record    it waits for its turn. Answering it is the expensive step: a signature and a key exchange. In
                        a pass of the Processor as many are answered as fit into _TURN_NS, at least one; the others
                        are not read meanwhile
    answered            it costs some 50 KiB, so there are `kproc.tls.handshakes.max` of these at most: one more
                        closes the one that has been begun longest
    finished            the client's certificate, if it showed one, becomes the connection's principal

A flood of clients that never finish costs a Processor half a millisecond a pass and a bounded amount of memory.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from kproc.clock import Clock
from kproc.log_rate import LogRate
from kproc.metrics.spec import SLOT
from kproc.net.connection import Connection
from kproc.net.processor_state import ProcessorState
from kproc.net.tls_transport import TlsTransport
from kproc.security.certificate import MalformedCertificate, subject_of
from kproc.security.principal import USER, Principal
from kproc.security.principal_mapping import NoMatchingRule
from kproc.security.session import Session

logger = logging.getLogger(__name__)

_TURN_NS: Final = 500_000


class Table(Protocol):
    """What is needed of ConnectionTable."""

    by_fd: dict[int, Connection]

    def update_interest(self, connection: Connection) -> None:
        """Decide what the connection waits for."""

    def close(self, connection: Connection, reason: str) -> None:
        """Close the connection."""


class Handshakes:
    """One per Processor that has had a TLS connection."""

    __slots__ = (
        "_begun", "_begun_max", "_clock", "_lines", "_open", "_state", "_table", "_timeout_ns", "_turns",
    )  # fmt: skip

    def __init__(
        self, table: Table, state: ProcessorState, clock: Clock, *, timeout_ms: int, begun_max: int
    ) -> None:
        self._table = table
        self._state = state
        self._clock = clock
        self._timeout_ns = timeout_ms * 1_000_000
        self._begun_max = begun_max
        # By descriptor, the oldest first: when they must be done; those with an SSLObject; those that wait for a turn.
        self._open: dict[int, int] = {}
        self._begun: dict[int, TlsTransport] = {}
        self._turns: dict[int, TlsTransport] = {}
        self._lines = LogRate(logger, "and %d more failed TLS handshakes")

    @property
    def has_turns(self) -> bool:
        """Whether a connection waits for its turn."""
        return bool(self._turns)

    def opened(self, transport: TlsTransport) -> None:
        """A connection has come."""
        self._open[transport.fd] = self._state.now_ns + self._timeout_ns

    def wait_for_turn(self, transport: TlsTransport) -> None:
        """A client's first record is whole: it is answered in the next pass, or a later one."""
        self._turns[transport.fd] = transport
        self._state.press()

    def work(self) -> int:
        """Answer the first records of as many clients as one pass may; those that are left are not read meanwhile."""
        until_ns = self._clock.now_ns() + _TURN_NS
        done = 0
        while self._turns and (not done or self._clock.now_ns() < until_ns):
            fd = next(iter(self._turns))
            self._begin(self._turns.pop(fd), self._table.by_fd[fd])
            done += 1
        for fd in list(self._turns):
            connection = self._table.by_fd[fd]
            if not connection.awaits_turn:
                connection.awaits_turn = True
                self._table.update_interest(connection)
        return done

    def _begin(self, transport: TlsTransport, connection: Connection) -> None:
        while len(self._begun) >= self._begun_max:
            oldest = next(iter(self._begun.values()))
            self._drop(oldest, f"{self._begun_max} others have begun theirs since (kproc.tls.handshakes.max)")
        self._begun[transport.fd] = transport
        try:
            transport.begin()
        except OSError as error:
            self._table.close(connection, str(error))
            return
        if connection.awaits_turn:
            connection.awaits_turn = False
            self._table.update_interest(connection)

    def finished(self, transport: TlsTransport) -> None:
        """A handshake is over. Raises OSError if the client's certificate makes it nobody."""
        self.forget(transport)
        self._state.counts[SLOT["tls_handshakes"]] += 1
        connection = self._table.by_fd[transport.fd]
        certificate = transport.peer_certificate()
        if certificate is None or connection.gate is not None:  # With a login, that names the principal.
            return
        try:
            principal = Principal(USER, transport.context.mapper.name_of(subject_of(certificate)))
        except (NoMatchingRule, MalformedCertificate) as error:
            self.refused(transport, str(error))
            raise OSError(str(error)) from error
        if complaint := principal.complaint():
            self.refused(transport, complaint)
            raise OSError(complaint)
        connection.session = Session(principal)

    def refused(self, transport: TlsTransport, reason: str) -> None:
        """A client is about to be closed: count it, and log it unless there were many in this second."""
        self._state.counts[SLOT["authentications_failed"]] += 1
        if self._lines.has_room(self._clock.now_ns()):
            logger.warning("failed TLS handshake with %s: %s", _peer_of(transport), reason)

    def expire(self) -> None:
        """Close those that are too late. Called once a second."""
        now_ns = self._state.now_ns
        self._lines.tell(self._clock.now_ns())
        for begun in list(self._begun.values()):
            try:
                begun.flush_handshake()
            except OSError as error:
                self._table.close(self._table.by_fd[begun.fd], str(error))
        for fd, until_ns in list(self._open.items()):
            if until_ns > now_ns:
                break
            late = self._begun.get(fd)
            if late is not None:
                self._drop(late, "it takes longer than kproc.tls.handshake.timeout.ms")
            else:
                self._table.close(self._table.by_fd[fd], "no TLS handshake came in time")

    def forget(self, transport: TlsTransport) -> None:
        """The handshake is over, or the connection closed."""
        self._open.pop(transport.fd, None)
        self._begun.pop(transport.fd, None)
        self._turns.pop(transport.fd, None)

    def _drop(self, transport: TlsTransport, reason: str) -> None:
        self.refused(transport, reason)
        self._table.close(self._table.by_fd[transport.fd], reason)


def _peer_of(transport: TlsTransport) -> str:
    try:
        name = transport.sock.getpeername()
    except OSError:
        return "a client that has gone"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a client"
