"""ResponseWriter: responses in request order, whole or not at all, at the pace of the reading client."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kproc.broker.processor.connection import INFLIGHT_MAX, TURN_BYTES, Connection
from kproc.broker.processor.response_writer import ResponseWriter
from kproc.broker.transport.envelope import CLOSE, HEAD, SEND, SENDS
from kproc.wire.file_range import FileRange
from tests.support.proc import open_descriptors
from tests.support.processor_rig import ProcessorRig, Request, ask, framed, reset

Start = Callable[..., ProcessorRig]
HUGE = 5 << 20  # Far more than two sockets' buffers hold.


def segment(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def part_of(path: Path, position: int, length: int) -> FileRange:
    return FileRange(os.fsencode(path), path.stat().st_ino, position, length)


def test_responses_leave_in_request_order(rig: ProcessorRig) -> None:
    client = rig.connect()
    requests = ask(rig, client, 5)
    for at in (3, 1, 4, 2):
        rig.handler.answer(requests[at], framed(b"answer %d" % at))
        rig.step()
        assert client.received() == b""
    rig.handler.answer(requests[0], framed(b"answer 0"))
    rig.step()
    assert client.received() == b"".join(framed(b"answer %d" % at) for at in range(5))
    assert rig.metric("responses") == 5


def test_early_response_survives_reuse_of_ring(start: Start) -> None:
    rig = start()
    client, other = rig.connect(), rig.connect()
    first, second = ask(rig, client, 2)
    rig.handler.answer(second, framed(b"early" * 100))
    rig.step()
    for _ in range(80):
        (request,) = ask(rig, other, 1)
        rig.handler.answer(request, framed(b"noise" * 2000))
        rig.step()
        other.received()
    rig.handler.answer(first, framed(b"late"))
    rig.step()
    assert client.received() == framed(b"late") + framed(b"early" * 100)


def test_no_op_sends_nothing_and_lets_the_next_answer_pass(rig: ProcessorRig) -> None:
    client = rig.connect()
    first, second = ask(rig, client, 2)
    rig.handler.answer(second, framed(b"second"))
    rig.step()
    assert client.received() == b""
    rig.handler.no_op(first)
    rig.step()
    assert client.received() == framed(b"second")


def test_no_op_lets_the_next_requests_be_read(rig: ProcessorRig) -> None:
    """Kafka's testNoOpAction."""
    client = rig.connect()
    for request in ask(rig, client, INFLIGHT_MAX):
        rig.handler.no_op(request)
    rig.step(2)
    assert len(ask(rig, client, 3)) == 3


def test_close_waits_for_the_answers_before_it(rig: ProcessorRig) -> None:
    client = rig.connect()
    first, second, third = ask(rig, client, 3)
    rig.handler.close(third)
    rig.handler.answer(second, framed(b"second"))
    rig.step()
    assert not client.has_end()
    rig.handler.answer(first, framed(b"first"))
    rig.step()
    assert client.received() == framed(b"first") + framed(b"second")
    assert client.is_closed()
    assert rig.metric("connections_closed") == 1


def test_close_waits_until_slow_reader_has_prior_responses(rig: ProcessorRig) -> None:
    client = rig.connect()
    first, second = ask(rig, client, 2)
    rig.handler.outbox.flush()
    payload = random.Random(1).randbytes(HUGE)
    rig.handler.answer(first, payload)
    rig.handler.close(second)
    while rig.handler.outbox.has_overflow:
        rig.step()
        rig.handler.outbox.flush()
    rig.step(5)
    assert not client.has_end()
    assert client.receive_through(HUGE) == payload
    rig.step(2)
    assert client.is_closed()


def test_nothing_leaves_after_a_close(rig: ProcessorRig) -> None:
    client = rig.connect()
    first, second = ask(rig, client, 2)
    rig.handler.push(CLOSE, first)
    rig.handler.answer(second, framed(b"too late"))
    rig.step()
    assert client.received() == b""
    assert client.is_closed()


