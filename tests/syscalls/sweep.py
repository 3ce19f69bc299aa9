"""Paths of the broker's storage, and the sweep that fails each of their calls once.

A path runs in a Scene (tests/powerloss/scene.py): the real Partitions, logs, coordinators, metadata log, checkpoints
and compactor over a disk in memory. It runs once to count its calls, then once for each call and each error. After the
failure the disk is well again, and then:

- every partition takes a record with acks=all and syncs it. After an error that is no shortage (EIO), or that came from
  a sync, a partition may be offline instead, and says why;
- what was acknowledged, or read of acks=all, is there, whole, in this run, after a kill of everything and after a power
  loss (tests/powerloss/judge.py).
"""

from __future__ import annotations

import errno
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from unittest import mock

from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.handler.owned_partition import OwnedPartition
from kproc.broker.storage.fs import StorageFailure
from kproc.common.clock import ManualClock
from kproc.common.errors import Corrupt, FatalError, KafkaError
from tests.powerloss.judge import judge
from tests.powerloss.scene import DATA, GROUP_TOPIC, NAMES, NOW_MS, Scene, Violation
from tests.simulation.processes import SimulatedExecutor
from tests.syscalls.faulty_disk import ERRORS, SHORTAGES, FaultyDisk

Step = Callable[[Scene], None]
_PRODUCER: Final = 7
_COMPACTED: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


class Path(NamedTuple):
    """Steps before the calls are counted, and steps whose calls are counted."""

    prepare: list[Step]
    steps: list[Step]
    configs: dict[str, str] = {}  # noqa: RUF012 - never changed


class Finding(NamedTuple):
    """A promise that one failure broke."""

    path: str
    call: str
    number: int
    error: int
    text: str

    def __str__(self) -> str:
        code = errno.errorcode[self.error]
        again = f"--path {self.path} --number {self.number} --error {code}"
        text = f"{self.path}: {self.call} (call {self.number}) with {code}: {self.text}"
        return f"{text}\n  again: python -m tests.syscalls {again}"


def _produce(size: int, count: int = 1, *, producer_id: int = -1) -> Step:
    def step(scene: Scene) -> None:
        for name in NAMES:
            for _ in range(count):
                scene.produce(name, size, producer_id=producer_id)

    return step


def _sync(scene: Scene) -> None:
    for handler in scene.handlers:
        handler.coordinators.flush()
        handler.sync()
        handler.sync()


def _commit(scene: Scene) -> None:
    for group in ("g", "h"):
        scene.commit(group)
    for handler in scene.handlers:
        handler.coordinators.flush()


def _kill(scene: Scene) -> None:
    for index in range(len(scene.handlers)):
        scene.kill(index)


def _compact(scene: Scene) -> None:
    if scene.cleaner is None:
        scene.cleaner = scene.compactor()
    scene.update_cleaner()
    for _ in range(12):
        scene.clock.advance_ms(200)
        scene.cleaner.work()
        for handler in scene.handlers:
            handler.swap()


def _retention(scene: Scene) -> None:
    for name in NAMES:
        scene.enforce_retention(name)
    scene.clock.advance_ms(120_000)
    for handler in scene.handlers:
        handler.partitions.tick()


def _delete_records(scene: Scene) -> None:
    scene.delete_records(NAMES[0])


def _hear(scene: Scene) -> None:
    for handler in scene.handlers:
        while handler.deltas:
            scene.hear(handler)


def _delete_topic(scene: Scene) -> None:
    scene.delete(NAMES[1])
    _hear(scene)


def _create_topic(scene: Scene) -> None:
    scene.create("v")
    _hear(scene)


def _compact_metadata(scene: Scene) -> None:
    """A change that compacts the metadata log, and one behind it."""
    scene.log._compact_at = 0
    _create_topic(scene)
    scene.create("w")
    _hear(scene)


def _scale(count: int) -> Step:
    def step(scene: Scene) -> None:
        scene.scale(count)
        _hear(scene)
        for handler in scene.handlers:
            handler.sync()
            handler.transfers.retire()

    return step


def _checkpoint(scene: Scene) -> None:
    scene.checkpoint()


