"""Handshakes: the TLS handshakes of one Processor, and the limits of their cost to connected clients.

    a socket arrives    it has `kproc.tls.handshake.timeout.ms` to send its first record
    its first record    waits for a turn, because the answer is expensive: a signature and a key exchange. In each pass
                        the Processor answers as many as fit into _TURN_NS, at least one, and does not read the others
                        meanwhile. Client addresses take turns, and the oldest client of an address comes first. A
                        client that has closed its connection is not answered. A client that has waited for the timeout
                        is dropped. All unanswered first records take at most _HELLO_BYTES_MAX
    answered            the handshake has the same time to finish. It takes some 50 KiB, so there are at most
                        `kproc.tls.handshakes.max` of these. It makes progress when the client begins to send its next
                        flight
    finished            the client's certificate, if it showed one, becomes the connection's principal; when the
                        certificate expires, the connection is closed

A flood of clients that never finish costs a Processor half a millisecond in each pass and a bounded amount of memory.
At the limit of answered handshakes, one is closed only if its address has most of them, and only in these cases:

    it made no progress for _STALE_NS            for a new client of any address
    it is the newest without progress            for a new client of an address with at least two handshakes fewer
    it is the newest, and all made progress      for a new client of an address with at least two handshakes fewer

Otherwise the new client waits for its turn. A client therefore waits only for handshakes of its own address that are
younger than _STALE_NS or whose client has begun its next flight since then, and each of these ends with its timeout.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.address_shares import AddressShares
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_state import Pause
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.describe import connection_name
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.tls_transport import TlsTransport
from kproc.broker.role.handoff import share_key
from kproc.broker.security.certificate import MalformedCertificate, facts_of
from kproc.broker.security.principal import USER, Principal
from kproc.broker.security.principal_mapping import NoMatchingRule
from kproc.broker.security.session import Session
from kproc.common.clock import NS_PER_MS, Clock
from kproc.common.deadlines import Deadlines
from kproc.common.log_rate import LogRate

logger = logging.getLogger(__name__)

_TURN_NS: Final = 500_000
# Limit of waiting clients that are checked in one pass. It bounds the pass when few of them can be answered.
_CHECKS_MAX: Final = 64
# Interval of checks while all clients wait. The end of a handshake is noticed at once.
_BLOCKED_MS: Final = 10
_HELLO_BYTES_MAX: Final = 16 << 20
# Time in ns without progress after which a handshake may be closed for any new client. The slowest links have a shorter
# round trip. In this time a core answers fewer first records than kproc.tls.handshakes.max, so during a flood from one
# address other clients of that address can still finish.
_STALE_NS: Final = 1_000_000_000
_EXPIRED: Final = "its client's certificate has expired"


class WaitingHello(NamedTuple):
    """A client that waits for the answer to its first TLS record, and the time when that record was complete."""

    transport: TlsTransport
    since_ns: int


class BegunHandshake(NamedTuple):
    """An answered handshake. `progress_ns` is the time of the answer, or of the start of the client's next flight.

    `has_progressed` is True once that flight has begun.
    """

    transport: TlsTransport
    progress_ns: int
    has_progressed: bool


class Handshakes:
    """Limits and paces the TLS handshakes of one Processor (module docstring). Made at its first TLS connection."""

    __slots__ = (
        "_begun", "_begun_max", "_begun_shares", "_certificates", "_clock", "_connections", "_hello_bytes",
        "_hello_shares", "_is_blocked", "_lines", "_newly_waiting", "_open", "_state", "_table", "_timeout_ns",
        "_turns",
    )  # fmt: skip

    def __init__(
        self, table: ConnectionTable, state: ProcessorState, clock: Clock, *, timeout_ms: int, begun_max: int
    ) -> None:
        self._table = table
        self._state = state
        self._clock = clock
        self._timeout_ns = timeout_ms * NS_PER_MS
        self._begun_max = begun_max
        # Deadlines by descriptor, the oldest first. Clients that wait for their turn have none.
        self._open: dict[int, int] = {}
        self._begun: dict[int, BegunHandshake] = {}  # By descriptor. The stalest comes first.
        self._begun_shares = AddressShares()
        # Clients that wait for a turn, by address. The address whose turn it is comes first.
        self._turns: dict[bytes, dict[int, WaitingHello]] = {}
        self._is_blocked = False  # True if no client checked in the last pass could be answered or closed.
        self._newly_waiting: list[int] = []  # Descriptors of newly waiting clients, which are still read.
        # By descriptor: connections in their handshake that have sent something.
        self._connections: dict[int, Connection] = {}
        self._hello_bytes = 0  # Size of all stored first records.
        self._hello_shares = AddressShares()
        # By descriptor: when the client's certificate expires, in ms since 1970.
        self._certificates: Deadlines[int] = Deadlines()
        self._lines = LogRate(logger, "and %d more failed TLS handshakes")

    @property
    def has_turns(self) -> bool:
        """Return True if a client waits for the answer to its first record, or first records take too much memory."""
        return bool(self._turns) or self._hello_bytes > _HELLO_BYTES_MAX

    def wait_ms(self, longest_ms: int) -> int:
        """Return for how many ms the Processor may sleep: `longest_ms`, or less if `work` must be called earlier."""
        if not self.has_turns:
            return longest_ms
        return min(longest_ms, _BLOCKED_MS) if self._is_blocked else 0

    def opened(self, transport: TlsTransport) -> None:
        """Start the time limit in which a new TLS connection must send its first record."""
        self._open[transport.fd] = self._state.now_ns + self._timeout_ns

    def wait_for_turn(self, transport: TlsTransport) -> None:
        """Queue a client whose first record is complete. It is answered in the next pass or a later one."""
        self._open.pop(transport.fd, None)
        key = _key_of(self._connections[transport.fd])
        self._turns.setdefault(key, {})[transport.fd] = WaitingHello(transport, self._state.now_ns)
        self._newly_waiting.append(transport.fd)
        self._state.press()

    def received_hello(self, transport: TlsTransport, size: int) -> None:
        """Count the memory of a client's first record, of which `size` bytes have arrived so far."""
        connection = self._connections[transport.fd] = self._table.by_fd[transport.fd]
        self._hello_bytes += size - self._hello_shares.amount_of(connection)
        self._hello_shares.put(connection, size)
        if self._hello_bytes > _HELLO_BYTES_MAX:
            self._state.press()

    def advanced(self, transport: TlsTransport) -> None:
        """Record that a client has begun its next flight. Called once per flight.

        This progress delays the eviction of the handshake for a new client, but not its timeout.
        """
        del self._begun[transport.fd]
        self._begun[transport.fd] = BegunHandshake(transport, self._state.now_ns, True)

    def work(self) -> int:
        """Answer the first records of as many clients as fit into one pass. The other waiting clients are not read.

        Return how many clients were answered, or closed because they hung up or waited too long.
        """
        answered, closed = self._answer_waiting()
        self._is_blocked = not answered and not closed
        while self._hello_bytes > _HELLO_BYTES_MAX:
            # Close the newest connection of the address whose first records take most memory, because the others of
            # that address have waited longer.
            victim = next(reversed(self._hello_shares.largest_holders()))
            self._table.close(victim, "first records of TLS handshakes take too much memory")
        fresh, self._newly_waiting = self._newly_waiting, []
        for fd in fresh:
            newcomer = self._connections.get(fd)
            if newcomer is not None and fd in self._turns.get(_key_of(newcomer), ()):
                self._table.pause(newcomer, Pause.HANDSHAKE)
        return answered + closed

    def _answer_waiting(self) -> tuple[int, int]:
        """Answer waiting clients for up to _TURN_NS. Return how many were answered, and how many were closed."""
        until_ns = self._clock.now_ns() + _TURN_NS
        oldest_ns = self._state.now_ns - self._timeout_ns
        answered = closed = blocked = 0
        for _ in range(_CHECKS_MAX):
            # Answer at least one client in each pass. Otherwise nobody would ever get in on a slow host, where a
            # handshake takes longer than the whole turn.
            is_late = (answered or blocked) and self._clock.now_ns() >= until_ns
            if is_late or blocked >= len(self._turns):
                break
            key, (transport, since_ns) = self._next_turn()
            connection = self._table.by_fd[transport.fd]
            if transport.has_left():
                self._table.close(connection, "the client closed the connection before its TLS handshake")
                closed += 1
            # A client that has waited for the whole timeout has probably given up, and to answer it would delay the
            # others.
            elif since_ns < oldest_ns:
                self._drop(transport, "more clients begin a handshake than can be answered")
                closed += 1
            elif self._make_place(key):
                self._answer(transport, connection)
                answered += 1
            else:
                blocked += 1
        return answered, closed

    def _next_turn(self) -> tuple[bytes, WaitingHello]:
        """Return the oldest waiting client of the address whose turn it is. The next turn is another address's."""
        key = next(iter(self._turns))
        waiting = self._turns[key] = self._turns.pop(key)
        return key, next(iter(waiting.values()))

    def _remove_turn(self, connection: Connection) -> None:
        """Remove a connection from the clients that wait for an answer to their first record, if it is one of them."""
        key = _key_of(connection)
        waiting = self._turns.get(key, {})
        if waiting.pop(connection.fd, None) is not None and not waiting:
            del self._turns[key]

    def _answer(self, transport: TlsTransport, connection: Connection) -> None:
        self._remove_turn(connection)
        self._discard_hello(connection)
        self._open[transport.fd] = self._state.now_ns + self._timeout_ns
        self._begun[transport.fd] = BegunHandshake(transport, self._state.now_ns, False)
        self._begun_shares.put(connection, 1)
        try:
            transport.start_handshake()
        except OSError as error:
            self._table.close(connection, str(error))
            return
        if Pause.HANDSHAKE in connection.pauses:
            self._table.resume(connection, Pause.HANDSHAKE)

    def _make_place(self, key: bytes) -> bool:
        """Close handshakes while kproc.tls.handshakes.max are open. Return False if a client of `key` has to wait."""
        while len(self._begun) >= self._begun_max:
            victim = self._find_victim(key)
            if victim is None:
                return False
            self._drop(victim, f"{self._begun_max} handshakes are under way (kproc.tls.handshakes.max)")
        return True

    def _find_victim(self, key: bytes) -> TlsTransport | None:
        """Return the handshake to close for a new client of this address, or None if the client has to wait."""
        shares = self._begun_shares
        largest = shares.largest_share()
        for fd, begun in self._begun.items():
            if self._state.now_ns - begun.progress_ns < _STALE_NS:
                break
            if shares.share_of(self._connections[fd]) == largest:
                return begun.transport
        if shares.share_of_key(key) + 1 >= largest:
            return None
        newest_first = [self._begun[each.fd] for each in reversed(shares.largest_holders())]
        return next((each for each in newest_first if not each.has_progressed), newest_first[0]).transport

    def finished(self, transport: TlsTransport) -> None:
        """Finish a handshake, and set the principal by the client's certificate, if it showed one.

        Raises OSError if the certificate gives no principal or has expired.
        """
        self._close_handshake(transport)
        self._state.counts[SLOT["tls_handshakes"]] += 1
        connection = self._table.by_fd[transport.fd]
        certificate = transport.peer_certificate()
        if certificate is None:
            return
        try:
            facts = facts_of(certificate)
            ends_ms = int(facts.ends.timestamp() * 1000)
            # A resumed TLS session, where resumption cannot be switched off, brings the certificate of its first
            # handshake. It may have expired since.
            if ends_ms <= self._clock.wall_ms():
                self.refused(transport, _EXPIRED)
                raise OSError(_EXPIRED)
            # Watch the end of the certificate, because TLS checks it only in the handshake. Otherwise the connection
            # would outlive the certificate that let it in.
            self._certificates.move(transport.fd, ends_ms)
            if connection.login is not None:  # With SASL_SSL, the login determines the principal.
                return
            principal = Principal(USER, transport.context.mapper.name_of(facts.subject))
        except (NoMatchingRule, MalformedCertificate) as error:
            self.refused(transport, str(error))
            raise OSError(str(error)) from error
        if complaint := principal.problem():
            self.refused(transport, complaint)
            raise OSError(complaint)
        connection.session = Session(principal)

    def refused(self, transport: TlsTransport, reason: str) -> None:
        """Count a failed handshake, and log it unless there were many in this second. The caller closes the client."""
        self._state.counts[SLOT["authentications_failed"]] += 1
        if self._lines.has_room(self._clock.now_ns()):
            logger.warning("failed TLS handshake with %s: %s", _peer_of(transport), reason)

    def expire(self) -> None:
        """Close connections with an expired certificate or a late handshake. Called once a second."""
        now_ns = self._state.now_ns
        self._lines.report_suppressed(self._clock.now_ns())
        for fd in self._certificates.pop_due(self._clock.wall_ms()):
            connection = self._table.by_fd[fd]
            if self._lines.has_room(now_ns):
                logger.warning("closing connection %s: %s", connection_name(connection), _EXPIRED)
            self._state.counts[SLOT["certificates_expired"]] += 1
            self._table.close(connection, _EXPIRED)
        for begun in list(self._begun.values()):
            try:
                # Send what a full socket did not accept, because epoll does not watch for writing in a handshake.
                begun.transport.flush_handshake()
            except OSError as error:
                self._table.close(self._table.by_fd[begun.transport.fd], str(error))
        for fd, until_ns in list(self._open.items()):
            if until_ns > now_ns:
                break
            late = self._begun.get(fd)
            if late is not None:
                self._drop(late.transport, "it takes longer than kproc.tls.handshake.timeout.ms")
            else:
                self._table.close(self._table.by_fd[fd], "no TLS handshake came in time")

    def remove(self, transport: TlsTransport) -> None:
        """Remove all state about the handshake of a connection that is closed."""
        self._close_handshake(transport)
        self._certificates.discard(transport.fd)

    def _close_handshake(self, transport: TlsTransport) -> None:
        fd = transport.fd
        self._open.pop(fd, None)
        connection = self._connections.pop(fd, None)
        if connection is None:  # The client has sent nothing.
            return
        if self._begun.pop(fd, None) is not None:
            self._begun_shares.remove(connection)
        self._discard_hello(connection)
        self._remove_turn(connection)

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
