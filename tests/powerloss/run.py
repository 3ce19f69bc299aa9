"""Workloads, the crash images taken in the middle of them, and mutations that must be found."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple
from unittest import mock

from kproc.clock import ManualClock
from kproc.errors import Corrupt
from kproc.storage.log import Log
from kproc.storage.recovery import _Loader
from kproc.storage.segment import LogSegment
from tests.powerloss.disk import RecordingFs
from tests.powerloss.scene import NOW_MS, Scene, Violation, judge

_STEPS: Final = 60
_IMAGES_PER_RUN: Final = 12
_CONTENTS: Final = ("synced", "all", "pages", "pages", "pages")
_NAMES: Final = ("synced", "all", "prefix", "prefix")

Step = Callable[[Scene], None]
NAMES: Final = ("t", "u")


def _pick(scene: Scene) -> str | None:
    names = sorted(scene.ledger.topics)
    return scene.rng.choice(names) if names else None


def _produce(scene: Scene) -> None:
    name = _pick(scene)
    if name is not None:
        scene.produce(name, scene.rng.choice((10, 300, 2000, 6000)), count=scene.rng.randint(1, 3))


def _sync(scene: Scene) -> None:
    scene.rng.choice(scene.handlers).sync()


def _hear(scene: Scene) -> None:
    handler = scene.rng.choice(scene.handlers)
    if handler.deltas:
        handler.hear()


def _checkpoint(scene: Scene) -> None:
    scene.checkpoint()


def _delete_records(scene: Scene) -> None:
    name = _pick(scene)
    if name is not None:
        scene.delete_records(name)


def _churn(scene: Scene) -> None:
    name = scene.rng.choice(NAMES)
    if name in scene.ledger.topics:
        scene.delete(name)
    else:
        scene.create(name)


def _clock(scene: Scene) -> None:
    scene.clock.advance_ms(scene.rng.randint(1, 2000))


WORKLOADS: Final[dict[str, list[tuple[int, Step]]]] = {
    "rolls": [(12, _produce), (6, _sync), (1, _checkpoint), (1, _clock)],
    "deletion": [(10, _produce), (6, _sync), (1, _checkpoint), (2, _churn), (3, _hear), (1, _clock)],
    "delete-records": [(10, _produce), (5, _sync), (1, _checkpoint), (2, _delete_records), (1, _clock)],
}


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
    clock = ManualClock(wall_ms=NOW_MS)
    fs = RecordingFs(clock)
    handlers = rng.randint(1, 3)
    scene = Scene(fs, clock, seed, handlers=handlers, settings={})
    for name in NAMES:
        scene.create(name)
    for handler in scene.handlers:
        while handler.deltas:
            handler.hear()
    count, rest = 0, 0

    def on_change() -> None:
        nonlocal count, rest
        rest -= 1
        if rest > 0 or count >= _IMAGES_PER_RUN:
            return
        rest = rng.randint(1, 40)
        count += 1
        image_seed = rng.getrandbits(32)
        if only is not None and count != only:
            return
        chance = random.Random(image_seed)
        image = fs.crash(chance, contents=chance.choice(_CONTENTS), names=chance.choice(_NAMES))
        judge(
            image,
            ManualClock(wall_ms=clock.wall_ms()),
            scene,
            handlers=chance.randint(1, 3),
            second=image_seed,
        )

    fs.on_change = on_change
    rest = rng.randint(1, 20)
    weights, steps = zip(*WORKLOADS[workload], strict=True)
    try:
        for _ in range(_STEPS):
            scene.rng.choices(steps, weights)[0](scene)
    except Violation as problem:
        return count, Found(workload, seed, count, count, str(problem))
    return count, None


# -- mutations ---------------------------------------------------------------------------------------------------


def _strike_off_all(log: Log, point: object) -> None:
    """mark_synced that takes the segment that was active at the point for synced, whatever it got since."""
    _mark_synced(log, point)  # type: ignore[arg-type]
    log._unsynced = [segment for segment in log._unsynced if segment not in point.segments]  # type: ignore[attr-defined]


_mark_synced = Log.mark_synced
_cut_tail = _Loader._cut_tail


def _refuse_what_follows(loader: _Loader, number: int, *rest: object) -> None:
    """Recovery that takes every bad batch before a later one for damage."""
    if any(later.size for later in loader._segments[number + 1 :]) or rest[0].reason.startswith("the next"):  # type: ignore[attr-defined]
        raise Corrupt("a later segment holds records")
    _cut_tail(loader, number, *rest)  # type: ignore[arg-type]


def _no_sync(segment: LogSegment, *, indexes: bool) -> list[int]:
    """A round that leaves the .log file of a segment out."""
    return _pin(segment, indexes=indexes)[1:]


_pin = LogSegment.pin

MUTATIONS: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "none": nullcontext,
    "round-covers-what-came-later": lambda: mock.patch.object(Log, "mark_synced", _strike_off_all),
    "torn-tail-is-damage": lambda: mock.patch.object(_Loader, "_cut_tail", _refuse_what_follows),
    "log-is-not-synced": lambda: mock.patch.object(LogSegment, "pin", _no_sync),
}


def search(workloads: list[str], seed: int, images: int) -> tuple[int, list[Found]]:
    """Runs from successive seeds until so many images were judged; those that failed, five at most."""
    done, found = 0, []
    while done < images and len(found) < 5:
        workload = workloads[seed % len(workloads)]
        count, problem = run(workload, seed)
        done += count
        if problem is not None:
            found.append(problem._replace(images=done))
        seed += 1
    return done, found
