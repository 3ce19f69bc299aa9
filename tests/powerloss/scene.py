"""Scene: some Handlers' partitions, metadata log and checkpoints over one RecordingFs; a load, and its promises.

The roles' storage is real: Partitions, Log, MetadataLog. What differs is who calls: here one loop draws all
that happens from a seed. A round of fdatasync is in work for a while: its syncs are done at once or later, and more is
appended before its outcome is taken. Handlers hear of topics at different times.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kproc.clock import ManualClock
from kproc.cluster import records as r
from kproc.cluster.controller import ControllerState
from kproc.cluster.image import ClusterImage, TopicImage
from kproc.cluster.metadata_log import MetadataLog
from kproc.config import Config
from kproc.errors import Corrupt, FatalError, KafkaError
from kproc.purgatory.purgatory import Purgatory
from kproc.server.partition_table import PartitionTable
from kproc.server.partitions import Checkpoint, OwnedPartition, Partitions
from kproc.server.syncer import Outcome, sync_one
from kproc.storage import checkpoints
from kproc.storage.fs import StorageFailure, sync_directory
from kproc.storage.log import Log, SyncPoint
from kproc.storage.log_config import LogConfig
from kproc.wire.record_batch import decode_records, encode_batch
from kproc.wire.records import Record
from tests.powerloss.disk import RecordingFs
from tests.unit.cluster.in_memory import NO_ID, topic

DATA = Path("/data")
SLOTS = 256
NOW_MS = 1_700_000_000_000


class Violation(AssertionError):
    """A promise that an image does not keep."""


class RoundSyncer:
    """Rounds whose syncs are done early or late, and whose outcome comes later still."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._late: list[tuple[Log, SyncPoint]] = []
        self._done: list[Outcome] = []

    def submit(self, points: Sequence[tuple[Log, SyncPoint]]) -> None:
        for log, point in points:
            if self._rng.random() < 0.5:
                self._done.append(sync_one(log, point))
            else:
                self._late.append((log, point))

    def end(self) -> None:
        """The round ends now; take() says so."""
        self._done += [sync_one(log, point) for log, point in self._late]
        self._late = []

    def take(self) -> list[Outcome]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Nothing runs."""


class Ledger:
    """What was sent, and what was answered: by topic id and offset."""

    def __init__(self) -> None:
        self.sent: dict[bytes, dict[int, set[bytes | None]]] = {}
        self.kept: dict[bytes, dict[int, bytes | None]] = {}
        self.starts: dict[bytes, int] = {}  # Answered to DeleteRecords;
        self.asked: dict[bytes, int] = {}  # asked for, so that records below may be gone.
        self.topics: dict[str, bytes] = {}
        self.gone: set[bytes] = set()


class SmallPartitions(Partitions):
    """Segments far below Kafka's smallest, so that a short load rolls."""

    def _log_config(self, topic: TopicImage) -> LogConfig:
        config = super()._log_config(topic)
        return dataclasses.replace(config, segment_bytes=16_384, index_interval_bytes=500)


class Handler:
    """One Handler's partitions, with its own image of the metadata."""

    def __init__(self, scene: Scene, index: int, image: ClusterImage) -> None:
        self.image = image
        self.deltas: deque[bytes] = deque()
        self.syncer = RoundSyncer(scene.rng)
        self.partitions = SmallPartitions(
            DATA, handler_index=index, config=scene.config, image=lambda: self.image, clock=scene.clock,
            table=scene.table, purgatory=Purgatory(scene.clock.now_ns), syncer=self.syncer,
            checkpoint=Checkpoint(scene.fs, DATA), is_clean=False, fs=scene.fs,
        )  # fmt: skip

    def hear(self) -> None:
        """Take the next delta in."""
        change = self.image.apply(self.deltas.popleft())
        for gone in change.deleted:
            self.partitions.delete(gone)

    def sync(self) -> None:
        """End the round that runs, or begin one."""
        if self.partitions.syncing:
            self.syncer.end()
            self.partitions.finish_sync()
        else:
            self.partitions.start_sync()


