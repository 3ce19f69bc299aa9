"""An Acceptor without its broker: scripted Processors at the other ends of its handoff sockets."""

from __future__ import annotations

import os
import socket
from collections import deque
from contextlib import ExitStack

from msgspec.structs import replace

from kproc.broker.acceptor.acceptor import Acceptor
from kproc.broker.acceptor.connection_limits import ConnectionLimits
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.ipc.fdpass import make_socket_pair, recv_fd
from kproc.broker.ipc.wait import Sleeper, make_eventfd
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.role.handoff import EVICT, HANDOFF, Report, address_text, pack_address
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import ManualClock
from tests.support.processor_rig import new_slab


class ScriptedProcessor:
    """The other end of one handoff socket."""

    def __init__(self, index: int, sock: socket.socket) -> None:
        self.id = AgentId("processor", index)
        self.sock = sock
        self.serials: deque[int] = deque()
        self.sockets: list[socket.socket] = []
        self.heads: list[tuple[int, int]] = []  # Listener, flags.
        self.remotes: list[tuple[str, int]] = []

    def take(self, limit: int = 1 << 30) -> int:
        """Receive what was handed over; how many sockets."""
        count = 0
        while count < limit and (message := recv_fd(self.sock, HANDOFF.size)) is not None:
            payload, fd = message
            serial, listener, flags, address, port = HANDOFF.unpack(payload)
            assert fd is not None
            self.serials.append(serial)
            self.sockets.append(socket.socket(fileno=fd))
            self.heads.append((listener, flags))
            self.remotes.append((address_text(address), port))
            count += 1
        return count

    def acknowledge(self, count: int = 1 << 30) -> None:
        """Say of the oldest that they were registered."""
        for _ in range(min(count, len(self.serials))):
            self.answer(self.serials.popleft())

    def report(self, *changes: tuple[str, int, int]) -> None:
        """Say what was opened and closed: (address, listener, change)."""
        entries = [((pack_address(host), listener), change) for host, listener, change in changes]
        self.sock.send(Report([], entries).pack())

    def answer(self, answer: int) -> None:
        """A serial, perhaps with REFUSED."""
        self.sock.send(Report([answer], []).pack())

    def evictions(self) -> list[tuple[int, int]]:
        """(listener, count) that it was asked to close."""
        asked = []
        while (message := recv_fd(self.sock, HANDOFF.size)) is not None:
            serial, listener, count, _, _ = HANDOFF.unpack(message[0])
            assert (serial, message[1]) == (EVICT, None)
            asked.append((listener, count))
        return asked

    def close(self) -> None:
        self.sock.close()
        for sock in self.sockets:
            sock.close()


class AcceptorRig:
    """One Acceptor on a port of its own."""

    def __init__(
        self,
        stack: ExitStack,
        processors: int = 2,
        *,
        send_buffer_bytes: int = -1,
        limits: ConnectionLimits | None = None,
        listening: socket.socket | None = None,
        rate_samples: int = 11,
    ) -> None:
        self._stack = stack
        self.clock = ManualClock()
        self.limits = limits or ConnectionLimits()
        slab = new_slab()
        self.metrics = MetricsRow(slab, 0, 1)
        eventfd = make_eventfd()
        stack.callback(os.close, eventfd)
        self.listening = listening or socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = self.listening.getsockname()
        self.acceptor = Acceptor(
            AgentId("acceptor", 5),
            listener_index=5,
            listening=self.listening,
            doze=Sleeper(slab.words, self.metrics.sleeping_word, eventfd),
            metrics=self.metrics,
            clock=self.clock,
            send_buffer_bytes=send_buffer_bytes,
            limits_for=lambda settings, resolve: self.limits,
            rate_samples=rate_samples,
        )
        stack.callback(self.acceptor.close)
        self.processors = [self.attach(index) for index in range(processors)]
        self.clients: list[socket.socket] = []

    def attach(self, index: int) -> ScriptedProcessor:
        ours, theirs = make_socket_pair()
        self.acceptor.attach_handoff(AgentId("processor", index), ours)
        processor = ScriptedProcessor(index, theirs)
        self._stack.callback(processor.close)
        return processor

    def connect(self, count: int = 1, source: str = "127.0.0.1") -> list[socket.socket]:
        """Clients whose connections wait in the kernel's backlog."""
        made = [socket.create_connection(self.address, source_address=(source, 0)) for _ in range(count)]
        for sock in made:
            sock.setblocking(False)
            self._stack.callback(sock.close)
        self.clients += made
        return made

    def step(self, count: int = 1) -> int:
        return sum(self.acceptor.do_work(0) for _ in range(count))

    def taken(self) -> list[int]:
        """How many sockets each Processor has been handed since the last look."""
        return [processor.take() for processor in self.processors]

    def accepted(self) -> int:
        return self.count("connections_accepted")

    def count(self, name: str) -> int:
        return self.metrics.values[SLOT[name]]

    def change(self, **limits: object) -> None:
        """Limits changed at run time."""
        self.limits = replace(self.limits, **limits)
        self.acceptor.apply_settings(DynamicSettings())


def peers(processor: ScriptedProcessor) -> list[int]:
    """The client ports of what it was handed."""
    return [sock.getpeername()[1] for sock in processor.sockets]


def ports(clients: list[socket.socket]) -> list[int]:
    return [sock.getsockname()[1] for sock in clients]
