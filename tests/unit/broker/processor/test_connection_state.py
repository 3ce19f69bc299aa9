"""The table of connection_state.py: events to wait for, by state, pauses and unsent answers."""

from __future__ import annotations

import pytest

from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_state import ACTIVE, CLOSING, DRAINING, PAUSED, Pause
from tests.support.processor_rig import Client, ProcessorRig, framed


def connection_of(rig: ProcessorRig) -> Connection:
    (connection,) = rig.processor.table.by_fd.values()
    return connection


@pytest.mark.parametrize("first", Pause)
def test_connection_is_read_again_when_its_last_pause_ends(rig: ProcessorRig, first: Pause) -> None:
    rig.connect()
    table, connection = rig.processor.table, connection_of(rig)
    for other in set(Pause) - {first}:
        table.pause(connection, first)
        table.pause(connection, other)
        table.resume(connection, first)
        assert (connection.interest, connection.pauses) == (PAUSED, other)
        table.resume(connection, other)
        assert (connection.interest, connection.pauses) == (ACTIVE, Pause(0))


def test_pause_that_is_ended_twice_leaves_the_others(rig: ProcessorRig) -> None:
    rig.connect()
    table, connection = rig.processor.table, connection_of(rig)
    table.pause(connection, Pause.NO_BLOCK)
    table.resume(connection, Pause.HANDSHAKE)
    table.resume(connection, Pause.HANDSHAKE)
    assert (connection.interest, connection.pauses) == (PAUSED, Pause.NO_BLOCK)


def unanswered(rig: ProcessorRig) -> Client:
    client = rig.connect()
    client.send(framed(b"request"))
    return client


def test_draining_connection_is_closed_after_its_last_answer(rig: ProcessorRig) -> None:
    client = unanswered(rig)
    rig.processor.table.drain(connection_of(rig))
    assert connection_of(rig).interest == PAUSED
    (request,) = rig.handler.take()
    rig.handler.answer(request, framed(b"answer"))
    rig.step()
    assert client.received() == framed(b"answer")
    assert client.is_closed()


def test_draining_connection_without_a_request_is_closed_at_once(rig: ProcessorRig) -> None:
    client = rig.connect()
    rig.processor.table.drain(connection_of(rig))
    assert client.is_closed()


def test_closing_connection_does_not_go_back_to_draining(rig: ProcessorRig) -> None:
    unanswered(rig)
    table, connection = rig.processor.table, connection_of(rig)
    connection.state = CLOSING
    table.drain(connection)
    assert connection.state is CLOSING
    assert connection.state is not DRAINING
    assert connection.interest == PAUSED
