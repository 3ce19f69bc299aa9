"""Workloads: what may happen in a scene, and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tests.powerloss.metadata import change
from tests.powerloss.scene import NAMES, Died, Handler, Scene
from tests.powerloss.share_states import SETTINGS as SHARE_SETTINGS

Step = Callable[[Scene], None]
_PRODUCERS: Final = (7, 8)
_GROUPS: Final = ("g", "h", "i")


def _pick(scene: Scene) -> str | None:
    names = sorted(name for name in scene.ledger.topics if not name.startswith("__"))
    return scene.rng.choice(names) if names else None


def _produce(scene: Scene) -> None:
    name = _pick(scene)
    if name is not None:
        scene.produce(name, scene.rng.choice((10, 300, 2000, 6000)), count=scene.rng.randint(1, 3))


def _produce_in_order(scene: Scene) -> None:
    name = _pick(scene)
    if name is None:
        return
    producer_id = scene.rng.choice(_PRODUCERS)
    if scene.rng.random() < 0.1:
        scene.retry(name, producer_id)
    else:
        size = scene.rng.choice((10, 300, 2000, 6000))
        scene.produce(name, size, count=scene.rng.randint(1, 3), producer_id=producer_id)


def _fetch(scene: Scene) -> None:
    name = _pick(scene)
    if name is not None:
        scene.fetch(name)


def _handler(scene: Scene) -> Handler:
    return scene.rng.choice(scene.handlers)


def _sync(scene: Scene) -> None:
    handler = _handler(scene)
    handler.coordinators.flush()
    handler.sync()


def _hear(scene: Scene) -> None:
    scene.hear(_handler(scene))


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


def _make_anew(scene: Scene) -> None:
    """A topic is deleted and, where its name is free, made anew: its owner hears of it first, and writes."""
    name = _pick(scene)
    if name is None:
        return
    scene.delete(name)
    if scene.rng.random() < 0.5:  # Every Handler hears of it, and the name is free.
        for handler in scene.handlers:
            while handler.deltas:
                scene.hear(handler)
    scene.create(name)
    partition = scene.image.partition(name, 0)
    if partition is not None:
        owner = scene.handlers[partition.owner]
        while owner.deltas:
            scene.hear(owner)
        scene.produce(name, 300)
        owner.sync()
        owner.sync()


def _commit(scene: Scene) -> None:
    group_id = scene.rng.choice(_GROUPS)
    deletes = scene.rng.random() < 0.05 and group_id in scene.ledger.commits
    scene.commit(group_id, deletes=deletes)


def _consume(scene: Scene) -> None:
    scene.consume("consumers", f"m{scene.rng.randrange(3)}")


def _stream(scene: Scene) -> None:
    scene.stream("streams", f"m{scene.rng.randrange(3)}", leaves=scene.rng.random() < 0.2)


def _retention(scene: Scene) -> None:
    name = _pick(scene)
    if name is not None:
        scene.enforce_retention(name)


def _scale(scene: Scene) -> None:
    scene.scale(scene.rng.randint(1, len(scene.handlers)))


def _kill(scene: Scene) -> None:
    scene.kill(scene.rng.randrange(len(scene.handlers)))


def _restart(scene: Scene) -> None:
    scene.restart()


def _stop(scene: Scene) -> None:
    scene.stop()


def _tick(scene: Scene) -> None:
    handler = _handler(scene)
    handler.partitions.tick()
    handler.transfers.tick()


def _clock(scene: Scene) -> None:
    scene.clock.advance_ms(scene.rng.randint(1, 2000))


def _idle_minute(scene: Scene) -> None:
    scene.idle_minute()


def _step_clock(scene: Scene) -> None:
    scene.step_clock()


def _kill_cleaner(scene: Scene) -> None:
    scene.start_cleaner()


def _compact(scene: Scene) -> None:
    """Compaction goes on: the cleaner's turn, or an owner's swap."""
    if scene.cleaner is None:
        scene.cleaner = scene.compactor()
    scene.clock.advance_ms(200)
    scene.cleaner.work()
    for handler in scene.handlers:
        handler.swap()


def _transact(scene: Scene) -> None:
    scene.transactions.step(scene)


def _coordinate(scene: Scene) -> None:
    """A Handler's coordinators do what is due, and a round of its syncs begins or ends."""
    handler = _handler(scene)

    def work() -> None:
        handler.coordinators.work(scene.clock.now_ns())
        handler.coordinators.flush()
        handler.sync()

    scene.run_at(handler, work)


def _share(scene: Scene) -> None:
    scene.share_states.step(scene)


def _deliver(scene: Scene) -> None:
    scene.transactions.deliver(scene)


_PLAIN: Final[Mapping[str, str]] = {}


class Workload(NamedTuple):
    """Steps with their weights, what the topics are like, whether Handlers are killed in the middle of a step, how
    often a sync fails; and whether names must reach the disk in the order of their changes, as ext4 and XFS have it."""

    steps: list[tuple[int, Step]]
    configs: Mapping[str, str] = _PLAIN
    has_groups: bool = False
    has_transactions: bool = False
    has_share_states: bool = False
    dies: bool = False
    sync_fails: float = 0.0
    needs_order: bool = False
    settings: tuple[Mapping[str, Any], ...] = (_PLAIN,)
    steps_per_run: int = 60
    apart_max: int = 40  # Operations from one image to the next.


_NO_DELAY: Final = {"log.segment.delete.delay.ms": "0"}
_NO_DELAYS_OF_STREAMS: Final = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
}
_COMPACTED: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
_BASE: Final[list[tuple[int, Step]]] = [
    (12, _produce),
    (6, _sync),
    (3, _fetch),
    (1, _checkpoint),
    (1, _clock),
]
_TRANSACTIONS: Final[list[tuple[int, Step]]] = [
    (30, _transact),
    (30, _coordinate),
    (4, _deliver),
    (3, _fetch),
    (3, _clock),
]

