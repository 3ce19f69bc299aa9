"""TlsConnections: the TLS side of one Processor.

It has the contexts of the listeners, the handshakes, and the connections that must be read although their sockets are
not readable. When the Processor leaves, it closes the TLS connections, which cannot migrate. It is made at the first
TLS connection, so that a broker without a TLS listener loads no TLS code.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Final

from kproc.broker.config.values import ConfigError
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_state import ACTIVE, OPEN
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.handshakes import Handshakes
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.tls_listeners import TlsListeners
from kproc.broker.processor.tls_transport import TlsShare, TlsTransport
from kproc.broker.security.tls import (
    Sources,
    TlsContext,
    Value,
    make_context,
    problem_with_change,
    settings_of,
    sources_of,
)
from kproc.common.clock import Clock

logger = logging.getLogger(__name__)

# A leaving Processor closes its TLS clients one by one. Otherwise all of them would reconnect at the same time, and a
# handshake costs more than anything else that a client does.
_PAUSE_NS: Final = 50_000_000
_LEAVE_NS_MAX: Final = 15_000_000_000
_LEAVE_MS: Final = 10  # Interval at which a leaving Processor checks whether the next client is due.
_REST_MS: Final = 500
_COMPLAINT_NS: Final = 1_000_000_000


class TlsConnections:
    """The TLS contexts, handshakes and unread decrypted bytes of one Processor. Made at its first TLS connection."""

    __slots__ = (
        "_clock", "_contexts", "_leave_pause_ns", "_listeners", "_next_complaint_ns", "_next_leave_ns", "_share",
        "_state", "_table", "handshakes",
    )  # fmt: skip

    def __init__(
        self, table: ConnectionTable, state: ProcessorState, clock: Clock, listeners: TlsListeners
    ) -> None:
        self._table = table
        self._state = state
        self._clock = clock
        self._listeners = listeners
        config = listeners.config
        self.handshakes = Handshakes(
            table,
            state,
            clock,
            timeout_ms=config.kproc_tls_handshake_timeout_ms,
            begun_max=config.kproc_tls_handshakes_max,
        )
        self._share = TlsShare(state, self.handshakes)
        # The TLS context of each listener, and the ssl settings and store files from which it was made.
        self._contexts: dict[str, tuple[TlsContext, Sources]] = {}
        self._next_complaint_ns = 0
        self._leave_pause_ns = self._next_leave_ns = 0
        listeners.on_change = self._renew_changed

    # -- connections -------------------------------------------------------------------------------------------

    def transport(self, sock: socket.socket, listener: int) -> TlsTransport | None:
        """Return the transport of a new connection, or None if it was closed because its listener has no usable key."""
        try:
            context = self._context(self._listeners.names[listener])
        except (ConfigError, IndexError) as error:
            # The listener has no usable key, or was removed or added just now. A client can connect many times a
            # second, so log this at most once a second.
            if self._state.now_ns >= self._next_complaint_ns:
                self._next_complaint_ns = self._state.now_ns + _COMPLAINT_NS
                logger.error(
                    "closing a TLS connection, because its listener has no usable key or was just changed: %s",
                    error,
                )
            sock.close()
            return None
        transport = TlsTransport(sock, context, self._share)
        self.handshakes.opened(transport)
        return transport

    def work(self, read: Callable[[Connection], None]) -> int:
        """Read connections with buffered bytes, and answer handshakes. Return the amount of work.

        Called in each pass while `is_busy`.
        """
        done = 0
        self._share.renew()
        for fd in list(self._share.unread):
            connection = self._table.by_fd.get(fd)
            if connection is None or connection.interest != ACTIVE:
                continue  # It is read again when its answers are sent, or when there is room for its requests.
            done += 1
            try:
                read(connection)
            except Exception as error:  # noqa: BLE001 - contained: the connection ends
                self._table.close_failed(connection, error)
        if self.handshakes.has_turns:
            done += self.handshakes.work()
        if self._state.is_leaving:
            done += self._close_next()
        return done

    @property
    def is_busy(self) -> bool:
        """Return True if `work` must be called in the next pass, too, although no descriptor may report anything."""
        share = self._share
        return bool(share.unread) or share.is_spent or self.handshakes.has_turns or self._state.is_leaving

    def wait_ms(self) -> int:
        """Return how long the Processor may sleep, in ms."""
        find = self._table.by_fd
        has_unread = any(fd in find and find[fd].interest == ACTIVE for fd in self._share.unread)
        if has_unread:
            return 0
        return self.handshakes.wait_ms(_LEAVE_MS if self._state.is_leaving else _REST_MS)

    def every_second(self) -> None:
        """Close TLS connections with an expired certificate or a handshake that takes too long."""
        self.handshakes.expire()

    def _close_next(self) -> int:
        """Close the next TLS connection, if one is due, while this Processor leaves: TLS connections cannot migrate.

        Its requests in work are answered first. Return the number of closed connections: 0 or 1.
        """
        staying = [
            each for each in self._table.by_fd.values() if each.state is OPEN and not each.transport.can_move
        ]
        now_ns = self._clock.now_ns()
        if not self._leave_pause_ns:
            self._leave_pause_ns = min(_PAUSE_NS, _LEAVE_NS_MAX // max(1, len(staying)))
        if not staying or now_ns < self._next_leave_ns:
            return 0
        self._next_leave_ns = now_ns + self._leave_pause_ns
        self._table.drain(staying[0])
        return 1

    # -- contexts ----------------------------------------------------------------------------------------------

    def _context(self, name: str) -> TlsContext:
        found = self._contexts.get(name)
        if found is None:
            sources = sources_of(self._value_of(name))
            found = self._contexts[name] = self._make(name), sources
        return found[0]

    def _make(self, name: str) -> TlsContext:
        return make_context(name, self._value_of(name), ticket_secret=self._listeners.ticket_secret)

    def _value_of(self, name: str) -> Value:
        return settings_of(self._listeners.config, self._listeners.settings, name)

    def renew(self, *, only_changed: bool = False) -> list[str]:
        """Read the keys and certificates of all listeners again, for new connections. Return the problems.

        A listener whose files cannot be used keeps its present certificates. only_changed: skip listeners whose
        settings and files are the same as before.
        """
        problems = []
        for name, (old, made_from) in list(self._contexts.items()):
            # The listener was removed. If it is added again, it gets a new context.
            if name not in self._listeners.names:
                del self._contexts[name]
                continue
            value = self._value_of(name)
            now = sources_of(value)
            if only_changed and now == made_from:
                continue
            try:
                new = self._make(name)
                complaint = problem_with_change(old, new, name, value)
            except ConfigError as error:
                complaint = f"listener {name}: {error}"
            if complaint is None:
                self._contexts[name] = new, now
            else:
                problems.append(complaint)
        return problems

    def _renew_changed(self) -> None:
        """Renew the contexts whose sources have changed with the settings or the listeners."""
        for problem in self.renew(only_changed=True):
            logger.error("%s; the certificates in use stay", problem)
