"""Acceptor: real sockets in, handoff sockets out, on a manual clock; scripted Processors take them."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable

import pytest

from kproc.broker.metrics.spec import SLOT
from kproc.broker.transport.agent import AgentId, Link
from tests.support.acceptor_rig import AcceptorRig, ScriptedProcessor, peers, ports
from tests.support.links import LinkMaker
from tests.support.processor_rig import no_more_descriptors, reset
from tests.support.wait import PATIENCE_SECONDS

# -- the usual case ------------------------------------------------------------------------------------------


def test_sockets_go_to_the_processors_in_turn(start: Callable[..., AcceptorRig]) -> None:
    rig = start(3)
    clients = rig.connect(9)
    rig.step()
    assert rig.taken() == [3, 3, 3]
    for turn, processor in enumerate(rig.processors):
        assert peers(processor) == ports(clients[turn::3])


def test_turn_goes_on_over_several_duty_cycles(rig: AcceptorRig) -> None:
    turns = []
    for _ in range(6):
        rig.connect()
        rig.step()
        turns.append(rig.taken().index(1))
    assert turns in ([0, 1] * 3, [1, 0] * 3)


def test_handed_over_socket_is_the_clients_and_ready_to_use(rig: AcceptorRig) -> None:
    (client,) = rig.connect()
    rig.step()
    rig.taken()
    (sock,) = [sock for processor in rig.processors for sock in processor.sockets]
    assert not os.get_blocking(sock.fileno())
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    client.send(b"hello")
    assert select.select([sock], [], [], PATIENCE_SECONDS)[0]
    assert sock.recv(10) == b"hello"


def test_acknowledgement_closes_the_acceptors_copy(rig: AcceptorRig) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (client,) = rig.connect()
    rig.step()
    rig.taken()
    assert len(os.listdir("/proc/self/fd")) == before + 3  # The client, the Acceptor's copy, the Processor's.
    (processor,) = [each for each in rig.processors if each.sockets]
    processor.acknowledge()
    rig.step()
    assert len(os.listdir("/proc/self/fd")) == before + 2
    processor.sockets.pop().close()
    assert client.recv(1) == b"", "nobody holds it open any more"


def test_unknown_serial_is_ignored(rig: AcceptorRig) -> None:
    rig.processors[0].answer(4711)
    rig.step()
    rig.connect()
    rig.step()
    assert sum(rig.taken()) == 1


# -- broken sockets and a host without descriptors --------------------------------------------------------------


def test_reset_connection_does_no_harm(rig: AcceptorRig) -> None:
    first, second, third = rig.connect(3)
    reset(second)
    rig.step()
    assert sum(rig.taken()) in (2, 3)
    handed = {port for processor in rig.processors for port in _live_peers(processor)}
    assert set(ports([first, third])) <= handed
    rig.connect()
    rig.step()
    assert sum(rig.taken()) == 1


def _live_peers(processor: ScriptedProcessor) -> list[int]:
    found = []
    for sock in processor.sockets:
        try:
            found.append(sock.getpeername()[1])
        except OSError:  # The one that was reset.
            continue
    return found


def test_host_without_descriptors_makes_the_acceptor_back_off(
    rig: AcceptorRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.connect(3)
    with no_more_descriptors():
        rig.step(10)
    assert rig.accepted() == 0
    assert caplog.text.count("cannot accept connections") == 1, "once, not once per duty cycle"
    assert not select.select([rig.acceptor.poll_fd()], [], [], 0)[0] or rig.step() == 0
    assert 0 < rig.acceptor.next_deadline_ms() <= 101
    rig.step(3)
    assert rig.accepted() == 0, "the back-off lasts"
    rig.clock.advance_ms(101)
    rig.step(2)
    assert sum(rig.taken()) == 3
    assert rig.acceptor.next_deadline_ms() == 1000


# -- stopping ------------------------------------------------------------------------------------------------


def test_stopping_acceptor_is_drained_when_all_are_registered(rig: AcceptorRig) -> None:
    rig.connect(2)
    rig.step()
    rig.acceptor.drain()
    assert not rig.acceptor.is_drained()
    rig.connect(2)
    rig.step(3)
    assert rig.accepted() == 2
    rig.taken()
    for processor in rig.processors:
        processor.acknowledge()
    rig.step()
    assert rig.acceptor.is_drained()


def test_close_ends_sockets_that_no_processor_has_registered(start: Callable[..., AcceptorRig]) -> None:
    rig = start(1)
    clients = rig.connect(2)
    rig.step()
    rig.processors[0].sock.close()  # With both sockets unread in it.
    rig.acceptor.close()
    for client in clients:
        assert select.select([client], [], [], PATIENCE_SECONDS)[0]
        assert client.recv(1) == b""


def test_row_is_stored_ten_times_a_second(rig: AcceptorRig) -> None:
    rig.connect()
    rig.step()
    rig.clock.advance_ms(100)
    rig.step()
    assert rig.metrics.values[SLOT["heartbeat_ns"]] == rig.clock.now_ns()


def test_acceptor_has_no_links(rig: AcceptorRig) -> None:
    with LinkMaker("pipe") as maker:
        link: Link = maker.make(rig.acceptor.id, AgentId("handler", 0))[0]
        with pytest.raises(AssertionError, match="got a link to handler-0"):
            rig.acceptor.attach(link)
