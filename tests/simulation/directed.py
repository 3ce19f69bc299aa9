"""Plans that lead to one state, whatever their seed: for mutations that the plans of most seeds never meet.

Every change of the broker moves the turns of a seed. A seed that found a mutation yesterday may miss it today, so tests
name mutations and no seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.simulation.directed_clients import FILLERS, RING_BYTES
from tests.simulation.plan import (
    CONSUMERS_EVERY,
    STREAMS_EVERY,
    ClientPlan,
    Event,
    Plan,
    plan_of,
    with_crowds,
    with_jumps,
)

_MAKERS: Final = ("admin", "operator")
_IDLE_MS: Final = 1_400  # Longer than the shortest interval of checkpoints.
_STOP_MS: Final = 60


def _plain(seed: int) -> Plan:
    return plan_of(seed, transactions=False, tls=False, crashes=False)


def stopped_once(seed: int) -> Plan:
    """Stop the broker in order and start it again, while topics are created and deleted."""
    plan = _plain(seed)
    return replace(
        plan,
        duration_ms=_STOP_MS + 20,
        clients=tuple(each for each in plan.clients if each.kind in _MAKERS),
        events=(Event(_STOP_MS, "restart"),),
    )


def recreated(seed: int) -> Plan:
    """Power losses while a topic was created again whose former log start is still in the checkpoint."""
    return _small(
        seed,
        ["recreator", "producer-all", "producer-all", "consumer"],
        [Event(at_ms, "power", (1,)) for at_ms in range(130, 650, 130)],
    )


def untouched(seed: int) -> Plan:
    """Two power losses with a checkpoint between them, while nobody opens a log."""
    return _small(
        seed,
        ["trimmer", "producer-all", "producer-all", "consumer"],
        [
            Event(300, "idle", (2 * _IDLE_MS,)),
            Event(301, "power", (1,)),
            Event(301 + _IDLE_MS, "power", (1,)),
        ],
        **{"log.flush.offset.checkpoint.interval.ms": "1000"},
    )


def read_before_sync(seed: int) -> Plan:
    """Power losses right after reads of records whose syncs are slow."""
    return _slow_syncs(seed, 5, 0)


def answered_before_sync(seed: int) -> Plan:
    """Power losses while syncs are slow."""
    return _slow_syncs(seed, 50, 1)


def _slow_syncs(seed: int, until_power_ms: int, power: int) -> Plan:
    events: list[Event] = []
    for at_ms in range(60, 360, 100):
        events += [Event(at_ms, "disk", ("slow", 90, 1)), Event(at_ms + until_power_ms, "power", (power,))]
    return _small(seed, ["admin", *["producer-all"] * 3, *["consumer"] * 3], events)


def divided(seed: int) -> Plan:
    """Divide every request of more than one row."""
    return replace(_plain(seed), slice_rows=1)


def crowded(seed: int) -> Plan:
    """Clients make up names of groups, and tables have few entries."""
    return with_crowds(_plain(seed))


def short_of_space(seed: int) -> Plan:
    """The disk is full now and then, while idempotent producers send."""
    events = [Event(at_ms, "disk", ("full", 20, 1)) for at_ms in range(40, 240, 50)]
    return _small(seed, ["admin", *["idempotent"] * 4], events)


def reconnecting(seed: int) -> Plan:
    """Processors hang and die while clients come and go, so that some sockets are handed over and never registered."""
    events = [Event(at_ms, "hang", ("processor", at_ms // 200, 40)) for at_ms in range(40, 640, 200)]
    return replace(_small(seed, ["caller"] * 6, events), processors=2)


def overfilled(seed: int) -> Plan:
    """The Handler pauses under more requests than the ring holds, so that connections stall without one in work."""
    events = [Event(at_ms, "pause", ("handler", 0, 100)) for at_ms in range(40, 440, 200)]
    return _small(seed, ["filler"] * FILLERS, events, **{"kproc.ring.bytes": str(RING_BYTES)})


def _small(seed: int, kinds: list[str], events: list[Event], **settings: str) -> Plan:
    """Return a plan of one Handler and one Processor, with these clients and events only."""
    plan = _plain(seed)
    rng = random.Random(f"directed {seed}")
    return replace(
        plan,
        duration_ms=events[-1].at_ms + 50,
        handlers=1,
        processors=1,
        settings={
            **plan.settings,
            "kproc.flush": "group",
            "log.flush.offset.checkpoint.interval.ms": "60000",
            **settings,
        },
        clients=tuple(
            ClientPlan(kind, f"{kind}-{number}", rng.getrandbits(30)) for number, kind in enumerate(kinds)
        ),
        events=tuple(events),
    )


def moved(seed: int) -> Plan:
    """The broker's time jumps while consumers poll for long: what was due must have run when the answer comes."""
    rng = random.Random(f"moved {seed}")
    events = [Event(at_ms, "move", (rng.choice((50, 600, 5_000, 60_000)),)) for at_ms in range(40, 640, 75)]
    return _small(seed, ["admin", "producer-all", "consumer", "consumer"], events, **{"kproc.time.movable": "true"})


def jumping(seed: int) -> Plan:
    """One client moves the broker's time, and judges what has expired."""
    plan = with_jumps(_plain(seed), is_calm=True)
    kinds = ("admin", "jumper-calm")
    return replace(plan, duration_ms=200, clients=tuple(each for each in plan.clients if each.kind in kinds), events=())


def consuming(seed: int) -> Plan:
    """Members of a consumer group and faults, and no other clients."""
    plan = plan_of(CONSUMERS_EVERY * seed, power=6.0, transactions=False, tls=False)
    kinds = ("admin", "operator", "group-member")
    return replace(plan, clients=tuple(each for each in plan.clients if each.kind in kinds))


def streaming(seed: int) -> Plan:
    """Members of a streams group and faults, and no other clients."""
    plan = plan_of(STREAMS_EVERY * seed + 2, power=6.0, transactions=False, tls=False)
    kinds = ("admin", "operator", "streams-member")
    return replace(plan, clients=tuple(each for each in plan.clients if each.kind in kinds))


DIRECTED: Final[dict[str, Callable[[int], Plan]]] = {
    "revocation-not-awaited": consuming,
    "assignment-without-the-newcomer": consuming,
    "member-state-not-written": consuming,
    "streams-revocation-not-awaited": streaming,
    "streams-epochs-not-written": streaming,
    "visible-before-sync": read_before_sync,
    "answer-before-sync": answered_before_sync,
    "clean-marker-stays": stopped_once,
    "clean-marker-comes-back": stopped_once,
    "any-name-confirms-a-log-start": recreated,
    "checkpoint-drops-untouched-logs": untouched,
    "slices-without-a-turn": divided,
    "tables-without-a-bound": crowded,
    "failed-write-not-undone": short_of_space,
    "sockets-of-a-dead-processor-lost": reconnecting,
    "stalled-connection-forgotten": overfilled,
    "moved-time-not-followed": moved,
    "handlers-miss-moved-time": jumping,
    "moved-time-skips-a-handler": jumping,
    "cleaner-misses-moved-time": jumping,
}
