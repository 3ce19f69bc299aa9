"""Requests in: whatever the socket's bytes look like, whole frames reach the Handler once and in order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from kproc.broker.processor.connection import INFLIGHT_MAX
from kproc.broker.processor.describe import connection_name
from kproc.broker.processor.request_reader import READ_BYTES
from kproc.broker.processor.slow_frames import LARGE_FRAME_BYTES
from kproc.broker.transport.envelope import FLAG_LOOPBACK, FLAG_TIMED
from tests.support.processor_rig import REQUEST_BYTES_MAX, ProcessorRig, framed
from tests.support.scripted_router import ScriptedRouter

Start = Callable[..., ProcessorRig]


def test_frame_cut_anywhere_arrives_whole(rig: ProcessorRig) -> None:
    client = rig.connect()
    frame = framed(bytes(range(30)))
    for cut in range(1, len(frame)):
        client.send(frame[:cut])
        assert rig.handler.bodies() == [], f"cut after {cut} bytes"
        client.send(frame[cut:])
        (request,) = rig.handler.take()
        assert request.body == bytes(range(30)), f"cut after {cut} bytes"
        assert request.sequence == cut - 1
        rig.handler.no_op(request)
        rig.step()


def test_frames_that_come_byte_by_byte_arrive_whole(rig: ProcessorRig) -> None:
    client = rig.connect()
    bodies = [b"a", b"bc", b"", b"def" * 10]
    for byte in b"".join(map(framed, bodies)):
        client.send(bytes([byte]))
    assert rig.handler.bodies() == bodies


def test_frames_of_one_read_share_record_with_own_sequences(rig: ProcessorRig) -> None:
    client = rig.connect(listener=3, flags=FLAG_LOOPBACK)
    client.send(framed(b"one") + framed(b"two") + framed(b"three"))
    requests = rig.handler.take()
    assert [(request.sequence, request.body) for request in requests] == [
        (0, b"one"),
        (1, b"two"),
        (2, b"three"),
    ]
    assert {request.record for request in requests} == {1}
    assert {(request.listener, request.flags) for request in requests} == {(3, FLAG_LOOPBACK | FLAG_TIMED)}
    assert rig.metric("requests") == 3


def test_end_of_one_read_is_joined_with_the_next(rig: ProcessorRig) -> None:
    client = rig.connect()
    stream = framed(b"one") + framed(b"two") + framed(b"three")
    client.send(stream[:12])
    client.send(stream[12:])
    requests = rig.handler.take()
    assert [request.body for request in requests] == [b"one", b"two", b"three"]
    assert [request.sequence for request in requests] == [0, 1, 2]


def test_connections_do_not_mix(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(5)]
    for client, name in zip(clients, "abcde", strict=True):
        client.sock.send(framed(name.encode() * 10)[:7])
    rig.step()
    for client, name in zip(clients, "abcde", strict=True):
        client.sock.send(framed(name.encode() * 10)[7:])
    rig.step()
    requests = rig.handler.take()
    assert sorted(request.body for request in requests) == [name.encode() * 10 for name in "abcde"]
    assert len({request.connection_id for request in requests}) == 5


@pytest.mark.parametrize("size", [LARGE_FRAME_BYTES + 1, 100_000, REQUEST_BYTES_MAX])
def test_large_frame_uses_block_released_with_its_response(rig: ProcessorRig, size: int) -> None:
    client = rig.connect()
    body = random.Random(size).randbytes(size)
    client.send(framed(body)[:10])
    client.send_through(framed(body)[10:])
    (request,) = rig.handler.take()
    assert request.is_block
    assert request.body == body
    assert rig.arena.lent_count() == 1
    rig.handler.answer(request, framed(b"thanks"))
    rig.step()
    assert rig.arena.lent_count() == 0
    assert client.received() == framed(b"thanks")


@pytest.mark.parametrize(
    "first", [1, 3, 4, 5, 100, LARGE_FRAME_BYTES, READ_BYTES - 1, READ_BYTES, 40_000, 60_003]
)
def test_a_large_frame_may_begin_with_any_number_of_bytes(rig: ProcessorRig, first: int) -> None:
    client = rig.connect()
    data = framed(random.Random(first).randbytes(60_000))
    for _ in range(2):
        client.send(data[:first])
        rig.step(3)
        assert rig.handler.bodies() == []
        client.send_through(data[first:] + framed(b"behind"))
        large, small = rig.handler.take()
        assert (large.body, small.body, large.is_block) == (data[4:], b"behind", True)
        rig.handler.answer(small, b"2")
        rig.handler.answer(large, b"1")
        assert client.receive_through(2) == b"12"
    assert rig.arena.lent_count() == 0
    assert rig.metric("requests") == 4


def test_small_frames_after_a_large_one_keep_their_order(rig: ProcessorRig) -> None:
    client = rig.connect()
    bodies = [b"before", bytes(200_000), b"after", bytes(50_000), b"last"]
    client.send_through(b"".join(map(framed, bodies)))
    requests = rig.handler.take()
    assert [request.body for request in requests] == bodies
    assert [request.sequence for request in requests] == [0, 1, 2, 3, 4]


def test_frame_that_one_read_brings_whole_needs_no_block(rig: ProcessorRig) -> None:
    client = rig.connect()
    body = bytes(READ_BYTES - 4)
    client.send(framed(body))
    (request,) = rig.handler.take()
    assert not request.is_block
    assert request.body == body


def test_length_that_is_one_byte_too_large_closes_the_connection(rig: ProcessorRig) -> None:
    client, other = rig.connect(), rig.connect()
    client.send((REQUEST_BYTES_MAX + 1).to_bytes(4, "big"))
    assert client.is_closed()
    assert not other.is_closed()
    assert rig.metric("malformed") == 1
    assert rig.arena.lent_count() == 0


@pytest.mark.parametrize("handlers", [1, 2])
def test_large_frame_read_at_once_is_also_limited(start: Start, handlers: int) -> None:
    router = ScriptedRouter() if handlers > 1 else None
    rig = start(request_bytes_max=1000, handlers=handlers, router=router)
    client = rig.connect()
    for number in range(2):  # The first read of a connection goes a longer way.
        client.send(framed(bytes(1000)))
        ((handler, request),) = [(each, request) for each in rig.handlers for request in each.take()]
        handler.answer(request, framed(b"%d" % number))
        rig.step()
        assert client.received() == framed(b"%d" % number)
    client.send(framed(bytes(1001)))
    assert [each.take() for each in rig.handlers] == [[]] * handlers
    assert client.is_closed()
    assert rig.metric("malformed") == 1


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\xff\xff\xff\xff", "invalid frame length -1"),
        (b"\x80\x00\x00\x00", "invalid frame length -2147483648"),
        (b"\x7f\xff\xff\xff", "invalid frame length 2147483647"),
        (b"GET / HTTP/1.1\r\n", "an HTTP request came to a Kafka listener"),
        (b"POST /topics HTTP/1.1\r\n", "an HTTP request came to a Kafka listener"),
        (b"\x16\x03\x01\x02\x00\x01", "a TLS handshake came to a listener without TLS: is the client set to"),
    ],
    ids=["-1", "least", "most", "GET", "POST", "TLS"],
)
def test_malformed_request_closes_and_logs_the_connection(
    rig: ProcessorRig, caplog: pytest.LogCaptureFixture, sent: bytes, reason: str
) -> None:
    client = rig.connect()
    (connection,) = rig.processor.table.by_id.values()
    name = connection_name(connection)
    client.send(sent)
    assert client.is_closed()
    assert rig.metric("malformed") == 1
    (line,) = caplog.messages
    assert line.startswith(f"closing connection {name}: {reason}")
    assert rig.handler.bodies() == []
    assert len(rig.handler.gone) == 1
    assert rig.connect() is not None, "the Processor goes on"


def test_a_flood_of_what_is_not_kafka_does_not_fill_the_log(
    rig: ProcessorRig, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(30):
        rig.connect().send(b"GET / HTTP/1.1\r\n")
    assert rig.metric("malformed") == 30
    assert caplog.text.count("an HTTP request came") == 10
    rig.advance_ms(1000)
    assert caplog.messages[-1] == "and 20 more connections were closed for what their clients did"
    rig.connect().send(b"GET / HTTP/1.1\r\n")
    assert caplog.messages[-2] == "and 20 more connections were closed for what their clients did"
    assert caplog.text.count("an HTTP request came") == 11


def test_malformed_length_that_comes_byte_by_byte_is_refused_too(rig: ProcessorRig) -> None:
    client = rig.connect()
    for byte in b"\x7f\xff\xff":
        client.send(bytes([byte]))
        assert not client.is_closed()
    client.send(b"\xff")
    assert client.is_closed()


def test_requests_sent_before_close_are_delivered(rig: ProcessorRig) -> None:
    """Kafka's testGracefulClose: ten Produce requests with acks=0, then the end."""
    client = rig.connect()
    bodies = [b"request %d" % number for number in range(10)]
    client.sock.send(b"".join(map(framed, bodies)))
    client.sock.close()
    rig.step(3)
    assert rig.handler.bodies() == bodies
    assert len(rig.handler.gone) == 1
    assert rig.handler.events == ["request", "gone"], "the Handler learns of the end last"
    assert rig.metric("connections_closed") == 1


