"""Acceptor: accepts the connections of one listener within the quotas and passes them to the Processors in turn.

It accepts a connection only if some Processor has a free credit (handoff_queue.py) and the limits on rates and counts
allow one more (connection_quotas.py). Otherwise it is blocked: clients wait in the kernel's backlog, and the loop still
reads reports and closes delayed sockets. Blocked time is a metric, as in Kafka (KIP-402). The listening socket belongs
to the supervisor, so that clients can connect while a dead Acceptor is being replaced.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kproc.broker.acceptor.accepted_socket import configure, flags_of, is_loopback, remote_address
from kproc.broker.acceptor.connection_counts import ConnectionCounts
from kproc.broker.acceptor.connection_limits import ConnectionLimits
from kproc.broker.acceptor.connection_quotas import TOO_MANY, ConnectionQuotas
from kproc.broker.acceptor.handoff_queue import Accepted, HandoffQueue
from kproc.broker.acceptor.resolved_limits import LimitsFor, ResolvedLimits
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.role.handoff import address_text
from kproc.broker.role.lookups import Lookups
from kproc.broker.role.role import Role
from kproc.broker.transport.agent import STORE_MS, AgentId, Link
from kproc.broker.transport.envelope import FLAG_LOOPBACK
from kproc.common.clock import NS_PER_MS, Clock
from kproc.common.deadlines import Deadlines

if TYPE_CHECKING:
    from kproc.broker.ipc.wait import Sleeper

logger = logging.getLogger(__name__)

_ACCEPTS_PER_PASS: Final = 64  # Bounds a duty cycle; epoll is level-triggered, so it reports the rest again.
# accept(2) fails with these when the process or the host has no descriptors or memory left. The lack is temporary, so
# the Acceptor pauses and retries.
_OUT_OF_FDS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Pause without free descriptors. More frequent attempts only waste CPU time, because descriptors come back when
# connections close.
_BACKOFF_NS: Final = 100_000_000
_IDLE_MS: Final = 1000
_SAY_NS: Final = 1_000_000_000
# The longest times for which the Acceptor waits until host names in max.connections.per.ip.overrides are resolved: at
# its start, and after a change of limits. A limit whose name takes longer comes into force when the name server
# answers.
_NAMES_AT_START_S: Final = 1.0
_NAMES_S: Final = 0.05
_LOOKUP_NS: Final = 50_000_000  # Interval at which a pending look-up is polled.


class Acceptor(Role):
    """Accepts the connections of one listener within the quotas and passes them to the Processors. One per listener."""

    def __init__(
        self,
        agent_id: AgentId,
        *,
        listener_index: int,
        listening: socket.socket,
        doze: Sleeper,
        metrics: MetricsRow,
        clock: Clock,
        send_buffer_bytes: int = -1,
        protocol: str = "PLAINTEXT",
        limits_for: LimitsFor = lambda settings, resolve: ConnectionLimits(),
        rate_samples: int = 11,
        rate_sample_ns: int = 1_000_000_000,
        rate_events_elsewhere: Callable[[], int] = lambda: 0,
    ) -> None:
        """Create the Acceptor of the bound socket `listening`.

        limits_for: returns the limits by the dynamic settings; see ResolvedLimits.
        rate_events_elsewhere: returns the sum of the metric connection_rate_events over the other Acceptors.
        """
        super().__init__(agent_id, doze=doze, metrics=metrics, clock=clock)
        self._listening = listening
        self._send_buffer_bytes = send_buffer_bytes
        self._protocol_flags = flags_of(protocol)
        self._counts = ConnectionCounts()
        self._lookups = Lookups(clock.now_ns)
        self.quotas = ConnectionQuotas(
            listener_index,
            counts=self._counts,
            limits=ConnectionLimits(),
            now_ns=clock.now_ns(),
            samples=rate_samples,
            sample_ns=rate_sample_ns,
            elsewhere=rate_events_elsewhere,
        )
        self._base_events = self._values[_EVENTS]
        # Rejected sockets with the time in ns at which they are closed, so that a client cannot retry at once.
        self._parked: Deadlines[socket.socket] = Deadlines()
        self._is_watching = False
        self._is_level_triggered = False
        self._blocked_since_ns = 0
        self._is_stopping = False
        self._backoff_until_ns = 0
        self._refused_count = 0
        self._next_refused_ns = 0
        self._stored_throttles = (0, 0, 0)
        self._queue = HandoffQueue(
            listener_index,
            epoll=self._epoll,
            counts=self._counts,
            metrics=metrics,
            release=self.quotas.release,
        )
        # A client can reset its connection between epoll's report and accept(2), which would then wait for the next
        # client.
        listening.setblocking(False)
        self._limits = ResolvedLimits(limits_for, self.quotas, self._lookups)
        self._limits.apply(DynamicSettings(), _NAMES_AT_START_S)

    # -- wiring ------------------------------------------------------------------------------------------------

    def attach(self, link: Link) -> None:
        """Fail, because an Acceptor has no rings. It talks to Processors over the handoff sockets only."""
        raise AssertionError(f"{self.id} got a link to {link.peer}, but Acceptors have no links")

    def attach_handoff(self, peer: AgentId, sock: socket.socket) -> None:
        """Start to pass sockets to a Processor that has started, over its handoff socket `sock`."""
        self._queue.attach(peer, sock)

    def detach(self, peer: AgentId) -> None:
        """Handle the end of a Processor: pass the sockets that it did not acknowledge to the others."""
        self._queue.detach(peer)

    def use_only(self, peers: frozenset[AgentId]) -> None:
        """Hand new sockets to these Processors only, because the others do not serve this listener.

        Some of these Processors may not have started yet.
        """
        self._queue.use_only(peers)

    def apply_settings(self, settings: DynamicSettings) -> None:
        """Put changed limits into force, from the next connection on.

        A limit that names a host holds once that name is resolved.
        """
        self._limits.apply(settings, _NAMES_S)

    def next_deadline_ms(self) -> int:
        now_ns = self._clock.now_ns()
        return max(0, min((self._next_timer_ns(now_ns) - now_ns) // NS_PER_MS + 1, _IDLE_MS))

    def _next_timer_ns(self, now_ns: int) -> int:
        """Return the time (monotonic ns) of the next event that no descriptor reports, such as the end of a pause."""
        due = [self._parked.first]
        if self._backoff_until_ns:
            due.append(self._backoff_until_ns)
        # Skip `ready_ns` if it has passed. From then on, a blocked Acceptor waits for a credit or for a connection to
        # close, and a Processor reports both on its handoff socket.
        if self._blocked_since_ns and self.quotas.ready_ns > now_ns:
            due.append(self.quotas.ready_ns)
        if self._lookups.is_busy:
            due.append(now_ns + _LOOKUP_NS)
        due += [each for each in self._queue.pauses() if each > now_ns]
        return min(due)

    # -- the duty cycle ----------------------------------------------------------------------------------------

    def do_work(self, timeout_ms: int) -> int:
        """Run one duty cycle, which sleeps up to `timeout_ms`. Return the amount of work, 0 if there was none.

        Reads the Processors' reports of registered and closed connections, hands queued sockets to Processors, and
        accepts connections within the limits.
        """
        self.cycle_count += 1
        now_ns = self._clock.now_ns()
        if self._lookups.is_busy:
            self._lookups.work()
        work = self._queue.hand_off_waiting(now_ns)
        self._update_watch(now_ns)
        timeout_ns = min(
            min(timeout_ms, self.sleep_ms_max) * NS_PER_MS, max(self._next_timer_ns(now_ns) - now_ns, 0)
        )
        events = self._doze.wait(self._poll, timeout_ns / 1e9, _has_no_input, now_ns)
        now_ns = self._clock.now_ns()
        has_clients = False
        for fd, _ in events:
            if self._is_watching and fd == self._listening.fileno():
                has_clients = True
            elif fd == self._watched_fd:
                self.is_called = True
            else:
                work += self._queue.on_readable(fd, now_ns)
        work += self._queue.hand_off_waiting(now_ns)
        if has_clients:
            work += self._accept(now_ns)
        work += self._close_parked(now_ns)
        evicted = self.quotas.evictions(now_ns)
        if evicted:
            self._queue.evict(evicted)
        if now_ns >= self._next_store_ns:
            self._tick(now_ns)
        elif work or self._is_waiting:  # Wake up for the next tick, which stores the new counts.
            self.sleep_ms_max = STORE_MS
        return work

    def drain(self) -> None:
        self._is_stopping = True
        self._watch_listener(False)
        # Close the parked sockets of throttled clients now, because the drain does not wait until their delay is over.
        self._close_parked(1 << 62)

    def is_drained(self) -> bool:
        return self._is_stopping and self._queue.is_empty

    def close(self) -> None:
        self._close_parked(1 << 62)
        self._queue.close()
        self._lookups.close()
        self._epoll.close()
        self._listening.close()

    # -- watching the listener ---------------------------------------------------------------------------------

    def _update_watch(self, now_ns: int) -> None:
        """Watch the listening socket, unless the connection at the head of its backlog may not be accepted yet.

        First end a pause or a block that is over.
        """
        if now_ns >= self._backoff_until_ns:
            self._backoff_until_ns = 0
        if self._blocked_since_ns and self._queue.has_room(now_ns) and self.quotas.admit(now_ns):
            self._values[_BLOCKED] += now_ns - self._blocked_since_ns
            self._blocked_since_ns = 0
        self._watch_listener(
            not self._is_stopping and not self._backoff_until_ns and not self._blocked_since_ns
        )

    def _watch_listener(self, wanted: bool) -> None:
        fd = self._listening.fileno()
        # The port was opened after the socket was registered edge-triggered. Watch it level-triggered from now on,
        # because a duty cycle accepts at most _ACCEPTS_PER_PASS connections, and an edge would not report the rest
        # again.
        if wanted and self._is_watching and not self._is_level_triggered and self._is_open():
            self._epoll.modify(fd, select.EPOLLIN)
            self._is_level_triggered = True
        if wanted == self._is_watching:
            return
        if wanted:
            # epoll reports EPOLLHUP without end for a socket that is bound but not listening. Edge-triggered it
            # reports that once, and then the first client.
            self._is_level_triggered = self._is_open()
            self._epoll.register(fd, select.EPOLLIN | (0 if self._is_level_triggered else select.EPOLLET))
        else:
            self._epoll.unregister(fd)
        self._is_watching = wanted

    def _is_open(self) -> bool:
        """Return True if the supervisor has opened the port: the socket listens."""
        return self._listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1

    def _block(self, now_ns: int) -> None:
        """Stop watching the listening socket: the connection at the head of its backlog may not be accepted yet."""
        self._blocked_since_ns = now_ns
        self._watch_listener(False)

    # -- accepting ---------------------------------------------------------------------------------------------

    def _accept(self, now_ns: int) -> int:
        """Accept connections from the backlog. Block at the first one that may not be accepted yet.

        Return the number of accepted connections and of attempts that failed.
        """
        taken = 0
        while taken < _ACCEPTS_PER_PASS:
            # Check before accept(2), because an accepted socket cannot be put back into the backlog.
            if not self._queue.has_room(now_ns) or not self.quotas.admit(now_ns):
                if self._has_client():
                    self._block(now_ns)
                else:
                    self.quotas.cancel_admission(now_ns)
                return taken
            try:
                # CPython calls accept4(2) with SOCK_CLOEXEC, so no process that a role starts inherits the connection.
                sock, address = self._listening.accept()
            except BlockingIOError:
                # The backlog is empty: all clients are accepted, or the last one has reset its connection since epoll's
                # report.
                self.quotas.cancel_admission(now_ns)
                return taken
            except OSError as error:
                if not self._can_accept_after(error, now_ns):
                    return taken
                taken += 1  # Count the attempt, because a permanent error must not keep us in this loop.
                continue
            taken += 1
            self._values[_ACCEPTED] += 1
            if not self.containment.run(
                "a new connection", None, self._handle_accepted, sock, address, now_ns
            ):
                sock.close()
            self._values[_EVENTS] = self._base_events + self.quotas.broker_events
            # Store the number of events at once, because the other Acceptors enforce the broker's rate with it.
            self._metrics.store_one(_EVENTS)
        return taken

    def _can_accept_after(self, error: OSError, now_ns: int) -> bool:
        """React to an error of accept(2). Pause if descriptors are exhausted, and log the loss of a connection.

        Return True if the next call can succeed: only one connection was gone. Return False if the next call would
        fail, too: the port is closed, or no descriptor is free.
        """
        # accept(2) fails with EINVAL on a socket that does not listen: the supervisor has not opened the port yet, or
        # has closed it.
        if error.errno == errno.EINVAL and not self._is_open():
            self.quotas.cancel_admission(now_ns)
            return False
        if error.errno in _OUT_OF_FDS:
            self._on_no_descriptors(error, now_ns)
            return False
        logger.info("a client closed its connection before it was accepted: %s", error)
        self.quotas.cancel_admission(now_ns)
        return True

    def _has_client(self) -> bool:
        """Return True if a connection waits in the backlog."""
        poll = select.poll()
        poll.register(self._listening.fileno(), select.POLLIN)
        return any(mask & select.POLLIN for _, mask in poll.poll(0))

    def _handle_accepted(self, sock: socket.socket, address: object, now_ns: int) -> None:
        """Pass an accepted socket to a Processor, or close it.

        If its address has too many connections, close it at once. If its address connects too fast, close it after a
        delay.
        """
        packed, port = remote_address(address)
        answer = self.quotas.admit_address(packed, now_ns)
        if answer == TOO_MANY:
            self._say_refused("too many", packed, now_ns)
            self._values[_REJECTED] += 1
            sock.close()
        elif answer:
            self._say_refused("too fast", packed, now_ns)
            self._values[_THROTTLED] += 1
            # KIP-612: close a client above its address's rate later instead of now, because a client that is closed at
            # once reconnects at once.
            self._parked.bring_forward(sock, now_ns + answer)
        else:
            try:
                configure(sock, self._send_buffer_bytes)
                flags = self._protocol_flags | (FLAG_LOOPBACK if is_loopback(sock) else 0)
            # The client has reset the connection since accept(2). Close only this socket: the error says nothing about
            # others.
            except OSError as error:
                logger.info(
                    "closing a new connection from %s, because its socket cannot be configured: %s",
                    address,
                    error,
                )
                self.quotas.release(packed)
                sock.close()
                return
            self._queue.hand_off(Accepted(sock, flags, packed, port), now_ns)

    def _say_refused(self, why: str, packed: bytes, now_ns: int) -> None:
        """Log that a connection was rejected, at most once a second.

        A client that retries at once must not fill the disk with log lines.
        """
        self._refused_count += 1
        if now_ns >= self._next_refused_ns:
            self._next_refused_ns = now_ns + _SAY_NS
            logger.info(
                "refusing connections: %s from %s (%d refused from all addresses since the last such line)",
                why,
                address_text(packed),
                self._refused_count,
            )
            self._refused_count = 0

    def _on_no_descriptors(self, error: OSError, now_ns: int) -> None:
        """Free descriptors by closing the sockets whose close is only delayed; then wait before accepting again."""
        self.quotas.cancel_admission(now_ns)
        # Closing parked sockets freed descriptors, so the next duty cycle can accept without a pause.
        if self._close_parked(1 << 62):
            return
        logger.error("cannot accept connections: %s; trying again in 0.1 s", os.strerror(error.errno or 0))
        self._backoff_until_ns = now_ns + _BACKOFF_NS

    def _close_parked(self, now_ns: int) -> int:
        """Close the rejected sockets whose delay is over, and return their number."""
        due = self._parked.pop_due(now_ns)
        for sock in due:
            sock.close()
        return len(due)

    @property
    def _is_waiting(self) -> bool:
        """Return True while each tick must store metrics, although this Acceptor may do no work.

        That is so while it is blocked, has parked sockets, or the broker has more connections than max.connections.
        """
        return bool(self._blocked_since_ns or self._parked or self.quotas.has_excess)

    def _rest_ms(self) -> int:
        return STORE_MS if self._is_waiting else super()._rest_ms()

    def _on_tick(self, now_ns: int) -> None:
        """Update the metrics: the number of parked connections, and the time throttled and blocked."""
        values = self._values
        values[_CONNECTIONS_PARKED] = len(self._parked)
        quotas, before = self.quotas, self._stored_throttles
        self._stored_throttles = quotas.throttled_ns, quotas.throttled_count, quotas.address_throttled_ns
        for slot, now, then in zip(_THROTTLES, self._stored_throttles, before, strict=True):
            values[slot] += now - then  # Added to the counts of this Acceptor's predecessor.
        # Count the blocked time so far, so that the metric grows during a block and not only at its end.
        if self._blocked_since_ns:
            values[_BLOCKED] += now_ns - self._blocked_since_ns
            self._blocked_since_ns = now_ns


def _has_no_input() -> bool:
    """Return False: an Acceptor has no links that could hold input before it sleeps.

    All its input comes over descriptors.
    """
    return False


_ACCEPTED: Final = SLOT["connections_accepted"]
_BLOCKED: Final = SLOT["acceptor_blocked_ns"]
_REJECTED: Final = SLOT["connections_rejected"]
_THROTTLED: Final = SLOT["connections_throttled"]
_CONNECTIONS_PARKED: Final = SLOT["connections_parked"]
_EVENTS: Final = SLOT["connection_rate_events"]
_THROTTLES: Final = (SLOT["accept_throttle_ns"], SLOT["accept_throttles"], SLOT["address_throttle_ns"])
