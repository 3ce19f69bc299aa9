"""Connections that the Acceptor evicts, and those of a closed listener."""

from __future__ import annotations

import socket

from tests.support.processor_rig import LOOPBACK, ProcessorRig, framed

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
    """A connection that moved while its listener was closed may arrive after a new listener has the slot."""
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
