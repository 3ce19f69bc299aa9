"""Crash images taken in the middle of workloads, and mutations that must be found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Final, NamedTuple
from unittest import mock

from kproc.broker.cleaner.checkpoint_writer import CheckpointWriter
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.controller.pending_deletions import PendingDeletions
from kproc.broker.coordinator.coordinator_log import CoordinatorLog
from kproc.broker.coordinator.coordinator_replay import CoordinatorReplay, ReplayedRecord
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.handler.owned_partition import OwnedPartition
from kproc.broker.storage.last_stop import TrustedEnd
from kproc.broker.storage.log_append import LogAppender
from kproc.broker.storage.log_durability import LogDurability
from kproc.broker.storage.log_end import LogEndFinder
from kproc.broker.storage.log_retention import LogRetention
from kproc.broker.storage.results import AppendResult, SyncPoint
from kproc.broker.storage.segment import LogSegment
from kproc.broker.storage.unsynced_files import UnsyncedFiles
from kproc.common.clock import ManualClock
from kproc.common.errors import Corrupt
from tests.powerloss import share_states
from tests.powerloss.disk import RecordingFs
from tests.powerloss.judge import judge
from tests.powerloss.scene import GROUP_TOPIC, NAMES, NOW_MS, Scene, Violation
from tests.powerloss.transactions import PARTITIONS, STATE_TOPIC
from tests.powerloss.workloads import WORKLOADS, drive
from tests.simulation.mutations import OF_TRANSACTIONS, mutated
from tests.simulation.processes import SimulatedExecutor

_IMAGES_PER_RUN: Final = 12
_CONTENTS: Final = ("synced", "all", "pages", "pages", "pages")
_ORDERED: Final = ("synced", "all", "prefix", "prefix")


class Found(NamedTuple):
    """A violation, and how to see it again."""

    workload: str
    seed: int
    image: int
    images: int  # How many had been judged, this one included.
    text: str

    def __str__(self) -> str:
        again = f"--workload {self.workload} --seed {self.seed} --image {self.image}"
        return f"image {self.images}: {self.text}\n  again: python -m tests.powerloss {again}"


def run(workload: str, seed: int, *, only: int | None = None) -> tuple[int, Found | None]:
    """One workload from one seed with crash images at random operations: how many, and the first that fails."""
    rng = random.Random(f"{workload}/{seed}")
    kind = WORKLOADS[workload]
    clock = ManualClock(wall_ms=NOW_MS)
    fs = RecordingFs(clock)
    scene = Scene(fs, clock, seed, handlers=rng.randint(1, 3), settings=rng.choice(kind.settings))
    scene.sync_fails = kind.sync_fails
    for name in NAMES:
        scene.create(name, configs=kind.configs)
    if kind.has_groups:
        scene.create(GROUP_TOPIC, 2)
    if kind.has_transactions:
        scene.create(STATE_TOPIC, PARTITIONS)
    if kind.has_share_states:
        scene.create(share_states.SHARE_TOPIC, share_states.PARTITIONS, {"retention.ms": "-1"})
    for handler in scene.handlers:
        while handler.deltas:
            scene.hear(handler)
    count, rest = 0, rng.randint(1, 20)

    def on_change() -> None:
        nonlocal count, rest
        rest -= 1
        if rest <= 0 and count < _IMAGES_PER_RUN:
            rest = rng.randint(1, kind.apart_max)
            count += 1
            image_seed = rng.getrandbits(32)
            if only is None or count == only:
                _judge_image(scene, fs, clock, image_seed, "prefix" if kind.needs_order else "subset")
        scene.may_die()

    fs.on_change = on_change
    try:
        # Logs are closed side by side; here one after the other, so that a seed says in which order.
        with mock.patch("kproc.broker.handler.close_logs.ThreadPoolExecutor", SimulatedExecutor):
            for _ in range(kind.steps_per_run):
                drive(scene, kind)
    except Violation as problem:
        return count, Found(workload, seed, count, count, str(problem))
    return count, None


def _judge_image(scene: Scene, fs: RecordingFs, clock: ManualClock, image_seed: int, least: str) -> None:
    chance = random.Random(image_seed)
    names = chance.choice((*_ORDERED, least))
    image = fs.crash(chance, contents=chance.choice(_CONTENTS), names=names)
    later = ManualClock(wall_ms=clock.wall_ms())
    judge(image, later, scene, handlers=chance.randint(1, 3), second=image_seed, names=names)


# -- mutations ---------------------------------------------------------------------------------------------------


def _strike_off_all(durability: LogDurability, point: SyncPoint) -> None:
    """mark_synced that takes the segment that was active at the point for synced, whatever it got since."""
    _mark_synced(durability, point)
    durability._state.unsynced.remove_segments(point.segments)


_mark_synced = LogDurability.mark_synced
_cut_tail = LogEndFinder._cut_tail


def _refuse_what_follows(finder: LogEndFinder, number: int, *rest: object) -> None:
    """Recovery that takes every bad batch before a later one for damage."""
    if any(later.size for later in finder._segments[number + 1 :]) or rest[0].reason.startswith("the next"):  # type: ignore[attr-defined]
        raise Corrupt("a later segment holds records")
    _cut_tail(finder, number, *rest)  # type: ignore[arg-type]


def _no_sync(segment: LogSegment, *, indexes: bool) -> list[int]:
    """A round that leaves the .log file of a segment out."""
    return _pin(segment, indexes=indexes)[1:]


_pin = LogSegment.pin


@contextmanager
def _namesakes_are_not_told_apart() -> Iterator[None]:
    """No name is waited for, and a directory is renamed for its deletion whoever's it is by now."""
    with (
        mock.patch.object(PendingDeletions, "held", return_value=frozenset()),
        mock.patch("kproc.broker.storage.log._is_of_another_topic", return_value=False),
    ):
        yield


