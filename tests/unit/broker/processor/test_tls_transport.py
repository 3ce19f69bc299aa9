"""TlsTransport: frames and responses as over plaintext, however records and sockets cut them."""

from __future__ import annotations

import os
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from kproc.broker.processor.connection import INFLIGHT_MAX
from kproc.broker.transport.envelope import FLAG_TLS
from kproc.wire.file_range import FileRange
from tests.support.certificates import Certificates
from tests.support.processor_rig import ProcessorRig, framed
from tests.support.tls_handshakes import needs_openssl_symbols
from tests.support.tls_rig import TlsClient, client_context, listeners_of

Start = Callable[..., ProcessorRig]


@pytest.fixture
def start() -> Iterator[Start]:
    """Over rings only: to the transport links are all the same."""
    with ExitStack() as stack:
        yield lambda **parts: stack.enter_context(ProcessorRig("ring", **parts))


MIB = 1 << 20


@pytest.fixture
def rig(start: Start, certificates: Certificates) -> ProcessorRig:
    return start(tls_listeners=listeners_of(certificates))


@pytest.fixture
def context(certificates: Certificates) -> ssl.SSLContext:
    return client_context(certificates)


def file_of(path: Path, data: bytes) -> FileRange:
    path.write_bytes(data)
    return FileRange(os.fsencode(path), path.stat().st_ino, 0, len(data))


# -- what comes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_and_answers_go_through_either_version(
    rig: ProcessorRig, context: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    context.maximum_version = context.minimum_version = version
    client = TlsClient(rig, context).shake_hands()
    client.send(framed(b"one") + framed(b"two"))
    first, second = rig.handler.take()
    assert (first.body, second.body) == (b"one", b"two")
    assert first.flags & FLAG_TLS
    rig.handler.answer(first, framed(b"answer"))
    rig.handler.answer(second, framed(b"another"))
    assert client.receive_through(21) == framed(b"answer") + framed(b"another")
    assert rig.metric("tls_handshakes") == 1


