"""HandoffQueue: credits, and the sockets of dead or rejecting Processors."""

from __future__ import annotations

import select
import struct
from collections.abc import Callable

import pytest

from kproc.broker.role.handoff import CREDITS, HANDOFF, REFUSED
from tests.support.acceptor_rig import AcceptorRig, ScriptedProcessor, peers, ports

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


def test_acceptor_without_processor_accepts_no_connection(start: Callable[..., AcceptorRig]) -> None:
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


def test_processor_that_closes_too_many_is_named_in_the_log(
    rig: AcceptorRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.processors[1].report(("127.0.0.1", 0, -1))
    rig.step()
    assert "processor-1 reported 1 more closed connections than it had" in caplog.text


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


def test_handoff_message_has_a_fixed_size() -> None:
    assert HANDOFF.size == struct.calcsize("=QHH16sH") == 30
    assert CREDITS == 20, "Kafka's capacity of newConnections"