class Scene:
    """A broker's storage, opened from a disk."""

    def __init__(
        self, fs: RecordingFs, clock: ManualClock, seed: int, *, handlers: int, settings: dict[str, Any]
    ) -> None:
        self.fs, self.clock = fs, clock
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.config = Config.build({"log.dirs": str(DATA), "kproc.flush": "group", **settings})
        self.table = PartitionTable(memoryview(bytearray(64 * SLOTS)).cast("Q"))
        if fs.make_directory(DATA):
            sync_directory(fs, DATA.parent)
        self.log, self.image = MetadataLog.open(DATA, clock, fs)
        self.state = ControllerState(self.config, self.image, random_id=lambda: self.rng.randbytes(16))
        self.handlers: list[Handler] = []
        for op, body in (
            ("register_cluster", {"cluster_id": "c"}),
            ("set_handler_count", {"count": handlers}),
            ("start_broker", {}),
        ):
            self.do(op, **body)
        self.handlers = [
            Handler(self, index, ClusterImage.from_snapshot(self.image.snapshot()))
            for index in range(handlers)
        ]

    def do(self, op: str, **body: Any) -> dict[str, Any]:
        """One operation of the controller: on the disk, then told to the Handlers."""
        reply, records = self.state.handle(op, body)
        if records:
            delta = r.encode_delta(self.image.version, records)
            self.log.commit(self.image, records)
            for handler in self.handlers:
                handler.deltas.append(delta)
        return reply

    # -- the load ----------------------------------------------------------------------------------------------

    def create(self, name: str, **configs: str) -> None:
        reply = self.do("create_topics", topics=[topic(name, configs=configs)], validate_only=False)
        assert reply["topics"][0]["error_code"] == 0, reply
        self.ledger.topics[name] = bytes(self.image.topics_by_name[name].topic_id)

    def delete(self, name: str) -> None:
        topic_id = self.ledger.topics.pop(name)
        self.do("delete_topics", topics=[{"name": name, "topic_id": NO_ID}])
        self.ledger.gone.add(topic_id)

    def owned(self, name: str) -> OwnedPartition | None:
        """The open partition at its owner, if that has heard of the topic."""
        partition = self.image.partition(name, 0)
        if partition is None:
            return None
        handler = self.handlers[partition.owner]
        known = handler.image.topics_by_name.get(name)
        if known is None or known.topic_id != self.ledger.topics[name]:
            return None
        return handler.partitions.get(name, known.partitions[0])

    def produce(self, name: str, size: int, *, count: int = 1, **fields: Any) -> None:
        """One batch; what it was answered, once it is, goes into the ledger."""
        owned = self.owned(name)
        if owned is None:
            return
        topic_id, ledger = self.ledger.topics[name], self.ledger
        keys = [b"k%d" % self.rng.randrange(8) for _ in range(count)]
        values = [self.rng.randbytes(8) + bytes(size) for _ in range(count)]
        now_ms = self.clock.wall_ms()
        batch = encode_batch([Record(k, v, now_ms) for k, v in zip(keys, values, strict=True)], **fields)
        first = owned.log.end_offset
        sent = ledger.sent.setdefault(topic_id, {})
        for number, value in enumerate(values):
            sent.setdefault(first + number, set()).add(value)
        (result,) = owned.log.append([memoryview(batch)])
        if result.error_code:
            return
        owned.after_append()

        def on_synced(code: int) -> None:
            if code == 0:
                kept = ledger.kept.setdefault(topic_id, {})
                kept.update({first + number: value for number, value in enumerate(values)})

        owned.when_synced(owned.log.end_offset, on_synced)

    def delete_records(self, name: str) -> None:
        """DeleteRecords, answered when the checkpoint is written."""
        owned = self.owned(name)
        if owned is None:
            return
        log = owned.log
        everything = self.rng.random() < 0.4
        wanted = log.end_offset if everything else self.rng.randint(log.start_offset, log.end_offset)
        topic_id = self.ledger.topics[name]
        self.ledger.asked[topic_id] = wanted
        start = log.advance_start(wanted)
        owned.after_append()
        self.checkpoint()
        self.ledger.starts[topic_id] = start

    def checkpoint(self) -> None:
        """The cleaner's two files, from the rows."""
        points, starts = {}, {}
        for each in self.image.topics_by_name.values():
            for partition in each.partitions:
                row = self.table.read(partition)
                if row is not None:
                    points[each.name, partition.index] = row.recovery_point
                    starts[each.name, partition.index] = row.start_offset
        checkpoints.write_recovery_points(self.fs, DATA, points)
        checkpoints.write_log_starts(self.fs, DATA, starts)

    def kill(self, index: int) -> None:
        """A Handler dies; its successor opens what it had."""
        image = ClusterImage.from_snapshot(self.image.snapshot())
        self.handlers[index] = Handler(self, index, image)


