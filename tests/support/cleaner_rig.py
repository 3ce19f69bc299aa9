"""A cleaner without its broker: scripted owners, a manual clock, one data directory."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from kproc.broker.calls.calls import FromImage
from kproc.broker.calls.cleaner_calls import (
    ENFORCE_RETENTION,
    SHOW_CLEANER_ACTIVITY,
    WRITE_CHECKPOINTS,
    CleanerActivity,
    Deleted,
    Done,
)
from kproc.broker.cleaner.cleaner import Cleaner
from kproc.broker.ipc.wait import Sleeper, make_eventfd
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.role.partition_table import ROW_WORDS, PartitionTable
from kproc.broker.role.roles import CLEANER, CONTROLLER, handler_id
from kproc.broker.storage import checkpoints
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.transport.envelope import CALL, DELTA, REPLY, SNAPSHOT, TOKEN
from kproc.broker.transport.outbox import Inbox, Outbox
from kproc.common.clock import ManualClock
from tests.support.in_memory_controller import InMemoryController, topic
from tests.support.links import LinkMaker
from tests.support.processor_rig import new_slab

CHECK_MS = 60_000


class CleanerRig:
    """A cleaner, what the controller tells it, and scripted Handlers."""

    def __init__(
        self,
        stack: ExitStack,
        directory: Path,
        *,
        fs: OsFs | None = None,
        has_metadata: bool = True,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.cluster = InMemoryController(
            {
                "log.dirs": str(directory),
                "log.retention.check.interval.ms": CHECK_MS,
                "log.flush.offset.checkpoint.interval.ms": CHECK_MS,
                "log.flush.start.offset.checkpoint.interval.ms": CHECK_MS,
                **settings,
            },
            handlers=2,
        )
        self._links = stack.enter_context(LinkMaker("pipe"))
        slab = new_slab()
        metrics = MetricsRow(slab, 0, 1)
        eventfd = make_eventfd()
        stack.callback(os.close, eventfd)
        self.table = PartitionTable(memoryview(bytearray(8 * ROW_WORDS * 64)).cast("Q"))
        self.cleaner = Cleaner(
            CLEANER,
            doze=Sleeper(slab.words, metrics.sleeping_word, eventfd),
            metrics=metrics,
            clock=self.clock,
            config=self.cluster.config,
            table=self.table,
            fs=fs or OsFs(),
        )
        stack.callback(self.cleaner.close)
        near, far = self._links.make(CONTROLLER, CLEANER)
        self.cleaner.attach(far)
        self._controller, self._inbox = Outbox(near.sender, near.waker), Inbox(near.receiver)
        if has_metadata:
            self.send_snapshot()
        self._handlers: dict[int, tuple[Outbox, Inbox]] = {}
        for index in range(2):
            near, far = self._links.make(handler_id(index), CLEANER)
            self.cleaner.attach(far)
            self._handlers[index] = (Outbox(near.sender, near.waker), Inbox(near.receiver))
        self.step()

    def send_snapshot(self) -> None:
        """The controller tells all it knows."""
        self._controller.push(SNAPSHOT, self.cluster.image.snapshot())
        self._sent = len(self.cluster.deltas)

    def step(self, count: int = 5) -> None:
        self._controller.flush()
        for _ in range(count):
            self.cleaner.do_work(0)

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        (row,) = self.cluster.create(
            topic(name, partitions, configs={key.replace("_", "."): value for key, value in configs.items()})
        )
        assert row["error_code"] == 0, row
        self.tell()

    def delete(self, name: str) -> None:
        self.cluster.do("delete_topics", topics=[{"name": name, "topic_id": bytes(16)}])
        self.tell()

    def tell(self) -> None:
        for delta in self.cluster.deltas[self._sent :]:
            self._controller.push(DELTA, delta)
        self._sent = len(self.cluster.deltas)
        self.step()

    def write_row(
        self, name: str, index: int, *, start: int, end: int, recovery: int, flags: int = 0
    ) -> None:
        """Write a partition's row in the shared table, as its owner does."""
        partition = self.cluster.image.partition(name, index)
        assert partition is not None
        self.table.writer(partition.slot).publish(
            (1 | flags, partition.slot_generation, start, end, start, 100, recovery, end)
        )

    def advance_ms(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        self.step()

    def ask_for_checkpoints(self, index: int = 0) -> None:
        """As a Handler that knows the newest metadata, and has moved a log's start."""
        call = msgspec.msgpack.encode([WRITE_CHECKPOINTS.name, FromImage(self.cluster.image.version)])
        outbox = self._handlers[index][0]
        outbox.push(CALL, TOKEN.pack(1, len(call)), call)
        outbox.flush()
        self.step()

    def activity(self) -> CleanerActivity:
        """Request the cleaner's activity as the controller does, and return the reply."""
        call = msgspec.msgpack.encode([SHOW_CLEANER_ACTIVITY.name, FromImage(0)])
        self._controller.push(CALL, TOKEN.pack(1, len(call)), call)
        self.step(1)
        found = [
            SHOW_CLEANER_ACTIVITY.decode_reply(view[TOKEN.size :])
            for kind, view in self._inbox.poll(100)
            if kind == REPLY
        ]
        self._inbox.release()
        return found[0]

    def replies(self, index: int = 0) -> list[Done]:
        """Return the replies that a Handler has received since the last call."""
        inbox = self._handlers[index][1]
        found = []
        for kind, view in inbox.poll(100):
            assert kind == REPLY
            found.append(WRITE_CHECKPOINTS.decode_reply(view[TOKEN.size :]))
        inbox.release()
        return found

    def asked(self) -> list[tuple[int, str, int]]:
        """(Handler, topic, partition) of the retention checks asked for since the last look; answered."""
        found = []
        for index, (outbox, inbox) in self._handlers.items():
            for kind, view in inbox.poll(10_000):
                assert kind == CALL
                token, length = TOKEN.unpack_from(view)
                op, body = msgspec.msgpack.decode(view[TOKEN.size : TOKEN.size + length])
                assert op == ENFORCE_RETENTION.name
                _, topic_name, partition = body
                found.append((index, topic_name, partition))
                reply = msgspec.msgpack.encode(Deleted(0))
                outbox.push(REPLY, TOKEN.pack(token, len(reply)), reply)
            inbox.release()
            outbox.flush()
        self.step()
        return sorted(found)

    def owner(self, name: str, index: int) -> int:
        partition = self.cluster.image.partition(name, index)
        assert partition is not None
        return partition.owner

    def recovery_points(self) -> dict[tuple[str, int], int]:
        return checkpoints.read_offsets(OsFs(), self.directory / checkpoints.RECOVERY_POINT_FILE)

    def log_starts(self) -> dict[tuple[str, int], int]:
        return checkpoints.read_offsets(OsFs(), self.directory / checkpoints.LOG_START_FILE)
