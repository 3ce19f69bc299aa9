"""ConnectionAdoption: a connection from another Processor is registered with all that it has, or refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kproc.broker.transport.agent import AgentId
from tests.support.links import LINK_PARAMS
from tests.support.migration_rig import MoveRig, received
from tests.support.migrations import only
from tests.support.processor_rig import framed

Start = Callable[..., MoveRig]
ZERO, ONE, TWO = (AgentId("processor", index) for index in range(3))


@pytest.fixture(params=LINK_PARAMS)
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """`start(count=3)`: so many Processors, gone when the test ends."""
    with ExitStack() as stack:

        def make(**parts: Any) -> MoveRig:
            return stack.enter_context(MoveRig(request.param, **parts))

        yield make


@pytest.fixture
def rig(start: Start) -> MoveRig:
    return start()


def test_begun_large_frame_travels_from_arena_to_arena(rig: MoveRig) -> None:
    client = rig.connect(0)
    body = random.Random(1).randbytes(100_000)
    frame = framed(body)
    client.sendall(frame[:70_000])
    rig.step(5)
    assert rig.arenas[0].lent_count() == 1
    rig.processors[0].begin_leave([ONE])
    rig.step(5)
    assert (rig.arenas[0].lent_count(), rig.arenas[1].lent_count()) == (0, 1)
    client.sendall(frame[70_000:])
    rig.step(5)
    work = only(rig.handler.take())
    assert work.body == body
    rig.handler.answer(work, framed(b"stored"))
    rig.step(2)
    assert received(client) == framed(b"stored")
    assert rig.arenas[1].lent_count() == 0


def test_counts_follow_the_connection(rig: MoveRig) -> None:
    rig.connect(0)
    rig.step()
    rig.processors[0].begin_leave([ONE])
    rig.step(4)
    assert rig.processors[0]._reporter.totals == {}
    assert list(rig.processors[1]._reporter.totals.values()) == [1]


def test_refused_connection_goes_to_the_next_target(start: Start) -> None:
    rig = start(count=3)
    client = rig.connect(0)
    client.sendall(framed(b"long poll"))
    rig.step(2)
    work = only(rig.handler.take())
    rig.processors[1].begin_leave([TWO])  # It takes nobody any more.
    rig.processors[0].begin_leave([ONE, TWO])
    for _ in range(10):
        rig.step(3)
        rig.clock.advance_ms(101)
    assert rig.held() == {0: 0, 1: 0, 2: 1}
    rig.handler.answer(work, framed(b"news"))
    rig.step(2)
    assert received(client) == framed(b"news")
