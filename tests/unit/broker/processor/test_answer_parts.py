"""Parts of an answer: unsent rests, and headers that share a segment with their records."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pytest

from kproc.broker.processor.transport_layer import PlaintextTransport
from kproc.wire.file_range import FileRange
from tests.support.processor_rig import ProcessorRig, ask

HUGE = 5 << 20  # Far more than two sockets' buffers hold.


def segment(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def part_of(path: Path, position: int, length: int) -> FileRange:
    return FileRange(os.fsencode(path), path.stat().st_ino, position, length)


def test_unsent_bytes_of_slow_reader_are_not_copied_per_send(rig: ProcessorRig) -> None:
    client = rig.connect()
    (request,) = ask(rig, client, 1)
    rig.handler.outbox.flush()
    payload = random.Random(5).randbytes(HUGE)
    rig.handler.answer(request, payload)
    while rig.handler.outbox.has_overflow:
        rig.step()
        rig.handler.outbox.flush()
    rig.step(3)
    (connection,) = rig.processor.table.by_fd.values()
    (rest,) = connection.out or ()
    taken = b""
    views: list[memoryview] = []
    while connection.out:
        taken += client.received()
        rig.step()
        views += [item for item in connection.out or () if isinstance(item, memoryview)]
    assert taken + client.received() == payload
    assert views, "it left in several sends"
    # The pieces were joined in a bytearray, which is sent as it is.
    whole = memoryview(rest).obj
    assert isinstance(whole, bytearray)
    assert all(view.obj is whole for view in views)


@pytest.mark.parametrize("ends", [1, 2], ids=["one range", "ranges between bytes"])
@pytest.mark.parametrize(("length", "waits"), [(50_000, True), (65_536, False)])
def test_header_waits_for_records_to_share_a_segment(
    rig: ProcessorRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, waits: bool, ends: int
) -> None:
    """Else it leaves at once, and the client reads while the records are sent."""
    flags: list[int] = []
    real = PlaintextTransport.__init__

    def init(transport: PlaintextTransport, sock: socket.socket) -> None:
        real(transport, sock)

        def send(data: bytes, flag: int = 0) -> int:
            flags.append(flag)
            return sock.send(data, flag)

        transport.send = send  # type: ignore[assignment]

    monkeypatch.setattr(PlaintextTransport, "__init__", init)
    content = random.Random(8).randbytes(length)
    file = segment(tmp_path / "0.log", content)
    client = rig.connect()
    (request,) = ask(rig, client, 1)
    rig.handler.answer_parts(request, [b"head", part_of(file, 0, length)] * ends)
    assert client.receive_through((length + 4) * ends) == (b"head" + content) * ends
    assert flags == [socket.MSG_MORE if waits else 0] * ends