def test_client_that_reads_fast_leaves_turns_to_the_others(start: Start) -> None:
    """Its socket never refuses a byte, so that the Processor could send a long answer in one pass."""
    rig = start()
    client, other = rig.connect(), rig.connect()
    (request,) = ask(rig, client, 1)
    (connection,) = (each for each in rig.processor.table.by_fd.values() if each.inflight)
    sends: list[int] = []

    def send(data: bytes | memoryview, _flags: int = 0) -> int:
        sends.append(min(len(data), 1 << 20))
        return sends[-1]

    connection.send = send
    size = 3 * TURN_BYTES
    rig.handler.answer(request, bytes(size))
    while sum(sends) < size:
        before = sum(sends)
        rig.step()
        rig.handler.outbox.flush()
        assert sum(sends) - before <= TURN_BYTES + (1 << 20)
    assert len(sends) >= 3
    (question,) = ask(rig, other, 1)
    rig.handler.answer(question, framed(b"answer"))
    rig.settle()
    assert other.received() == framed(b"answer")


def test_client_that_does_not_read_is_not_read_from(rig: ProcessorRig) -> None:
    client, other = rig.connect(), rig.connect()
    (request,) = ask(rig, client, 1)
    payload = random.Random(2).randbytes(HUGE)
    rig.handler.outbox.flush()
    rig.handler.answer(request, payload)
    while rig.handler.outbox.has_overflow:
        rig.step()
        rig.handler.outbox.flush()
    rig.step(3)
    client.send(framed(b"more"))
    rig.step(5)
    assert rig.handler.bodies() == []
    assert len(ask(rig, other, 1)) == 1, "others are served meanwhile"
    assert client.receive_through(HUGE) == payload
    rig.step(2)
    assert rig.handler.bodies() == [b"more"]
    assert rig.metric("bytes_out") == HUGE


def test_answers_behind_a_slow_one_leave_behind_it(rig: ProcessorRig, tmp_path: Path) -> None:
    client = rig.connect()
    requests = ask(rig, client, 3)
    content = random.Random(3).randbytes(HUGE)
    file = segment(tmp_path / "0.log", content)
    rig.handler.answer_parts(requests[0], [b"head", part_of(file, 0, HUGE)])
    rig.handler.answer(requests[1], framed(b"second"))
    rig.step()
    rig.handler.answer(requests[2], framed(b"third"))
    rig.step()
    wanted = b"head" + content + framed(b"second") + framed(b"third")
    assert client.receive_through(len(wanted)) == wanted


@pytest.mark.parametrize("has_block", [False, True], ids=["", "while another one's block is lent"])
@pytest.mark.parametrize("length", [100, 20_000])
def test_lone_file_range_is_sent_at_once(
    rig: ProcessorRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, has_block: bool
) -> None:
    queued = []
    monkeypatch.setattr(ResponseWriter, "_enqueue", lambda *arguments: queued.append(arguments) or 0)
    content = random.Random(6).randbytes(length)
    file = segment(tmp_path / "0.log", content)
    client, other = rig.connect(), rig.connect()
    if has_block:
        other.send_through(framed(bytes(100_000)))
        (large,) = rig.handler.take()
    (request,) = ask(rig, client, 1)
    rig.handler.answer_parts(request, [b"head", part_of(file, 0, length)])
    assert client.receive_through(length + 4) == b"head" + content
    assert not queued
    monkeypatch.undo()
    assert rig.arena.lent_count() == has_block
    if has_block:
        rig.handler.answer(large, b"thanks")
        assert other.receive_through(6) == b"thanks"
        assert rig.arena.lent_count() == 0


def test_an_answer_that_gives_a_block_back_leaves_as_any_other(
    rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Connection] = []
    send_ready = Connection.send_ready
    monkeypatch.setattr(Connection, "send_ready", lambda self: (taken.append(self), send_ready(self))[1])
    large, small = rig.connect(), rig.connect()
    large.send_through(framed(bytes(100_000)))
    (block,) = rig.handler.take()
    (request,) = ask(rig, small, 1)
    rig.handler.answer(request, b"small")
    assert small.receive_through(5) == b"small"
    rig.handler.answer(block, b"large")
    assert large.receive_through(5) == b"large"
    assert not taken
    assert rig.arena.lent_count() == 0
    assert rig.metric("responses") == 2


