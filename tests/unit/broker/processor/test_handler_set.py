"""HandlerSet: homes, introductions, hints and the ends of clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.processor_rig import LOOPBACK, ProcessorRig, framed
from tests.support.scripted_router import FIRST, HOME, SECOND, ScriptedRouter, client_at, home_of

Start = Callable[..., ProcessorRig]


@pytest.fixture
def rig(start: Start, router: ScriptedRouter) -> ProcessorRig:
    return start(handlers=2, router=router)


# -- homes ---------------------------------------------------------------------------------------------------


def test_homes_are_spread_evenly_and_freed_places_are_filled(start: Start) -> None:
    rig = start(handlers=3)
    clients = [rig.connect() for _ in range(9)]
    homes = [home_of(rig, client) for client in clients]
    assert sorted(homes) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for client, home in zip(clients, homes, strict=True):
        if home == 1:
            client.close()
    assert [home_of(rig, rig.connect()) for _ in range(3)] == [1, 1, 1]


def test_without_a_router_everything_goes_home(start: Start) -> None:
    rig = start(handlers=2)
    client = client_at(rig, 1)
    client.send(FIRST + SECOND + HOME)
    assert [handler.bodies() for handler in rig.handlers] == [[], [b"first.", b"second", b"homely"]]


def test_handlers_are_indexed_independent_of_arrival(
    start: Start, router: ScriptedRouter
) -> None:
    """One that died while the broker started is attached after the others."""
    rig = start(handlers=0, router=router)
    late, early = rig.attach_handler(1), rig.attach_handler(0)
    client = rig.connect()
    client.send(SECOND)
    assert (late.bodies(), early.bodies()) == ([b"second"], [])
    other = rig.connect()
    other.send(FIRST)
    assert (late.bodies(), early.bodies()) == ([], [b"first."])
    third = rig.connect()
    third.send_through(framed(b"second" + bytes(50_000)))
    assert len(late.bodies()) == 1


def test_first_request_introduces_client_to_every_handler(rig: ProcessorRig) -> None:
    """Before its first request, and again when a Handler comes that cannot know."""
    told = [handler.addresses for handler in rig.handlers]
    client = rig.connect()
    rig.step()
    assert [each.take() for each in rig.handlers] == [[], []]
    assert told == [{}, {}], "an idle connection is nobody's business"
    client.send(FIRST)
    (request,) = rig.handlers[0].take()
    assert rig.handlers[1].take() == []
    assert told == [{request.connection_id: LOOPBACK}] * 2
    rig.handlers[0].answer(request, framed(b"done"))
    rig.step()
    for each in told:
        each.clear()
    client.send(FIRST)
    assert [len(each.take()) for each in rig.handlers] == [1, 0]
    assert told == [{}, {}]
    rig.processor.detach(rig.handlers[1].id)
    successor = rig.attach_handler(1)
    other = rig.connect()
    other.send(SECOND)
    (later,) = successor.take()
    assert successor.addresses == {later.connection_id: LOOPBACK}


def test_client_is_introduced_before_first_frame_on_full_ring(rig: ProcessorRig) -> None:
    filler, client = client_at(rig, 1), client_at(rig, 0)
    filler.send_through_until_stalled()
    newcomer = rig.connect()
    newcomer.send(FIRST)
    rig.step(3)
    assert rig.handlers[0].bodies() == [], "the other Handler could not be told"
    while rig.handlers[1].take():
        rig.settle()
    (request,) = rig.handlers[0].take()
    assert request.connection_id in rig.handlers[1].addresses
    assert client.received() == b""


def test_hint_of_a_handler_is_learned(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    client.send(framed(b"orders"))
    (request,) = rig.handlers[0].take()
    rig.handlers[0].hint(b"\x01", b"orders")
    rig.handlers[0].answer(request, framed(b"forwarded"))
    rig.step()
    assert client.received() == framed(b"forwarded")
    client.send(framed(b"orders"))
    assert rig.handlers[1].bodies() == [b"orders"]


def test_frames_for_a_handler_that_is_away_go_home(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    rig.processor.detach(rig.handlers[1].id)
    client.send(SECOND)
    assert rig.handlers[0].bodies() == [b"second"]


def test_disconnect_reaches_handlers_of_earlier_requests(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    client.send(SECOND)
    (request,) = rig.handlers[1].take()
    rig.handlers[1].answer(request, framed(b"done"))
    rig.step()
    client.send(FIRST)
    client.close()
    assert rig.handlers[1].take() == []
    assert rig.handlers[1].gone == [request.connection_id]


def test_disconnect_reaches_handlers_of_open_requests(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    client.send(SECOND)
    (request,) = rig.handlers[1].take()
    client.close()
    for handler in rig.handlers:
        handler.take()
        assert handler.gone == [request.connection_id]
