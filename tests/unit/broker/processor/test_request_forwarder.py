"""RequestForwarder: frames for several Handlers, and their order in a connection."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.ipc.wait import Sleeper
from tests.support.processor_rig import ProcessorRig, framed
from tests.support.scripted_router import FIRST, HOME, SECOND, ScriptedRouter, client_at

Start = Callable[..., ProcessorRig]


@pytest.fixture
def rig(start: Start, router: ScriptedRouter) -> ProcessorRig:
    return start(handlers=2, router=router)


# -- routing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", [0, 1])
def test_frame_goes_to_the_handler_of_the_router(rig: ProcessorRig, home: int) -> None:
    client = client_at(rig, home)
    for frame, index in ((FIRST, 0), (SECOND, 1), (HOME, home)):
        client.send(frame)
        (request,) = rig.handlers[index].take()
        assert framed(request.body) == frame
        rig.handlers[index].answer(request, framed(b"done"))
        rig.step()
        assert client.received() == framed(b"done")


@pytest.mark.parametrize("home", [0, 1])
def test_frames_are_whole_over_many_turns_of_the_rings(rig: ProcessorRig, home: int) -> None:
    """They are read into unused room of the home ring, and pushed to it or to another."""
    client = client_at(rig, home)
    chance = random.Random(home)
    for number in range(3000):
        word, index = chance.choice([(b"first.", 0), (b"second", 1), (b"homely", home)])
        body = word + number.to_bytes(4, "big") + chance.randbytes(chance.randrange(3000))
        client.send(framed(body))
        ((request,), nothing) = rig.handlers[index].take(), rig.handlers[1 - index].take()
        assert (bytes(request.body), nothing) == (body, [])
        rig.handlers[index].answer(request, framed(b"done"))
        rig.step()
        assert client.received() == framed(b"done")


def test_router_sees_the_frame_without_its_length(rig: ProcessorRig, router: ScriptedRouter) -> None:
    rig.connect().send(FIRST)
    assert router.seen == [b"first."]


def test_frame_for_other_handler_waits_for_prior_responses(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    client.send(FIRST + FIRST + SECOND + FIRST)
    first, again = rig.handlers[0].take()
    rig.step(3)
    assert rig.handlers[1].take() == []
    rig.handlers[0].answer(first, framed(b"1"))
    rig.step(3)
    assert rig.handlers[1].take() == []
    rig.handlers[0].answer(again, framed(b"2"))
    rig.step(3)
    (second,) = rig.handlers[1].take()
    rig.step(3)
    assert rig.handlers[0].take() == [], "what is behind it waits, too"
    rig.handlers[1].answer(second, framed(b"3"))
    rig.step(3)
    (last,) = rig.handlers[0].take()
    rig.handlers[0].answer(last, framed(b"4"))
    rig.step()
    assert client.received() == b"".join(map(framed, (b"1", b"2", b"3", b"4")))
    assert [first.sequence, again.sequence, second.sequence, last.sequence] == [1, 2, 3, 4]


def test_waiting_client_does_not_hold_others_up(rig: ProcessorRig) -> None:
    waiting, other = client_at(rig, 0), client_at(rig, 1)
    waiting.send(FIRST + SECOND)
    other.send(SECOND)
    assert rig.handlers[1].bodies() == [b"second"]


def test_frame_whose_end_comes_while_another_waits_is_joined(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    client.send(FIRST + SECOND + FIRST[:5])
    client.send(FIRST[5:] + HOME)
    answered = []
    for _ in range(10):
        for handler in rig.handlers:
            for request in handler.take():
                answered.append(request.body)
                handler.answer(request, framed(request.body))
        rig.step(2)
    assert answered == [b"first.", b"second", b"first.", b"homely"]
    assert client.received() == FIRST + SECOND + FIRST + HOME


def test_large_frame_goes_where_the_router_says(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    body = b"second" + bytes(100_000)
    client.send_through(framed(body))
    (request,) = rig.handlers[1].take()
    assert request.is_block
    assert request.body == body
    assert rig.handlers[0].take() == []
    rig.handlers[1].answer(request, framed(b"done"))
    rig.step()
    assert client.received() == framed(b"done")
    assert rig.arena.lent_count() == 0


def test_large_frame_waits_for_the_answers_of_another_handler(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    client.send_through(FIRST + framed(b"second" + bytes(100_000)))
    (first,) = rig.handlers[0].take()
    rig.settle()
    assert rig.handlers[1].take() == []
    rig.handlers[0].answer(first, framed(b"1"))
    rig.settle()
    (second,) = rig.handlers[1].take()
    assert second.is_block


def test_full_ring_of_one_handler_spares_clients_of_other(rig: ProcessorRig) -> None:
    blocked, free = client_at(rig, 0), client_at(rig, 1)
    for _ in range(60):
        try:
            blocked.sock.send(framed(b"first." + bytes(10_000)))
        except BlockingIOError:
            break
        rig.step()
    assert rig.metric("reads_stalled") > 0
    free.send(SECOND)
    assert rig.handlers[1].bodies() == [b"second"]


def test_stopping_processor_delivers_frames_for_other_handler(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    client.send(FIRST + SECOND)
    (first,) = rig.handlers[0].take()
    rig.processor.drain()
    rig.handlers[0].answer(first, framed(b"1"))
    rig.step(3)
    assert rig.handlers[1].bodies() == [b"second"]


def test_stopping_processor_is_not_drained_with_waiting_frame(rig: ProcessorRig) -> None:
    client = client_at(rig, 0)
    sender = rig.processor.handlers.by_id[rig.handlers[1].id].link.sender
    for size in (20_000, 8):
        while sender.try_push(1, bytes(size)):
            pass
    sender.publish()
    client.send(SECOND)
    rig.processor.drain()
    rig.step(3)
    assert not rig.processor.is_drained()
    rig.handlers[1].inbox.poll(100_000)
    rig.handlers[1].inbox.release()
    rig.step(2)
    (request,) = rig.handlers[1].take()
    rig.handlers[1].answer(request, framed(b"done"))
    rig.step()
    assert client.received() == framed(b"done")
    assert rig.processor.is_drained()


def test_waiting_frame_is_published_before_processor_sleeps(
    rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_at(rig, 0)
    client.send(FIRST + SECOND)
    (first,) = rig.handlers[0].take()
    rig.handlers[0].answer(first, framed(b"1"))
    is_seen: list[bool] = []

    def wait(
        _doze: object, poll: Callable[[float], list[Any]], _timeout_s: float, has_work: Callable[[], bool]
    ) -> list[Any]:
        if not has_work():
            is_seen.append(not rig.handlers[1].inbox.is_empty())
        return poll(0)

    monkeypatch.setattr(Sleeper, "wait", wait)
    while not is_seen:
        rig.processor.do_work(100)
    assert False not in is_seen
    assert rig.handlers[1].bodies() == [b"second"]
