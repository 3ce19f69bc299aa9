"""MigrationChannel: long states, missing descriptors, and a target that dies with unread messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kproc.broker.processor.migration import ConnectionMigration
from kproc.broker.transport.agent import AgentId
from tests.support.links import LINK_PARAMS
from tests.support.migration_rig import MoveRig, is_closed, received
from tests.support.migrations import exchange
from tests.support.processor_rig import framed, no_more_descriptors

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


def test_state_longer_than_a_message_travels(rig: MoveRig) -> None:
    client = rig.connect(0)
    rig.handler.is_parking = False
    client.sendall(framed(b"first") + framed(b"second"))
    rig.step(2)
    first, second = rig.handler.take()
    rig.handler.park(first)
    rig.handler.answer(second, framed(b"s" * 60_000))
    rig.processors[0].begin_leave([ONE])
    rig.step(5)
    assert rig.held() == {0: 0, 1: 1}
    rig.handler.answer(first, framed(b"f"))
    rig.step(2)
    assert received(client) == framed(b"f") + framed(b"s" * 60_000)


def test_target_without_descriptors_refuses(start: Start) -> None:
    rig = start(count=2)
    client = rig.connect(0)
    giver = rig.processors[0]
    giver.begin_leave([ONE])
    giver.do_work(0)
    with no_more_descriptors():
        rig.processors[1].do_work(0)
    rig.step()
    assert rig.held() == {0: 1, 1: 0}
    rig.clock.advance_ms(101)
    rig.step(4)
    assert rig.held() == {0: 0, 1: 1}
    exchange(rig, client)


def test_target_dying_after_receipt_takes_connection_along(start: Start) -> None:
    """TAKEN is in the pair's buffer though its sender is dead: the connection is not given to a second one."""
    rig = start(count=3)
    client = rig.connect(0)
    giver = rig.processors[0]
    giver.begin_leave([ONE, TWO])
    giver.do_work(0)
    rig.processors[1].do_work(0)
    rig.die(1)
    rig.step(5)
    assert rig.held() == {0: 0, 2: 0}
    assert is_closed(client)
    assert giver.is_drained()


def test_target_dying_with_unread_data_owns_what_it_received(rig: MoveRig) -> None:
    """The kernel tells of unread messages before it gives out what the dead one had said."""
    clients = [rig.connect(0) for _ in range(2)]
    giver = rig.processors[0]
    giver.move_connections(1, ONE)
    giver.do_work(0)
    rig.processors[1].do_work(0)
    giver.move_connections(1, ONE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConnectionMigration, "_read", lambda _migration, _channel: True)
        giver.do_work(0)  # Gives the second, and does not hear of the first.
    rig.die(1)
    rig.step(3)
    assert sorted(is_closed(client) for client in clients) == [False, True]
    assert rig.held() == {0: 1}