def _refuse_missing(finder: LogEndFinder, trusted: TrustedEnd) -> None:
    """Recovery that wants the published segment, deleted or not."""
    if all(segment.base_offset != trusted.segment_base for segment in finder._segments):
        raise Corrupt(f"no segment {trusted.segment_base}, which had been published")
    _check_published(finder, trusted)


_check_published = LogEndFinder._check_published


@contextmanager
def _failed_syncs_are_forgotten() -> Iterator[None]:
    """Whoever opens a log after a failed sync believes the page cache."""
    with (
        mock.patch.object(OwnedPartition, "distrust"),
        mock.patch("kproc.broker.storage.failed_sync.write_note"),
    ):
        yield


def _confirm(durability: LogDurability, point: SyncPoint) -> None:
    """mark_synced that believes a round behind one that failed."""
    durability._has_failed = False
    _mark_synced(durability, point)


def _mark_always(durability: LogDurability, point: SyncPoint) -> None:
    """mark_synced that marks the directory also after a round behind one that failed."""
    if point.directory_fd is not None:
        durability._mark_newest(point.directory_fd, point.segments[-1].base_offset)
    _mark_synced(durability, point)


def _mark_first(durability: LogDurability, point: SyncPoint) -> None:
    """run_sync that marks the directory before anything of the round is on the disk."""
    if point.directory_fd is not None:
        durability._mark_newest(point.directory_fd, point.segments[-1].base_offset)
    _run_sync(durability, point)


def _mark_sealed_first(durability: LogDurability, point: SyncPoint) -> None:
    """run_sync that marks sealed segments before anything of the round is on the disk."""
    durability._mark_sealed(point.segments[: point.sealed_count])
    _run_sync(durability, point)


def _mark_active_first(durability: LogDurability, point: SyncPoint) -> None:
    """run_sync that marks the active segment with its size before anything of the round is on the disk."""
    for segment, size in zip(point.segments, point.sizes, strict=True):
        segment.synced_bytes = size
    durability.mark_active()
    _run_sync(durability, point)


_run_sync = LogDurability.run_sync


def _mark_start_first(retention: LogRetention, offset: int) -> int:
    """advance_start that marks the directory before the checkpoint has the start."""
    start = _advance_start(retention, offset)
    retention.mark_start(start)
    return start


_advance_start = LogRetention.advance_start


@contextmanager
def _any_name_confirms() -> Iterator[None]:
    """A log start without a topic id counts for whatever topic has that name."""
    with (
        mock.patch("kproc.broker.handler.checkpoint.confirms_log_start", return_value=True),
        mock.patch("kproc.broker.cleaner.checkpoint_writer.confirms_log_start", return_value=True),
    ):
        yield


def _without_inherited(writer: CheckpointWriter, image: ClusterImage) -> None:
    """Checkpoints of what was opened in this run only."""
    writer._log_starts = {}
    _update(writer, image)


