"""Handlers without their broker: a scripted controller, scripted Processors, one thread, a manual clock.

The Handlers are real, with real logs in a temporary directory and real links between them. `settle()` runs them
in turn until none has anything left to do, so that every test sees one order of events, always the same.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from kproc.broker.api import load_all
from kproc.broker.calls.call_links import CallHandlers, handle_raw_call
from kproc.broker.calls.controller_calls import OWN
from kproc.broker.cluster.image import PartitionImage
from kproc.broker.controller.change_calls import add_change_calls
from kproc.broker.handler.handler import Handler
from kproc.broker.handler.owned_partition import OwnedPartition
from kproc.broker.handler.partitions import Partitions
from kproc.broker.handler.syncer import Outcome
from kproc.broker.ipc.arena import Arena, ArenaReader
from kproc.broker.ipc.wait import Sleeper, make_eventfd
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.observe.offline_partitions import REPORT_OFFLINE
from kproc.broker.processor.slow_frames import LARGE_FRAME_BYTES
from kproc.broker.request.fast_path import FastPath, NoFastPath
from kproc.broker.role.handoff import pack_address
from kproc.broker.role.listeners import ListenerEndpoint
from kproc.broker.role.partition_table import ROW_WORDS, PartitionTable
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import CONTROLLER, handler_id, processor_id
from kproc.broker.security.principal import ANONYMOUS, Principal
from kproc.broker.security.session import Session
from kproc.broker.storage.log import Log, SyncPoint
from kproc.broker.supervisor.broker import RoleParts, build_handler
from kproc.broker.transport.agent import Link
from kproc.broker.transport.envelope import (
    AUTHENTICATED,
    BLOCK,
    BLOCK_FREE,
    CALL,
    CLOSE,
    DELTA,
    DELTA_ACK,
    DISCONNECTED,
    HEAD,
    HEAD_BYTES,
    HINT,
    IDENTITY,
    METERED,
    MOVED,
    NO_OP,
    NOTE,
    RECALL_BLOCK,
    REQUEST,
    REQUEST_BLOCK,
    SEND,
    SEND_PARTS,
    SENDS,
    SNAPSHOT,
    SOCKET_NS,
    SOCKET_TIME,
    THROTTLE,
    THROTTLE_MS,
    TOKEN,
    decode_parts,
)
from kproc.broker.transport.outbox import Inbox, Outbox
from kproc.common.clock import ManualClock
from kproc.common.containment import Containment
from kproc.wire import codec
from kproc.wire.file_range import FileRange
from kproc.wire.header import ApiKey
from tests.support.due_time import check_due_time
from tests.support.in_memory_controller import InMemoryController, topic
from tests.support.links import LinkMaker
from tests.support.processor_rig import new_slab

Fields = dict[str, Any]
SLOTS = 64  # More partitions than any test here makes.


class HeldSyncer:
    """Rounds of fdatasync that end when the test says so, and as it says."""

    def __init__(self) -> None:
        self.rounds: deque[list[tuple[Log, SyncPoint]]] = deque()
        self.sizes: list[int] = []
        self.is_closed = False
        self._done: list[Outcome] = []

    def submit(self, points: Sequence[tuple[Log, SyncPoint]]) -> None:
        self.rounds.append(list(points))
        self.sizes.append(len(points))

    def collect(self) -> list[Outcome]:
        done, self._done = self._done, []
        return done

    def drop(self) -> None:
        """Its Handler is dead: what it kept open for the rounds is closed with the process."""
        for log, point in itertools.chain(*self.rounds, ((log, point) for log, point, _ in self._done)):
            log.durability.release(point)
        self.rounds.clear()
        self._done = []

    def close(self) -> None:
        self.is_closed = True
        while self.rounds:
            self.end_round()

    def end_round(self, error: OSError | None = None) -> None:
        """The oldest round is done."""
        for log, point in self.rounds.popleft():
            if error is None:
                log.durability.run_sync(point)
            self._done.append((log, point, error))


@dataclass(frozen=True)
class Answer:
    """One record from a Handler to a Processor."""

    kind: int
    connection_id: int
    sequence: int
    parts: list[bytes | FileRange]

    @property
    def frame(self) -> bytes:
        """The bytes that the client gets, those of files included."""
        return b"".join(part if isinstance(part, bytes) else _read(part) for part in self.parts)

    def fields(self, key: ApiKey, version: int) -> Fields:
        """The answer as a client of that version reads it."""
        frame = self.frame
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        return codec.decode_response(key, version, memoryview(frame)[4:])[1]


def _read(part: FileRange) -> bytes:
    with open(part.path, "rb") as file:
        assert os.fstat(file.fileno()).st_ino == part.inode
        return os.pread(file.fileno(), part.length, part.position)


class ScriptedProcessor:
    """A Processor's end of the link to one Handler."""

    def __init__(self, rig: HandlerRig, link: Link) -> None:
        self._rig = rig
        self.link = link
        self.outbox = Outbox(link.sender, link.waker)
        self.inbox = Inbox(link.receiver)
        self._sequences: dict[int, itertools.count[int]] = {}
        self.hints: list[bytes] = []
        self.bulk_sizes: list[int] = []  # How many answers came with each SENDS.
        self.throttles: list[tuple[int, int]] = []  # (connection, milliseconds)
        self.sessions: dict[int, Session] = {}  # Of the connections whose clients have logged in.
        self.metered: dict[int, tuple[bool, bytes]] = {}  # By connection: whether, and its client id.
        self._blocks: dict[tuple[int, int], int] = {}

    def send(self, key: ApiKey, version: int, fields: Fields, *, connection: int = 1, flags: int = 0) -> int:
        """One request; its sequence. The Handlers have not run yet."""
        frame = codec.encode_request(key, version, 7, "test", fields)
        if len(frame) > LARGE_FRAME_BYTES:
            return self.send_block(frame[4:], connection)
        return self.send_frames([frame], connection=connection, flags=flags)

    def send_frames(self, frames: Sequence[bytes], *, connection: int = 1, flags: int = 0) -> int:
        """Whole frames of one read, in one record; the first one's sequence."""
        numbers = self._sequences.setdefault(connection, itertools.count())
        first = next(numbers)
        for _ in frames[1:]:
            next(numbers)
        self.outbox.push(REQUEST, HEAD.pack(connection, first, 0, flags), *frames)
        self.outbox.flush()
        return first

    def send_block(self, frame: bytes, connection: int) -> int:
        """A large frame, by our arena."""
        arena = self._rig.arena
        offset = arena.allocate(len(frame))
        assert offset is not None
        with arena.view(offset, len(frame)) as view:
            view[:] = frame
        sequence = next(self._sequences.setdefault(connection, itertools.count()))
        self._blocks[connection, sequence] = offset
        self.outbox.push(REQUEST_BLOCK, HEAD.pack(connection, sequence, 0, 0), BLOCK.pack(offset, len(frame)))
        self.outbox.flush()
        return sequence

    def introduce(
        self,
        address: str,
        *,
        connection: int = 1,
        principal: Principal = ANONYMOUS,
        mechanism: str = "",
        ends_ns: int = 0,
    ) -> None:
        """Say where the client of a connection is, who, and how it has logged in."""
        identity = pack_address(address) + Session(principal, mechanism, ends_ns).pack()
        self.outbox.push(IDENTITY, HEAD.pack(connection, 0, 0, 0), identity)
        self.outbox.flush()

    def spent(self, used_ns: int, client_id: bytes, *, connection: int = 1) -> None:
        """Say how long the Processor has worked for a connection."""
        head = HEAD.pack(connection, 0, 0, 0)
        self.outbox.push(SOCKET_TIME, head, SOCKET_NS.pack(used_ns), client_id)
        self.outbox.flush()

    def disconnect(self, connection: int = 1, *, flags: int = 0) -> None:
        self.outbox.push(DISCONNECTED, HEAD.pack(connection, 0, 0, flags))
        self.outbox.flush()

    def recall_blocks(self) -> None:
        """Ask for the blocks of all requests that are not answered."""
        for connection, sequence in self._blocks:
            self.outbox.push(RECALL_BLOCK, HEAD.pack(connection, sequence, 0, 0))
        self.outbox.flush()

    def answers(self, *, settles: bool = True) -> list[Answer]:
        """What has been answered since the last look, after the Handlers have run until nothing moves."""
        if settles:
            self._rig.settle()
        found: list[Answer] = []
        while batch := self.inbox.poll(1000):
            for kind, view in batch:
                if kind == HINT:
                    self.hints.append(bytes(view))
                    continue
                if kind == SENDS:
                    self.bulk_sizes.append(0)
                    position = 0
                    while position < len(view):
                        connection_id, sequence, _, _ = HEAD.unpack_from(view, position)
                        start = position + HEAD_BYTES
                        position = start + 4 + int.from_bytes(view[start : start + 4], "big")
                        found.append(Answer(SEND, connection_id, sequence, [bytes(view[start:position])]))
                        self.bulk_sizes[-1] += 1
                    continue
                connection_id, sequence, _, _ = HEAD.unpack_from(view)
                body = view[HEAD_BYTES:]
                if kind == THROTTLE:
                    self.throttles.append((connection_id, THROTTLE_MS.unpack_from(body)[0]))
                    continue
                if kind == METERED:
                    self.metered[connection_id] = (bool(sequence), bytes(body))
                    continue
                if kind == AUTHENTICATED:
                    self.sessions[connection_id] = Session.unpack(bytes(body))
                    continue
                if kind in (NOTE, MOVED):
                    continue
                if kind == BLOCK_FREE:
                    self._rig.arena.free(self._blocks.pop((connection_id, sequence)))
                    continue
                block = self._blocks.pop((connection_id, sequence), None)
                if block is not None:
                    self._rig.arena.free(block)
                parts = _decode(body) if kind == SEND_PARTS else [bytes(body)]
                assert kind in (SEND, SEND_PARTS, NO_OP, CLOSE), kind
                found.append(Answer(kind, connection_id, sequence, parts))
            self.inbox.release()
            if settles:
                self._rig.settle()
        return found

    def ask(self, key: ApiKey, version: int, fields: Fields, *, connection: int = 1) -> Fields:
        """One request, and its only answer."""
        self.send(key, version, fields, connection=connection)
        (answer,) = self.answers()
        return answer.fields(key, version)