def test_records_of_one_file_wait_for_their_turn(rig: ProcessorRig, tmp_path: Path) -> None:
    content = random.Random(7).randbytes(20_000)
    file = segment(tmp_path / "0.log", content)
    client = rig.connect()
    first, second, third = ask(rig, client, 3)
    rig.handler.answer_parts(third, [b"third", part_of(file, 0, 20_000)])
    rig.handler.answer_parts(second, [b"second", part_of(file, 0, 20_000)])
    rig.step()
    assert client.received() == b""
    rig.handler.answer(first, b"first")
    wanted = b"first" + b"second" + content + b"third" + content
    assert client.receive_through(len(wanted)) == wanted


def test_deleted_or_renamed_file_is_still_sent(
    rig: ProcessorRig, tmp_path: Path
) -> None:
    content = random.Random(4).randbytes(HUGE)
    file = segment(tmp_path / "0.log", content)
    client = rig.connect()
    (request,) = ask(rig, client, 1)
    rig.handler.answer_parts(request, [part_of(file, 0, HUGE)])
    rig.step()
    file.unlink()
    rig.advance_ms(2000)  # The cache lets go of it; the answer in work does not.
    assert client.receive_through(HUGE) == content
    assert not [target for target in open_descriptors().values() if target.startswith(str(file))]


@pytest.mark.parametrize("length", [100, 100_000], ids=["copied", "by sendfile"])
def test_file_that_was_replaced_closes_the_connection(
    rig: ProcessorRig, tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    file = segment(tmp_path / "0.log", b"a" * length)
    wanted = part_of(file, 0, length)
    file.rename(tmp_path / "0.log.elsewhere")
    segment(tmp_path / "0.log", b"b" * length)
    client, other = rig.connect(), rig.connect()
    (request,) = ask(rig, client, 1)
    rig.handler.answer_parts(request, [b"head", wanted])
    rig.step(2)
    client.received()
    assert client.is_closed()
    assert not other.is_closed()
    assert "was replaced" in caplog.text


def test_nothing_of_an_answer_leaves_whose_file_was_replaced(rig: ProcessorRig, tmp_path: Path) -> None:
    file = segment(tmp_path / "0.log", b"a" * 100)
    wanted = part_of(file, 0, 100)
    file.rename(tmp_path / "0.log.elsewhere")
    segment(tmp_path / "0.log", b"b" * 100)
    client = rig.connect()
    (request,) = ask(rig, client, 1)
    rig.handler.answer_parts(request, [b"head", wanted])
    rig.step(2)
    assert client.received() == b""


def test_missing_file_closes_after_prior_responses(
    rig: ProcessorRig, tmp_path: Path
) -> None:
    client = rig.connect()
    first, second = ask(rig, client, 2)
    rig.handler.answer_parts(second, [FileRange(os.fsencode(tmp_path / "none"), 1, 0, 10)])
    rig.handler.answer(first, framed(b"first"))
    rig.step(2)
    assert client.received() == framed(b"first")
    assert client.is_closed()


def test_response_for_left_client_is_dropped_and_block_freed(rig: ProcessorRig) -> None:
    client, other = rig.connect(), rig.connect()
    client.send(framed(bytes(50_000))[:20_000])
    client.send_through(framed(bytes(50_000))[20_000:])
    (request,) = rig.handler.take()
    assert rig.arena.lent_count() == 1
    client.close()
    assert rig.arena.lent_count() == 1, "the Handler still reads it"
    rig.handler.answer(request, framed(b"nobody wants this"))
    rig.step()
    assert rig.arena.lent_count() == 0
    assert other.received() == b""
    (request,) = ask(rig, other, 1)
    rig.handler.answer(request, framed(b"fine"))
    rig.step()
    assert other.received() == framed(b"fine")


def test_response_to_closed_peer_closes_only_its_connection(rig: ProcessorRig) -> None:
    client, other = rig.connect(), rig.connect()
    (request,) = ask(rig, client, 1)
    client.sock.close()
    rig.handler.answer(request, framed(b"too late"))
    rig.step(2)
    assert rig.metric("connections_closed") == 1
    assert not other.is_closed()
    assert len(rig.handler.take()) == 0
    assert len(rig.handler.gone) == 1


def test_reset_by_the_client_closes_this_connection_only(rig: ProcessorRig) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listening.getsockname())
    theirs, _ = listening.accept()
    listening.close()
    client, other = rig.adopt(ours, theirs), rig.connect()
    (request,) = ask(rig, client, 1)
    reset(ours)
    rig.handler.answer(request, framed(b"too late"))
    rig.step(2)
    assert rig.metric("connections_closed") == 1
    assert not other.is_closed()