def _stop(scene: Scene) -> None:
    scene.stop()


def _restart(scene: Scene) -> None:
    scene.restart()


_SOME: Final[list[Step]] = [_produce(300, 3), _produce(300, 2, producer_id=_PRODUCER), _sync]
PATHS: Final[dict[str, Path]] = {
    "first append": Path([], [_produce(300, 2)]),
    "append": Path(_SOME, [_produce(2000, 2), _produce(300, 2, producer_id=_PRODUCER)]),
    "roll": Path(_SOME, [_produce(6000, 5)]),
    "sync": Path([*_SOME, _produce(6000, 5)], [_sync, _produce(300), _sync]),
    "compaction": Path([*_SOME, _produce(6000, 9), _sync, _sync], [_compact, _sync], _COMPACTED),
    "retention": Path([*_SOME, _produce(6000, 8), _sync], [_retention, _sync], {"retention.bytes": "20000"}),
    "delete records": Path([*_SOME, _produce(6000, 8), _sync], [_delete_records, _sync]),
    "checkpoint": Path(_SOME, [_checkpoint]),
    "metadata": Path(_SOME, [_delete_topic, _create_topic]),
    "metadata compaction": Path(_SOME, [_compact_metadata]),
    "coordinator": Path([_commit, _sync], [_commit, _sync]),
    "coordinator load": Path([_commit, _commit, _sync], [_kill, _commit, _commit, _sync]),
    "Handler's death": Path(
        [*_SOME, _produce(6000, 4)], [_kill, _produce(300, producer_id=_PRODUCER), _sync]
    ),
    "transfer": Path(
        [*_SOME, _produce(6000, 4)], [_scale(1), _produce(300), _scale(2), _produce(300), _sync]
    ),
    "stop and start": Path([*_SOME, _produce(6000, 4)], [_stop, _produce(300), _sync]),
    "start after a kill": Path([*_SOME, _produce(6000, 4), _checkpoint], [_restart, _produce(300), _sync]),
}


class _Scene(Scene):
    """A judge that lets a partition be refused while a call fails."""

    def owned(self, name: str, index: int = 0) -> OwnedPartition | None:
        try:
            return super().owned(name, index)
        except Violation:
            if isinstance(self.fs, FaultyDisk) and self.fs.has_failed and self.fs.is_counting:
                return None
            raise


def _scene(path: Path, clock: ManualClock, fs: FaultyDisk) -> Scene:
    scene = _Scene(fs, clock, 1, handlers=2, settings={"log.segment.delete.delay.ms": "1000"})
    for name in NAMES:
        scene.create(name, configs=path.configs)
    scene.create(GROUP_TOPIC, 2)
    _hear(scene)
    for step in path.prepare:
        step(scene)
    return scene


