"""A Compactor whose owners answer its calls as the test says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kproc.broker.calls.calls import Call
from kproc.broker.calls.cleaner_calls import SWAP_SEGMENTS
from kproc.broker.cleaner.compactor import Compactor
from kproc.broker.handler.compaction_calls import CompactionCalls
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.role.partition_table import ROW_WORDS, PartitionTable
from kproc.broker.storage import checkpoints
from kproc.broker.storage.log import Log, LogIdentity
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.os_fs import OsFs
from kproc.common.clock import ManualClock
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.in_memory_controller import InMemoryController, topic
from tests.support.logs import append_one
from tests.support.processor_rig import new_slab

CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
BACKOFF_MS = 1000


class Rig:
    """A Compactor, the metadata, and the logs of an owner whose answers can be held back or replaced."""

    def __init__(self, stack: ExitStack, directory: Path, **settings: object) -> None:
        self._stack = stack
        self.directory = directory
        self.clock = ManualClock(wall_ms=1_700_000_000_000)
        self.cluster = InMemoryController(
            {"log.dirs": str(directory), "log.cleaner.backoff.ms": BACKOFF_MS, **settings}
        )
        self.table = PartitionTable(memoryview(bytearray(8 * ROW_WORDS * 64)).cast("Q"))
        self.logs: dict[tuple[str, int], Log] = {}
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {}  # Instead of the owner's.
        owner: Any = SimpleNamespace(find=self._find, get=lambda name, part: self._find((name, part.index)))
        self.desk = CompactionCalls(owner, lambda: self.cluster.image, self.clock.now_ns)
        self.metrics = MetricsRow(new_slab(), 0, 1)
        self.compactor = self.start()

    def start(self) -> Compactor:
        self.compactor = Compactor(
            config=self.cluster.config, clock=self.clock, fs=OsFs(), table=self.table,
            image=lambda: self.cluster.image, ask=self._ask, metrics=self.metrics,
        )  # fmt: skip
        self._stack.callback(self.compactor.close)
        return self.compactor

    def _find(self, key: tuple[str, int]) -> Any:
        return SimpleNamespace(log=self.logs[key]) if key in self.logs else None

    def _ask(self, _owner: int, call: Call[Any, Any], body: Any, on_reply: Callable[[Any], None]) -> None:
        self.asked.append(call.name)
        if call.name in self.answers:
            on_reply(self.answers[call.name])
            return
        (self.desk.swap if call is SWAP_SEGMENTS else self.desk.prepare)(body, on_reply)
        while self.desk.swaps:
            self.desk.work()

    def create(self, name: str, **configs: str) -> Log:
        configs = {**CONFIGS, **{key.replace("_", "."): value for key, value in configs.items()}}
        (row,) = self.cluster.create(topic(name, configs=configs))
        assert row["error_code"] == 0, row
        image = self.cluster.image.topics_by_name[name]
        log = Log.open(
            LogIdentity(self.directory / f"{name}-0", name, image.topic_id, 0), LogConfig().with_overrides(configs),
            leader_epoch=0, clock=self.clock, fs=OsFs(),
        )  # fmt: skip
        self._stack.callback(log.close, clean=False)
        self.logs[name, 0] = log
        return log

    def fill(self, name: str, *keys: str, roll: bool = True, sync: bool = True, **fields: Any) -> None:
        log = self.logs[name, 0]
        for key in keys:
            records = [Record(key.encode(), b"v" * 50, self.clock.wall_ms())]
            assert append_one(log, memoryview(encode_batch(records, **fields))).error_code == 0
        if roll:
            log.state.roll(log.state.end_offset, self.clock.wall_ms())
        if sync:
            log.durability.sync()
        self.publish(name)

    def publish(self, name: str) -> None:
        partition = self.cluster.image.partition(name, 0)
        assert partition is not None
        log = self.logs[name, 0]
        self.table.writer(partition.slot).publish(
            (
                1,
                partition.slot_generation,
                log.state.start_offset,
                log.state.end_offset,
                log.state.active_base,
                log.state.active_bytes,
                log.state.recovery_point,
                log.state.high_watermark,
            )
        )

    def run(self, turns: int = 30) -> None:
        for _ in range(turns):
            self.compactor.work()

    def after(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        self.run()

    def offsets(self) -> dict[tuple[str, int], int]:
        return checkpoints.read_offsets(OsFs(), self.directory / checkpoints.CLEANER_OFFSET_FILE)

    def value(self, name: str) -> int:
        return self.metrics.values[SLOT[name]]
