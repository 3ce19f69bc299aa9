"""ConnectionTable: registers and closes connections, also those for which the kernel refuses something."""

from __future__ import annotations

import socket
from collections.abc import Callable

from kproc.broker.processor.connection import INFLIGHT_MAX
from tests.support.processor_rig import ProcessorRig, framed

Start = Callable[..., ProcessorRig]


def test_client_sees_close_though_socket_copy_is_open(rig: ProcessorRig) -> None:
    """The Acceptor may not have closed its copy yet when a connection ends."""
    ours, theirs = socket.socketpair()
    rig.hand_off(theirs.fileno())
    rig.step()
    ours.send(b"\xff\xff\xff\xff")
    rig.step()
    ours.setblocking(False)
    assert ours.recv(1) == b""
    ours.close()
    theirs.close()


def test_ids_are_never_used_again(rig: ProcessorRig) -> None:
    ids = []
    for _ in range(5):
        client = rig.connect()
        client.send(framed(b"x"))
        ids.append(rig.handler.take()[0].connection_id)
        client.close()
    assert len(set(ids)) == 5


def test_successor_of_a_processor_uses_other_ids(start: Start) -> None:
    """A Handler may still hold requests of the connections of the one that died."""
    ids = []
    for age_ms in (0, 1):
        rig = start(age_ms=age_ms)
        client = rig.connect()
        client.send(framed(b"x"))
        ids.append(rig.handler.take()[0].connection_id)
    assert ids[1] - ids[0] >= 1 << 20, "room for a million connections in a millisecond"


def test_muted_connection_expires_with_unread_requests(start: Start) -> None:
    """Polling does not make it active; its late answer is harmless."""
    rig = start(idle_ms_max=60_000)
    client = rig.connect()
    client.send(framed(b"x") * INFLIGHT_MAX)
    client.sock.send(framed(b"unread"))
    for _ in range(6):
        rig.advance_ms(10_000)
    assert not client.has_end()
    rig.advance_ms(2_000)
    assert client.has_end()
    requests = rig.handler.take()
    assert {request.body for request in requests} == {b"x"}
    rig.handler.answer(requests[0], framed(b"late"))
    rig.step(2)
    assert rig.handler.take() == []


def test_hung_up_muted_client_expires_with_unread_requests(start: Start) -> None:
    """Kafka's testExpireClosedConnectionWithPendingReceives: out of the epoll, but not out of the idle wheel."""
    rig = start(idle_ms_max=60_000)
    client = rig.connect()
    client.send(framed(b"x") * INFLIGHT_MAX)
    client.sock.send(framed(b"unread"))
    client.sock.close()
    rig.settle()
    rig.advance_ms(59_000)
    assert len(rig.processor.describe_connections()) == 1
    rig.advance_ms(3_000)
    assert rig.processor.describe_connections() == []
    assert {request.body for request in rig.handler.take()} == {b"x"}
    rig.step()
    rig.acknowledged()
    assert list(rig.counted.values()) == [0]
