"""Acceptor: takes connections from one listener and hands each to a Processor, round robin.

Each Processor has credits for 20 sockets that it has not registered yet (Kafka's newConnections queue).
When every Processor is out of credits, or none is there, the Acceptor stops looking at the listening socket:
the kernel's backlog holds the clients. The listening socket itself belongs to the supervisor, so an Acceptor's
death refuses nobody.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections import deque
from typing import Final, NamedTuple

from kproc.clock import Clock
from kproc.ipc.fdpass import send_fd
from kproc.metrics.slab import MetricsRow
from kproc.metrics.spec import SLOT
from kproc.net.handoff import ACK, ANSWER_BYTES_MAX, CREDITS, HANDOFF, NO_ADDRESS, REFUSED, pack_address
from kproc.transport.agent import AgentId, Doze, Link
from kproc.transport.envelope import FLAG_LOOPBACK

logger = logging.getLogger(__name__)

_ACCEPTS_PER_PASS: Final = 64  # Bounds one duty cycle; what is left is reported again (level triggered).
_OUT_OF_FDS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_BACKOFF_NS: Final = (
    100_000_000  # Descriptors come back when connections close; asking more often only burns CPU.
)


class _Accepted(NamedTuple):
    """A configured client socket that no Processor has registered yet."""

    sock: socket.socket
    flags: int
    address: bytes
    port: int


class _Target:
    """One Processor as this Acceptor sees it: the hand-over socket and what it has not acknowledged."""

    def __init__(self, peer: AgentId, sock: socket.socket) -> None:
        self.peer = peer
        self.sock = sock
        self.unacknowledged: dict[int, _Accepted] = {}


class Acceptor:
    """One per listener; one instance runs in one role."""

    def __init__(
        self,
        agent_id: AgentId,
        *,
        listener_index: int,
        listening: socket.socket,
        doze: Doze,
        metrics: MetricsRow,
        clock: Clock,
        send_buffer_bytes: int = -1,
    ) -> None:
        self.id = agent_id
        self._listener_index = listener_index
        self._listening = listening
        self._doze = doze
        self._metrics = metrics
        self._clock = clock
        self._send_buffer_bytes = send_buffer_bytes
        self._targets: list[_Target] = []
        self._next_target = 0
        self._serial = 0
        self._waiting: deque[_Accepted] = deque()  # Sockets that came back from a Processor that died.
        self._is_listening = False
        self._is_stopping = False
        self._watched_fd = -1
        self.is_called = False
        self._backoff_until_ns = 0
        self._next_store_ns = 0
        self._epoll = select.epoll()
        self._epoll.register(doze.fd, select.EPOLLIN | select.EPOLLET)
        listening.setblocking(False)

    def attach(self, link: Link) -> None:
        """An Acceptor has no links: it talks by hand-over sockets."""
        raise AssertionError(f"{self.id} was given a link to {link.peer}")

    def attach_handoff(self, peer: AgentId, sock: socket.socket) -> None:
        """A Processor is there (again): hand it sockets from now on."""
        self.detach(peer)
        sock.setblocking(False)
        self._targets.append(_Target(peer, sock))
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def detach(self, peer: AgentId) -> None:
        """A Processor is gone: what it had not acknowledged goes to the others."""
        for target in [each for each in self._targets if each.peer == peer]:
            self._targets.remove(target)
            self._read_acknowledgements(target)
            self._epoll.unregister(target.sock.fileno())
            target.sock.close()
            self._waiting.extend(target.unacknowledged.values())

    def watch(self, fd: int) -> None:
        self._watched_fd = fd
        self._epoll.register(fd, select.EPOLLIN)

    def poll_fd(self) -> int:
        return self._epoll.fileno()

    def next_deadline_ms(self) -> int:
        if self._backoff_until_ns:
            return max(0, (self._backoff_until_ns - self._clock.now_ns()) // 1_000_000 + 1)
        return 1000

    def do_work(self, timeout_ms: int) -> int:
        """Read acknowledgements, pass waiting sockets on, accept what there is room for."""
        self._watch_listener()
        self._doze.prepare()
        events = self._epoll.poll(timeout_ms / 1000)
        self._doze.cancel()
        work = 0
        listening_fd = -1 if self._is_stopping else self._listening.fileno()
        for fd, _ in events:
            if fd == listening_fd:
                work += self._accept()
            elif fd == self._watched_fd:
                self.is_called = True
            else:
                for target in self._targets:
                    if target.sock.fileno() == fd:
                        work += self._read_acknowledgements(target)
        is_backing_off = self._backoff_until_ns > self._clock.now_ns()
        while self._waiting and not is_backing_off and self._hand_over(self._waiting[0]):
            self._waiting.popleft()
            work += 1
        self._store_metrics()
        return work

    def begin_stop(self) -> None:
        self._is_stopping = True
        self._watch_listener()

    def is_drained(self) -> bool:
        return self._is_stopping and not self._waiting and not any(t.unacknowledged for t in self._targets)

    def close(self) -> None:
        for target in self._targets:
            target.sock.close()
            for accepted in target.unacknowledged.values():
                accepted.sock.close()
        for accepted in self._waiting:
            accepted.sock.close()
        self._targets.clear()
        self._waiting.clear()
        self._epoll.close()
        self._listening.close()

    def _watch_listener(self) -> None:
        """Look at the listening socket only while a Processor has credit for what it would bring."""
        is_backing_off = self._backoff_until_ns > self._clock.now_ns()
        if not is_backing_off:
            self._backoff_until_ns = 0
        wanted = (
            not self._is_stopping and not is_backing_off and not self._waiting and self._pick() is not None
        )
        if wanted == self._is_listening:
            return
        if wanted:
            self._epoll.register(self._listening.fileno(), select.EPOLLIN)
        else:
            self._epoll.unregister(self._listening.fileno())
        self._is_listening = wanted

    def _pick(self) -> _Target | None:
        """The next Processor in turn that has a credit left."""
        targets = self._targets
        for step in range(len(targets)):
            at = (self._next_target + step) % len(targets)
            if len(targets[at].unacknowledged) < CREDITS:
                self._next_target = at
                return targets[at]
        return None

    def _accept(self) -> int:
        accepted = 0
        while accepted < _ACCEPTS_PER_PASS and self._pick() is not None:
            try:
                sock, address = self._listening.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _OUT_OF_FDS:
                    logger.error(
                        "cannot accept connections: %s; trying again in 0.1 s", os.strerror(error.errno or 0)
                    )
                    self._backoff_until_ns = self._clock.now_ns() + _BACKOFF_NS
                    break
                logger.info("a connection was gone before it was accepted: %s", error)
                accepted += 1  # An error that stays must not keep us here.
                continue
            accepted += 1
            self._metrics.values[SLOT["connections_accepted"]] += 1
            try:
                connection = _Accepted(sock, self._configure(sock), *_remote(address))
            except OSError as error:  # This one socket is broken (already reset); the others are not.
                logger.info("closing a connection from %s: %s", address, error)
                sock.close()
                continue
            if not self._hand_over(connection):
                self._waiting.append(connection)
        return accepted

    def _configure(self, sock: socket.socket) -> int:
        """Set the socket's options; return the flags that travel with it."""
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
        return FLAG_LOOPBACK if _is_loopback(sock) else 0

    def _hand_over(self, accepted: _Accepted) -> bool:
        target = self._pick()
        if target is None:
            return False
        self._next_target += 1
        self._serial += 1
        try:
            message = HANDOFF.pack(
                self._serial, self._listener_index, accepted.flags, accepted.address, accepted.port
            )
            if not send_fd(target.sock, message, accepted.sock.fileno()):
                return False
        except OSError as error:  # The Processor died; the supervisor will say so. Its sockets stay with us.
            logger.info("%s cannot take a connection: %s", target.peer, error)
            return False
        target.unacknowledged[self._serial] = accepted
        return True

    def _read_acknowledgements(self, target: _Target) -> int:
        count = 0
        while True:
            try:
                message = target.sock.recv(ANSWER_BYTES_MAX)
            except BlockingIOError:
                return count
            except OSError as error:
                logger.info("%s: hand-over socket: %s", target.peer, error)
                return count
            if not message:
                return count  # Closed by a Processor that ends; detach() follows.
            if len(message) != ACK.size:
                continue  # Count changes.
            (serial,) = ACK.unpack(message)
            accepted = target.unacknowledged.pop(serial & ~REFUSED, None)
            if accepted is not None and serial & REFUSED:
                # It will not have room before something closes there: look elsewhere first, and not at once again.
                self._metrics.values[SLOT["connections_refused"]] += 1
                self._waiting.append(accepted)
                self._backoff_until_ns = self._clock.now_ns() + _BACKOFF_NS
            elif accepted is not None:
                accepted.sock.close()
            count += 1

    def _store_metrics(self) -> None:
        now_ns = self._clock.now_ns()
        if now_ns >= self._next_store_ns:
            self._next_store_ns = now_ns + 100_000_000
            self._metrics.values[SLOT["heartbeat_ns"]] = now_ns
            self._metrics.store()


def _remote(address: object) -> tuple[bytes, int]:
    """Address and port of a client as they travel; a Unix socket has none."""
    if not isinstance(address, tuple):
        return NO_ADDRESS, 0
    return pack_address(address[0]), int(address[1])


def _is_loopback(sock: socket.socket) -> bool:
    """True when the peer is this host by a loopback address (or a Unix socket)."""
    peer = sock.getpeername()
    if not isinstance(peer, tuple):
        return True
    host = str(peer[0])
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"
