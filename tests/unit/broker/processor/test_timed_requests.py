"""Which requests are timed, what their times are made of, and that none stays open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.metrics.histogram import Histogram
from kproc.broker.metrics.requests import TIMINGS
from kproc.broker.metrics.slab import Slab
from kproc.broker.transport.envelope import FLAG_TIMED, TIMES, TIMES_BODY, UNTIMED_KEY
from tests.support.processor_rig import ProcessorRig, Request, framed

MS = 1_000_000
Start = Callable[..., ProcessorRig]
PRODUCE, FETCH = b"\x00\x00" + b"produce", b"\x00\x01" + b"fetch"


def ask(rig: ProcessorRig, *bodies: bytes) -> list[Request]:
    client = rig.connect()
    client.send(b"".join(map(framed, bodies)))
    return rig.handler.take()


def tell(rig: ProcessorRig, request: Request, key: int = 0, throttle_ms: int = 0) -> None:
    """TIMES: taken 2 ms ago, done 1 ms ago, answered now."""
    now_ns = rig.clock.now_ns()
    body = TIMES_BODY.pack(key, throttle_ms, now_ns - 2 * MS, now_ns - MS, now_ns)
    rig.handler.push(TIMES, request, body)


def timed(slab: Slab, key: int = 0) -> dict[str, Histogram]:
    found: dict[int, list[Histogram]] = {}
    slab.read_timings(0, found)
    return dict(zip(TIMINGS, found.get(key, [Histogram() for _ in TIMINGS]), strict=True))


def count(rig: ProcessorRig, key: int = 0) -> int:
    return timed(rig.metrics.slab, key)["TotalTimeMs"].count


def flags(requests: list[Request]) -> list[int]:
    return [request.flags & FLAG_TIMED for request in requests]


def test_times_of_a_request_add_up(rig: ProcessorRig) -> None:
    (request,) = ask(rig, PRODUCE)
    assert flags([request]) == [FLAG_TIMED]
    rig.clock.advance_ms(5)
    tell(rig, request, throttle_ms=7)
    rig.clock.advance_ms(4)
    rig.handler.answer(request, framed(b"answer"))
    rig.step()
    found = timed(rig.metrics.slab)
    assert {name: found[name].total for name in TIMINGS} == {
        "RequestQueueTimeMs": 3000,
        "LocalTimeMs": 1000,
        "RemoteTimeMs": 1000,
        "ThrottleTimeMs": 7000,
        "ResponseQueueTimeMs": 4000,
        "ResponseSendTimeMs": 0,
        "TotalTimeMs": 9000,
        "RequestBytes": len(PRODUCE),
    }


def test_one_of_a_read_and_each_api_once_in_ten_milliseconds(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(PRODUCE) * 3)
    assert count_of_records(rig.handler.take()) == 1
    client.send(framed(PRODUCE))
    assert flags(rig.handler.take()) == [0], "the same ten milliseconds"
    rig.clock.advance_ms(10)
    client.send(framed(PRODUCE))
    assert flags(rig.handler.take()) == [FLAG_TIMED]
    rig.clock.advance_ms(5)
    client.send(framed(FETCH))
    assert flags(rig.handler.take()) == [FLAG_TIMED], "another API"
    client.send(framed(b"x"))
    assert flags(rig.handler.take()) == [0], "no header"


def count_of_records(requests: list[Request]) -> int:
    return len({request.record for request in requests if request.flags & FLAG_TIMED})


def test_large_frame_is_timed_too(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send_through(framed(b"\x00\x00" + bytes(100_000)))
    (request,) = rig.handler.take()
    assert request.is_block
    assert request.flags & FLAG_TIMED
    tell(rig, request)
    rig.handler.answer(request, framed(b"answer"))
    rig.step()
    assert timed(rig.metrics.slab)["RequestBytes"].total == 100_002


def test_response_behind_another_is_timed_when_sent(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(FETCH))
    (first,) = rig.handler.take()
    rig.clock.advance_ms(5)
    client.send(framed(PRODUCE))
    (second,) = rig.handler.take()
    tell(rig, second)
    rig.handler.answer(second, framed(b"second"))
    rig.step()
    assert count(rig) == 0
    rig.clock.advance_ms(30)
    tell(rig, first, key=1)
    rig.handler.answer(first, framed(b"first"))
    rig.step()
    assert (count(rig, 0), count(rig, 1)) == (1, 1)
    assert timed(rig.metrics.slab)["ResponseSendTimeMs"].total == 30_000


def test_slow_reader_shows_in_the_time_of_sending(start: Start) -> None:
    rig = start(ring_bytes=1 << 23)
    client = rig.connect()
    client.send(framed(FETCH))
    (request,) = rig.handler.take()
    tell(rig, request, key=1)
    large = framed(bytes(3 << 19))
    rig.handler.answer(request, large)
    rig.step(3)
    assert count(rig, 1) == 0
    rig.clock.advance_ms(50)
    assert client.receive_through(len(large)) == large
    rig.step(3)
    assert count(rig, 1) == 1
    assert timed(rig.metrics.slab, 1)["ResponseSendTimeMs"].total >= 50_000


@pytest.mark.parametrize("size", [0, 550 * 1024])
def test_client_that_left_before_its_answer_is_counted(rig: ProcessorRig, size: int) -> None:
    """Kafka's testClientDisconnectionUpdatesRequestMetrics."""
    client = rig.connect()
    client.send(framed(PRODUCE))
    (request,) = rig.handler.take()
    client.close()
    rig.step(2)
    assert rig.handler.take() == []
    rig.clock.advance_ms(3)
    tell(rig, request)
    rig.handler.answer(request, framed(bytes(size)))
    rig.step(3)
    assert count(rig) == 1


