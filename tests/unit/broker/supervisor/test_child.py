"""A role's process handles the supervisor's messages, and passes on those that its agent needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kproc.broker.metrics.spec import METRICS, SLOT
from kproc.broker.role.roles import handler_id
from kproc.broker.supervisor.child import _GC_THRESHOLD, ChildRole, count_long_collections
from kproc.broker.supervisor.role_messages import RoleMessages
from kproc.common.clock import ManualClock
from tests.support.processor_rig import PROCESSOR, ProcessorRig, framed
from tests.support.scripted_router import ScriptedRouter

NOBODY: Any = None


@pytest.fixture
def rig() -> Iterator[ProcessorRig]:
    with ProcessorRig(handlers=2, router=ScriptedRouter(first=0, second=1)) as rig:
        yield rig


def child_of(rig: ProcessorRig) -> ChildRole:
    """The process of the rig's Processor, without a supervisor."""
    child = ChildRole(PROCESSOR, NOBODY, NOBODY, is_restart=False)
    child._agent = rig.processor
    child._messages = RoleMessages(rig.processor, NOBODY)
    return child


def test_connections_leave_a_handler_that_ended_on_trial_at_once(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(4)]
    child = child_of(rig)
    # Nobody had told it to leave: it died before its start was over.
    child._handle_message({"do": "detach", "peer": handler_id(1), "is_final": True}, None)
    for client in clients:
        client.send(framed(b"homely"))
    assert len(rig.handlers[0].take()) == 4, "without the look of once a second"
    assert not rig.processor.uses(handler_id(1))


def test_dead_handler_keeps_connections_for_successor(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(4)]
    child_of(rig)._handle_message({"do": "detach", "peer": handler_id(1), "is_final": False}, None)
    for client in clients:
        client.send(framed(b"homely"))
    assert len(rig.handlers[0].take()) == 2
    rig.handlers[1] = rig.attach_handler(1)
    rig.step(2)
    assert len(rig.handlers[1].take()) == 2


def test_garbage_collections_of_more_than_50_ms_are_counted() -> None:
    values, clock = [0] * len(METRICS), ManualClock()
    on_collection = count_long_collections(values, clock)
    for duration_ms in (5, 50, 51, 300):
        on_collection("start", {"generation": 2})
        clock.advance_ms(duration_ms)
        on_collection("stop", {"generation": 2})
    assert values[SLOT["long_garbage_collections"]] == 2


def test_young_garbage_collections_visit_few_objects() -> None:
    """Clients wait meanwhile. A collection takes about 0.3 us an object, 12 ms for 40,000."""
    first, middle, _ = _GC_THRESHOLD
    assert first * (middle + 2) <= 40_000