def test_client_that_leaves_while_it_is_not_read_from_is_noticed(rig: ProcessorRig) -> None:
    client = rig.connect()
    requests = ask(rig, client, INFLIGHT_MAX)
    client.close()
    rig.step(2)
    for request in requests:
        rig.handler.answer(request, framed(b"late"))
    rig.step(2)
    assert rig.metric("connections_closed") == 1
    assert len(rig.handler.take()) == 0
    assert len(rig.handler.gone) == 1


def test_every_answer_of_one_pass_leaves_with_one_send(
    rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.connect()
    requests = ask(rig, client, 20)
    connection = next(iter(rig.processor.table.by_fd.values()))
    flushes: list[int] = []
    whole = type(connection).send_ready
    monkeypatch.setattr(
        type(connection), "send_ready", lambda self: flushes.append(len(self.ready)) or whole(self)
    )
    for request in requests:
        rig.handler.push(SEND, request, framed(b"x"))
    rig.handler.outbox.flush()
    rig.step()
    assert client.received() == framed(b"x") * 20
    assert flushes == [20]


def push_together(rig: ProcessorRig, requests: Sequence[Request], bodies: Sequence[bytes]) -> None:
    """Answers of equal length as one record, as a Handler pushes those of known Produce requests."""
    heads = [HEAD.pack(request.connection_id, request.sequence, 0, 0) for request in requests]
    parts = [head + framed(body) for head, body in zip(heads, bodies, strict=True)]
    rig.handler.outbox.push(SENDS, b"".join(parts))
    rig.handler.outbox.flush()


@pytest.mark.parametrize("link_kind", ["ring", "pipe"])
def test_answers_of_several_connections_in_one_record(link_kind: str) -> None:
    with ProcessorRig(link_kind) as rig:
        clients = [rig.connect() for _ in range(3)]
        for client in clients:
            client.send(framed(b"q"))
        push_together(rig, rig.handler.take(), [b"one", b"two", b"six"])
        rig.settle()
        assert [client.received() for client in clients] == [framed(b"one"), framed(b"two"), framed(b"six")]
        assert rig.metric("responses") == 3
        assert rig.metric("bytes_out") == 21


def test_early_responses_of_one_record_wait_for_their_turn() -> None:
    with ProcessorRig("ring") as rig:
        first, second = rig.connect(), rig.connect()
        first.send(framed(b"q") * 3)
        second.send(framed(b"q"))
        requests = rig.handler.take()
        push_together(rig, [requests[2], requests[3], requests[1]], [b"3", b"4", b"2"])
        rig.settle()
        assert (first.received(), second.received()) == (b"", framed(b"4"))
        rig.handler.answer(requests[0], framed(b"1"))
        rig.settle()
        assert first.received() == framed(b"1") + framed(b"2") + framed(b"3")


def test_two_responses_in_one_record_leave_in_order() -> None:
    with ProcessorRig("ring") as rig:
        client = rig.connect()
        client.send(framed(b"q") * 2)
        push_together(rig, rig.handler.take(), [b"1", b"2"])
        rig.settle()
        assert client.received() == framed(b"1") + framed(b"2")


def test_closed_connection_does_not_block_rest_of_record() -> None:
    with ProcessorRig("ring") as rig:
        gone, stays = rig.connect(), rig.connect()
        gone.send(framed(b"q"))
        stays.send(framed(b"q"))
        requests = rig.handler.take()
        gone.close()
        push_together(rig, requests, [b"1", b"2"])
        rig.settle()
        assert stays.received() == framed(b"2")


def test_response_larger_than_socket_buffer_is_finished_later() -> None:
    with ProcessorRig("ring", ring_bytes=1 << 20) as rig:
        client = rig.connect()
        expected = b""
        for number in range(12):  # Alone in the pass, each, and too much for the socket together.
            client.send(framed(b"q"))
            requests = rig.handler.take()
            if not requests:
                break  # It is not read while answers wait for room.
            answer = framed(bytes([number]) * 100_000)
            rig.handler.answer(requests[0], answer)
            expected += answer
            rig.settle()
        assert len(expected) < 12 * 100_000, "all of it went into the socket"
        assert client.receive_through(len(expected)) == expected