def test_requests_read_singly_before_close_are_delivered(rig: ProcessorRig) -> None:
    client = rig.connect()
    for number in range(10):
        client.send(framed(b"%d" % number))
    client.close()
    assert rig.handler.bodies() == [b"%d" % number for number in range(10)]


def test_end_in_the_middle_of_a_small_frame_passes_nothing_on(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(b"whole") + framed(b"half a frame")[:9])
    client.close()
    assert rig.handler.bodies() == [b"whole"]
    assert len(rig.handler.gone) == 1


def test_end_in_the_middle_of_a_large_frame_gives_its_block_back(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(bytes(100_000))[:40_000])
    rig.step()
    assert rig.arena.lent_count() == 1
    client.close()
    assert rig.arena.lent_count() == 0
    assert rig.handler.bodies() == []


def test_connection_at_inflight_limit_is_not_read(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(b"x") * INFLIGHT_MAX)
    requests = rig.handler.take()
    assert len(requests) == INFLIGHT_MAX
    client.send(framed(b"later"))
    rig.step(3)
    assert rig.handler.bodies() == []
    rig.handler.no_op(requests[0])
    rig.step(2)
    assert rig.handler.bodies() == [b"later"]


def test_frames_that_come_one_by_one_stop_at_the_limit_too(rig: ProcessorRig) -> None:
    client = rig.connect()
    for number in range(INFLIGHT_MAX + 3):
        client.send(framed(b"%d" % number))  # A read each.
    requests = rig.handler.take()
    assert [request.sequence for request in requests] == list(range(INFLIGHT_MAX))
    assert [request.body for request in requests] == [b"%d" % number for number in range(INFLIGHT_MAX)]
    assert len({request.record for request in requests}) == INFLIGHT_MAX
    for request in requests:
        rig.handler.answer(request, framed(b"a"))
    rig.settle()
    assert client.received() == framed(b"a") * INFLIGHT_MAX
    assert [request.sequence for request in rig.handler.take()] == [64, 65, 66]


