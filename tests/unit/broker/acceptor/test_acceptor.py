"""Acceptor: real sockets in, handoff sockets out, on a manual clock; scripted Processors take them."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kproc.broker.acceptor.acceptor import Acceptor
from kproc.broker.metrics.spec import SLOT
from kproc.broker.role.handoff import (
    CREDITS,
    HANDOFF,
    REFUSED,
)
from kproc.broker.transport.agent import AgentId, Link
from kproc.broker.transport.envelope import FLAG_LOOPBACK
from tests.support.acceptor_rig import AcceptorRig, ScriptedProcessor, peers, ports
from tests.support.links import LinkMaker
from tests.support.processor_rig import no_more_descriptors, reset


@pytest.fixture
def start() -> Iterator[Callable[..., AcceptorRig]]:
    with ExitStack() as stack:
        yield lambda *args, **parts: AcceptorRig(stack, *args, **parts)


@pytest.fixture
def rig(start: Callable[..., AcceptorRig]) -> AcceptorRig:
    return start()


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
    assert select.select([sock], [], [], 5)[0]
    assert sock.recv(10) == b"hello"


def test_listener_and_loopback_flag_travel_with_the_socket(rig: AcceptorRig) -> None:
    rig.connect()
    rig.step()
    rig.taken()
    (head,) = [head for processor in rig.processors for head in processor.heads]
    assert head == (5, FLAG_LOOPBACK)


def test_configured_send_buffer_is_set(start: Callable[..., AcceptorRig]) -> None:
    rig = start(1, send_buffer_bytes=100_000)
    rig.connect()
    rig.step()
    rig.taken()
    assert rig.processors[0].sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 200_000


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


# -- credits -------------------------------------------------------------------------------------------------


def test_processor_is_handed_no_more_than_its_credits(start: Callable[..., AcceptorRig]) -> None:
    rig = start(1)
    rig.connect(CREDITS + 10)
    rig.step(5)
    assert rig.taken() == [CREDITS]
    assert rig.accepted() == CREDITS, "what nobody has room for stays in the kernel's backlog"
    rig.processors[0].acknowledge(3)
    rig.step(2)
    assert rig.taken() == [3]
    rig.processors[0].acknowledge()
    rig.step(2)
    assert rig.taken() == [7]


def test_processor_without_credit_is_passed_over(rig: AcceptorRig) -> None:
    slow, quick = rig.processors
    rig.connect(2 * CREDITS)
    rig.step(2)
    assert rig.taken() == [CREDITS, CREDITS]
    quick.acknowledge()
    rig.step()
    rig.connect(6)
    rig.step()
    assert rig.taken() == [0, 6]
    slow.acknowledge(1)
    rig.step()
    rig.connect(4)
    rig.step()
    assert slow.take() == 1
    assert quick.take() == 3


def test_acceptor_sleeps_while_all_are_out_of_credits(start: Callable[..., AcceptorRig]) -> None:
    """A readable listening socket that it cannot serve must not keep it awake."""
    rig = start(1)
    rig.connect(CREDITS + 1)
    rig.step(3)
    assert not select.select([rig.acceptor.poll_fd()], [], [], 0)[0]
    assert rig.step(3) == 0
    rig.taken()
    rig.processors[0].acknowledge(1)
    assert select.select([rig.acceptor.poll_fd()], [], [], 0)[0], "an acknowledgement wakes it"
    rig.step(2)
    assert rig.taken() == [1]


def test_nobody_is_accepted_before_a_processor_is_there(start: Callable[..., AcceptorRig]) -> None:
    rig = start(0)
    rig.connect(3)
    rig.step(3)
    assert rig.accepted() == 0
    rig.processors.append(rig.attach(0))
    rig.step()
    assert rig.taken() == [3]


# -- deaths --------------------------------------------------------------------------------------------------


def test_sockets_of_a_dead_processor_go_to_the_others(rig: AcceptorRig) -> None:
    dead, alive = rig.processors
    clients = rig.connect(8)
    rig.step()
    dead.sock.close()  # It never looked at them.
    rig.acceptor.detach(dead.id)
    rig.step(2)
    assert alive.take() == 8
    assert sorted(peers(alive)) == sorted(ports(clients))
    for client in clients:
        with pytest.raises(BlockingIOError):
            client.recv(1)


def test_socket_acknowledged_before_death_is_not_resent(rig: AcceptorRig) -> None:
    dead, alive = rig.processors
    rig.connect(4)
    rig.step()
    dead.take()
    dead.acknowledge(1)
    dead.close()
    rig.acceptor.detach(dead.id)
    rig.step(2)
    assert alive.take() == 3


def test_acknowledgement_of_dead_processor_is_read(rig: AcceptorRig) -> None:
    """The kernel tells of the unread ones first. A socket that was registered may have lost requests: it must end."""
    dead, alive = rig.processors
    rig.connect(6)
    rig.step()
    dead.take(1)
    dead.acknowledge(1)
    dead.close()
    rig.acceptor.detach(dead.id)
    rig.step(2)
    assert alive.take() == 5


def test_sockets_of_the_only_processor_wait_for_its_successor(start: Callable[..., AcceptorRig]) -> None:
    rig = start(1)
    clients = rig.connect(3)
    rig.step()
    rig.processors[0].close()
    rig.acceptor.detach(rig.processors[0].id)
    rig.connect(2)
    rig.step(3)
    assert rig.accepted() == 3, "nothing more is accepted meanwhile"
    rig.processors = [rig.attach(0)]
    rig.step(3)
    assert rig.taken() == [5]
    assert peers(rig.processors[0])[:3] == ports(clients)


def test_death_found_by_acceptor_loses_no_connection(rig: AcceptorRig) -> None:
    dead, alive = rig.processors
    dead.close()
    clients = rig.connect(6)
    rig.step(20)
    rig.acceptor.detach(dead.id)
    rig.step(5)
    alive.take()
    assert sorted(peers(alive)) == sorted(ports(clients))


def test_successor_that_is_attached_before_the_detach_takes_over(rig: AcceptorRig) -> None:
    rig.connect(4)
    rig.step()
    rig.processors[0].close()
    rig.processors[0] = rig.attach(0)
    rig.step(3)
    assert sum(rig.taken()) == 4


def refuse(processor: ScriptedProcessor) -> None:
    """Say of the oldest that its descriptor did not arrive."""
    processor.answer(processor.serials.popleft() | REFUSED)


def test_socket_that_one_processor_refused_goes_to_another(rig: AcceptorRig) -> None:
    full, other = rig.processors
    (client,) = rig.connect()
    rig.step()
    if not full.take():
        full, other = other, full
        assert full.take() == 1
    full.sockets.pop().close()  # Only the bytes arrived.
    refuse(full)
    rig.step()
    assert other.take() == 1
    other.acknowledge()
    assert peers(other) == ports([client])
    with pytest.raises(BlockingIOError):
        client.recv(1)
    rig.connect(2)
    rig.step(3)
    assert (full.take(), other.take()) == (0, 2), "it is spared for a while"
    rig.clock.advance_ms(101)
    rig.connect(2)
    rig.step(3)
    assert (full.take(), other.take()) == (1, 1)


def test_rejecting_only_processor_is_retried_and_pauses_accept(
    start: Callable[..., AcceptorRig],
) -> None:
    rig = start(1)
    clients = rig.connect()
    rig.step()
    assert rig.taken() == [1]
    rig.processors[0].sockets.pop().close()
    refuse(rig.processors[0])
    rig.step()
    clients += rig.connect()
    rig.step(3)
    assert rig.accepted() == 1
    rig.clock.advance_ms(101)
    rig.step(3)
    assert rig.taken() == [2]
    assert peers(rig.processors[0]) == ports(clients)


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


def test_unconfigurable_socket_is_closed_and_next_served(
    rig: AcceptorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's testExceptionInAcceptor."""
    real, failures = Acceptor._configure, [OSError(errno.EINVAL, "reset meanwhile")]
    monkeypatch.setattr(
        Acceptor, "_configure", lambda self, sock: _raise(failures.pop()) if failures else real(self, sock)
    )
    first, second = rig.connect(2)
    rig.step()
    assert sum(rig.taken()) == 1
    assert select.select([first], [], [], 5)[0]
    assert first.recv(1) == b""
    with pytest.raises(BlockingIOError):
        second.recv(1)


def _raise(error: Exception) -> int:
    raise error


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


def test_close_ends_what_nobody_registered(start: Callable[..., AcceptorRig]) -> None:
    rig = start(1)
    clients = rig.connect(2)
    rig.step()
    rig.processors[0].sock.close()  # With both sockets unread in it.
    rig.acceptor.close()
    for client in clients:
        assert select.select([client], [], [], 5)[0]
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
        with pytest.raises(AssertionError, match="was given a link"):
            rig.acceptor.attach(link)


def test_handoff_message_has_a_fixed_size() -> None:
    assert HANDOFF.size == struct.calcsize("=QHH16sH") == 30
    assert CREDITS == 20, "Kafka's capacity of newConnections"
