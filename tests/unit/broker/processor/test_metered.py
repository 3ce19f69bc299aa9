"""A Processor's time at the sockets of clients that have a request_percentage, by a clock that moves only there."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.processor.connection import Connection
from kproc.broker.processor.transport_layer import PlaintextTransport
from tests.support.processor_rig import Client, ProcessorRig, framed

READ_MS, SEND_MS = 3, 2
MS = 1_000_000


class SlowTransport:
    """Takes its time for each call."""

    def __init__(self, rig: ProcessorRig, inner: Any) -> None:
        self._rig = rig
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def recv_into(self, into: memoryview) -> int:
        self._rig.clock.advance_ms(READ_MS)
        return int(self._inner.recv_into(into))

    def send(self, *args: Any) -> int:
        self._rig.clock.advance_ms(SEND_MS)
        return int(self._inner.send(*args))


def connect(rig: ProcessorRig) -> tuple[Client, Connection]:
    client = rig.connect()
    connection = list(rig.processor.table.by_id.values())[-1]
    connection.transport = SlowTransport(rig, connection.transport)  # type: ignore[assignment]
    connection.recv_into, connection.send = connection.transport.recv_into, connection.transport.send
    return client, connection


def exchange(rig: ProcessorRig, client: Client) -> None:
    """One request and its answer."""
    client.send(framed(b"request"))
    (request,) = rig.handler.take()
    rig.handler.answer(request, framed(b"answer"))
    rig.step()
    assert client.received() == framed(b"answer")


def tick(rig: ProcessorRig) -> list[tuple[int, int, bytes]]:
    """What the home is told at the next tick."""
    rig.advance_ms(100)
    rig.step()
    assert rig.handler.take() == []
    told, rig.handler.socket_times = rig.handler.socket_times, []
    return told


def test_home_receives_time_only_of_metered_connections(rig: ProcessorRig) -> None:
    client, connection = connect(rig)
    other, _ = connect(rig)
    exchange(rig, client)
    assert tick(rig) == [], "nobody has asked yet"
    rig.handler.metered(connection.id, b"app")
    rig.step()
    exchange(rig, client)
    exchange(rig, other)
    exchange(rig, client)
    assert tick(rig) == [(connection.id, 2 * (READ_MS + SEND_MS) * MS, b"app")]
    assert tick(rig) == [], "it was told"


def test_metering_ends_and_leaves_the_connection_as_it_was(rig: ProcessorRig) -> None:
    client, connection = connect(rig)
    before = connection.transport
    rig.handler.metered(connection.id, b"app")
    rig.step()
    assert connection.transport is not before
    rig.handler.metered(connection.id, b"app", is_on=False)
    rig.step()
    assert connection.transport is before
    exchange(rig, client)
    assert tick(rig) == []


def test_client_that_calls_itself_otherwise_is_measured_once(rig: ProcessorRig) -> None:
    client, connection = connect(rig)
    for name in (b"app", b"other"):
        rig.handler.metered(connection.id, name)
    rig.step()
    exchange(rig, client)
    assert tick(rig) == [(connection.id, (READ_MS + SEND_MS) * MS, b"other")]


def test_connection_that_is_closed_is_forgotten(rig: ProcessorRig) -> None:
    client, connection = connect(rig)
    rig.handler.metered(connection.id, b"app")
    rig.step()
    exchange(rig, client)
    client.sock.close()
    rig.step(2)
    assert tick(rig) == []
    assert not rig.processor.writer.metered._metered


def test_socket_time_is_sent_when_the_ring_has_room(
    rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, connection = connect(rig)
    rig.handler.metered(connection.id, b"app")
    rig.step()
    exchange(rig, client)
    link = connection.home.link
    assert link is not None
    with monkeypatch.context() as full:
        full.setattr(type(link.sender), "try_push", lambda *_: False)
        assert tick(rig) == []
    assert tick(rig) == [(connection.id, (READ_MS + SEND_MS) * MS, b"app")]


def test_time_for_sending_files_counts_too(rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    _, connection = connect(rig)
    rig.handler.metered(connection.id, b"app")
    rig.step()

    def send_file(*_: object) -> int:
        rig.clock.advance_ms(7)
        return 5

    monkeypatch.setattr(PlaintextTransport, "send_file", send_file)
    assert connection.transport.send_file(1, 2, 5) == 5
    assert tick(rig) == [(connection.id, 7 * MS, b"app")]