def test_full_ring_stalls_the_client_and_loses_nothing(start: Start) -> None:
    rig = start(ring_bytes=256 << 10)  # The least that may be configured.
    client = rig.connect()
    sent = 0
    bodies = [b"%06d" % number + bytes(5000) for number in range(400)]
    stream = b"".join(map(framed, bodies))
    received: list[bytes] = []
    for _ in range(10_000):
        try:
            sent += client.sock.send(stream[sent : sent + 40_000])
        except BlockingIOError:
            # The ring is full, and so is the socket: the Handler takes a little and answers it.
            for request in rig.handler.take(limit=3):
                received.append(request.body)
                rig.handler.no_op(request)
        rig.step()
        if sent == len(stream):
            break
    for _ in range(1000):
        for request in rig.handler.take(limit=3):
            received.append(request.body)
            rig.handler.no_op(request)
        rig.step()
    assert received == bodies
    assert rig.metric("reads_stalled") > 0


def test_processor_whose_ring_is_full_sleeps_instead_of_spinning(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(9)]
    for client in clients:
        client.sock.send(framed(bytes(5000)) * 10)
    rig.step(20)
    assert rig.metric("reads_stalled") > 0
    assert [rig.processor.do_work(1) for _ in range(5)] == [0, 0, 0, 0, 0], "nothing has changed"