def test_records_that_come_byte_by_byte_arrive_whole(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    client = TlsClient(rig, context).shake_hands()
    for byte in client.encrypt(framed(b"one") + framed(b"two")):
        client.raw.send(bytes([byte]))
    assert rig.handler.bodies() == [b"one", b"two"]


def test_a_handshake_that_comes_byte_by_byte_is_answered(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    client = TlsClient(rig, context)
    for byte in client.hello():
        client.raw.send(bytes([byte]))
    client.shake_hands().send(framed(b"one"))
    assert rig.handler.bodies() == [b"one"]


def test_decrypted_frames_without_room_are_delivered_later(
    rig: ProcessorRig, context: ssl.SSLContext
) -> None:
    client = TlsClient(rig, context).shake_hands()
    bodies = [bytes([at]) * 1000 for at in range(INFLIGHT_MAX - 1)]
    client.raw.send_through(b"".join(client.encrypt(framed(body)) for body in bodies))
    assert rig.handler.bodies() == bodies


def test_a_paused_connection_goes_on_with_what_was_inside(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    client = TlsClient(rig, context).shake_hands()
    bodies = [b"%03d" % at for at in range(3 * INFLIGHT_MAX)]
    client.raw.send_through(b"".join(client.encrypt(framed(body)) for body in bodies))
    seen: list[bytes] = []
    while len(seen) < len(bodies):
        requests = rig.handler.take()
        assert requests, f"{len(seen)} of {len(bodies)} frames came"
        seen += [each.body for each in requests]
        for each in requests:
            rig.handler.answer(each, framed(b"x"))
        rig.settle()
    assert seen == bodies


def test_a_large_frame_comes_through_the_arena(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    client = TlsClient(rig, context).shake_hands()
    body = random.Random(1).randbytes(700_000)
    client.send(framed(body))
    (request,) = rig.handler.take()
    assert request.is_block
    assert request.body == body


def test_bytes_behind_large_tls_frame_are_read_without_event(
    rig: ProcessorRig, context: ssl.SSLContext
) -> None:
    """The block has room for its own frame only; what was decrypted with its end stays inside."""
    client = TlsClient(rig, context).shake_hands()
    bodies = [bytes(700_000), b"behind", bytes(100_000), b"at the end"]
    client.send(b"".join(map(framed, bodies)))
    assert rig.handler.bodies() == bodies


@needs_openssl_symbols
def test_key_update_flood_without_reading_closes_connection(
    rig: ProcessorRig, context: ssl.SSLContext
) -> None:
    client = TlsClient(rig, context).shake_hands()
    client.raw.send_through(client.new_keys(100))
    client.send(framed(b"x"))
    assert rig.handler.bodies() == [b"x"], "who asks now and then is served"
    (connection,) = rig.processor.table.by_fd.values()
    connection.transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    with suppress(OSError):
        client.raw.send_through(client.new_keys(4000))
    assert client.raw.is_closed() or client.raw.has_end()


# -- what goes -------------------------------------------------------------------------------------------------


def test_a_large_answer_waits_for_a_client_that_reads_slowly(
    rig: ProcessorRig, context: ssl.SSLContext
) -> None:
    client = TlsClient(rig, context).shake_hands()
    answers = [
        framed(random.Random(seed).randbytes(size)) for seed, size in enumerate((5, 150_000, 1, 90_000))
    ]
    client.send(framed(b"x") * len(answers))
    for request, answer in zip(rig.handler.take(), answers, strict=True):
        rig.handler.answer(request, answer)
    rig.settle()
    assert client.receive_through(sum(map(len, answers))) == b"".join(answers)
    client.send(framed(b"next"))
    assert rig.handler.bodies() == [b"next"]


def test_file_ranges_between_bytes_arrive_over_tls(
    rig: ProcessorRig, context: ssl.SSLContext, tmp_path: Path
) -> None:
    data = random.Random(2).randbytes(3 * MIB)
    wanted = file_of(tmp_path / "segment", data)
    client = TlsClient(rig, context).shake_hands()
    client.send(framed(b"x") * 2)
    first, second = rig.handler.take()
    rig.handler.answer_parts(first, [b"head", wanted, b"end"])
    small = FileRange(wanted.path, wanted.inode, 100, 5000)
    rig.handler.answer_parts(second, [b"HEAD", small, FileRange(wanted.path, wanted.inode, 7, 70_000)])
    expected = b"head" + data + b"endHEAD" + data[100:5100] + data[7:70_007]
    assert client.receive_through(len(expected)) == expected


def test_a_range_that_is_alone_is_sent_at_once(
    rig: ProcessorRig, context: ssl.SSLContext, tmp_path: Path
) -> None:
    data = random.Random(3).randbytes(200_000)
    client = TlsClient(rig, context).shake_hands()
    for _ in range(3):
        client.send(framed(b"x"))
        (request,) = rig.handler.take()
        rig.handler.answer_parts(request, [b"head", file_of(tmp_path / "segment", data), b""])
        assert client.receive_through(4 + len(data)) == b"head" + data


def test_random_responses_arrive_in_order_over_small_sockets(
    rig: ProcessorRig, context: ssl.SSLContext, tmp_path: Path
) -> None:
    rng = random.Random(4)
    data = rng.randbytes(300_000)
    wanted = file_of(tmp_path / "segment", data)
    client = TlsClient(rig, context).shake_hands()
    client.raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    expected, got = b"", b""
    for _ in range(60):
        client.send(framed(b"x"))
        (request,) = rig.handler.take()
        if rng.random() < 0.5:
            answer = rng.randbytes(rng.choice((1, 16_384, 16_385, rng.randrange(1, 100_000))))
            rig.handler.answer(request, answer)
        else:
            start, size = rng.randrange(1000), rng.choice((1, 8193, 65_536, rng.randrange(1, 200_000)))
            rig.handler.answer_parts(request, [b"h", FileRange(wanted.path, wanted.inode, start, size)])
            answer = b"h" + data[start : start + size]
        expected += answer
        rig.step()
        while len(got) < len(expected):
            got += client.received()
            rig.step()
        assert got == expected


def test_pass_encrypts_bounded_bytes_and_small_responses_leave(
    rig: ProcessorRig, context: ssl.SSLContext, tmp_path: Path
) -> None:
    """Each socket takes some 200 KB: all together would take three times what a pass may encrypt."""
    count, size = 16, MIB // 2
    wanted = file_of(tmp_path / "segment", bytes(size))
    large = [TlsClient(rig, context).shake_hands() for _ in range(count)]
    small = TlsClient(rig, context).shake_hands()
    for client in large:
        client.send(framed(b"x"))
    requests = rig.handler.take()
    small.send(framed(b"x"))
    (last,) = rig.handler.take()
    before = rig.metric("bytes_out")
    for request in requests:
        rig.handler.answer_parts(request, [b"head", wanted])
    rig.handler.answer(last, framed(b"small"))
    rig.step()
    assert small.received() == framed(b"small")
    assert rig.metric("bytes_out") - before <= 2.2 * MIB, (
        "what is left of one pass's share, and another one's"
    )
    received = [0] * count
    for _ in range(10_000):
        rig.step()
        for at, client in enumerate(large):
            received[at] += len(client.received())
        if min(received) == 4 + size:
            break
    assert received == [4 + size] * count


# -- the end ---------------------------------------------------------------------------------------------------


def test_tls_close_reaches_either_side(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    client = TlsClient(rig, context).shake_hands()
    client.send(framed(b"x"))
    (request,) = rig.handler.take()
    rig.handler.close(request)
    rig.settle()
    assert client.received() == b""
    assert client.has_ended
    other = TlsClient(rig, context).shake_hands()
    with pytest.raises(ssl.SSLWantReadError):
        other.tls.unwrap()
    other.raw.send(other.encrypt(b"") or other._outgoing.read())
    assert other.raw.is_closed() or other.raw.has_end()
    assert rig.metric("connections_closed") == 2


def test_requests_before_close_notify_are_served(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    client = TlsClient(rig, context).shake_hands()
    sealed = client.encrypt(framed(b"last"))
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    client.raw.send(sealed + client._outgoing.read())
    assert rig.handler.bodies() == [b"last"]
    rig.settle()
    assert rig.metric("connections_closed") == 1


def test_a_client_that_goes_without_a_word_is_closed(rig: ProcessorRig, context: ssl.SSLContext) -> None:
    client = TlsClient(rig, context).shake_hands()
    client.send(framed(b"x"))
    client.raw.close()
    rig.settle()
    assert rig.metric("connections_closed") == 1


def test_bytes_that_are_changed_under_way_end_the_connection(
    rig: ProcessorRig, context: ssl.SSLContext
) -> None:
    client = TlsClient(rig, context).shake_hands()
    sealed = bytearray(client.encrypt(framed(b"x")))
    sealed[-1] ^= 1
    client.raw.send(bytes(sealed))
    assert rig.handler.bodies() == []
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        client.received()
