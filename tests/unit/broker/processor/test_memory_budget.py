"""MemoryBudget: queued.max.request.bytes and queued.max.requests, shared by the Processors."""

from __future__ import annotations

from collections.abc import Callable

from kproc.broker.config.dynamic import DynamicSettings
from tests.support.processor_rig import ProcessorRig, framed
from tests.support.scripted_router import ScriptedRouter

Start = Callable[..., ProcessorRig]


# -- queued.max.request.bytes --------------------------------------------------------------------------------


def test_requests_are_not_read_while_the_memory_is_used_up(start: Start) -> None:
    """Kafka's pool is not strict: the request that exceeds it is served, the next one waits and is not refused."""
    rig = start(queued_bytes_max=50_000)
    one, two = rig.connect(), rig.connect()
    one.send_through(framed(b"1" * 60_000))
    (request,) = rig.handler.take()
    two.send(framed(b"waits"))
    rig.step(5)
    assert rig.handler.take() == []
    assert rig.state_of(two) == "MUTED"
    rig.handler.answer(request, framed(b"done"))
    rig.step(3)
    assert rig.handler.bodies() == [b"waits"]


def test_begun_request_proceeds_when_memory_is_exhausted(start: Start) -> None:
    rig = start(queued_bytes_max=50_000)
    half, large, small = rig.connect(), rig.connect(), rig.connect()
    half.send(framed(b"in two halves")[:9])
    large.send_through(framed(b"1" * 60_000)[:-1])
    half.send(framed(b"in two halves")[9:])
    assert rig.handler.bodies() == [b"in two halves"]
    small.send(framed(b"waits"))
    assert rig.handler.take() == []
    large.send(framed(b"1" * 60_000)[-1:])
    assert len(rig.handler.bodies()) == 1


def test_processors_share_the_memory_evenly(start: Start) -> None:
    rig = start(queued_bytes_max=100_000, processor_count=2)
    one, two = rig.connect(), rig.connect()
    one.send_through(framed(b"1" * 60_000))
    two.send(framed(b"waits"))
    assert len(rig.handler.bodies()) == 1
    rig.processor.apply_settings(DynamicSettings({"num.network.threads": "1"}))
    rig.step(2)
    assert rig.handler.bodies() == [b"waits"]
    one.send_through(framed(b"1" * 40_000))
    rig.processor.apply_settings(DynamicSettings())
    two.send(framed(b"waits again"))
    rig.step(2)
    assert len(rig.handler.take()) == 1, "taken back: two shares, as at the start"


def test_requests_that_no_handler_has_taken_count(start: Start) -> None:
    rig = start(queued_bytes_max=10_000)
    one, two = rig.connect(), rig.connect()
    one.send(framed(b"1" * 12_000))
    two.send(framed(b"waits"))
    assert len(rig.handler.bodies()) == 1
    rig.step(2)
    assert rig.handler.bodies() == [b"waits"]


def test_client_that_leaves_half_a_frame_gives_its_memory_back(start: Start) -> None:
    rig = start(queued_bytes_max=4000)
    half, other = rig.connect(), rig.connect()
    half.send(framed(b"1" * 6000)[:5000])
    other.send(framed(b"waits"))
    assert rig.handler.take() == []
    half.close()
    rig.step(3)
    assert rig.handler.bodies() == [b"waits"]


# -- queued.max.requests -------------------------------------------------------------------------------------


def test_requests_are_not_read_while_too_many_wait_for_handlers(start: Start) -> None:
    """Kafka's full RequestChannel, which blocks a Processor; here it goes on with all but reading."""
    rig = start(queued_requests_max=3)
    one, two = rig.connect(), rig.connect()
    one.send(framed(b"1") * 3)
    two.send(framed(b"waits"))
    rig.step(5)
    assert rig.state_of(two) == "MUTED"
    requests = rig.handler.take()
    assert [request.body for request in requests] == [b"1"] * 3
    rig.step(2)
    assert rig.handler.bodies() == [b"waits"], "taken is enough: a long poll does not hold the others up"
    rig.handler.answer(requests[0], framed(b"served all the time"))
    rig.step()
    assert one.received() == framed(b"served all the time")


def test_queued_requests_limit_spans_handlers_and_processors(start: Start) -> None:
    rig = start(
        handlers=2, router=ScriptedRouter(first=0, second=1), queued_requests_max=8, processor_count=2
    )
    clients = [rig.connect() for _ in range(3)]
    clients[0].send(framed(b"first.") * 2)
    clients[1].send(framed(b"second") * 2)
    clients[2].send(framed(b"waits."))
    rig.step(3)
    assert rig.state_of(clients[2]) == "MUTED"
    assert len(rig.handlers[0].take()) == 2
    rig.step(2)
    assert rig.state_of(clients[2]) == "NOT_MUTED"


def test_requests_that_a_dead_handler_never_took_wait_no_longer(start: Start) -> None:
    rig = start(queued_requests_max=2)
    one, two = rig.connect(), rig.connect()
    one.send(framed(b"1") * 2)
    two.send(framed(b"waits"))
    assert rig.state_of(two) == "MUTED"
    rig.processor.detach(rig.handler.id)
    rig.handlers[0] = rig.attach_handler(0)
    rig.step(3)
    assert rig.handler.bodies() == [b"waits"]
    assert one.is_closed()


def test_large_request_counts(start: Start) -> None:
    rig = start(queued_requests_max=1)
    one, two = rig.connect(), rig.connect()
    one.send_through(framed(bytes(50_000)))
    two.send(framed(b"waits"))
    rig.step(3)
    assert len(rig.handler.take()) == 1
    rig.step(2)
    assert rig.handler.bodies() == [b"waits"]