_update = CheckpointWriter._update


_append_visible: Final = LogAppender.append


def _append_at_once(
    appender: LogAppender, batches: list[memoryview], origin: str, _hidden_from: int
) -> list[AppendResult]:
    """Records with acks=all are visible before their sync."""
    return _append_visible(appender, batches, origin)


_survivors: Final = CoordinatorReplay.survivors


def _last_updates(replay: CoordinatorReplay) -> Iterator[ReplayedRecord]:
    """Of the updates of a share partition only the last one, as compaction would leave it."""
    replay._updates = {base: updates[-1:] for base, updates in replay._updates.items()}
    return _survivors(replay)


MUTATIONS: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "none": nullcontext,
    "round-covers-what-came-later": lambda: mock.patch.object(LogDurability, "mark_synced", _strike_off_all),
    "heartbeat-answered-before-its-sync": lambda: mock.patch.object(
        GroupCoordinator, "reply_when_durable", lambda _self, reply, result, _failed: reply(result)
    ),
    "share-write-answered-before-its-sync": lambda: mock.patch.object(
        CoordinatorLog, "_when_durable", lambda _log, callbacks: [each(0) for each in callbacks]
    ),
    "only-the-last-update-is-loaded": lambda: mock.patch.object(CoordinatorReplay, "survivors", _last_updates),
    "torn-tail-is-damage": lambda: mock.patch.object(LogEndFinder, "_cut_tail", _refuse_what_follows),
    "namesake-rename-unchecked": _namesakes_are_not_told_apart,
    "lost-deletion-refused": lambda: mock.patch.object(LogEndFinder, "_check_published", _refuse_missing),
    "successor-syncs-no-names": lambda: mock.patch.object(UnsyncedFiles, "add_inherited"),
    "failed-sync-is-forgotten": _failed_syncs_are_forgotten,
    "failed-sync-is-not-written-again": lambda: mock.patch(
        "kproc.broker.storage.failed_sync.write_again", return_value=0
    ),
    "round-behind-a-failed-one-confirms": lambda: mock.patch.object(LogDurability, "mark_synced", _confirm),
    "round-behind-a-failed-one-marks": lambda: mock.patch.object(LogDurability, "mark_synced", _mark_always),
    "newest-mark-before-its-sync": lambda: mock.patch.object(LogDurability, "run_sync", _mark_first),
    "sealed-mark-before-its-sync": lambda: mock.patch.object(LogDurability, "run_sync", _mark_sealed_first),
    "active-mark-before-its-sync": lambda: mock.patch.object(LogDurability, "run_sync", _mark_active_first),
    "start-mark-before-its-checkpoint": lambda: mock.patch.object(
        LogRetention, "advance_start", _mark_start_first
    ),
    "any-name-confirms-a-log-start": _any_name_confirms,
    "checkpoint-drops-untouched-logs": lambda: mock.patch.object(
        CheckpointWriter, "_update", _without_inherited
    ),
    "log-start-is-not-recorded": lambda: mock.patch("kproc.broker.storage.log_retention.write_start"),
    "clean-marker-comes-back": lambda: mock.patch("kproc.broker.storage.checkpoints.sync_directory"),
    "visible-before-its-sync": lambda: mock.patch.object(LogAppender, "_append_hidden", _append_at_once),
    "visible-after-a-crash-before-its-sync": lambda: mock.patch.object(OwnedPartition, "hide_unconfirmed"),
    "log-is-not-synced": lambda: mock.patch.object(LogSegment, "pin", _no_sync),
    **{name: partial(mutated, name) for name in OF_TRANSACTIONS},
}


def search(
    workloads: list[str],
    seed: int,
    images: int,
    tell: Callable[[str], None] = lambda _: None,
    *,
    failures: int = 5,
) -> tuple[int, list[Found]]:
    """Runs from successive seeds until so many images were judged; those that failed, `failures` at most.

    `tell` hears of each that fails, and how far it is, every thousand images.
    """
    done = 0
    found: list[Found] = []
    while done < images and len(found) < failures:
        workload = workloads[seed % len(workloads)]
        count, problem = run(workload, seed)
        if (done + count) // 1000 > done // 1000:
            tell(f"{done + count} of {images} images, {len(found)} that break a promise")
        done += count
        if problem is not None:
            found.append(problem._replace(images=done))
            tell(str(found[-1]))
        seed += 1
    return done, found
