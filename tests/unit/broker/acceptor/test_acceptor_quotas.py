"""An Acceptor under limits: which clients are accepted, wait in the backlog, are parked or closed."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable

import pytest

from kproc.broker.acceptor.connection_limits import UNLIMITED, ConnectionLimits
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.role.handoff import CREDITS, pack_address
from tests.support.acceptor_rig import AcceptorRig, ports
from tests.support.processor_rig import no_more_descriptors

OWN = 5  # The rig's listener.
OTHER = 1


def is_closed(client: socket.socket) -> bool:
    """Return True if the broker closed it; anything else it may have sent would be a mistake."""
    if not select.select([client], [], [], 0)[0]:
        return False
    return client.recv(1) == b""


def ready(rig: AcceptorRig) -> AcceptorRig:
    """Every Processor has said what it holds: nothing."""
    for processor in rig.processors:
        processor.report()
    rig.step()
    return rig


# -- counts --------------------------------------------------------------------------------------------------


def test_connection_above_per_ip_limit_is_closed(
    start: Callable[..., AcceptorRig],
) -> None:
    """Kafka's testMaxConnectionsPerIp."""
    rig = ready(start(1, limits=ConnectionLimits(address_max=3)))
    clients = rig.connect(4)
    rig.step()
    assert rig.taken() == [3]
    assert [is_closed(client) for client in clients] == [False, False, False, True]
    assert rig.count("connections_rejected") == 1
    other = rig.connect(1, source="127.0.0.2")
    rig.step()
    assert rig.taken() == [1]
    assert not is_closed(other[0])
    processor = rig.processors[0]
    processor.report(("127.0.0.1", OWN, 3), ("127.0.0.2", OWN, 1))
    processor.acknowledge()
    processor.report(("127.0.0.1", OWN, -1))
    rig.step()
    rig.connect(2)
    rig.step()
    assert rig.taken() == [1]


def test_connections_at_other_listeners_count_for_an_address(start: Callable[..., AcceptorRig]) -> None:
    rig = ready(start(2, limits=ConnectionLimits(address_max=3)))
    rig.processors[0].report(("127.0.0.1", OTHER, 2))
    rig.step()
    rig.connect(2)
    rig.step()
    assert sum(rig.taken()) == 1


def test_zero_limit_admits_only_overrides(
    start: Callable[..., AcceptorRig],
) -> None:
    """Kafka's testZeroMaxConnectionsPerIp."""
    limits = ConnectionLimits(address_max=0, address_max_overrides={pack_address("127.0.0.1"): 5})
    rig = ready(start(1, limits=limits))
    known, stranger = rig.connect(6), rig.connect(1, source="127.0.0.2")
    rig.step()
    assert rig.taken() == [5]
    assert [is_closed(client) for client in known + stranger] == [False] * 5 + [True] * 2


def test_full_broker_accepts_after_a_disconnect(start: Callable[..., AcceptorRig]) -> None:
    rig = ready(start(1, limits=ConnectionLimits(broker_max=2)))
    clients = rig.connect(3)
    rig.step(3)
    assert rig.taken() == [2]
    assert rig.accepted() == 2, "who waits is in the kernel's backlog"
    assert not any(is_closed(client) for client in clients)
    assert rig.step(3) == 0
    assert not select.select([rig.acceptor.poll_fd()], [], [], 0)[0], "a waiting client keeps nobody awake"
    processor = rig.processors[0]
    processor.report(("127.0.0.1", OWN, 2))
    processor.acknowledge()
    rig.step(2)
    assert rig.taken() == [0], "two are open"
    rig.clock.advance_ms(250)
    processor.report(("127.0.0.1", OWN, -1))
    rig.step(2)
    assert rig.taken() == [1]
    assert rig.count("acceptor_blocked_ns") == 250_000_000


def test_listener_has_a_limit_of_its_own(start: Callable[..., AcceptorRig]) -> None:
    rig = ready(start(1, limits=ConnectionLimits(listener_max=2, protected=frozenset({OWN}))))
    rig.processors[0].report(("127.0.0.1", OTHER, 50))
    rig.step()
    rig.connect(3)
    rig.step()
    assert rig.taken() == [2]


def test_raised_limit_accepts_waiting_clients(start: Callable[..., AcceptorRig]) -> None:
    rig = ready(start(1, limits=ConnectionLimits(broker_max=0)))
    rig.connect(3)
    rig.step(2)
    assert rig.taken() == [0]
    rig.change(broker_max=2)
    rig.step(2)
    assert rig.taken() == [2]
    rig.change(broker_max=UNLIMITED)
    rig.step(2)
    assert rig.taken() == [1]


