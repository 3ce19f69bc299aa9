"""A Processor without its broker: scripted Handlers and a scripted Acceptor at the other ends of its links.

Everything happens in `step()`, on a manual clock; clients are real sockets, handed over as descriptors.
"""

from __future__ import annotations

import mmap
import os
import resource
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType

from kproc.broker.ipc.arena import Arena, ArenaReader
from kproc.broker.ipc.fdpass import make_socket_pair, send_fd
from kproc.broker.ipc.wait import Sleeper, Waker, make_eventfd
from kproc.broker.metrics.slab import SLAB_BYTES, MetricsRow, Slab
from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.pending_login import DEFAULT_LIMITS, LoginLimits
from kproc.broker.processor.processor import Processor
from kproc.broker.processor.tls_listeners import TlsListeners
from kproc.broker.request.routing import ProduceRouter
from kproc.broker.role.handoff import ADDRESS_BYTES, EVICT, HANDOFF, REPORT_BYTES_MAX, Report, pack_address
from kproc.broker.security.session import Session
from kproc.broker.transport.agent import AgentId, Link
from kproc.broker.transport.envelope import (
    AUTHENTICATED,
    BLOCK,
    BLOCK_FREE,
    CLOSE,
    DISCONNECTED,
    FLAG_NEW_HOME,
    HEAD,
    HEAD_BYTES,
    HINT,
    IDENTITY,
    METERED,
    NO_OP,
    RECALL_BLOCK,
    REQUEST,
    REQUEST_BLOCK,
    SEND,
    SEND_PARTS,
    SOCKET_NS,
    SOCKET_TIME,
    THROTTLE,
    THROTTLE_MS,
    encode_parts,
)
from kproc.broker.transport.outbox import Inbox, Outbox
from kproc.common.clock import ManualClock
from kproc.wire.file_range import FileRange
from tests.support.links import LinkMaker

PROCESSOR = AgentId("processor", 0)
LOOPBACK = pack_address("127.0.0.1")
ACCEPTOR = AgentId("acceptor", 0)
REQUEST_BYTES_MAX = 1 << 20
_LENGTH = struct.Struct(">i")
# Of mman.h: a fork does not need the whole size once more. Python has no name for it.
_MAP_NORESERVE = 0x4000


def framed(body: bytes) -> bytes:
    """A frame as a client sends it."""
    return _LENGTH.pack(len(body)) + body


