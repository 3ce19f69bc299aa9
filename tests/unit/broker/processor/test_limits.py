"""What one Processor lets clients cost: memory for requests, connections that must go, slow readers, bad bytes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.processor.connection import INFLIGHT_MAX
from kproc.wire.file_range import FileRange
from tests.support.processor_rig import LOOPBACK, REQUEST_BYTES_MAX, ProcessorRig, framed, reset
from tests.unit.broker.processor.test_several_handlers import ScriptedRouter

Start = Callable[..., ProcessorRig]
BAD_LENGTH = (REQUEST_BYTES_MAX + 1).to_bytes(4, "big")


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


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


# -- connections that must go ----------------------------------------------------------------------------------


def test_connection_that_was_idle_longest_is_evicted(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(4)]
    for client in (clients[0], clients[3], clients[1]):
        rig.advance_ms(2000)
        client.send(framed(b"x"))
    rig.evict(1)
    assert [client.is_closed() for client in clients] == [False, False, True, False]
    rig.evict(2)
    assert [client.is_closed() for client in clients] == [True, False, True, True]


def test_activity_since_anybody_last_looked_counts(rig: ProcessorRig) -> None:
    older = rig.connect()
    rig.advance_ms(5000)
    idle = rig.connect()
    rig.advance_ms(5000)
    older.send(framed(b"x"))
    rig.evict(1)
    assert (older.is_closed(), idle.is_closed()) == (False, True)


def test_only_connections_of_the_listener_named_are_evicted(rig: ProcessorRig) -> None:
    spared = rig.connect(listener=1)
    rig.advance_ms(5000)
    other = rig.connect(listener=0)
    rig.evict(5, listener=0)
    assert (spared.is_closed(), other.is_closed()) == (False, True)


def test_evicted_connections_are_counted_as_closed(rig: ProcessorRig) -> None:
    rig.connect()
    assert rig.counted == {(LOOPBACK, 0): 1}
    rig.evict(1)
    rig.acknowledged()
    assert rig.counted == {(LOOPBACK, 0): 0}


def test_connections_of_a_closed_listener_end(rig: ProcessorRig) -> None:
    one, two = rig.connect(listener=0), rig.connect(listener=1)
    rig.processor.close_listener(1)
    assert (one.is_closed(), two.is_closed()) == (False, True)
    rig.processor.open_listener(1)
    assert not rig.connect(listener=1).is_closed(), "another listener has its place"


def test_reused_listener_slot_keeps_no_old_state(rig: ProcessorRig) -> None:
    """What moved while the listener was closed may have come since."""
    late = rig.connect(listener=1)
    rig.processor.open_listener(1)
    assert late.is_closed()


def test_the_brokers_own_connection_is_known_to_no_count(rig: ProcessorRig) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        rig.processor.adopt_probe(theirs)
        rig.processor.do_work(0)
        assert len(rig.processor.describe_connections()) == 1
        assert rig.counted == {}
    rig.processor.do_work(0)
    assert rig.processor.describe_connections() == []
    assert rig.counted == {}


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


# -- what people see ---------------------------------------------------------------------------------------------


def test_connection_ids_have_kafkas_form(rig: ProcessorRig) -> None:
    for _ in range(3):
        rig.adopt(*tcp_pair())
    names = [each["id"] for each in rig.processor.describe_connections()]
    for number, name in enumerate(names):
        local, remote, processor, index = name.split("-")
        assert local.startswith("127.0.0.1:")
        assert remote == "127.0.0.1:40000"
        assert (processor, index) == ("0", str(number))


def test_client_id_and_software_are_read_from_first_frames(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(b"\x00\x12\x00\x00\x00\x00\x00\x01\x00\x06app-42"))
    (seen,) = rig.processor.describe_connections()
    assert (seen["client_id"], seen["software_name"]) == ("app-42", "unknown")
    assert (seen["requests"], seen["inflight"]) == (1, 1)


def test_kernel_counts_the_bytes(rig: ProcessorRig) -> None:
    client = rig.adopt(*tcp_pair())
    client.send(framed(b"12345678"))
    (request,) = rig.handler.take()
    rig.handler.answer(request, framed(b"1234"))
    rig.step()
    assert client.received() == framed(b"1234")
    (seen,) = rig.processor.describe_connections()
    assert (seen["bytes_in"], seen["bytes_out"]) == (12, 8)


def test_killed_connection_is_closed_and_no_other(rig: ProcessorRig) -> None:
    one, two = rig.connect(), rig.connect()
    (first, second) = (each["id"] for each in rig.processor.describe_connections())
    assert rig.processor.kill_connection(second)
    assert (one.is_closed(), two.is_closed()) == (False, True)
    assert not rig.processor.kill_connection(second)
    assert rig.processor.kill_connection(first)