def test_dead_processors_counts_are_dropped_until_successor(
    start: Callable[..., AcceptorRig],
) -> None:
    rig = ready(start(2, limits=ConnectionLimits(broker_max=10)))
    dead, alive = rig.processors
    dead.report(("10.0.0.1", OWN, 6))
    alive.report(("10.0.0.2", OWN, 4))
    rig.step()
    rig.connect(1)
    rig.step()
    assert rig.taken() == [0, 0]
    dead.close()
    rig.acceptor.detach(dead.id)
    successor = rig.attach(0)
    rig.processors = [successor, alive]
    rig.step(2)
    assert rig.taken() == [0, 0], "the new one has not said what it holds"
    successor.report()
    rig.step(2)
    assert sum(rig.taken()) == 1


def test_dead_processors_sockets_stay_counted_when_resent(
    start: Callable[..., AcceptorRig],
) -> None:
    rig = ready(start(2, limits=ConnectionLimits(broker_max=2)))
    dead, alive = rig.processors
    rig.connect(3)
    rig.step()
    dead.sock.close()
    rig.acceptor.detach(dead.id)
    rig.step(3)
    assert alive.take() == 2, "its own and the dead one's"
    assert rig.accepted() == 2


# -- eviction ------------------------------------------------------------------------------------------------


def test_lowered_limit_evicts_from_fullest_processors(
    start: Callable[..., AcceptorRig],
) -> None:
    rig = ready(start(2))
    one, two = rig.processors
    one.report(("10.0.0.1", OWN, 7), ("10.0.0.1", OTHER, 1))
    two.report(("10.0.0.2", OWN, 4))
    rig.change(broker_max=6)
    rig.step(2)
    rig.clock.advance_ms(200)
    rig.step()
    assert (one.evictions(), two.evictions()) == ([(OWN, 5)], [(OWN, 1)])
    rig.step(2)
    assert (one.evictions(), two.evictions()) == ([], []), "asked once"
    one.report(("10.0.0.1", OWN, -5))
    rig.step(2)
    rig.clock.advance_ms(1001)
    rig.step(2)
    rig.clock.advance_ms(200)
    rig.step(2)
    assert (one.evictions(), two.evictions()) == ([], [(OWN, 1)]), "what was not done is asked again"


def test_protected_listener_evicts_no_own_connection(start: Callable[..., AcceptorRig]) -> None:
    rig = ready(start(1, limits=ConnectionLimits(broker_max=1, protected=frozenset({OWN}))))
    rig.processors[0].report(("10.0.0.1", OWN, 3))
    rig.connect(1)
    rig.step(2)
    assert rig.taken() == [1], "not held up"
    assert rig.processors[0].evictions() == []


# -- rates ---------------------------------------------------------------------------------------------------


def test_rate_of_the_listener_makes_clients_wait_and_all_come_in(start: Callable[..., AcceptorRig]) -> None:
    """Kafka's testConnectionRateLimit: blocked percent in (0, 1], and nobody is lost."""
    rig = start(1, limits=ConnectionLimits(listener_rate=10.0), rate_samples=2)
    clients = rig.connect(30)
    begun_ns = rig.clock.now_ns()
    taken = 0
    while taken < 30:
        rig.step()
        taken += rig.taken()[0]
        rig.processors[0].acknowledge()
        rig.clock.advance_ms(10)
        assert rig.clock.now_ns() < begun_ns + 20_000_000_000
    elapsed_ns = rig.clock.now_ns() - begun_ns
    assert elapsed_ns >= 1_000_000_000
    assert 0 < rig.count("acceptor_blocked_ns") <= elapsed_ns
    assert not any(is_closed(client) for client in clients)
    rig.clock.advance_ms(100)
    rig.step()
    assert 0 < rig.count("accept_throttles") <= 30
    # Kafka's connection-accept-throttle-time: the average of the waits that were imposed.
    assert 0 < rig.count("accept_throttle_ns") / rig.count("accept_throttles") <= 1_000_000_000


def test_waiting_for_a_rate_sleeps_until_it_is_due(start: Callable[..., AcceptorRig]) -> None:
    rig = start(1, limits=ConnectionLimits(listener_rate=1.0), rate_samples=2)
    rig.connect(2)
    rig.step(2)
    assert rig.taken() == [1]
    assert 0 < rig.acceptor.next_deadline_ms() <= 1000
    assert not select.select([rig.acceptor.poll_fd()], [], [], 0)[0]
    rig.clock.advance_ms(rig.acceptor.next_deadline_ms())
    rig.step(2)
    assert rig.taken() == [1]