def new_slab() -> Slab:
    """A metrics slab in memory that is allocated when touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return Slab(memoryview(mmap.mmap(-1, SLAB_BYTES, flags)).cast("Q"), is_new=True)


@dataclass(frozen=True)
class Request:
    """One frame as a Handler gets it."""

    connection_id: int
    sequence: int
    body: bytes
    listener: int
    flags: int
    is_block: bool
    record: int  # Which record it came in: frames of one read share one.


@dataclass
class ScriptedHandler:
    """The other end of one Processor's link."""

    id: AgentId
    link: Link
    gone: list[int] = field(default_factory=list)  # Connections that were closed.
    left: list[int] = field(default_factory=list)  # Connections that have another home now.
    events: list[str] = field(default_factory=list)
    addresses: dict[int, bytes] = field(default_factory=dict)  # By connection, as they were told.
    sessions: dict[int, Session] = field(default_factory=dict)  # The same.
    recalled: list[tuple[int, int]] = field(default_factory=list)  # Connection and sequence.
    socket_times: list[tuple[int, int, bytes]] = field(default_factory=list)  # Connection, ns, client id.

    def __post_init__(self) -> None:
        self.inbox = Inbox(self.link.receiver)
        self.outbox = Outbox(self.link.sender, self.link.waker)
        self._records = 0

    def take(self, limit: int = 1000) -> list[Request]:
        """All requests that are in the ring."""
        requests: list[Request] = []
        for kind, view in self.inbox.poll(limit):
            if kind == IDENTITY:
                identity = bytes(view[HEAD_BYTES:])
                (connection_id,) = HEAD.unpack_from(view)[:1]
                self.addresses[connection_id] = identity[:ADDRESS_BYTES]
                self.sessions[connection_id] = Session.unpack(identity[ADDRESS_BYTES:])
                continue
            self._records += 1
            connection_id, sequence, listener, flags = HEAD.unpack_from(view)
            if kind == SOCKET_TIME:
                (used_ns,) = SOCKET_NS.unpack_from(view, HEAD_BYTES)
                self.socket_times.append((connection_id, used_ns, bytes(view[HEAD_BYTES + SOCKET_NS.size :])))
                continue
            if kind == RECALL_BLOCK:
                self.recalled.append((connection_id, sequence))
                continue
            if kind == DISCONNECTED and flags & FLAG_NEW_HOME:
                self.left.append(connection_id)
                continue
            if kind == DISCONNECTED:
                self.gone.append(connection_id)
                self.events.append("gone")
                continue
            self.events.append("request")
            if kind == REQUEST_BLOCK:
                assert self.link.arena is not None
                body = bytes(self.link.arena.view(*BLOCK.unpack_from(view, HEAD_BYTES)))
                requests.append(Request(connection_id, sequence, body, listener, flags, True, self._records))
                continue
            assert kind == REQUEST, kind
            position = HEAD_BYTES
            while position < len(view):
                (length,) = _LENGTH.unpack_from(view, position)
                body = bytes(view[position + 4 : position + 4 + length])
                assert len(body) == length, "half a frame in a ring"
                requests.append(Request(connection_id, sequence, body, listener, flags, False, self._records))
                sequence += 1
                position += 4 + length
        self.inbox.release()
        return requests

    def bodies(self) -> list[bytes]:
        """The bodies of all requests that are in the ring."""
        return [request.body for request in self.take()]

    def push(self, kind: int, request: Request, *parts: bytes) -> None:
        """One answer, seen by the Processor at the next flush."""
        self.outbox.push(kind, HEAD.pack(request.connection_id, request.sequence, 0, 0), *parts)

    def answer(self, request: Request, frame: bytes) -> None:
        self.push(SEND, request, frame)
        self.outbox.flush()

    def answer_parts(self, request: Request, parts: list[bytes | FileRange]) -> None:
        self.push(SEND_PARTS, request, encode_parts(parts))
        self.outbox.flush()

    def authenticated(self, request: Request, session: Session) -> None:
        """The client has logged in; the answer comes behind."""
        self.push(AUTHENTICATED, request, session.pack())

    def no_op(self, request: Request) -> None:
        self.push(NO_OP, request)
        self.outbox.flush()

    def free_block(self, request: Request) -> None:
        self.push(BLOCK_FREE, request)
        self.outbox.flush()

    def close(self, request: Request) -> None:
        self.push(CLOSE, request)
        self.outbox.flush()

    def metered(self, connection_id: int, client_id: bytes, *, is_on: bool = True) -> None:
        """The client has a request_percentage, or none any more."""
        self.outbox.push(METERED, HEAD.pack(connection_id, is_on, 0, 0), client_id)
        self.outbox.flush()

    def throttle(self, request: Request, duration_ms: int, quota: str = "producer_byte_rate") -> None:
        """StartThrottling, which comes before the answer."""
        self.push(THROTTLE, request, THROTTLE_MS.pack(duration_ms) + quota.encode())

    def hint(self, *parts: bytes) -> None:
        self.outbox.push(HINT, *parts)
        self.outbox.flush()


