"""Limits on what one client costs: slow readers, malformed bytes, and clients that leave."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.broker.processor.connection import INFLIGHT_MAX
from kproc.wire.file_range import FileRange
from tests.support.processor_rig import REQUEST_BYTES_MAX, ProcessorRig, framed, reset
from tests.support.scripted_router import ScriptedRouter

Start = Callable[..., ProcessorRig]
BAD_LENGTH = (REQUEST_BYTES_MAX + 1).to_bytes(4, "big")


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


# -- slow readers ----------------------------------------------------------------------------------------------


def test_stalled_client_costs_no_copies_of_file_ranges(rig: ProcessorRig, tmp_path: Path) -> None:
    path = tmp_path / "segment.log"
    path.write_bytes(b"r" * 8000)
    client = rig.connect()
    client.send(framed(b"x") * INFLIGHT_MAX)
    first, *others = rig.handler.take()
    rig.handler.answer(first, b"f" * 2_000_000)
    while rig.handler.outbox.has_overflow:
        rig.step()
        rig.handler.outbox.flush()
    rig.settle()
    small = FileRange(bytes(path), path.stat().st_ino, 0, 8000)
    for request in others:
        rig.handler.answer_parts(request, [b"head", small])
    rig.settle()
    (connection,) = rig.processor.table.by_fd.values()
    waiting = sum(len(item) for item in (connection.out or ()) if isinstance(item, bytes))
    assert waiting <= 2_000_000 + 4 * len(others)
    expected = b"f" * 2_000_000 + (b"head" + b"r" * 8000) * len(others)
    assert client.receive_through(len(expected)) == expected


@pytest.mark.parametrize("handlers", [1, 2])
def test_one_read_does_not_exceed_inflight_limit(start: Start, handlers: int) -> None:
    """A read holds a thousand small ones, and each may have a large answer."""
    rig = start(handlers=handlers, router=ScriptedRouter(first=0, second=1) if handlers > 1 else None)
    client = rig.connect()
    bodies = [b"%d" % number for number in range(3 * INFLIGHT_MAX + 5)]
    client.send(b"".join(map(framed, bodies)) + framed(b"last")[:5])
    seen: list[bytes] = []
    while len(seen) < len(bodies):
        requests = rig.handler.take()
        assert 0 < len(requests) <= INFLIGHT_MAX
        seen += [request.body for request in requests]
        assert rig.handler.take() == []
        for request in requests:
            rig.handler.answer(request, framed(request.body))
        rig.step(3)
    assert seen == bodies
    assert client.received() == b"".join(map(framed, bodies))
    client.send(framed(b"last")[5:])
    assert rig.handler.bodies() == [b"last"]


@pytest.mark.parametrize("handlers", [1, 2])
def test_client_that_does_not_read_gets_nothing_more_into_work(start: Start, handlers: int) -> None:
    """Neither what it sends nor what one read brought of it; and it does not keep the Processor awake."""
    rig = start(handlers=handlers, router=ScriptedRouter(first=0, second=1) if handlers > 1 else None)
    client = rig.connect()
    client.send(framed(b"x") * (2 * INFLIGHT_MAX))
    requests = rig.handler.take()
    rig.handler.answer(requests[0], b"f" * 1_000_000)
    while rig.handler.outbox.has_overflow:
        rig.step()
        rig.handler.outbox.flush()
    for request in requests[1:]:
        rig.handler.answer(request, b"a" * 100)
    rig.step(5)
    assert rig.handler.take() == []
    assert rig.processor.next_deadline_ms() == 500, "not pressed"
    assert len(client.receive_through(1_006_300)) == 1_006_300
    rig.step(3)
    assert len(rig.handler.take()) == INFLIGHT_MAX


# -- bytes that make no sense ------------------------------------------------------------------------------------


def test_frames_before_malformed_length_are_answered(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(b"good") + framed(b"fine") + BAD_LENGTH + b"rubbish")
    good, fine = rig.handler.take()
    assert (good.body, fine.body) == (b"good", b"fine")
    rig.handler.answer(good, framed(b"1"))
    rig.step()
    assert not client.has_end()
    rig.handler.answer(fine, framed(b"2"))
    rig.step()
    assert client.received() == framed(b"1") + framed(b"2")
    assert client.is_closed()


def test_nothing_is_read_behind_a_malformed_length(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(b"good") + BAD_LENGTH)
    client.sock.send(framed(b"late"))
    rig.step(3)
    assert rig.handler.bodies() == [b"good"]


def test_good_frames_without_an_answer_end_with_the_connection(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(b"acks=0") + BAD_LENGTH)
    (request,) = rig.handler.take()
    rig.handler.no_op(request)
    rig.step()
    assert client.is_closed()


def test_frames_waiting_for_other_handler_precede_close(start: Start) -> None:
    rig = start(handlers=2, router=ScriptedRouter(first=0, second=1))
    client = rig.connect()
    client.send(framed(b"first.") + framed(b"second") + BAD_LENGTH)
    (first,) = rig.handlers[0].take()
    assert not client.has_end()
    rig.handlers[0].answer(first, framed(b"1"))
    rig.step(2)
    (second,) = rig.handlers[1].take()
    rig.handlers[1].answer(second, framed(b"2"))
    rig.step(2)
    assert client.received() == framed(b"1") + framed(b"2")
    assert client.is_closed()


# -- clients that leave ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_unread_clients_requests_are_delivered_after_leaving(
    start: Start, is_reset: bool
) -> None:
    """Ten requests without answers, sent before the client closed, while the ring had no room."""
    rig = start()
    filler = rig.connect()
    filler.send_through_until_stalled()
    ours, theirs = tcp_pair()
    client = rig.adopt(ours, theirs)
    client.sock.sendall(b"".join(framed(b"%d" % number) for number in range(10)))
    rig.step(3)
    assert rig.metric("reads_stalled") >= 2
    if is_reset:
        reset(client.sock)
    else:
        client.sock.close()
    rig.step(3)
    seen: list[bytes] = []
    for _ in range(200):
        for request in rig.handler.take(4):
            if len(request.body) == 1:
                seen.append(request.body)
            rig.handler.no_op(request)
        rig.step()
    assert seen == [b"%d" % number for number in range(10)]
    assert len(rig.processor.describe_connections()) == 1  # The filler's.


def test_hung_up_unread_client_does_not_spin_processor(
    rig: ProcessorRig,
) -> None:
    client = rig.connect()
    client.send(framed(b"x") * INFLIGHT_MAX)
    client.sock.close()
    rig.step(3)
    assert rig.step() == 0
    for request in rig.handler.take():
        rig.handler.no_op(request)
    rig.step(3)
    assert rig.processor.describe_connections() == []