def test_response_of_idle_closed_connection_is_counted(start: Start) -> None:
    """Kafka's testBrokerSendAfterChannelClosedUpdatesRequestMetrics."""
    rig = start(idle_ms_max=100)
    client = rig.connect()
    client.send(framed(PRODUCE))
    (request,) = rig.handler.take()
    rig.clock.advance_ms(5_000)
    rig.step(3)
    assert rig.metric("connections_expired") == rig.metric("connections_closed") == 1
    tell(rig, request)
    rig.handler.answer(request, framed(b"late"))
    rig.step(2)
    assert count(rig) == 1


def test_bytes_that_are_no_api_of_ours_leave_no_histogram(rig: ProcessorRig) -> None:
    (request,) = ask(rig, b"\x7f\x7fnothing")
    tell(rig, request, key=UNTIMED_KEY)
    rig.handler.close(request)
    rig.step()
    found: dict[int, list[Histogram]] = {}
    rig.metrics.slab.read_timings(0, found)
    assert not found
    assert not open_requests(rig)


def test_requests_of_a_dead_handler_are_not_waited_for(rig: ProcessorRig) -> None:
    ask(rig, PRODUCE)
    assert open_requests(rig) == 1
    rig.processor.detach(rig.handler.id)
    assert not open_requests(rig)


def test_requests_without_an_answer_do_not_pile_up(rig: ProcessorRig) -> None:
    for _ in range(30):
        client = rig.connect()
        for _ in range(40):
            rig.clock.advance_ms(10)
            client.send(framed(PRODUCE))
            rig.handler.take()
    assert open_requests(rig) == 1024


def open_requests(rig: ProcessorRig) -> int:
    return len(rig.processor.timed._open)


def test_unread_ring_records_are_counted(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(3)]
    for client in clients:
        client.send(framed(PRODUCE))
    assert len(rig.handler.take()) == 3  # Their addresses came with these.
    for client in clients:
        client.send(framed(PRODUCE))
    rig.clock.advance_ms(200)
    rig.step(2)
    assert rig.metric("ring_records") == 3
    rig.handler.take()
    rig.clock.advance_ms(200)
    rig.step()
    assert rig.metric("ring_records") == 0
