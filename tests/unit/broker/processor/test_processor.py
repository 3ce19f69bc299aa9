"""Processor: its metrics row, its stop, and what wakes it."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator

import pytest

from kproc.broker.metrics.slab import Slab
from kproc.broker.transport.agent import AgentId
from tests.support.processor_rig import ProcessorRig, framed, warm_up

Start = Callable[..., ProcessorRig]


# -- metrics and stopping ------------------------------------------------------------------------------------


def test_row_is_stored_ten_times_a_second(rig: ProcessorRig) -> None:
    rig.connect()
    rig.advance_ms(100)
    words = rig.doze._words[Slab.row_word(0) : Slab.row_word(1)]
    before = words.tobytes()
    rig.advance_ms(99)
    assert words.tobytes() == before
    rig.advance_ms(1)
    assert words.tobytes() != before
    assert rig.metric("connections") == 1
    assert rig.metric("heartbeat_ns") == rig.clock.now_ns()
    assert rig.metric("ring_capacity_bytes") == 1 << 18


def test_requests_in_work_are_shown(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(b"x") * 3)
    rig.advance_ms(1001)
    assert rig.metric("requests_inflight") == 3


def test_stopping_processor_answers_what_it_has_read(rig: ProcessorRig) -> None:
    client, quiet = rig.connect(), rig.connect()
    client.send(framed(b"in work"))
    assert not rig.processor.is_drained()
    rig.processor.drain()
    assert not rig.processor.is_drained()
    client.send(framed(b"too late"))
    rig.step(3)
    (request,) = rig.handler.take()
    rig.handler.answer(request, framed(b"answer"))
    rig.step()
    assert client.received() == framed(b"answer")
    assert rig.processor.is_drained()
    rig.step(3)
    assert rig.handler.take() == []
    assert not quiet.is_closed()


def test_stopping_processor_drains_slow_readers_responses(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(b"x"))
    (request,) = rig.handler.take()
    rig.handler.answer(request, bytes(3 << 20))
    while rig.handler.outbox.has_overflow:
        rig.step()
        rig.handler.outbox.flush()
    rig.processor.drain()
    rig.step(3)
    assert not rig.processor.is_drained()
    assert len(client.receive_through(3 << 20)) == 3 << 20
    rig.step()
    assert rig.processor.is_drained()


def test_stopping_processor_registers_no_more_sockets(rig: ProcessorRig) -> None:
    rig.processor.drain()
    client = rig.connect()
    assert client.is_closed()
    assert rig.processor.is_drained()


def test_close_ends_every_connection_and_gives_every_block_back(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(3)]
    clients[0].send(framed(bytes(50_000))[:20_000])
    rig.step()
    assert rig.arena.lent_count() == 1
    rig.processor.close()
    assert all(client.is_closed() for client in clients)
    assert rig.arena.lent_count() == 0


def test_processor_without_a_handler_closes_connections(start: Start) -> None:
    rig = start(handlers=0)
    assert rig.connect().is_closed()


def test_descriptor_that_is_watched_wakes_the_processor(rig: ProcessorRig) -> None:
    read_end, write_end = os.pipe()
    rig.processor.watch(read_end)
    os.write(write_end, b"x")
    rig.processor.do_work(10_000)  # Ten seconds if it did not.
    assert rig.doze.rescued_count == 0
    assert select.select([rig.processor.poll_fd()], [], [], 0)[0]
    os.close(read_end)
    os.close(write_end)


def test_answer_wakes_a_sleeping_processor(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(b"x"))
    (request,) = rig.handler.take()
    rig.doze.prepare()
    rig.handler.answer(request, framed(b"answer"))
    assert rig.processor.do_work(10_000) >= 0
    rig.step()
    assert client.received() == framed(b"answer")


def test_detaching_a_stranger_does_no_harm(rig: ProcessorRig) -> None:
    rig.processor.detach(AgentId("handler", 9))
    assert not rig.connect().is_closed()


# -- the sleep -----------------------------------------------------------------------------------------------

REQUEST, RESPONSE = framed(bytes(100)), framed(bytes(40))


@pytest.fixture
def ring_rig() -> Iterator[ProcessorRig]:
    """Over rings, as a broker has them, and not over every kind of link."""
    with ProcessorRig("ring") as rig:
        rig.clock.advance_ms(1000)
        yield rig


def test_response_before_the_sleep_is_sent_in_the_same_pass(
    ring_rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ring_rig.connect()
    (request,) = warm_up(ring_rig, [client], REQUEST, RESPONSE)
    polls: list[float] = []

    def poll(timeout_s: float) -> list[tuple[int, int]]:
        polls.append(timeout_s)
        return []

    monkeypatch.setattr(ring_rig.processor, "_poll", poll)
    ring_rig.handler.answer(request, RESPONSE)
    ring_rig.processor.do_work(100)
    assert client.received() == RESPONSE
    assert [each > 0 for each in polls] == [True], "the sockets are looked at once, by the sleep"


def test_many_responses_before_sleep_do_not_delay_requests(ring_rig: ProcessorRig) -> None:
    clients = [ring_rig.connect() for _ in range(16)]
    first, *others = warm_up(ring_rig, clients, REQUEST, RESPONSE)
    ring_rig.handler.answer(first, RESPONSE)
    ring_rig.processor.handlers.may_have_answers = True  # As after a pass with much to do.
    assert clients[0].received() == b""
    real = ring_rig.processor._has_answers

    def answered_meanwhile() -> bool:
        if others:
            ring_rig.handler.answer(others.pop(), RESPONSE)
        return real()

    ring_rig.processor._has_answers = answered_meanwhile
    assert clients[0].sock.send(REQUEST)
    ring_rig.processor.do_work(100)
    assert len(ring_rig.handler.take()) == 1, "the request was read in the same pass"
    while others:
        ring_rig.processor.do_work(100)
    ring_rig.step()
    assert all(client.received() == RESPONSE for client in clients)
