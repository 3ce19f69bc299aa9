"""ConnectionTable: sockets from the Acceptor, and connections for which the kernel refuses something."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

import pytest

from kproc.broker.processor.connection import INFLIGHT_MAX
from kproc.broker.role.handoff import REFUSED
from tests.support.processor_rig import ProcessorRig, framed, no_more_descriptors

Start = Callable[..., ProcessorRig]


def test_every_socket_that_is_handed_over_is_acknowledged_once(rig: ProcessorRig) -> None:
    pairs = [socket.socketpair() for _ in range(20)]
    serials = [rig.hand_off(theirs.fileno()) for _, theirs in pairs]
    rig.step()
    assert rig.acknowledged() == serials
    rig.step()
    assert rig.acknowledged() == []
    for ours, theirs in pairs:
        theirs.close()
        ours.send(framed(b"x"))
    rig.step()
    assert len(rig.handler.bodies()) == 20
    assert rig.metric("connections_accepted") == 20
    for ours, _ in pairs:
        ours.close()


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


def test_ended_acceptor_is_forgotten_and_successor_served(rig: ProcessorRig) -> None:
    client = rig.connect()
    rig.acceptor.close()
    rig.step()
    rig.acceptor = rig.attach_acceptor()
    other = rig.connect()
    for each in (client, other):
        each.send(framed(b"x"))
    assert len(rig.handler.bodies()) == 2


def test_acceptor_death_after_handoff_is_harmless(rig: ProcessorRig) -> None:
    """Its acknowledgement cannot be sent any more; the connection is the Processor's all the same."""
    ours, theirs = socket.socketpair()
    rig.hand_off(theirs.fileno())
    theirs.close()
    rig.acceptor.close()
    rig.step()
    ours.send(framed(b"served"))
    rig.step(2)
    assert rig.handler.bodies() == [b"served"]
    ours.close()


def test_unreceivable_socket_is_rejected_to_go_elsewhere(rig: ProcessorRig) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        serial = rig.hand_off(theirs.fileno())
        with no_more_descriptors():
            rig.step()
        assert select.select([rig.acceptor], [], [], 0)[0], f"nothing is said about socket {serial}"


def test_processor_out_of_descriptors_serves_and_recovers(rig: ProcessorRig) -> None:
    client = rig.connect()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        rig.hand_off(theirs.fileno())
        with no_more_descriptors():
            rig.step()
            client.send(framed(b"served"))
        rig.acknowledged()
    assert rig.handler.bodies() == [b"served"]
    other = rig.connect()
    other.send(framed(b"new"))
    assert rig.handler.bodies() == [b"new"]


def test_the_last_descriptors_are_not_for_clients(
    rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are for links: a Processor that cannot take one ends, and all of its connections with it."""
    client = rig.connect()
    for _ in range(3):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            monkeypatch.setattr(rig.processor, "_descriptor_end", theirs.fileno())
            rig.acknowledged()
            serial = rig.hand_off(theirs.fileno())
            rig.step()
            assert rig.acknowledged() == [serial | REFUSED]
    assert caplog.text.count("refusing connections: the limit of open files") == 1, "once, not for each"
    client.send(framed(b"served"))
    assert rig.handler.bodies() == [b"served"]


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
