"""ActivityWheel: idle connections are closed, and others stay."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.processor_rig import ProcessorRig, framed

Start = Callable[..., ProcessorRig]
IDLE_MS = 10_000


# -- idle ----------------------------------------------------------------------------------------------------


def test_idle_connection_is_closed_and_an_active_one_is_not(start: Start) -> None:
    """Kafka's testIdleConnection, case a."""
    rig = start(idle_ms_max=IDLE_MS)
    idle, active = rig.connect(), rig.connect()
    for _ in range(4):
        rig.advance_ms(IDLE_MS // 3)
        active.send(framed(b"x"))
    rig.advance_ms(1001)
    assert idle.is_closed()
    assert not active.is_closed()
    assert rig.metric("connections_closed") == 1
    assert len(rig.handler.take()) == 4
    assert len(rig.handler.gone) == 1


def test_connection_is_not_idle_before_its_time(start: Start) -> None:
    rig = start(idle_ms_max=IDLE_MS)
    client = rig.connect()
    rig.advance_ms(IDLE_MS - 1)
    assert not client.is_closed()
    rig.advance_ms(2)
    rig.advance_ms(1001)
    assert client.is_closed()


def test_request_in_flight_does_not_prevent_idle_close(start: Start) -> None:
    """Kafka's testIdleConnection, cases b and c; the late answer is harmless."""
    rig = start(idle_ms_max=IDLE_MS)
    client = rig.connect()
    client.send(framed(b"slow"))
    (request,) = rig.handler.take()
    rig.advance_ms(IDLE_MS + 1001)
    assert client.is_closed()
    rig.handler.answer(request, framed(b"late"))
    rig.step()
    assert rig.handler.take() == []
    other = rig.connect()
    other.send(framed(b"x"))
    assert rig.handler.bodies() == [b"x"]


def test_sent_response_restarts_idle_time(start: Start) -> None:
    rig = start(idle_ms_max=IDLE_MS)
    client = rig.connect()
    client.send(framed(b"slow"))
    (request,) = rig.handler.take()
    rig.advance_ms(IDLE_MS - 1000)
    rig.handler.answer(request, framed(b"answer"))
    rig.step()
    assert client.received() == framed(b"answer")
    rig.advance_ms(2500)
    assert not client.is_closed()


def test_no_limit_means_never_idle(start: Start) -> None:
    rig = start(idle_ms_max=-1)
    client = rig.connect()
    rig.advance_ms(10**9)
    rig.advance_ms(10**9)
    assert not client.is_closed()


def test_many_idle_connections_end_in_one_look(start: Start) -> None:
    """Kafka closes one per poll; nothing asks us to keep the others."""
    rig = start(idle_ms_max=IDLE_MS)
    clients = [rig.connect() for _ in range(10)]
    rig.advance_ms(IDLE_MS + 1001)
    assert all(client.is_closed() for client in clients)