def judge(fs: RecordingFs, clock: ManualClock, scene: Scene, *, handlers: int, second: int) -> None:
    """Open an image as a broker does at its start, and check every promise; `second` seeds a crash after it."""
    ledger = scene.ledger
    for again in range(2):
        try:
            broker = Scene(fs, clock, 1, handlers=handlers, settings={})
        except (Corrupt, FatalError, StorageFailure) as problem:
            raise Violation(f"the broker does not start: {problem!r}") from problem
        found = {name: bytes(each.topic_id) for name, each in broker.image.topics_by_name.items()}
        for name, topic_id in ledger.topics.items():
            if found.get(name) != topic_id:
                raise Violation(f"topic {name} is not there as it was answered")
            _judge_log(broker, name, topic_id, ledger)
        if ledger.gone & set(found.values()):
            raise Violation("a deleted topic is there again")
        if not again:
            rng = random.Random(second)
            fs = fs.crash(
                rng, contents=rng.choice(("synced", "pages")), names=rng.choice(("synced", "prefix"))
            )


def _judge_log(broker: Scene, name: str, topic_id: bytes, ledger: Ledger) -> None:
    partition = broker.image.topics_by_name[name].partitions[0]
    try:
        log = broker.handlers[partition.owner].partitions.get(name, partition).log
        content = _all_of(log)
    except (KafkaError, Corrupt, StorageFailure) as problem:
        raise Violation(f"{name} is refused: {problem}") from problem
    sent = ledger.sent.get(topic_id, {})
    for offset, value in content.items():
        if value not in sent.get(offset, ()):
            raise Violation(f"{name} has at {offset} what was never sent there")
    for offset, value in ledger.kept.get(topic_id, {}).items():
        if offset >= log.start_offset and content.get(offset) != value:
            raise Violation(f"{name} lost offset {offset}, start {log.start_offset}, end {log.end_offset}")
    if log.start_offset > ledger.asked.get(topic_id, 0) and ledger.kept.get(topic_id):
        raise Violation(f"{name} begins at {log.start_offset}, not at {ledger.asked.get(topic_id, 0)}")
    # A log of which nothing was ever synced may be gone with all that was deleted of it.
    if log.start_offset < ledger.starts.get(topic_id, 0) and ledger.kept.get(topic_id):
        raise Violation(f"{name} begins at {log.start_offset}: deleted records are there again")


def _all_of(log: Log) -> dict[int, bytes | None]:
    content: dict[int, bytes | None] = {}
    offset = log.start_offset
    while offset < log.end_offset:
        data, position = log.read_bytes(offset, 1 << 20), 0
        while position + 12 <= len(data):
            end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            if end > len(data):
                break
            for record in decode_records(data[position:end]):
                content[record.offset] = record.value
                offset = max(offset, record.offset + 1)
            position = end
        if not position:
            raise Corrupt(f"nothing can be read at {offset}")
    return {at: value for at, value in content.items() if at >= log.start_offset}
