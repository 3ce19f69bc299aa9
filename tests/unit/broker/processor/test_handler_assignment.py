"""Handlers that come and go while clients are there: connections move their homes, and lose nothing by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.ipc.fdpass import make_socket_pair
from kproc.broker.transport.agent import AgentId
from tests.support.processor_rig import Client, ProcessorRig, ScriptedHandler, framed
from tests.support.scripted_router import ScriptedRouter

Start = Callable[..., ProcessorRig]


@pytest.fixture
def rig(start: Start) -> ProcessorRig:
    return start(handlers=2, router=ScriptedRouter(first=0, second=1))


def home_of(rig: ProcessorRig, client: Client, handlers: list[ScriptedHandler] | None = None) -> int:
    """The index of the Handler that gets what no router knows; its answer is sent."""
    client.send(framed(b"homely"))
    for handler in handlers or rig.handlers:
        for request in handler.take():
            handler.answer(request, framed(b"here"))
            rig.step()
            assert client.received() == framed(b"here")
            return handler.id.index
    raise AssertionError("nobody got it")


def leave(rig: ProcessorRig, index: int) -> AgentId:
    peer = AgentId("handler", index)
    rig.processor.handler_leaving(peer)
    return peer


def test_idle_connections_leave_a_leaving_handler_at_once(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(6)]
    assert sorted(home_of(rig, client) for client in clients) == [0, 0, 0, 1, 1, 1]
    peer = leave(rig, 1)
    assert [home_of(rig, client) for client in clients] == [0] * 6
    assert [home_of(rig, rig.connect()) for _ in range(3)] == [0] * 3
    assert not rig.processor.uses(peer)


def test_busy_connection_of_leaving_handler_waits_for_responses(rig: ProcessorRig) -> None:
    client = rig.connect()
    other = rig.connect()
    if home_of(rig, client) == 0:
        client, other = other, client
    client.send(framed(b"homely") + framed(b"homely"))
    one, two = rig.handlers[1].take()
    peer = leave(rig, 1)
    client.sock.send(framed(b"homely"))
    rig.step(3)
    assert [handler.take() for handler in rig.handlers] == [[], []]
    rig.handlers[1].answer(one, framed(b"1"))
    rig.step()
    assert rig.processor.uses(peer)
    rig.handlers[1].answer(two, framed(b"2"))
    rig.step(3)
    assert client.received() == framed(b"1") + framed(b"2")
    assert rig.handlers[0].bodies() == [b"homely"]
    assert not rig.processor.uses(peer)


def test_frames_for_a_leaving_owner_go_home(rig: ProcessorRig) -> None:
    leave(rig, 1)
    client = rig.connect()
    client.send(framed(b"second"))
    assert [handler.bodies() for handler in rig.handlers] == [[b"second"], []]


def test_block_at_a_leaving_handler_is_used_until_it_comes_back(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send_through(framed(b"second" + bytes(50_000)))
    (request,) = rig.handlers[1].take()
    peer = leave(rig, 1)
    client.close()
    assert rig.processor.uses(peer)
    rig.handlers[1].no_op(request)
    rig.step()
    assert not rig.processor.uses(peer)


def test_with_one_handler_left_nothing_is_routed(start: Start) -> None:
    router = ScriptedRouter(first=0, second=1)
    rig = start(handlers=2, router=router)
    clients = [rig.connect() for _ in range(4)]
    peer = leave(rig, 0)
    rig.processor.detach(peer)
    router.seen.clear()
    for client in clients:
        client.send(framed(b"first."))
    assert rig.handlers[1].bodies() == [b"first."] * 4
    assert router.seen == []


def test_connections_of_leavers_move_to_first_handler_that_stays(rig: ProcessorRig) -> None:
    """A Processor was restarted while the Handler that stays was away, so it knew only Handlers that leave."""
    clients = [rig.connect() for _ in range(2)]
    peers = [leave(rig, index) for index in (0, 1)]
    clients.append(rig.connect())
    successor = rig.attach_handler(2)
    assert [home_of(rig, client, [*rig.handlers[:2], successor]) for client in clients] == [2] * 3
    assert not any(map(rig.processor.uses, peers))


def test_death_of_leaving_handler_closes_only_busy_connections(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(4)]
    homes = [home_of(rig, client) for client in clients]
    busy, idle = (client for client, home in zip(clients, homes, strict=True) if home == 1)
    busy.send(framed(b"homely"))
    peer = leave(rig, 1)
    rig.processor.detach(peer)
    rig.step()
    assert busy.is_closed()
    assert home_of(rig, idle) == 0
    assert not rig.processor.uses(peer)


def test_handler_dead_at_leave_is_forgotten_next_gets_homes(
    rig: ProcessorRig,
) -> None:
    rig.attach_handler(2)
    clients = [rig.connect() for _ in range(6)]
    peer = AgentId("handler", 1)
    rig.processor.detach(peer)
    leave(rig, 1)
    rig.processor.detach(peer)
    rig.processor.detach(leave(rig, 2))
    assert [home_of(rig, client, rig.handlers[:1]) for client in clients] == [0] * 6
    successor = rig.attach_handler(1)
    assert sorted(home_of(rig, client, [rig.handlers[0], successor]) for client in clients) == [
        0,
        0,
        0,
        1,
        1,
        1,
    ]
    clients[0].send(framed(b"second"))
    assert successor.bodies() == [b"second"]
    rig.processor.detach(leave(rig, 1))
    assert [home_of(rig, client, rig.handlers[:1]) for client in clients[1:]] == [0] * 5


def test_connection_waiting_for_last_handler_continues_there(rig: ProcessorRig) -> None:
    """Its home dies while it leaves; what it has in work is at the one that stays."""
    clients = [rig.connect() for _ in range(2)]
    client = next(each for each in clients if home_of(rig, each) == 0)
    client.send(framed(b"second"))
    (request,) = rig.handlers[1].take()
    rig.processor.detach(leave(rig, 0))
    rig.handlers[1].answer(request, framed(b"answer"))
    rig.step(2)
    assert client.received() == framed(b"answer")
    client.send(framed(b"homely"))
    assert rig.handlers[1].bodies() == [b"homely"]


def test_returned_connection_gets_no_leaving_home(
    rig: ProcessorRig,
) -> None:
    """It was given while its home began to leave, so that only its return could move it."""
    ours, theirs = make_socket_pair()
    other = AgentId("processor", 1)
    with ours:
        clients = [rig.connect() for _ in range(2)]
        client = next(each for each in clients if home_of(rig, each) == 1)
        rig.processor.attach_migration(other, theirs)
        rig.processor.move_connections(2, other)
        rig.step()
        assert rig.processor.describe_connections() == []
        peer = leave(rig, 1)
        assert rig.processor.uses(peer)
        rig.processor.detach(other)  # It died and had taken none.
    rig.step(2)
    assert not rig.processor.uses(peer)
    assert home_of(rig, client) == 0


def test_new_handler_gets_share_of_existing_connections(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(9)]
    rig.handlers.append(rig.attach_handler(2))
    homes = [home_of(rig, client) for client in clients]
    assert sorted(homes) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_former_home_hears_of_the_new_one(rig: ProcessorRig) -> None:
    """It kept the share sessions of connections that a new Handler got, with the records that they held."""
    clients = [rig.connect() for _ in range(6)]
    before = [home_of(rig, client) for client in clients]
    rig.handlers.append(rig.attach_handler(2))
    after = [home_of(rig, client) for client in clients]
    moves = list(zip(before, after, strict=True))
    assert moves.count((0, 2)) == moves.count((1, 2)) == 1
    assert [len(handler.left) for handler in rig.handlers] == [1, 1, 0]
    assert not any(handler.gone for handler in rig.handlers)


def test_routing_starts_with_second_handler_and_keeps_order(start: Start) -> None:
    """A request in work at the only Handler is answered before the next goes to the new one."""
    rig = start(handlers=1, router=ScriptedRouter(first=0, second=1))
    client = rig.connect()
    client.send(framed(b"homely"))
    (request,) = rig.handler.take()
    rig.handlers.append(rig.attach_handler(1))
    client.send(framed(b"second"))
    assert rig.handlers[1].take() == []
    rig.handler.answer(request, framed(b"1"))
    rig.step(3)
    assert rig.handlers[1].bodies() == [b"second"]


def test_restarted_handler_moves_no_homes(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(6)]
    homes = [home_of(rig, client) for client in clients]
    rig.processor.detach(AgentId("handler", 1))
    rig.handlers[1] = rig.attach_handler(1)
    assert [home_of(rig, client) for client in clients] == homes


def test_leaving_twice_or_a_stranger_does_no_harm(rig: ProcessorRig) -> None:
    peer = leave(rig, 1)
    leave(rig, 1)
    leave(rig, 7)
    assert not rig.processor.uses(AgentId("handler", 7))
    assert not rig.processor.uses(peer)
    assert home_of(rig, rig.connect()) == 0


def test_connections_of_absent_handler_get_live_home(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(6)]
    assert sorted(home_of(rig, client) for client in clients) == [0, 0, 0, 1, 1, 1]
    rig.processor.detach(AgentId("handler", 1))
    living = rig.handlers[:1]
    assert home_of(rig, rig.connect(), living) == 0, "a new one goes to who lives at once"
    waiting = [client for client in clients if client.sock.send(framed(b"homely"))]
    for _ in range(3):
        rig.advance_ms(1000)
    requests = living[0].take()
    assert len(requests) == len(waiting), "those that waited for the dead one are served, too"
    for request in requests:
        living[0].answer(request, framed(b"here"))
    rig.step()
    assert [client.received() for client in waiting] == [framed(b"here")] * 6
    rig.handlers[1] = rig.attach_handler(1)
    homes = [home_of(rig, client) for client in clients]
    assert sorted(homes) == [0, 0, 0, 1, 1, 1], "a successor gets its share again"