class ProcessorRig:
    """One Processor, its Handlers, and clients."""

    def __init__(
        self,
        link_kind: str = "pipe",
        *,
        handlers: int = 1,
        ring_bytes: int = 1 << 18,
        arena_bytes: int = 4 << 20,
        idle_ms_max: int = 600_000,
        receive_ms_max: int = 0,
        router: ProduceRouter | None = None,
        age_ms: int = 0,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        queued_bytes_max: int = -1,
        queued_requests_max: int = -1,
        processor_count: int = 1,
        tls_listeners: TlsListeners | None = None,
        logins: LoginLimits = DEFAULT_LIMITS,
    ) -> None:
        self._stack = ExitStack()
        self._links = self._stack.enter_context(LinkMaker(link_kind))
        self._ring_bytes = ring_bytes
        self.clock = ManualClock()
        self.clock.advance_ms(age_ms)
        slab = new_slab()
        self.metrics = MetricsRow(slab, 0, 1)
        eventfd = make_eventfd()
        self._stack.callback(os.close, eventfd)
        self.doze = Sleeper(slab.words, self.metrics.sleeping_word, eventfd)
        self._waker = Waker(slab.words, self.metrics.sleeping_word, eventfd)
        self.arena = Arena.create(arena_bytes, 1, warm_bytes=0)
        self._stack.callback(self.arena.close)
        self.processor = Processor(
            PROCESSOR,
            doze=self.doze,
            metrics=self.metrics,
            clock=self.clock,
            arena=self.arena,
            request_bytes_max=request_bytes_max,
            idle_ms_max=idle_ms_max,
            receive_ms_max=receive_ms_max,
            logins=logins,
            router=router,
            queued_bytes_max=queued_bytes_max,
            queued_requests_max=queued_requests_max,
            processors_in_all=lambda settings: settings.integer("num.network.threads", processor_count),
            tls_listeners=tls_listeners,
        )
        self._stack.callback(self.processor.close)
        self.handlers = [self.attach_handler(index) for index in range(handlers)]
        self.acceptor = self.attach_acceptor()
        self._serial = 0
        self.clients: list[Client] = []
        self.counted: dict[tuple[bytes, int], int] = {}  # Open connections, as the Acceptor is told.

    def __enter__(self) -> ProcessorRig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def handler(self) -> ScriptedHandler:
        return self.handlers[0]

    def attach_handler(self, index: int) -> ScriptedHandler:
        """A Handler is there (again), with a new link."""
        far_id = AgentId("handler", index)
        near, far = self._links.make(
            PROCESSOR,
            far_id,
            self._ring_bytes,
            wake_near=self._waker,
            near_arena=ArenaReader(self.arena.region),
        )
        self.processor.attach(near)
        return ScriptedHandler(far_id, far)

    def attach_acceptor(self) -> socket.socket:
        """The Acceptor's end of a new handoff socket."""
        ours, theirs = make_socket_pair()
        self._stack.callback(ours.close)
        self.processor.attach_handoff(ACCEPTOR, theirs)
        return ours

    def hand_off(self, fd: int, *, listener: int = 0, flags: int = 0, address: bytes = LOOPBACK) -> int:
        """Send one descriptor as an Acceptor does; its serial."""
        self._serial += 1
        assert send_fd(self.acceptor, HANDOFF.pack(self._serial, listener, flags, address, 40_000), fd)
        return self._serial

    def wake(self) -> None:
        """Write the Processor's eventfd, as who answers does while it sleeps."""
        self._waker.signal()

    def evict(self, count: int, *, listener: int = 0) -> None:
        """An Acceptor asks for connections of its listener to be closed."""
        self.acceptor.send(HANDOFF.pack(EVICT, listener, count, LOOPBACK, 0))
        self.step()

    def state(self) -> str:
        """Kafka's mute state of the only connection."""
        (seen,) = self.processor.describe_connections()
        return str(seen["state"])

    def state_of(self, client: Client) -> str:
        """Of one connection of several, by the order in which they came."""
        return str(self.processor.describe_connections()[self.clients.index(client)]["state"])

    def acknowledged(self) -> list[int]:
        """The serials that came back; changes of counts go into `counted`."""
        serials: list[int] = []
        while True:
            try:
                message = self.acceptor.recv(REPORT_BYTES_MAX)
            except BlockingIOError:
                return serials
            report = Report.unpack(message)
            serials += report.answers
            for key, change in report.changes:
                self.counted[key] = self.counted.get(key, 0) + change

    def connect(self, *, listener: int = 0, flags: int = 0, host: str = "127.0.0.1") -> Client:
        """A client whose connection the Processor has registered."""
        return self.adopt(*socket.socketpair(), listener=listener, flags=flags, host=host)

    def adopt(
        self,
        ours: socket.socket,
        theirs: socket.socket,
        *,
        listener: int = 0,
        flags: int = 0,
        host: str = "127.0.0.1",
    ) -> Client:
        """A client with `ours`, whose other end goes to the Processor."""
        self._stack.callback(ours.close)
        serial = self.hand_off(theirs.fileno(), listener=listener, flags=flags, address=pack_address(host))
        theirs.close()
        self.step()
        assert self.acknowledged() == [serial]
        self.clients.append(Client(self, ours))
        return self.clients[-1]

    def step(self, count: int = 1) -> int:
        """Duty cycles that do not sleep; how much was done."""
        return sum(self.processor.do_work(0) for _ in range(count))

    def settle(self) -> None:
        """Duty cycles until nothing is left to do; bounded, because a stalled connection is retried for ever."""
        for _ in range(50):
            if not self.step():
                return

    def advance_ms(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        self.step()

    def metric(self, name: str) -> int:
        return self.metrics.values[SLOT[name]]


class Client:
    """A client's socket; never blocks."""

    def __init__(self, rig: ProcessorRig, sock: socket.socket) -> None:
        self.rig = rig
        self.sock = sock
        sock.setblocking(False)

    def send(self, data: bytes) -> None:
        """Send bytes, all of which must fit into the socket, and let the Processor read them."""
        assert self.sock.send(data) == len(data)
        self.rig.step()

    def send_through(self, data: bytes) -> None:
        """Send any number of bytes, as the Processor takes them."""
        rest = memoryview(data)
        for _ in range(100_000):
            with suppress(BlockingIOError):
                rest = rest[self.sock.send(rest) :]
            self.rig.step()
            if not rest:
                self.rig.settle()
                return
        raise AssertionError(f"{len(rest)} bytes were not read")

    def send_through_until_stalled(self) -> None:
        """Send requests that no Handler takes until the ring has no room for another read."""
        stalled = self.rig.metric("reads_stalled")
        for _ in range(1000):
            with suppress(BlockingIOError):
                self.sock.send(framed(b"filler" * 1000))
            self.rig.step()
            if self.rig.metric("reads_stalled") > stalled:
                return
        raise AssertionError("the ring never was full")

    def received(self) -> bytes:
        """All that has arrived."""
        chunks: list[bytes] = []
        while True:
            try:
                chunk = self.sock.recv(1 << 20)
            except BlockingIOError:
                return b"".join(chunks)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)

    def receive_through(self, count: int) -> bytes:
        """That many bytes, as the Processor sends them."""
        data = b""
        for _ in range(100_000):
            data += self.received()
            if len(data) >= count:
                return data
            self.rig.step()
        raise AssertionError(f"{len(data)} of {count} bytes came")

    def is_closed(self) -> bool:
        """Return True if the Processor has closed the connection, nothing being left to read."""
        try:
            return self.sock.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def has_end(self) -> bool:
        """Return True if the connection was closed, unread bytes or not."""
        poller = select.poll()
        poller.register(self.sock, select.POLLRDHUP)
        return bool(poller.poll(0))

    def close(self) -> None:
        self.sock.close()
        self.rig.step()


def reset(sock: socket.socket) -> None:
    """Close a TCP socket with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """This process is at its limit: the next descriptor is one too many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ask(rig: ProcessorRig, client: Client, count: int) -> list[Request]:
    """That many requests of one client, taken by the Handler."""
    client.send(b"".join(framed(b"request %d" % number) for number in range(count)))
    requests = rig.handler.take()
    assert len(requests) == count
    return requests


def warm_up(rig: ProcessorRig, clients: list[Client], request: bytes, response: bytes) -> list[Request]:
    """Answer three requests of each client, so that nothing is done for the first time any more.

    Then send one more request from each client. Return these, which wait for their responses.
    """
    for _ in range(3):
        for client in clients:
            client.sock.send(request)
        rig.step()
        for each in rig.handler.take():
            rig.handler.answer(each, response)
        rig.step()
        received = [client.received() for client in clients]
        assert received == [response] * len(clients), received
    for client in clients:
        client.sock.send(request)
    rig.step()
    return rig.handler.take()