WORKLOADS: Final[dict[str, Workload]] = {
    "rolls": Workload(_BASE),
    "deletion": Workload([*_BASE, (2, _churn), (1, _make_anew), (3, _hear)]),
    "delete-records": Workload([*_BASE, (2, _delete_records)], needs_order=True),
    "deaths": Workload([*_BASE, (4, _delete_records), (1, _kill), (1, _tick)], dies=True, needs_order=True),
    "namesakes": Workload(
        [
            *_BASE,
            (3, _delete_records),
            (3, _make_anew),
            (1, _churn),
            (3, _hear),
            (2, _idle_minute),
            (1, _step_clock),
            (1, _kill_cleaner),
            (1, _kill),
            (1, _restart),
            (1, _stop),
        ],
        needs_order=True,
        apart_max=60,
    ),
    "namesakes-compaction": Workload(
        [
            *_BASE,
            (4, _compact),
            (3, _make_anew),
            (3, _hear),
            (1, _idle_minute),
            (1, _step_clock),
            (1, _restart),
        ],
        _COMPACTED,
        needs_order=True,
        settings=(_PLAIN, _NO_DELAY),
        apart_max=60,
    ),
    "failed-syncs": Workload([*_BASE, (2, _kill), (2, _restart), (1, _scale), (4, _hear)], sync_fails=0.1),
    "stops": Workload([*_BASE, (2, _stop), (1, _churn), (2, _hear), (1, _kill)], apart_max=20),
    "stops-of-all": Workload(
        [
            *_BASE,
            (4, _produce_in_order),
            (2, _stop),
            (2, _commit),
            (1, _delete_records),
            (1, _scale),
            (3, _hear),
        ],
        has_groups=True,
        needs_order=True,
    ),
    "stops-failed-syncs": Workload([*_BASE, (1, _kill), (2, _stop), (1, _scale), (4, _hear)], sync_fails=0.1),
    "producers": Workload(
        [(12, _produce_in_order), (6, _sync), (3, _fetch), (1, _checkpoint), (1, _clock), (1, _kill)]
    ),
    "groups": Workload(
        [(10, _commit), (4, _produce), (6, _sync), (1, _checkpoint), (1, _scale), (3, _hear), (1, _kill)],
        has_groups=True,
    ),
    "consumers": Workload(
        [
            (10, _consume), (2, _commit), (2, _produce), (6, _sync), (1, _checkpoint), (1, _scale), (3, _hear),
            (1, _kill),
        ],
        has_groups=True,
    ),
    "streams": Workload(
        [
            (10, _stream), (2, _commit), (2, _produce), (6, _sync), (1, _checkpoint), (1, _scale), (3, _hear),
            (1, _churn), (1, _kill),
        ],
        has_groups=True,
        settings=(_NO_DELAYS_OF_STREAMS,),
    ),
    "compaction": Workload(
        [*_BASE, (4, _compact), (1, _tick)], _COMPACTED, needs_order=True, settings=(_PLAIN, _NO_DELAY)
    ),
    "stops-compaction": Workload(
        [*_BASE, (4, _compact), (1, _tick), (1, _stop)],
        _COMPACTED,
        needs_order=True,
        settings=(_PLAIN, _NO_DELAY),
    ),
    "retention": Workload(
        [*_BASE, (3, _retention), (1, _tick)],
        {"retention.bytes": "20000"},
        dies=True,
        needs_order=True,
        settings=(_PLAIN, _NO_DELAY),
    ),
    "hand-over": Workload([*_BASE, (2, _scale), (6, _hear), (2, _produce_in_order)]),
    "scale": Workload(
        [*_BASE, (2, _scale), (6, _hear), (1, _kill), (1, _churn), (2, _commit), (1, _tick)], has_groups=True
    ),
    "metadata": Workload([(10, change), (1, _produce), (1, _sync), (2, _churn), (2, _clock), (1, _restart)]),
    "share-states": Workload(
        [
            (30, _share),
            (20, _coordinate),
            (4, _clock),
            (2, _checkpoint),
            (1, _scale),
            (4, _hear),
            (1, _kill),
            (1, _stop),
        ],
        has_share_states=True,
        dies=True,
        settings=(SHARE_SETTINGS, {**SHARE_SETTINGS, **_NO_DELAY}),
        steps_per_run=200,
        apart_max=60,
    ),
    "transactions": Workload(
        [*_TRANSACTIONS, (1, _produce), (1, _checkpoint), (1, _kill)],
        has_groups=True,
        has_transactions=True,
        dies=True,
        steps_per_run=400,
        apart_max=100,
    ),
    "transactions-stops": Workload(
        [*_TRANSACTIONS, (1, _stop), (1, _checkpoint)],
        has_groups=True,
        has_transactions=True,
        steps_per_run=400,
        apart_max=100,
    ),
    "transactions-hand-over": Workload(
        [*_TRANSACTIONS, (6, _hear), (2, _scale), (1, _tick)],
        has_groups=True,
        has_transactions=True,
        steps_per_run=400,
        apart_max=100,
    ),
}


def drive(scene: Scene, workload: Workload) -> None:
    """One step; the Handler that it concerns may die in the middle of it."""
    scene.acting = None
    rng = scene.rng
    scene.dies_after = rng.randint(1, 40) if workload.dies and rng.random() < 0.2 else 0
    weights, steps = zip(*workload.steps, strict=True)
    try:
        rng.choices(steps, weights)[0](scene)
    except Died as death:
        scene.kill(death.handler)
