"""HandoffQueue: passes accepted sockets to the Processors in turn, and receives their acknowledgements.

Each Processor has credits for 20 sockets that it has not registered yet, as Kafka's newConnections queue has room for
20. Kafka accepts, tries each Processor once and then blocks on the last. Here nothing is accepted before some
Processor has a credit: clients wait in the kernel's backlog, where the death of one of our processes does not
disconnect them.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from kproc.broker.acceptor.connection_counts import ConnectionCounts
from kproc.broker.ipc.fdpass import send_fd
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.role.handoff import CREDITS, EVICT, HANDOFF, NO_ADDRESS, REFUSED, REPORT_BYTES_MAX, Report
from kproc.broker.transport.agent import AgentId

logger = logging.getLogger(__name__)

# A Processor that had no free descriptor, or whose handoff socket was full, gets no client socket for this long.
_PAUSE_NS: Final = 100_000_000
_REFUSED_SLOT: Final = SLOT["connections_refused"]


class Accepted(NamedTuple):
    """A configured client socket that no Processor has registered yet."""

    sock: socket.socket
    flags: int
    address: bytes
    port: int


class _HandoffTarget:
    """One Processor: the handoff socket, and the client sockets that it has not acknowledged."""

    __slots__ = ("is_gone", "paused_until_ns", "peer", "sock", "unacknowledged")

    def __init__(self, peer: AgentId, sock: socket.socket) -> None:
        self.peer = peer
        self.sock = sock
        self.unacknowledged: dict[int, Accepted] = {}
        self.paused_until_ns = 0
        self.is_gone = False

    def __str__(self) -> str:
        return str(self.peer)


class HandoffQueue:
    """Passes accepted sockets to the Processors in turn. One per Acceptor.

    Calls `release` with the client's address when a Processor has registered a socket and counts it from then on.
    """

    def __init__(
        self,
        listener: int,
        *,
        epoll: select.epoll,
        counts: ConnectionCounts,
        metrics: MetricsRow,
        release: Callable[[bytes], None],
    ) -> None:
        self._listener = listener
        self._epoll = epoll
        self._counts = counts
        self._metrics = metrics
        self._release = release
        self._targets: list[_HandoffTarget] = []
        self._by_fd: dict[int, _HandoffTarget] = {}
        self._turn = 0
        self._serial = 0
        # Sockets that a Processor refused, or did not acknowledge before it ended.
        self._waiting: deque[Accepted] = deque()
        self._serving: frozenset[AgentId] | None = None

    def attach(self, peer: AgentId, sock: socket.socket) -> None:
        """Start to pass sockets to a Processor that has started, over its handoff socket `sock`."""
        self.detach(peer)
        sock.setblocking(False)
        target = _HandoffTarget(peer, sock)
        self._targets.append(target)
        self._by_fd[sock.fileno()] = target
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._counts.expect(target)

    def detach(self, peer: AgentId) -> None:
        """Handle a Processor's end: queue its unacknowledged sockets, and subtract the connections that it had."""
        for target in [each for each in self._targets if each.peer == peer]:
            # Read the last acknowledgements first. The Processor may have read requests of the acknowledged connections
            # before it died, so these are closed and not passed to another Processor.
            self._read(target, 0)
            self._targets.remove(target)
            self._unwatch(target)
            target.sock.close()
            self._waiting.extend(target.unacknowledged.values())
            self._counts.drop(target)

    def use_only(self, peers: frozenset[AgentId]) -> None:
        """Pass sockets to these Processors only. The others still acknowledge and count their connections."""
        self._serving = peers

    def on_readable(self, fd: int, now_ns: int) -> int:
        """Read acknowledgements and counts; return how many messages, or 0 if `fd` is not a handoff socket."""
        target = self._by_fd.get(fd)
        return self._read(target, now_ns) if target is not None else 0

    def has_room(self, now_ns: int) -> bool:
        """Return True if one more socket could be passed on at once."""
        return not self._waiting and self._pick(now_ns) is not None

    def hand_off(self, accepted: Accepted, now_ns: int) -> None:
        """Pass a socket to the next Processor in turn; queue it if none accepts it."""
        if not self._offer(accepted, now_ns):
            self._waiting.append(accepted)

    def hand_off_waiting(self, now_ns: int) -> int:
        """Pass on the queued sockets, as far as possible; return how many."""
        count = 0
        while self._waiting and self._offer(self._waiting[0], now_ns):
            self._waiting.popleft()
            count += 1
        return count

    def pauses(self) -> list[int]:
        """Return the times (monotonic ns) at which Processors that had no room for a socket can be tried again."""
        return [each.paused_until_ns for each in self._targets if each.paused_until_ns]

    def evict(self, count: int) -> None:
        """Request Processors to close `count` connections of this listener together.

        Processors that have more of them close more, so that the numbers left approach each other.
        """
        held = {target: self._counts.of_source(target, self._listener) for target in self._targets}
        wanted = dict.fromkeys(held, 0)
        for _ in range(min(count, sum(held.values()))):
            busiest = max(held, key=lambda target: held[target])
            held[busiest] -= 1
            wanted[busiest] += 1
        for target, share in wanted.items():
            if share:
                message = HANDOFF.pack(EVICT, self._listener, min(share, 0xFFFF), NO_ADDRESS, 0)
                try:
                    target.sock.send(message)
                # The handoff socket is full, or the Processor has ended. ConnectionQuotas.evictions requests the rest
                # again later.
                except OSError as error:
                    logger.info(
                        "cannot request %s to close connections above max.connections, trying again later: %s",
                        target.peer,
                        error,
                    )

    @property
    def is_empty(self) -> bool:
        """Return True if every accepted socket was registered by a Processor."""
        return not self._waiting and not any(target.unacknowledged for target in self._targets)

    def close(self) -> None:
        for target in self._targets:
            target.sock.close()
            for accepted in target.unacknowledged.values():
                accepted.sock.close()
        for accepted in self._waiting:
            accepted.sock.close()
        self._targets.clear()
        self._by_fd.clear()
        self._waiting.clear()

    def _pick(self, now_ns: int) -> _HandoffTarget | None:
        """Return the next Processor in turn that has a credit left and may be tried now, or None if none has."""
        targets = self._targets
        for step in range(len(targets)):
            at = (self._turn + step) % len(targets)
            target = targets[at]
            if target.paused_until_ns and now_ns >= target.paused_until_ns:
                target.paused_until_ns = 0
            if (
                len(target.unacknowledged) < CREDITS
                and not target.paused_until_ns
                and not target.is_gone
                and (self._serving is None or target.peer in self._serving)
            ):
                self._turn = at
                return target
        return None

    def _offer(self, accepted: Accepted, now_ns: int) -> bool:
        while (target := self._pick(now_ns)) is not None:
            self._turn += 1
            serial = self._serial + 1
            message = HANDOFF.pack(serial, self._listener, accepted.flags, accepted.address, accepted.port)
            try:
                is_sent = send_fd(target.sock, message, accepted.sock.fileno())
            except OSError as error:
                # The Processor has ended or died. We keep the sockets that it did not acknowledge until the supervisor
                # tells us to detach it; `detach` then reads its last acknowledgements.
                logger.info(
                    "cannot hand a connection to %s, trying another Processor: %s", target.peer, error
                )
                target.is_gone = True
                continue
            if is_sent:
                self._serial = serial
                target.unacknowledged[serial] = accepted
                return True
            # The message cannot be sent now, mostly because the Processor does not read its handoff socket. Pause this
            # Processor, and try the next one.
            target.paused_until_ns = now_ns + _PAUSE_NS
        return False

    def _read(self, target: _HandoffTarget, now_ns: int) -> int:
        count = 0
        while True:
            try:
                message = target.sock.recv(REPORT_BYTES_MAX)
            except BlockingIOError:
                return count
            except ConnectionResetError:
                # ECONNRESET: the Processor died before it read all our messages. The kernel reports this once, and then
                # delivers the messages that the Processor had sent.
                continue
            except OSError as error:
                # Treat the error as the end of the Processor. The supervisor then detaches it.
                logger.info(
                    "cannot read the handoff socket of %s, treating this Processor as ended: %s",
                    target.peer,
                    error,
                )
                message = b""
            if not message:
                self._unwatch(target)  # The Processor is ending, and detach() follows.
                return count
            report = Report.unpack(message)
            for (address, listener), change in report.changes:
                self._counts.add(target, address, listener, change)
            if not report.has_more:
                self._counts.heard(target)
            for answer in report.answers:
                self._handle_acknowledgement(target, answer, now_ns)
            count += 1

    def _unwatch(self, target: _HandoffTarget) -> None:
        """Stop watching a Processor's handoff socket, because epoll reports a closed peer as readable without end."""
        target.is_gone = True
        if self._by_fd.pop(target.sock.fileno(), None) is not None:
            self._epoll.unregister(target.sock.fileno())

    def _handle_acknowledgement(self, target: _HandoffTarget, answer: int, now_ns: int) -> None:
        accepted = target.unacknowledged.pop(answer & ~REFUSED, None)
        if accepted is None:
            return
        if answer & REFUSED:
            # The Processor has no free descriptor, or is leaving. So try other Processors first.
            self._metrics.values[_REFUSED_SLOT] += 1
            self._waiting.append(accepted)
            target.paused_until_ns = now_ns + _PAUSE_NS
        else:
            self._release(accepted.address)
            accepted.sock.close()
