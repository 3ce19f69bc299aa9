"""HandoffReceiver: sockets from Acceptors, and those that a Processor cannot keep."""

from __future__ import annotations

import select
import socket

import pytest

from kproc.broker.role.handoff import REFUSED
from tests.support.processor_rig import ProcessorRig, framed, no_more_descriptors


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
            monkeypatch.setattr(rig.processor.handoffs, "_descriptor_end", theirs.fileno())
            rig.acknowledged()
            serial = rig.hand_off(theirs.fileno())
            rig.step()
            assert rig.acknowledged() == [serial | REFUSED]
    assert caplog.text.count("accepting no more connections, new clients wait") == 1, "once, not for each"
    client.send(framed(b"served"))
    assert rig.handler.bodies() == [b"served"]