def test_full_arena_stalls_large_frame_until_block_is_free(start: Start) -> None:
    rig = start(arena_bytes=128 << 10)
    first, second, third = rig.connect(), rig.connect(), rig.connect()
    bodies = [bytes([letter]) * 100_000 for letter in b"abc"]
    first.send_through(framed(bodies[0]))
    (request,) = rig.handler.take()
    second.send(framed(bodies[1])[:30_000])
    third.send(framed(b"small"))
    rig.step(5)
    assert rig.handler.bodies() == [b"small"], "only the connection that needs a block waits"
    assert rig.metric("reads_stalled") > 0
    assert rig.arena.lent_count() == 1
    rig.handler.no_op(request)
    second.send_through(framed(bodies[1])[30_000:])
    (request,) = rig.handler.take()
    assert request.body == bodies[1]
    rig.handler.no_op(request)
    first.send_through(framed(bodies[2]))
    assert rig.handler.bodies() == [bodies[2]]


def test_sequences_begin_anew_after_four_billion_requests(rig: ProcessorRig) -> None:
    client = rig.connect()
    (connection,) = rig.processor.table.by_fd.values()
    connection.next_sequence = connection.next_send = 2**32 - 2
    client.send(framed(b"x") * 4)
    client.send_through(framed(bytes(50_000)))
    requests = rig.handler.take()
    assert [request.sequence for request in requests] in (
        [
            2**32 - 2,
            2**32 - 1,
            2**32,
            2**32 + 1,
            2,
        ],  # Frames of one record are numbered by whoever takes them.
        [2**32 - 2, 2**32 - 1, 0, 1, 2],
    )
    for number, request in reversed(list(enumerate(requests))):
        wrapped = replace(request, sequence=request.sequence % 2**32)
        rig.handler.answer(wrapped, framed(b"%d" % number))
    rig.step()
    assert client.received() == b"".join(framed(b"%d" % number) for number in range(5))


def test_full_ring_keeps_a_received_block_until_there_is_room(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(bytes(50_000))[:-1])
    rig.step(3)
    sender = rig.processor.handlers.by_id[rig.handler.id].link.sender
    while sender.try_push(1, bytes(20_000)):
        pass
    while sender.try_push(1, bytes(8)):
        pass
    sender.publish()
    client.send(b"\0")
    rig.step(3)
    assert rig.metric("reads_stalled") > 0
    rig.handler.inbox.poll(10_000)
    rig.handler.inbox.release()
    rig.step(2)
    (request,) = rig.handler.take()
    assert request.is_block
    assert request.body == bytes(50_000)


def test_stopping_processor_is_not_drained_with_stalled_frame(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(bytes(50_000))[:-1])
    rig.step(3)
    sender = rig.processor.handlers.by_id[rig.handler.id].link.sender
    while sender.try_push(1, bytes(20_000)):
        pass
    sender.publish()
    while sender.try_push(1, bytes(8)):
        pass
    client.send(b"\0")
    rig.step(3)
    rig.processor.drain()
    assert not rig.processor.is_drained()
    rig.handler.inbox.poll(10_000)
    rig.handler.inbox.release()
    sender.publish()
    rig.step(2)
    rig.handler.inbox.poll(10_000)
    assert rig.metric("requests") == 1


def test_processor_wakes_its_handler_once_per_pass_with_requests(rig: ProcessorRig) -> None:
    clients = [rig.connect() for _ in range(4)]
    waker = rig.processor.handlers.by_id[rig.handler.id].link.waker
    before = waker.count
    for client in clients:
        client.sock.send(framed(b"x"))
    rig.step()
    assert waker.count == before + 1
    assert len(rig.handler.bodies()) == 4
    rig.step()
    assert waker.count == before + 1


def test_bytes_in_are_counted(rig: ProcessorRig) -> None:
    client = rig.connect()
    client.send(framed(bytes(100)))
    client.send_through(framed(bytes(50_000)))
    assert rig.metric("bytes_in") == 104 + 50_004
