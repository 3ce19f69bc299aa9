"""PlaintextTransport: file ranges through sendfile."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pytest

from kproc.wire.file_range import FileRange
from tests.support.processor_rig import ProcessorRig, ask, framed


def segment(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def part_of(path: Path, position: int, length: int) -> FileRange:
    return FileRange(os.fsencode(path), path.stat().st_ino, position, length)


@pytest.mark.parametrize("length", [1, 8192, 8193, 100_000, 3 << 20])
def test_file_ranges_are_sent_between_the_bytes(rig: ProcessorRig, tmp_path: Path, length: int) -> None:
    content = random.Random(length).randbytes(length + 300)
    file = segment(tmp_path / "0.log", content)
    client = rig.connect()
    (request,) = ask(rig, client, 1)
    rig.handler.answer_parts(
        request, [b"head", part_of(file, 100, length), b"middle", part_of(file, 7, 50), b"tail"]
    )
    wanted = b"head" + content[100 : 100 + length] + b"middle" + content[7:57] + b"tail"
    assert client.receive_through(len(wanted)) == wanted
    assert rig.metric("bytes_out") == len(wanted)
    assert not client.is_closed()


@pytest.mark.parametrize("end", [b"", b"tag"])
@pytest.mark.parametrize("head_bytes", [90, 30_000])
@pytest.mark.parametrize("room", [4096, 20_000, 60_000, 1 << 20])
def test_file_range_is_sent_whole_through_small_socket_buffer(
    rig: ProcessorRig, tmp_path: Path, room: int, head_bytes: int, end: bytes
) -> None:
    """Head, records and what is behind them: each may be cut. The next answer stands behind all of it."""
    content = random.Random(room).randbytes(200_000)
    file = segment(tmp_path / "0.log", content)
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    client = rig.adopt(ours, theirs)
    sent = 0
    for length in (8193, 50_000, 65_536, 150_000):
        (request,) = ask(rig, client, 1)
        head = bytes(head_bytes)
        rig.handler.answer_parts(request, [head, part_of(file, 300, length), *([end] if end else [])])
        wanted = head + content[300 : 300 + length] + end
        assert client.receive_through(len(wanted)) == wanted
        rig.settle()
        sent += len(wanted)
        assert (rig.metric("bytes_out"), rig.metric("requests_inflight")) == (sent, 0)
        client.send(framed(b"next"))
        (following,) = rig.handler.take()
        rig.handler.answer(following, b"following")
        assert client.receive_through(9) == b"following"
        sent += 9
    assert not client.is_closed()


@pytest.mark.parametrize("length", [100, 100_000], ids=["copied", "by sendfile"])
def test_file_shorter_than_the_answer_says_closes_the_connection(
    rig: ProcessorRig, tmp_path: Path, length: int
) -> None:
    file = segment(tmp_path / "0.log", b"a" * (length - 1))
    client, other = rig.connect(), rig.connect()
    (request,) = ask(rig, client, 1)
    rig.handler.answer_parts(request, [part_of(file, 0, length)])
    rig.step(3)
    client.received()
    rig.step(3)
    assert client.is_closed()
    assert not other.is_closed()
    assert rig.metric("connections_closed") == 1
