"""Several Processors and one Handler that parks, for connections that move: all in this process, stepped by hand.

The Handler is scripted, but what it does for moves is the real handler/migrating_connections.py.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import ExitStack
from types import SimpleNamespace, TracebackType
from typing import Any, cast

from kproc.broker.handler.migrating_connections import MigratingConnections
from kproc.broker.ipc.arena import Arena, ArenaReader
from kproc.broker.ipc.fdpass import make_socket_pair, send_fd
from kproc.broker.ipc.wait import Sleeper, Waker, make_eventfd
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.processor import Processor
from kproc.broker.request.request import ClientPeer, HandlerRequest
from kproc.broker.role.handoff import HANDOFF, pack_address
from kproc.broker.transport.agent import AgentId, Link
from kproc.broker.transport.envelope import (
    BLOCK,
    BLOCK_FREE,
    DISCONNECTED,
    FLAG_MOVED,
    FLAG_NEW_HOME,
    HEAD,
    HEAD_BYTES,
    IDENTITY,
    MOVE_IN,
    MOVE_OUT,
    RECALL_BLOCK,
    REQUEST,
    REQUEST_BLOCK,
    unpack_sequences,
)
from kproc.broker.transport.outbox import Inbox, Outbox
from kproc.common.clock import ManualClock
from kproc.wire.file_range import FileRange
from tests.support.links import LinkMaker
from tests.support.processor_rig import REQUEST_BYTES_MAX, new_slab

HANDLER = AgentId("handler", 0)
_LENGTH = struct.Struct(">i")


class Work(HandlerRequest):
    """A request with its body, and whether its client has left."""

    __slots__ = ("body", "is_gone")

    body: bytes
    is_gone: bool


class ParkingHandler:
    """Takes requests and keeps them until the test answers."""

    def __init__(self, clock: ManualClock, agent_id: AgentId = HANDLER) -> None:
        self.id = agent_id
        self._clock = clock
        self._links: dict[AgentId, tuple[ClientPeer, Inbox, Link]] = {}
        self.moving = MigratingConnections()
        self.taken: list[Work] = []
        self.left: list[int] = []  # Connections whose clients have left.
        self.is_parking = True

    def attach(self, processor: AgentId, link: Link) -> None:
        self._links[processor] = (ClientPeer(Outbox(link.sender, link.waker)), Inbox(link.receiver), link)

    def detach(self, processor: AgentId) -> None:
        """That Processor died: as Handler.detach."""
        requests, _, _ = self._links.pop(processor)
        for connection_id in list(requests.waiting):
            requests.cancel(connection_id)
        self.moving.on_processor_death(requests, self._clock.now_ns())

    def waiting(self, processor: AgentId) -> dict[int, Any]:
        return self._links[processor][0].waiting

    def step(self) -> None:
        for requests, inbox, link in list(self._links.values()):
            for kind, view in inbox.poll(1000):
                self._take(requests, link, kind, view)
            inbox.release()
        self.moving.expire(self._clock.now_ns())
        self.flush()

    def flush(self) -> None:
        for requests, _, _ in self._links.values():
            cast(Outbox, requests.outbox).flush()

    def _take(self, requests: ClientPeer, link: Link, kind: int, view: memoryview) -> None:
        connection_id, sequence, listener, flags = HEAD.unpack_from(view)
        if kind == IDENTITY:
            requests.introduce(connection_id, view[HEAD_BYTES:])
        elif kind == MOVE_OUT:
            self.moving.move_out(requests, connection_id, sequence)
        elif kind == RECALL_BLOCK:
            requests.outbox.push(BLOCK_FREE, HEAD.pack(connection_id, sequence, 0, 0))
        elif kind == MOVE_IN:
            self.moving.move_in(requests, connection_id, unpack_sequences(view[HEAD_BYTES:]))
        elif kind == DISCONNECTED and flags & FLAG_NEW_HOME:
            pass  # This rig has no share sessions.
        elif kind == DISCONNECTED:
            requests.cancel(connection_id)
            if flags & FLAG_MOVED:
                self.moving.gave_away(requests, connection_id, self._clock.now_ns())
            else:
                self.moving.gone(requests, connection_id)
                self.left.append(connection_id)
        elif kind == REQUEST_BLOCK:
            assert link.arena is not None
            body = bytes(link.arena.view(*BLOCK.unpack_from(view, HEAD_BYTES)))
            self._add(requests, connection_id, sequence, listener, flags, body)
        else:
            assert kind == REQUEST, kind
            position = HEAD_BYTES
            while position < len(view):
                (length,) = _LENGTH.unpack_from(view, position)
                body = bytes(view[position + 4 : position + 4 + length])
                self._add(requests, connection_id, sequence, listener, flags, body)
                sequence += 1
                position += 4 + length

    def _add(
        self, requests: ClientPeer, connection_id: int, sequence: int, listener: int, flags: int, body: bytes
    ) -> None:
        work = Work(
            cast(Any, SimpleNamespace(clock=self._clock, samples=None)),
            requests,
            connection_id,
            sequence,
            listener,
            flags,
            0,
            0,
            0,
            None,
        )
        work.body, work.is_gone = body, False
        self.taken.append(work)
        if self.is_parking:
            self.park(work)

    def park(self, work: Work) -> None:
        def on_gone() -> None:
            work.is_gone = True

        work.when_gone(on_gone)
        self.flush()

    def take(self) -> list[Work]:
        """What has come in since the last call."""
        taken, self.taken = self.taken, []
        return taken

    def answer(self, work: Work, frame: bytes) -> None:
        work.send(frame)
        self.flush()

    def answer_parts(self, work: Work, parts: list[bytes | FileRange]) -> None:
        work.send_parts(parts)
        self.flush()


class MoveRig:
    """`count` Processors with socket pairs between them all, and one Handler."""

    def __init__(self, link_kind: str = "pipe", *, count: int = 2, ring_bytes: int = 1 << 18) -> None:
        self._stack = ExitStack()
        self._links = self._stack.enter_context(LinkMaker(link_kind))
        self._ring_bytes = ring_bytes
        self.clock = ManualClock()
        self._slab = new_slab()
        self.handler = ParkingHandler(self.clock)
        self.arenas: dict[int, Arena] = {}
        self.processors: dict[int, Processor] = {}
        self._acceptors: dict[int, socket.socket] = {}
        self._metrics: dict[int, MetricsRow] = {}
        self._serial = 0
        for index in range(count):
            self.start(index)

    def __enter__(self) -> MoveRig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for processor in self.processors.values():
            processor.close()
        self._stack.close()

    def start(self, index: int) -> Processor:
        """A Processor, linked with the Handler and with those that are there."""
        name = AgentId("processor", index)
        metrics = self._metrics[index] = MetricsRow(self._slab, index, 1)
        eventfd = make_eventfd()
        self._stack.callback(os.close, eventfd)
        doze = Sleeper(self._slab.words, metrics.sleeping_word, eventfd)
        arena = Arena.create(4 << 20, 1, warm_bytes=0)
        self._stack.callback(arena.close)
        processor = Processor(
            name,
            doze=doze,
            metrics=metrics,
            clock=self.clock,
            arena=arena,
            request_bytes_max=REQUEST_BYTES_MAX,
            idle_ms_max=600_000,
        )
        near, far = self._links.make(
            name,
            HANDLER,
            self._ring_bytes,
            wake_near=Waker(self._slab.words, metrics.sleeping_word, eventfd),
            near_arena=ArenaReader(arena.region),
        )
        processor.attach(near)
        self.handler.attach(name, far)
        ours, theirs = make_socket_pair()
        self._stack.callback(ours.close)
        processor.attach_handoff(AgentId("acceptor", 0), theirs)
        self._acceptors[index] = ours
        for other in self.processors.values():
            one, two = make_socket_pair()
            processor.attach_migration(other.id, one)
            other.attach_migration(name, two)
        self.processors[index] = processor
        self.arenas[index] = arena
        return processor

    def die(self, index: int) -> None:
        """kill -9: the kernel closes its descriptors, the others see the ends of their pairs."""
        processor = self.processors.pop(index)
        for connection in [*processor.table.by_fd.values(), *processor.migration.given()]:
            connection.transport.close()
        processor.table.by_fd.clear()
        for channel in processor.migration.channels.values():
            channel.given.clear()
        processor.close()
        self.handler.detach(processor.id)
        for other in self.processors.values():
            other.detach(processor.id)

    def connect(self, index: int, *, flags: int = 0) -> socket.socket:
        """A client's socket; its connection is at that Processor."""
        ours, theirs = socket.socketpair()
        self._stack.callback(ours.close)
        ours.setblocking(False)
        self._serial += 1
        payload = HANDOFF.pack(self._serial, 0, flags, pack_address("127.0.0.1"), 40_000 + self._serial)
        assert send_fd(self._acceptors[index], payload, theirs.fileno())
        theirs.close()
        self.processors[index].do_work(0)
        return ours

    def handoff_answer(self, index: int) -> bytes:
        return self._acceptors[index].recv(4096)

    def step(self, count: int = 1) -> None:
        """Everybody's duty cycle."""
        for _ in range(count):
            for processor in list(self.processors.values()):
                processor.do_work(0)
            self.handler.step()

    def metric(self, index: int, name: str) -> int:
        return self._metrics[index].values[SLOT[name]]

    def held(self) -> dict[int, int]:
        """Connections of each Processor."""
        return {index: len(each.describe_connections()) for index, each in self.processors.items()}


def received(client: socket.socket) -> bytes:
    """All that has arrived."""
    chunks: list[bytes] = []
    while True:
        try:
            chunk = client.recv(1 << 20)
        except BlockingIOError:
            return b"".join(chunks)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)


def is_closed(client: socket.socket) -> bool:
    """Return True if the broker has closed it, nothing being left to read."""
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
