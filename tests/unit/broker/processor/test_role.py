"""Role: an idle Processor or Acceptor sleeps longer, and its counts are published as soon as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kproc.broker.transport.agent import REST_MS, STORE_MS
from tests.support.acceptor_rig import AcceptorRig
from tests.support.processor_rig import ProcessorRig, framed
from tests.support.sleeps import note_sleeps

LONG_MS = 10 * REST_MS


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return note_sleeps(monkeypatch)


def test_processor_rests_until_it_has_something_to_publish(rig: ProcessorRig, wanted: list[float]) -> None:
    client = rig.connect()
    rig.advance_ms(STORE_MS)

    def sleep_ms() -> float:
        while not wanted:
            rig.processor.do_work(LONG_MS)
        return wanted.pop()

    assert sleep_ms() == REST_MS, "nothing happened since it published"
    client.send(framed(b"x"))  # It is read, too.
    assert sleep_ms() == STORE_MS
    rig.advance_ms(STORE_MS)
    assert rig.metric("requests") == 1
    assert sleep_ms() == REST_MS
    (request,) = rig.handler.take()
    rig.handler.answer(request, framed(b"y"))
    assert sleep_ms() == STORE_MS, "an answer is sent before it sleeps"
    rig.advance_ms(STORE_MS)
    assert rig.metric("responses") == 1
    assert sleep_ms() == REST_MS


def test_response_ending_sleep_leaves_and_next_sleep_has_tick(
    rig: ProcessorRig, wanted: list[float]
) -> None:
    """One pass for a lone client's request, and its metrics are as young as ever."""
    client = rig.connect()
    rig.advance_ms(STORE_MS)
    client.send(framed(b"x"))
    (request,) = rig.handler.take()
    rig.clock.advance_ms(30)
    rig.handler.answer(request, framed(b"y"))
    rig.wake()
    rig.processor.do_work(LONG_MS)
    assert client.received() == framed(b"y")
    assert wanted == [STORE_MS - 30]


def test_short_sleep_is_not_repeated_after_a_wake(rig: ProcessorRig, wanted: list[float]) -> None:
    """As somebody does who waits for the last answer."""
    client = rig.connect()
    rig.advance_ms(STORE_MS)
    client.send(framed(b"x"))
    (request,) = rig.handler.take()
    rig.handler.answer(request, framed(b"y"))
    rig.wake()
    rig.processor.do_work(STORE_MS // 5)
    assert wanted == []
    rig.processor.do_work(STORE_MS // 5)
    assert client.received() == framed(b"y")
    assert wanted == [STORE_MS // 5]


def test_answer_that_ends_a_sleep_does_not_put_the_tick_off(rig: ProcessorRig, wanted: list[float]) -> None:
    client = rig.connect()
    rig.advance_ms(STORE_MS)
    client.send(framed(b"x"))
    (request,) = rig.handler.take()
    rig.clock.advance_ms(STORE_MS)
    rig.handler.answer(request, framed(b"y"))
    rig.wake()
    rig.processor.do_work(LONG_MS)
    assert rig.metric("heartbeat_ns") == rig.clock.now_ns()
    assert wanted == []
    rig.processor.do_work(LONG_MS)
    assert client.received() == framed(b"y")


@pytest.fixture
def acceptor_rig() -> Iterator[AcceptorRig]:
    with ExitStack() as stack:
        yield AcceptorRig(stack)


def test_acceptor_rests_until_it_has_something_to_publish(
    acceptor_rig: AcceptorRig, wanted: list[float]
) -> None:
    rig = acceptor_rig

    def sleep_ms() -> float:
        rig.acceptor.do_work(LONG_MS)
        return wanted.pop()

    rig.clock.advance_ms(STORE_MS)
    sleep_ms()
    assert sleep_ms() == REST_MS
    rig.connect()
    assert sleep_ms() == REST_MS, "the connection comes while it sleeps"
    assert sleep_ms() == STORE_MS
    rig.clock.advance_ms(STORE_MS)
    sleep_ms()
    assert sleep_ms() == REST_MS


def test_acceptor_above_limit_polls_at_normal_interval(
    acceptor_rig: AcceptorRig, wanted: list[float]
) -> None:
    rig = acceptor_rig
    for processor in rig.processors:
        processor.report(("127.0.0.1", 5, 2))
    rig.step()
    rig.change(broker_max=2)
    rig.clock.advance_ms(STORE_MS)
    rig.acceptor.do_work(LONG_MS)  # It sees the excess when it wakes up.
    wanted.clear()
    asked = []
    while not asked:
        rig.clock.advance_ms(STORE_MS)
        rig.acceptor.do_work(LONG_MS)
        assert wanted.pop() == STORE_MS
        asked = rig.processors[0].evictions()