def _decode(body: memoryview) -> list[bytes | FileRange]:
    """Parts that outlive the record."""
    parts = decode_parts(body, FileRange)
    return [part if isinstance(part, FileRange) else bytes(part) for part in parts]


class Parts:
    """What tests look at inside a Handler, whose parts are its own: the one place that knows their names."""

    def __init__(self, handler: Handler) -> None:
        self.services = handler._services
        self.calls = handler._calls
        self.owner_calls = handler._owner_calls
        self.partitions = handler._partitions
        self.transfers = handler._transfers
        self.produce = handler._changes._produce
        self.append_queue = handler._append_queue
        self.purgatory = handler._purgatory
        self.coordinators = handler._coordinators
        self.unlinked = handler._unlinked
        self.requests = handler._requests
        self.metrics = handler._metrics
        self.peers = handler._peers
        self.rates = handler._rates


def parts_of(handler: Handler) -> Parts:
    """A Handler's parts as they are now."""
    return Parts(handler)


class HandlerRig:
    """Some Handlers, what they know of the cluster, and one scripted Processor for each."""

    def __init__(
        self,
        directory: Path,
        *,
        handlers: int = 1,
        settings: Fields | None = None,
        link_kind: str = "pipe",
        was_clean: bool = False,
    ) -> None:
        load_all()
        self._stack = ExitStack()
        self.links = self._stack.enter_context(LinkMaker(link_kind))
        self.clock = ManualClock()
        self.directory = directory
        self.cluster = InMemoryController(
            {"log.dirs": str(directory), "kproc.flush": "none", **(settings or {})},
            handlers=handlers,
            clock=self.clock,
        )
        self._sent_deltas = len(self.cluster.deltas)
        name, protocol, host, port = self.cluster.config.listeners[0]
        endpoint = ListenerEndpoint(name, host, port, host, port, protocol)
        self.plan = BrokerPlan(
            config=self.cluster.config,
            clock=self.clock,
            endpoints=[endpoint],
            cluster_id="test-cluster",
            was_clean=was_clean,
        )
        self.table = PartitionTable(memoryview(bytearray(8 * ROW_WORDS * SLOTS)).cast("Q"))
        self.slab = new_slab()
        self.syncers = [HeldSyncer() for _ in range(handlers)]
        self.handlers: list[Handler | None] = [None] * handlers
        self.processors: list[ScriptedProcessor] = [None] * handlers  # type: ignore[list-item]
        self._controller_ends: list[tuple[Outbox, Inbox]] = [None] * handlers  # type: ignore[list-item]
        self.controller_calls: list[bytes] = []
        self.acknowledged: list[int] = []  # The versions of the metadata that Handlers have acknowledged.
        # The operations that the controller serves; others are noted, and not answered.
        self.controller_serves: set[str] = set()
        self.arena = Arena.create(16 << 20, 1, warm_bytes=0)
        self._stack.callback(self.arena.close)
        for index in range(handlers):
            self.start_handler(index)

    def __enter__(self) -> HandlerRig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handler in self.handlers:
            if handler is not None:
                handler.close()
        self._stack.close()

    # -- who is there ----------------------------------------------------------------------------------------

    def start_handler(
        self,
        index: int,
        *,
        is_restart: bool = False,
        settles: bool = True,
        has_metadata: bool = True,
        is_linked: bool = True,
    ) -> None:
        """A Handler is there (again), linked with everybody and told of the cluster, unless a test does that later."""
        eventfd = make_eventfd()
        self._stack.callback(os.close, eventfd)
        metrics = MetricsRow(self.slab, index, pid=1)
        doze = Sleeper(self.slab.words, metrics.sleeping_word, eventfd)
        parts = RoleParts(
            doze=doze,
            metrics=metrics,
            table=self.table,
            syncer=self.syncers[index],
            is_restart=is_restart,
        )
        handler = build_handler(handler_id(index), self.plan, parts)
        near, far = self.links.make(CONTROLLER, handler.id)
        handler.attach(far)
        self._controller_ends[index] = (Outbox(near.sender, near.waker), Inbox(near.receiver))
        if has_metadata:
            self._push_snapshot(index)
        near, far = self.links.make(processor_id(0), handler.id, near_arena=ArenaReader(self.arena.region))
        handler.attach(far)
        self.processors[index] = ScriptedProcessor(self, near)
        for other in self.handlers:
            if other is not None and other.id != handler.id:
                near, far = self.links.make(handler.id, other.id)
                handler.attach(near)
                other.attach(far)
        if is_linked:
            handler.set_linked()
        self.handlers[index] = handler
        if settles:
            self.settle()

    def kill(self, index: int) -> None:
        """A Handler dies as by SIGKILL: nothing is closed in order, the others are told."""
        dead = self.handlers[index]
        assert dead is not None
        self.handlers[index] = None
        for other in self.handlers:
            if other is not None:
                other.detach(handler_id(index))
        self.syncers[index].drop()
        for owned in dead._partitions.opened():
            owned.log.close(clean=False)
        dead._epoll.close()

    def handler(self, index: int = 0) -> Handler:
        found = self.handlers[index]
        assert found is not None
        return found

    def partitions(self, index: int = 0) -> Partitions:
        return self.handler(index)._partitions

    # -- fast paths ------------------------------------------------------------------------------------------

    def fast_paths(self, index: int = 0) -> dict[int, FastPath]:
        """Those of a Handler that can take something, by connection id."""
        (client,) = self.handler(index)._clients.values()
        return {
            int.from_bytes(key, sys.byteorder): path
            for key, path in client.paths.items()
            if not isinstance(path, NoFastPath)
        }

    def forget_fast_paths(self, connection: int | None = None) -> None:
        """Every next request, or that connection's, goes the general way."""
        for handler in self.handlers:
            for client in handler._clients.values() if handler is not None else ():
                if connection is None:
                    client.paths.clear()
                else:
                    client.paths.pop(HEAD.pack(connection, 0, 0, 0)[:8], None)

    def taken(self, index: int = 0) -> int:
        """How many requests went by a fast path, since the Handler counted them last."""
        return self.handler(index)._requests._learner.fast_path_count

    # -- running ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Run every Handler until none has anything to do."""
        waiting = -1
        for handler in self.handlers:
            # Tests change parts of a Handler between its duty cycles, which no role does. Later cycles get no press
            # from here, so that what a role forgets to press for is seen.
            if handler is not None:
                handler._due.press()
        for _ in range(10_000):
            running = [handler for handler in self.handlers if handler is not None]
            work = sum(self.run_cycle(handler) for handler in running) + self._take_controller_calls()
            # Pieces of a long message move without being work; what waits for a scripted Processor does not move.
            before, waiting = waiting, sum(box.overflow_count() for each in running for box in each._outboxes)
            if not work and waiting == before:
                return
        raise AssertionError("the Handlers do not come to rest")

    def run_cycle(self, handler: Handler) -> int:
        """Run one duty cycle, and check that the Handler will see everything that it left waiting."""
        work = handler.do_work(0)
        check_due_time(handler)
        return work

    def advance_ms(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        self.settle()

    def end_controller(self, index: int) -> None:
        """The controller ends in order, and has not taken what this Handler asked last; the Handler hears of it."""
        outbox, inbox = self._controller_ends[index]
        inbox.finish()
        outbox.close()
        self._controller_ends[index] = None  # type: ignore[call-overload]
        self.handler(index).detach(CONTROLLER)

    def _take_controller_calls(self) -> int:
        """Note what the Handlers ask the controller; serve what it serves, and return how much that was."""
        served = 0
        for end in self._controller_ends:
            if end is None:
                continue
            outbox, inbox = end
            outbox.flush()  # A long reply goes in pieces.
            batch = inbox.poll(1000)
            for kind, view in batch:
                if kind == CALL:
                    self.controller_calls.append(bytes(view[TOKEN.size :]))
                    served += self._serve_controller_call(view, outbox)
                else:
                    assert kind == DELTA_ACK, kind
                    self.acknowledged.append(TOKEN.unpack_from(view)[0])
            if batch:
                inbox.release()
        return served

    def _serve_controller_call(self, view: memoryview, outbox: Outbox) -> bool:
        is_served = False

        def decide(op: str, body: Fields, on_reply: Callable[[Fields], None]) -> None:
            nonlocal is_served
            if op in self.controller_serves:
                is_served = True
                reply = self.cluster.do(op, **body)
                self.tell(settles=False)  # A change is known everywhere before it is answered.
                on_reply(reply)
                outbox.flush()

        served = CallHandlers(Containment())
        add_change_calls(served, decide)
        # Nobody here reads reports, or answers kproc's own operations.
        for call in (REPORT_OFFLINE, OWN):
            served.add(call, lambda _body, _on_reply: None)
        handle_raw_call(view, outbox, served.handle_raw, Containment())
        return is_served

    # -- the cluster -----------------------------------------------------------------------------------------

    def tell(self, *, settles: bool = True) -> None:
        """Send the Handlers what the controller has decided since."""
        for delta in self.cluster.deltas[self._sent_deltas :]:
            for index, handler in enumerate(self.handlers):
                if handler is not None:
                    outbox = self._controller_ends[index][0]
                    outbox.push(DELTA, delta)
                    outbox.flush()
        self._sent_deltas = len(self.cluster.deltas)
        if settles:
            self.settle()

    def set_handler_count(self, count: int, *, settles: bool = True) -> None:
        """The routing table names the first `count` Handlers; the others stay, and own nothing."""
        self.cluster.do("set_handler_count", count=count)
        self.tell(settles=settles)

    def send_snapshot(self, index: int) -> None:
        """The controller was started anew: it sends all it knows, and no deltas of before."""
        self._push_snapshot(index)
        self._sent_deltas = len(self.cluster.deltas)
        self.settle()

    def _push_snapshot(self, index: int) -> None:
        outbox = self._controller_ends[index][0]
        outbox.push(SNAPSHOT, self.cluster.image.snapshot())
        outbox.flush()

    def create_topic(self, name: str, *, partitions: int = 1, **configs: str) -> bytes:
        """A topic that every Handler knows; its id."""
        wanted = {key.replace("_", "."): value for key, value in configs.items()}
        (row,) = self.cluster.create(topic(name, partitions, configs=wanted))
        assert row["error_code"] == 0, row
        self.tell()
        return bytes(self.cluster.image.topics_by_name[name].topic_id)

    def delete_topic(self, name: str) -> None:
        self.cluster.do("delete_topics", topics=[{"name": name, "topic_id": bytes(16)}])
        self.tell()

    def image_of(self, name: str, index: int = 0) -> PartitionImage:
        found = self.cluster.image.partition(name, index)
        assert found is not None
        return found

    def owner(self, name: str, index: int = 0) -> int:
        return self.image_of(name, index).owner

    def open(self, name: str, index: int = 0) -> OwnedPartition:
        """The open partition, at its owner."""
        return self.partitions(self.owner(name, index)).get(name, self.image_of(name, index))
