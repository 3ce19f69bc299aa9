"""The Processors as one Acceptor sees them: whose turn it is, who has room, what is under way, what they report.

Each Processor has credits for 20 sockets that it has not registered yet (Kafka's newConnections queue). Kafka tries
each Processor once and then blocks on the last; here nothing is accepted before somebody has a credit, so a client
waits in the kernel's backlog, where no death of ours can reach it.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from kproc.ipc.fdpass import send_fd
from kproc.metrics.slab import MetricsRow
from kproc.metrics.spec import SLOT
from kproc.net.connection_counts import ConnectionCounts
from kproc.net.handoff import CREDITS, EVICT, HANDOFF, NO_ADDRESS, REFUSED, REPORT_BYTES_MAX, Report
from kproc.transport.agent import AgentId

logger = logging.getLogger(__name__)

# One that had no descriptor, or no room in its socket, is not asked again before this.
_PAUSE_NS: Final = 100_000_000
_REFUSED_SLOT: Final = SLOT["connections_refused"]


class Accepted(NamedTuple):
    """A configured client socket that no Processor has registered yet."""

    sock: socket.socket
    flags: int
    address: bytes
    port: int


class _Target:
    """One Processor: the hand-over socket and what it has not acknowledged."""

    __slots__ = ("is_gone", "paused_until_ns", "peer", "sock", "unacknowledged")

    def __init__(self, peer: AgentId, sock: socket.socket) -> None:
        self.peer = peer
        self.sock = sock
        self.unacknowledged: dict[int, Accepted] = {}
        self.paused_until_ns = 0
        self.is_gone = False


class HandoffQueue:
    """The ways from one Acceptor to all Processors. `release` hears of each socket that a Processor counts now."""

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
        self._targets: list[_Target] = []
        self._by_fd: dict[int, _Target] = {}
        self._turn = 0
        self._serial = 0
        self._waiting: deque[Accepted] = deque()  # Sockets that came back from a Processor.
        self._serving: frozenset[AgentId] | None = None

    def attach(self, peer: AgentId, sock: socket.socket) -> None:
        """A Processor is there (again): hand it sockets from now on."""
        self.detach(peer)
        sock.setblocking(False)
        target = _Target(peer, sock)
        self._targets.append(target)
        self._by_fd[sock.fileno()] = target
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._counts.expect(target)

    def detach(self, peer: AgentId) -> None:
        """A Processor is gone: what it had not acknowledged goes to the others, what it counted is no more."""
        for target in [each for each in self._targets if each.peer == peer]:
            self._read(target, 0)
            self._targets.remove(target)
            self._leave(target)
            target.sock.close()
            self._waiting.extend(target.unacknowledged.values())
            self._counts.drop(target)

    def use_only(self, peers: frozenset[AgentId]) -> None:
        """Hand sockets to these Processors alone; the others go on acknowledging and counting."""
        self._serving = peers

    def on_readable(self, fd: int, now_ns: int) -> int:
        """Acknowledgements and counts came; how many messages, or 0 if `fd` is none of ours."""
        target = self._by_fd.get(fd)
        return self._read(target, now_ns) if target is not None else 0

    def has_room(self, now_ns: int) -> bool:
        """Whether one more socket could be handed over at once."""
        return not self._waiting and self._pick(now_ns) is not None

    def hand_over(self, accepted: Accepted, now_ns: int) -> None:
        """Give a socket to the next Processor in turn; it waits if nobody takes it after all."""
        if not self._offer(accepted, now_ns):
            self._waiting.append(accepted)

    def hand_over_waiting(self, now_ns: int) -> int:
        """Try again with what came back; how many sockets went."""
        count = 0
        while self._waiting and self._offer(self._waiting[0], now_ns):
            self._waiting.popleft()
            count += 1
        return count

    def pauses(self) -> list[int]:
        """When each Processor that had no room may be asked again."""
        return [each.paused_until_ns for each in self._targets if each.paused_until_ns]

    def evict(self, count: int) -> None:
        """Ask Processors to close `count` connections of this listener, most of those that have most of them."""
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
                except OSError as error:  # Full, or it ended. Whoever asked will ask again.
                    logger.info("%s cannot be asked to close connections: %s", target.peer, error)

    @property
    def is_empty(self) -> bool:
        """Whether every accepted socket was registered somewhere."""
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

    def _pick(self, now_ns: int) -> _Target | None:
        """The next Processor in turn that has a credit left and is not being spared."""
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
                # It ended; the supervisor will say so. Its sockets stay with us until then.
                logger.info("%s cannot take a connection: %s", target.peer, error)
                target.is_gone = True
                continue
            if is_sent:
                self._serial = serial
                target.unacknowledged[serial] = accepted
                return True
            target.paused_until_ns = now_ns + _PAUSE_NS
        return False

    def _read(self, target: _Target, now_ns: int) -> int:
        count = 0
        while True:
            try:
                message = target.sock.recv(REPORT_BYTES_MAX)
            except BlockingIOError:
                return count
            except ConnectionResetError:
                # It died with messages of ours unread. The kernel says so once, and then what it had sent.
                continue
            except OSError as error:
                logger.info("%s: hand-over socket: %s", target.peer, error)
                message = b""
            if not message:
                self._leave(target)  # It ends; detach() follows.
                return count
            report = Report.unpack(message)
            for (address, listener), change in report.changes:
                self._counts.add(target, address, listener, change)
            if not report.has_more:
                self._counts.heard(target)
            for answer in report.answers:
                self._take_answer(target, answer, now_ns)
            count += 1

    def _leave(self, target: _Target) -> None:
        """Nothing more comes from its socket: an ended one would be readable without end."""
        target.is_gone = True
        if self._by_fd.pop(target.sock.fileno(), None) is not None:
            self._epoll.unregister(target.sock.fileno())

    def _take_answer(self, target: _Target, answer: int, now_ns: int) -> None:
        accepted = target.unacknowledged.pop(answer & ~REFUSED, None)
        if accepted is None:
            return
        if answer & REFUSED:
            # It will not have room before something closes there: look elsewhere, and not there again at once.
            self._metrics.values[_REFUSED_SLOT] += 1
            self._waiting.append(accepted)
            target.paused_until_ns = now_ns + _PAUSE_NS
        else:
            self._release(accepted.address)
            accepted.sock.close()