def test_sockets_above_ip_rate_are_parked_and_closed(
    start: Callable[..., AcceptorRig],
) -> None:
    """Kafka's testConnectionRatePerIp."""
    rig = start(1, limits=ConnectionLimits(address_rate=2.0), rate_samples=2)
    clients = rig.connect(4)
    stranger = rig.connect(1, source="127.0.0.2")
    rig.step()
    assert rig.taken() == [3], "two of the one, the other"
    assert not any(is_closed(client) for client in clients + stranger), "nothing happens to them yet"
    assert rig.count("connections_throttled") == 2
    assert rig.count("acceptor_blocked_ns") == 0, "the Acceptor does not wait"
    assert 0 < rig.acceptor.next_deadline_ms() <= 501
    rig.clock.advance_ms(501)
    rig.step()
    assert [is_closed(client) for client in clients] == [False, False, True, True]
    rig.clock.advance_ms(100)
    rig.step()
    # Kafka's ip-connection-accept-throttle-time.
    assert 0 < rig.count("address_throttle_ns") / rig.count("connections_throttled") <= 1_000_000_000
    rig.clock.advance_ms(2000)
    rig.connect(1)
    rig.step()
    assert rig.taken() == [1], "later it may come again"


def test_parked_sockets_are_closed_when_the_acceptor_stops(start: Callable[..., AcceptorRig]) -> None:
    """Kafka's testThrottledSocketsClosedOnShutdown."""
    rig = start(1, limits=ConnectionLimits(address_rate=0.0))
    clients = rig.connect(3)
    rig.step()
    rig.clock.advance_ms(100)
    rig.step()
    assert rig.count("connections_parked") == 3
    rig.acceptor.drain()
    assert all(is_closed(client) for client in clients)
    assert rig.acceptor.is_drained()


def test_parked_sockets_free_descriptors_for_admitted_ones(start: Callable[..., AcceptorRig]) -> None:
    rig = start(1, limits=ConnectionLimits(address_rate=0.0))
    parked = rig.connect(3)
    rig.step()
    rig.change(address_rate=UNLIMITED)
    rig.connect(1)
    with no_more_descriptors():
        rig.step()
        rig.step()
    assert all(is_closed(client) for client in parked)
    assert rig.accepted() == 4


# -- waiting for a Processor ---------------------------------------------------------------------------------


def test_time_without_any_credit_is_blocked_time(start: Callable[..., AcceptorRig]) -> None:
    rig = start(1)
    rig.connect(CREDITS)
    rig.step(2)
    rig.clock.advance_ms(1000)
    rig.step(2)
    assert rig.count("acceptor_blocked_ns") == 0, "nobody waits"
    rig.connect(1)
    rig.step(2)
    rig.clock.advance_ms(400)
    rig.step()
    assert rig.count("acceptor_blocked_ns") == 400_000_000, "seen while it lasts"
    rig.clock.advance_ms(20)
    rig.taken()
    rig.processors[0].acknowledge(1)
    rig.step(3)
    assert rig.taken() == [1]
    assert rig.count("acceptor_blocked_ns") == 420_000_000


def test_clients_wait_for_the_acceptor_in_the_backlog(start: Callable[..., AcceptorRig]) -> None:
    """Kafka's testListenBacklogSize: 128 clients are connected before the Acceptor runs."""
    rig = start(2)
    clients = rig.connect(128)
    while sum(len(processor.sockets) for processor in rig.processors) < 128:
        rig.step()
        rig.taken()
        for processor in rig.processors:
            processor.acknowledge()
    assert not any(is_closed(client) for client in clients)


def test_unopened_port_does_not_spin_and_opens_by_itself(
    start: Callable[..., AcceptorRig],
) -> None:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    rig = start(1, listening=listening)
    assert rig.step(5) == 0
    assert not select.select([rig.acceptor.poll_fd()], [], [], 0)[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(rig.address)
    listening.listen(8)
    (client,) = rig.connect()
    assert select.select([rig.acceptor.poll_fd()], [], [], 5)[0], "the first client wakes it"
    rig.step(2)
    assert rig.taken() == [1]
    assert rig.count("connections_accepted") == 1
    assert not is_closed(client)
    rig.connect(3)
    rig.step(2)
    assert rig.taken() == [3]


def test_socket_that_cannot_be_configured_is_not_counted(
    start: Callable[..., AcceptorRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's testExceptionInAcceptor."""
    rig = ready(start(1, limits=ConnectionLimits(broker_max=1)))

    def fail(sock: socket.socket, send_buffer_bytes: int) -> None:
        monkeypatch.undo()
        raise OSError("reset meanwhile")

    monkeypatch.setattr("kproc.broker.acceptor.acceptor.configure", fail)
    first, second = rig.connect(2)
    rig.step(2)
    assert is_closed(first)
    assert rig.taken() == [1]
    assert ports([second]) == [rig.processors[0].sockets[0].getpeername()[1]]


def test_refused_sockets_leave_no_descriptor(start: Callable[..., AcceptorRig]) -> None:
    rig = ready(start(1, limits=ConnectionLimits(address_max=0)))
    rig.step()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        rig.connect(4)
        rig.step()
        while rig.clients:
            rig.clients.pop().close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_settings_reach_the_quotas(start: Callable[..., AcceptorRig]) -> None:
    rig = start(1)
    rig.limits = ConnectionLimits(broker_max=7)
    rig.acceptor.apply_settings(DynamicSettings())
    assert rig.acceptor.quotas.limits.broker_max == 7