class _Run:
    """One run of a path, with one failure in it or none."""

    def __init__(self, name: str) -> None:
        self.path = PATHS[name]
        self.clock = ManualClock(wall_ms=NOW_MS)
        self.fs = FaultyDisk(self.clock)
        self.scene = _scene(self.path, self.clock, self.fs)

    def count(self) -> list[str]:
        """Run without a failure; return the calls."""
        self.fs.arm(0, 0)
        for step in self.path.steps:
            step(self.scene)
        self.fs.heal()
        return self.fs.calls

    def fail(self, number: int, error: int) -> None:
        """Run with a failure, then check every promise. Raises Violation."""
        scene, fs = self.scene, self.fs
        fs.arm(number, error)
        for step in self.path.steps:
            self._do(step)
        fs.heal()
        self._start_controller_twice()
        call = fs.calls[number - 1] if fs.has_failed else "none"
        is_passing = error in SHORTAGES and call != "sync"
        self._check_service(is_passing)
        _judge(scene, fs, "all")
        _judge(scene, fs, "synced")

    def _start_controller_twice(self) -> None:
        """Every change of the metadata is there after two starts: the first may remove files."""
        scene = self.scene
        disk = self.fs.crash(random.Random(1), contents="all", names="all")
        for _ in range(2):
            log, image = MetadataLog.open(DATA, self.clock, disk)
            log.close()
            if image.snapshot() != scene.image.snapshot():
                raise Violation(f"metadata of version {image.version} after a start instead of {scene.image.version}")

    def _do(self, step: Step) -> None:
        """Run a step. An error that nobody handles ends a role, and its successor begins."""
        scene = self.scene
        try:
            step(scene)
        except (StorageFailure, FatalError, Corrupt, KafkaError):
            self._start_roles()

    def _start_roles(self) -> None:
        """The controller and all Handlers start anew, as often as it takes."""
        scene = self.scene
        for _ in range(3):
            try:
                scene.log.close()
                scene._open()
                if scene.handlers:
                    scene.restart()
                else:
                    scene._start_handlers(2)
                scene.start_cleaner()
                return
            except (StorageFailure, FatalError):
                continue
        raise Violation("the broker does not start though the disk is well again")

    def _check_service(self, is_passing: bool) -> None:
        """Every partition takes records again, or says why not."""
        scene = self.scene
        for _ in range(3):
            _hear(scene)
            _sync(scene)
            scene.clock.advance_ms(1000)
            for handler in scene.handlers:
                handler.partitions.tick()
        for name in [each for each in scene.ledger.topics if not each.startswith("__")]:
            partition = scene.image.topics_by_name[name].partitions[0]
            handler = scene.handlers[partition.owner]
            try:
                owned = handler.partitions.get(name, handler.image.topics_by_name[name].partitions[0])
            except KafkaError as problem:
                if is_passing:
                    raise Violation(
                        f"{name} is refused after a shortage that has passed: {problem}"
                    ) from problem
                if len(problem.message or "") < 20:
                    raise Violation(f"{name} is refused without a reason: {problem}") from problem
                continue
            before = owned.log.state.end_offset
            scene.produce(name, 50)
            _sync(scene)
            _sync(scene)
            log = owned.log
            if log.state.end_offset == before or log.state.high_watermark != log.state.end_offset:
                raise Violation(
                    f"{name} takes no record: end {before} to {log.state.end_offset}, "
                    f"visible {log.state.high_watermark}, offline {log.state.offline_reason}"
                )
            scene.fetch(name)


def _judge(scene: Scene, fs: FaultyDisk, contents: str) -> None:
    """Open what a kill of everything ("all"), or a power loss, leaves, and check every promise."""
    image = fs.crash(random.Random(1), contents=contents, names=contents)
    judge(image, ManualClock(wall_ms=scene.clock.wall_ms()), scene, handlers=2, second=1, names="synced")


def calls_of(name: str) -> list[str]:
    with mock.patch("kproc.broker.handler.close_logs.ThreadPoolExecutor", SimulatedExecutor):
        return _Run(name).count()


def try_one(name: str, number: int, error: int) -> str | None:
    """Fail one call of a path; return the promise that this breaks."""
    with mock.patch("kproc.broker.handler.close_logs.ThreadPoolExecutor", SimulatedExecutor):
        run = _Run(name)
        try:
            run.fail(number, error)
        except Violation as problem:
            return str(problem)
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is what we are looking for
            where = traceback.extract_tb(problem.__traceback__)[-1]
            return f"{problem!r} at {where.filename.rpartition('/')[2]}:{where.lineno}"
    return None


def cases(name: str, every: int = 1) -> Iterator[tuple[int, str, int]]:
    """(number, call, error) of a path; with `every` only each so-manieth case."""
    at = 0
    for number, call in enumerate(calls_of(name), 1):
        for error in ERRORS[call]:
            if at % every == 0:
                yield number, call, error
            at += 1


def sweep(names: list[str], every: int = 1) -> tuple[Counter[tuple[str, str]], list[Finding]]:
    """(cases by path and error, what they broke)."""
    tried: Counter[tuple[str, str]] = Counter()
    found: list[Finding] = []
    for name in names:
        for number, call, error in cases(name, every):
            tried[name, errno.errorcode[error]] += 1
            problem = try_one(name, number, error)
            if problem is not None:
                found.append(Finding(name, call, number, error, problem))
    return tried, found
