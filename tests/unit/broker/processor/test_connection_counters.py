"""Counts of connections that open and close, by listener."""

from __future__ import annotations

from kproc.broker.metrics.requests import CLOSED, OPEN, OPENED, Count
from kproc.broker.processor.connection_counters import ListenerCounts
from tests.support.processor_rig import ProcessorRig, new_slab


def test_connections_are_counted_by_listener(rig: ProcessorRig) -> None:
    first = rig.connect(listener=2)
    rig.connect(listener=2)
    rig.connect(listener=0)
    first.close()
    rig.clock.advance_ms(1000)
    rig.step(3)
    assert set(rig.metrics.slab.read_counts(0)) == {
        Count(OPENED, 2, 0, 2),
        Count(OPENED, 0, 0, 1),
        Count(CLOSED, 2, 0, 1),
        Count(OPEN, 2, 0, 1),
        Count(OPEN, 0, 0, 1),
    }


def test_dead_processors_connections_are_closed_by_successor() -> None:
    slab = new_slab()
    dead = ListenerCounts(slab.counts(0))
    for _ in range(3):
        dead.opened(1)
        dead.is_here(1)
    dead.closed(1)
    dead.is_gone(1)
    dead.store()
    successor = ListenerCounts(slab.counts(0))
    successor.store()
    assert set(slab.read_counts(0)) == {Count(OPENED, 1, 0, 3), Count(CLOSED, 1, 0, 3), Count(OPEN, 1, 0, 0)}
