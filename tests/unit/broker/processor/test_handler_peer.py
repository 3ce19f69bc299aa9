"""HandlerPeer: the death of a Handler, its successor, and the blocks that it held."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.processor_rig import ProcessorRig, framed
from tests.support.scripted_router import FIRST, HOME, SECOND, ScriptedRouter, client_at

Start = Callable[..., ProcessorRig]


@pytest.fixture
def rig(start: Start, router: ScriptedRouter) -> ProcessorRig:
    return start(handlers=2, router=router)


# -- death ---------------------------------------------------------------------------------------------------


def test_handlers_death_closes_only_connections_with_requests(rig: ProcessorRig) -> None:
    busy, idle, guest, elsewhere = (client_at(rig, home) for home in (0, 0, 1, 1))
    busy.send(HOME)
    guest.send(FIRST)
    elsewhere.send(SECOND)
    rig.processor.detach(rig.handlers[0].id)
    assert busy.is_closed()
    assert guest.is_closed()
    assert not idle.is_closed()
    assert not elsewhere.is_closed()
    (request,) = rig.handlers[1].take()
    rig.handlers[1].answer(request, framed(b"unharmed"))
    rig.step()
    assert elsewhere.received() == framed(b"unharmed")


def test_connection_of_a_dead_handler_waits_for_its_successor(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    rig.processor.detach(rig.handlers[0].id)
    client.send(HOME)
    rig.step(3)
    assert rig.handlers[1].take() == []
    assert not client.is_closed()
    rig.handlers[0] = rig.attach_handler(0)
    rig.step(2)
    (request,) = rig.handlers[0].take()
    rig.handlers[0].answer(request, framed(b"by the successor"))
    rig.step()
    assert client.received() == framed(b"by the successor")


def test_connection_answered_before_death_uses_successor(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    client.send(FIRST)
    (request,) = rig.handlers[0].take()
    rig.handlers[0].answer(request, framed(b"1"))
    rig.step()
    assert client.received() == framed(b"1")
    rig.processor.detach(rig.handlers[0].id)
    rig.handlers[0] = rig.attach_handler(0)
    client.send(FIRST)
    assert rig.handlers[0].bodies() == [b"first."]


def test_blocks_lent_to_a_dead_handler_come_back_and_others_stay(rig: ProcessorRig) -> None:
    clients = [client_at(rig, 0), client_at(rig, 1), client_at(rig, 0)]
    clients[0].send_through(framed(b"first." + bytes(50_000)))
    clients[1].send_through(framed(b"second" + bytes(50_000)))
    clients[2].send(framed(b"first." + bytes(50_000))[:30_000])
    rig.step()
    assert rig.arena.lent_count() == 3
    rig.processor.detach(rig.handlers[0].id)
    assert rig.arena.lent_count() == 2, "the one that nobody was lent yet is still being received"
    (request,) = rig.handlers[1].take()
    rig.handlers[1].answer(request, framed(b"done"))
    rig.step()
    assert rig.arena.lent_count() == 1
    rig.handlers[0] = rig.attach_handler(0)
    clients[2].send_through(framed(b"first." + bytes(50_000))[30_000:])
    (request,) = rig.handlers[0].take()
    assert request.body == b"first." + bytes(50_000)


def test_left_clients_block_is_freed_when_its_handler_dies(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    client.send_through(framed(b"first." + bytes(50_000)))
    client.close()
    assert rig.arena.lent_count() == 1
    rig.processor.detach(rig.handlers[0].id)
    assert rig.arena.lent_count() == 0


def test_nothing_that_a_dead_handler_said_last_is_sent(rig: ProcessorRig) -> None:
    """Its link ends with it: what it had published and nobody had taken is gone, as its clients are."""
    client = client_at(rig, 0)
    client.send(FIRST)
    (request,) = rig.handlers[0].take()
    rig.handlers[0].answer(request, framed(b"last words"))
    rig.processor.detach(rig.handlers[0].id)
    rig.step()
    assert client.received() == b""
    assert client.is_closed()


def test_detaching_twice_does_no_harm(rig: ProcessorRig) -> None:
    client_at(rig, 1)
    rig.processor.detach(rig.handlers[0].id)
    rig.processor.detach(rig.handlers[0].id)
    rig.handlers[0] = rig.attach_handler(0)
    client = client_at(rig, 0)
    assert not client.is_closed()
