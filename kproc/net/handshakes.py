"""Handshakes: the TLS handshakes of one Processor, and what they may cost those who are served already.

    a socket comes      it has `kproc.tls.handshake.timeout.ms` to finish
    its first record    it waits for its turn. Answering it is the expensive step: a signature and a key exchange. In
                        a pass of the Processor as many are answered as fit into _TURN_NS, at least one; the others
                        are not read meanwhile. Client addresses take turns. At most _TURNS_MAX wait, each for
                        _WAIT_NS_MAX. Their records and those that are not whole take _HELLO_BYTES_MAX
    answered            it costs some 50 KiB, so there are `kproc.tls.handshakes.max` of these at most
    finished            the client's certificate, if it showed one, becomes the connection's principal; when the
                        certificate ends, the connection is closed

A flood of clients that never finish costs a Processor half a millisecond a pass and a bounded amount of memory. Where
a bound is reached, the client address with most handshakes loses one: the one that has made no progress for longest if
that is more than _STALE_NS, else its newest one. A client that is far away, or at another address, is never closed in
favour of later clients.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple, Protocol

from kproc.clock import Clock
from kproc.deadlines import Deadlines
from kproc.log_rate import LogRate
from kproc.metrics.spec import SLOT
from kproc.net.address_shares import AddressShares, share_key
from kproc.net.connection import Connection
from kproc.net.describe import connection_name
from kproc.net.processor_state import ProcessorState
from kproc.net.tls_transport import TlsTransport
from kproc.security.certificate import MalformedCertificate, facts_of
from kproc.security.principal import USER, Principal
from kproc.security.principal_mapping import NoMatchingRule
from kproc.security.session import Session

logger = logging.getLogger(__name__)

_TURN_NS: Final = 500_000
# The number of clients that wait for a turn, and the longest wait. A client that is answered later has given up, or has
# too little time left to finish. Without this bound a flood makes a Processor answer no client in time.
_TURNS_MAX: Final = 2048
_WAIT_NS_MAX: Final = 2_000_000_000
_HELLO_BYTES_MAX: Final = 16 << 20
# An answer crosses the slowest links in less, there and back. A core begins fewer handshakes in this time than
# kproc.tls.handshakes.max allows, so a flood from one address lets other clients of that address finish.
_STALE_NS: Final = 1_000_000_000
_EXPIRED: Final = "its client's certificate has expired"


class Table(Protocol):
    """What is needed of ConnectionTable."""

    by_fd: dict[int, Connection]

    def update_interest(self, connection: Connection) -> None:
        """Decide what the connection waits for."""

    def close(self, connection: Connection, reason: str) -> None:
        """Close the connection."""


class WaitingHello(NamedTuple):
    """A client whose first record is whole, and since when."""

    transport: TlsTransport
    since_ns: int


class Handshakes:
    """One per Processor that has had a TLS connection."""

    __slots__ = (
        "_begun", "_begun_max", "_begun_shares", "_certificates", "_clock", "_connections", "_hello_bytes",
        "_hello_shares", "_lines", "_newly_waiting", "_open", "_state", "_table", "_timeout_ns", "_turn_count",
        "_turns",
    )  # fmt: skip

    def __init__(
        self, table: Table, state: ProcessorState, clock: Clock, *, timeout_ms: int, begun_max: int
    ) -> None:
        self._table = table
        self._state = state
        self._clock = clock
        self._timeout_ns = timeout_ms * 1_000_000
        self._begun_max = begun_max
        self._open: dict[int, int] = {}  # By descriptor, the oldest first: when they must be done.
        # Those with an SSLObject, with the time of their last progress. The stalest comes first.
        self._begun: dict[int, tuple[TlsTransport, int]] = {}
        self._begun_shares = AddressShares()
        # Those that wait for a turn, by address. The address whose turn it is comes first.
        self._turns: dict[bytes, dict[int, WaitingHello]] = {}
        self._turn_count = 0
        self._newly_waiting: list[int] = []  # Descriptors of those that are still read.
        self._connections: dict[int, Connection] = {}  # By descriptor: all that have sent something.
        self._hello_bytes = 0  # Of all first records that are kept.
        self._hello_shares = AddressShares()
        self._certificates: Deadlines[int] = Deadlines()  # By descriptor: when they end, in ms since 1970.
        self._lines = LogRate(logger, "and %d more failed TLS handshakes")

    @property
    def has_turns(self) -> bool:
        """Return True if a connection waits for its turn, or first records take too much memory."""
        return bool(self._turns) or self._hello_bytes > _HELLO_BYTES_MAX

    def opened(self, transport: TlsTransport) -> None:
        """A connection has come."""
        self._open[transport.fd] = self._state.now_ns + self._timeout_ns

    def wait_for_turn(self, transport: TlsTransport) -> None:
        """A client's first record is whole: it is answered in the next pass, or a later one."""
        key = _key_of(self._connections[transport.fd])
        self._turns.setdefault(key, {})[transport.fd] = WaitingHello(transport, self._state.now_ns)
        self._turn_count += 1
        self._newly_waiting.append(transport.fd)
        self._state.press()

    def received_hello(self, transport: TlsTransport, size: int) -> None:
        """A client has sent `size` bytes of its first record."""
        connection = self._connections[transport.fd] = self._table.by_fd[transport.fd]
        self._hello_bytes += size - self._hello_shares.amount_of(connection)
        self._hello_shares.put(connection, size)
        if self._hello_bytes > _HELLO_BYTES_MAX:
            self._state.press()

    def advanced(self, transport: TlsTransport) -> None:
        """A client has sent more of its handshake after its first record."""
        del self._begun[transport.fd]
        self._begun[transport.fd] = transport, self._state.now_ns

    def work(self) -> int:
        """Answer the first records of as many clients as one pass may; those that are left are not read meanwhile."""
        until_ns = self._clock.now_ns() + _TURN_NS
        done = 0
        while self._turns and (not done or self._clock.now_ns() < until_ns):
            transport, since_ns = self._pop_turn()
            if self._state.now_ns - since_ns > _WAIT_NS_MAX:
                self._drop(transport, "more clients begin a handshake than can be answered")
                continue
            self._begin(transport, self._table.by_fd[transport.fd])
            done += 1
        while self._turn_count > _TURNS_MAX:
            waiting = max(self._turns.values(), key=len)
            newest = waiting[next(reversed(waiting))].transport
            self._drop(newest, "more clients begin a handshake than can be answered")
        while self._hello_bytes > _HELLO_BYTES_MAX:
            victim = next(reversed(self._hello_shares.largest_holders()))
            self._table.close(victim, "first records of TLS handshakes take too much memory")
        fresh, self._newly_waiting = self._newly_waiting, []
        for fd in fresh:
            connection = self._connections.get(fd)
            if connection is not None and fd in self._turns.get(_key_of(connection), ()):
                connection.awaits_turn = True
                self._table.update_interest(connection)
        return done

    def _pop_turn(self) -> WaitingHello:
        """Remove the connection whose turn it is; the next turn is another address's."""
        key = next(iter(self._turns))
        waiting = self._turns.pop(key)
        hello = waiting.pop(next(iter(waiting)))
        if waiting:
            self._turns[key] = waiting
        self._turn_count -= 1
        return hello

    def _begin(self, transport: TlsTransport, connection: Connection) -> None:
        self._begun[transport.fd] = transport, self._state.now_ns
        self._begun_shares.put(connection, 1)
        self._discard_hello(connection)
        while len(self._begun) > self._begun_max:
            victim = self._surplus()
            self._drop(victim, f"{self._begun_max} handshakes are under way (kproc.tls.handshakes.max)")
            if victim is transport:
                return
        try:
            transport.begin()
        except OSError as error:
            self._table.close(connection, str(error))
            return
        if connection.awaits_turn:
            connection.awaits_turn = False
            self._table.update_interest(connection)

    def _surplus(self) -> TlsTransport:
        """Return the handshake that has to give way: of the address with most, a stale one or else the newest."""
        holders = self._begun_shares.largest_holders()
        for fd, (transport, progress_ns) in self._begun.items():
            if self._state.now_ns - progress_ns < _STALE_NS:
                break
            if self._connections[fd] in holders:
                return transport
        return self._begun[next(reversed(holders)).fd][0]

    def finished(self, transport: TlsTransport) -> None:
        """A handshake is over. Raises OSError if the client's certificate makes it nobody."""
        self._close_handshake(transport)
        self._state.counts[SLOT["tls_handshakes"]] += 1
        connection = self._table.by_fd[transport.fd]
        certificate = transport.peer_certificate()
        if certificate is None:
            return
        try:
            facts = facts_of(certificate)
            ends_ms = int(facts.ends.timestamp() * 1000)
            if (
                ends_ms <= self._clock.wall_ms()
            ):  # Of a resumed session, where sessions could not be switched off.
                self.refused(transport, _EXPIRED)
                raise OSError(_EXPIRED)
            self._certificates.move(transport.fd, ends_ms)
            if connection.gate is not None:  # The login names the principal.
                return
            principal = Principal(USER, transport.context.mapper.name_of(facts.subject))
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
        for fd in self._certificates.pop_due(self._clock.wall_ms()):
            connection = self._table.by_fd[fd]
            if self._lines.has_room(now_ns):
                logger.warning("closing connection %s: %s", connection_name(connection), _EXPIRED)
            self._state.counts[SLOT["certificates_expired"]] += 1
            self._table.close(connection, _EXPIRED)
        for begun, _ in list(self._begun.values()):
            try:
                begun.flush_handshake()
            except OSError as error:
                self._table.close(self._table.by_fd[begun.fd], str(error))
        for fd, until_ns in list(self._open.items()):
            if until_ns > now_ns:
                break
            late = self._begun.get(fd)
            if late is not None:
                self._drop(late[0], "it takes longer than kproc.tls.handshake.timeout.ms")
            else:
                self._table.close(self._table.by_fd[fd], "no TLS handshake came in time")

    def forget(self, transport: TlsTransport) -> None:
        """The connection is closed."""
        self._close_handshake(transport)
        self._certificates.discard(transport.fd)

    def _close_handshake(self, transport: TlsTransport) -> None:
        fd = transport.fd
        self._open.pop(fd, None)
        connection = self._connections.pop(fd, None)
        if connection is None:  # It has sent nothing.
            return
        if self._begun.pop(fd, None) is not None:
            self._begun_shares.remove(connection)
        self._discard_hello(connection)
        key = _key_of(connection)
        waiting = self._turns.get(key, {})
        if waiting.pop(fd, None) is not None:
            self._turn_count -= 1
            if not waiting:
                del self._turns[key]

    def _discard_hello(self, connection: Connection) -> None:
        self._hello_bytes -= self._hello_shares.amount_of(connection)
        self._hello_shares.remove(connection)

    def _drop(self, transport: TlsTransport, reason: str) -> None:
        self.refused(transport, reason)
        self._table.close(self._table.by_fd[transport.fd], reason)


def _key_of(connection: Connection) -> bytes:
    return share_key(connection.origin.address)


def _peer_of(transport: TlsTransport) -> str:
    try:
        name = transport.sock.getpeername()
    except OSError:
        return "a client that has gone"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a client"
