"""Runs of records: frames of many clients, side by side in one reservation of the ring, beside everything else."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable

import pytest

from kproc.broker.processor.connection import INFLIGHT_MAX, Connection
from kproc.broker.processor.request_reader import READ_BYTES
from kproc.broker.transport.agent import STORE_MS
from tests.support.processor_rig import Client, ProcessorRig, Request, framed

Start = Callable[..., ProcessorRig]


def start_quietly(start: Start, **parts: int) -> ProcessorRig:
    """With no request to be timed any more: the first one has been."""
    rig = start(**parts)
    rig.connect().send(framed(b"first"))
    rig.handler.no_op(rig.handler.take()[0])
    rig.step()
    return rig


def introduced(rig: ProcessorRig, count: int) -> list[Client]:
    """Clients that the Handler knows: their next frames need nothing else."""
    clients = [rig.connect() for _ in range(count)]
    for client in clients:
        client.send(framed(b"hello"))
    for request in rig.handler.take():
        rig.handler.no_op(request)
    rig.step()
    return clients


def connection_of(rig: ProcessorRig, client: Client) -> Connection:
    return list(rig.processor.table.by_fd.values())[1 + rig.clients[1:].index(client)]


def bodies(requests: list[Request]) -> dict[int, list[bytes]]:
    """By connection."""
    by_connection: dict[int, list[bytes]] = {}
    for request in requests:
        by_connection.setdefault(request.connection_id, []).append(request.body)
    return by_connection


def test_bytes_between_whole_frames_arrive_in_order(start: Start) -> None:
    """Whole frames, parts of frames, several at once, frames for the arena and ends, many laps of the ring long."""
    rig = start_quietly(start)
    chance = random.Random(7)
    clients = introduced(rig, 12)
    ids = [connection_of(rig, each).id for each in clients]
    sent: dict[int, list[bytes]] = {each: [] for each in ids}
    unsent = dict.fromkeys(ids, b"")
    got: dict[int, list[bytes]] = {each: [] for each in ids}
    number = 0
    for _ in range(200):
        for connection_id, client in zip(ids, clients, strict=True):
            if not unsent[connection_id]:
                for _ in range(chance.choice([0, 1, 1, 1, 1, 1, 2, 5])):
                    number += 1
                    size = chance.choice([0, 1, 100, 100, 1000, 3000, READ_BYTES - 4, READ_BYTES - 3, 60_000])
                    body = (number.to_bytes(4, "big") * (size // 4 + 1))[:size]
                    sent[connection_id].append(body)
                    unsent[connection_id] += framed(body)
            data = unsent[connection_id]
            end = len(data) if chance.random() < 0.8 else chance.randint(0, len(data))
            if data[:end]:
                try:
                    end = client.sock.send(data[:end])
                except BlockingIOError:
                    end = 0
                unsent[connection_id] = data[end:]
        rig.step(chance.choice([1, 1, 2]))
        requests = rig.handler.take()
        for connection_id, more in bodies(requests).items():
            got[connection_id] += more
        for request in requests:
            rig.handler.no_op(request)
    for _ in range(100):
        for connection_id, client in zip(ids, clients, strict=True):
            if unsent[connection_id]:
                unsent[connection_id] = unsent[connection_id][client.sock.send(unsent[connection_id]) :]
        rig.step(2)
        requests = rig.handler.take()
        for connection_id, more in bodies(requests).items():
            got[connection_id] += more
        for request in requests:
            rig.handler.no_op(request)
    assert got == sent
    assert sum(map(len, sent.values())) > 1500
    assert {each.inflight for each in rig.processor.table.by_fd.values()} == {0}


@pytest.mark.parametrize("error", [ConnectionResetError, RuntimeError])
def test_failed_read_among_others_closes_only_its_connection(
    start: Start, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    rig = start_quietly(start)
    clients = introduced(rig, 5)
    victim = connection_of(rig, clients[2])

    def fail(into: memoryview) -> int:
        raise error("of the socket, or of ours")

    victim.recv_into = fail
    for number, client in enumerate(clients):
        client.sock.send(framed(b"request %d" % number))
    rig.step()
    assert rig.handler.bodies() == [b"request %d" % number for number in (0, 1, 3, 4)]
    assert rig.handler.gone == [victim.id]
    assert clients[2].is_closed()
    rig.advance_ms(STORE_MS)
    assert rig.metric("contained_failures") == (error is RuntimeError)
    assert ("ERROR" in [each.levelname for each in caplog.records]) == (error is RuntimeError)


def test_client_leaving_among_others_is_reported_in_order(start: Start) -> None:
    rig = start_quietly(start)
    clients = introduced(rig, 4)
    ids = [connection_of(rig, each).id for each in clients]
    for number, client in enumerate(clients):
        if number == 1:
            client.sock.shutdown(socket.SHUT_WR)
        else:
            client.sock.send(framed(b"request %d" % number))
    rig.handler.events.clear()
    rig.step()
    requests = rig.handler.take()
    assert [(each.connection_id, each.body) for each in requests] == [
        (ids[number], b"request %d" % number) for number in (0, 2, 3)
    ]
    assert rig.handler.gone == [ids[1]]
    assert rig.handler.events == ["request", "gone", "request", "request"]
    assert rig.metric("bytes_in") == len(framed(b"first")) + 4 * len(framed(b"hello")) + 3 * len(
        framed(b"request 0")
    )


def test_spurious_readiness_costs_others_nothing(start: Start) -> None:
    rig = start_quietly(start)
    clients = introduced(rig, 3)
    real = connection_of(rig, clients[1]).recv_into

    def nothing(into: memoryview) -> int:
        raise BlockingIOError

    connection_of(rig, clients[1]).recv_into = nothing
    for number, client in enumerate(clients):
        client.sock.send(framed(b"request %d" % number))
    rig.step()
    assert rig.handler.bodies() == [b"request 0", b"request 2"]
    connection_of(rig, clients[1]).recv_into = real
    rig.step()
    assert rig.handler.bodies() == [b"request 1"]


def test_whole_frame_at_inflight_limit_mutes_connection(start: Start) -> None:
    rig = start_quietly(start)
    (client,) = introduced(rig, 1)
    for _ in range(INFLIGHT_MAX):
        client.send(framed(b"x"))
    assert rig.processor.describe_connections()[1]["inflight"] == INFLIGHT_MAX
    client.send(framed(b"one too many"))
    requests = rig.handler.take()
    assert len(requests) == INFLIGHT_MAX
    for request in requests:
        rig.handler.no_op(request)
    rig.step(2)
    assert rig.handler.bodies() == [b"one too many"]


def test_stale_ring_bytes_are_not_read_as_length(start: Start) -> None:
    """Where a client's end is read there stands what another client sent before."""
    rig = start_quietly(start)
    clients = introduced(rig, 2)
    for _ in range(200):  # A lap of the ring in which every word could be such a length.
        clients[0].send(framed(b"\xff\xff\xff\xfc" * 400))
        for request in rig.handler.take():
            rig.handler.no_op(request)
    clients[1].sock.shutdown(socket.SHUT_WR)
    rig.step()
    assert rig.handler.bodies() == []
    assert len(rig.handler.gone) == 1


def test_first_frame_of_a_client_waits_for_its_introduction(start: Start) -> None:
    rig = start_quietly(start)
    known, new = *introduced(rig, 1), rig.connect()
    for client in (known, new, known):
        client.sock.send(framed(b"request"))
    rig.step()
    assert len(rig.handler.addresses) == 2
    assert rig.handler.bodies() == [b"request"] * 3
    assert len(rig.handler.addresses) == 3


def test_full_ring_stalls_client_whose_turn_it_is(start: Start) -> None:
    rig = start_quietly(start)
    clients = introduced(rig, 8)
    for _ in range(60):
        for client in clients:
            client.sock.send(framed(bytes(1000)))
        rig.step()
    assert rig.metric("reads_stalled") > 0
    count = 0
    for _ in range(100):
        requests = rig.handler.take()
        count += len(requests)
        for request in requests:
            rig.handler.no_op(request)
        rig.step(2)
    assert count == 480
