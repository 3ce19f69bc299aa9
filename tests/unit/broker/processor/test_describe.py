"""Connections as people see them: Kafka's ids, client software, bytes, and kill."""

from __future__ import annotations

import socket

from tests.support.processor_rig import ProcessorRig, framed


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


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
