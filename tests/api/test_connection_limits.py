"""Limits on connections of a real broker: by address, listener and broker, set at the start and while it runs.

Kafka's DynamicConnectionQuotaTest and the connection lines of its SocketServerTest. Rates are measured by
`python -m bench.connections`; here only what must happen at all.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any

import pytest

from kproc.client import Client as KprocClient
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest, forked_broker
from tests.support.quotas import alter_quotas
from tests.support.raw import Closed, RawConnection
from tests.support.wait import PATIENCE_SECONDS, wait_until

# A broker for each test costs a second, and only the hand-over of settings differs between transports: one test is
# for that.
pytestmark = [pytest.mark.long, pytest.mark.own_broker, pytest.mark.transports("process")]
StartBroker = Callable[..., BrokerUnderTest]
BROKER = 4
PER_IP = "max.connections.per.ip"


class Client(RawConnection):
    """One connection from an address of the loopback's many, to a port of this host."""

    def __init__(self, port: int, source: str = "127.0.0.1", *, timeout: float = PATIENCE_SECONDS) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout, source_address=(source, 0))
        self._correlation_ids = iter(range(1, 1 << 30))

    def is_served(self) -> bool:
        """Return True if the broker answers; False when it closed the connection."""
        try:
            self.call(ApiKey.API_VERSIONS, 0, {})
        except (Closed, ConnectionError):
            return False
        return True

    def waits(self, seconds: float = 0.3) -> bool:
        """Return True if the broker leaves it unanswered, and open, for so long."""
        self.send(ApiKey.API_VERSIONS, 0, {})
        self.socket.settimeout(seconds)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        except ConnectionError:
            return False
        finally:
            self.socket.settimeout(PATIENCE_SECONDS)
        return False

    def is_answered(self) -> bool:
        """After `waits`: whether its answer comes at last."""
        return len(self.socket.recv(4)) == 4


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(Client(*args, **more))


def ports(broker: BrokerUnderTest) -> list[int]:
    """The ports of all listeners, in their order."""
    listeners = broker._broker.ready["listeners"]  # type: ignore[attr-defined]
    return [int(each["bound"].rpartition(":")[2]) for each in listeners.values()]


def port_of(broker: BrokerUnderTest) -> int:
    return int(broker.bootstrap.rpartition(":")[2])


def set_configs(client: Client, **configs: str | None) -> None:
    """Change configs of the broker; None takes one away."""
    rows = [
        {"name": name.replace("_", "."), "config_operation": 0 if value is not None else 1, "value": value}
        for name, value in configs.items()
    ]
    resource = {"resource_type": BROKER, "resource_name": "", "configs": rows}
    answer = client.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
    )
    assert answer["responses"][0]["error_code"] == 0, answer


def set_ip_rate(client: Client, address: str | None, rate: float | None) -> None:
    assert alter_quotas(client, {"ip": address}, connection_creation_rate=rate) == 0


def served(make: Callable[[], Client], count: int) -> list[bool]:
    return [make().is_served() for _ in range(count)]


def served_at_once(make: Callable[[], Client], count: int) -> list[bool]:
    """As `served`, but all of them connect before the first asks: on a slow machine, too, they exceed a rate."""
    clients = [make() for _ in range(count)]
    return [client.is_served() for client in clients]


def test_max_connections_per_ip_limits_only_that_address(
    start_broker: StartBroker, connect: Callable[..., Client]
) -> None:
    """Kafka's testMaxConnectionsPerIp and testMaxConnectionsPerIpOverrides (by host name)."""
    settings = {PER_IP: "2", "max.connections.per.ip.overrides": "localhost:4,127.0.0.3:1"}
    port = port_of(start_broker(settings=settings))
    kept: list[Client] = []

    def has_four() -> bool:
        kept.append(connect(port))
        if not kept[-1].is_served():
            kept.pop().close()
        return len(kept) == 4

    # On a busy host the look-up of a name takes longer than clients are kept waiting for it.
    wait_until(has_four, what="localhost may have four")
    assert not connect(port).is_served()
    assert served(lambda: connect(port, "127.0.0.2"), 3) == [True, True, False]
    assert served(lambda: connect(port, "127.0.0.3"), 2) == [True, False]
    kept[0].close()
    wait_until(lambda: connect(port).is_served(), seconds=10, what="room after one has left")


@pytest.mark.transports("process", "thread", "inline")
def test_max_connections_per_ip_is_dynamic(
    start_broker: StartBroker, connect: Callable[..., Client]
) -> None:
    port = port_of(start_broker())
    admin = connect(port)
    addresses = (f"127.0.1.{n}" for n in range(1, 250))

    def of_the_next_address() -> list[bool]:
        address = next(addresses)
        return served(lambda: connect(port, address), 3)

    # The answer to AlterConfigs does not wait for Acceptors.
    set_configs(admin, max_connections_per_ip="2")
    wait_until(lambda: of_the_next_address() == [True, True, False], what="a limit of two")
    set_configs(admin, max_connections_per_ip="1")
    wait_until(lambda: of_the_next_address() == [True, False, False], what="a limit of one")
    set_configs(admin, max_connections_per_ip=None)
    wait_until(lambda: all(of_the_next_address()), what="no limit any more")


def test_max_connections_delays_next_client_until_one_leaves(
    start_broker: StartBroker, connect: Callable[..., Client]
) -> None:
    port = port_of(start_broker(settings={"max.connections": "3"}))
    kept = [connect(port) for _ in range(3)]
    assert all(client.is_served() for client in kept)
    late = connect(port)
    assert late.waits(), "neither served nor closed"
    kept[1].close()
    assert late.is_answered()


def test_lowered_max_connections_closes_longest_idle_clients(
    start_broker: StartBroker, connect: Callable[..., Client]
) -> None:
    port = port_of(start_broker())
    admin, *others = [connect(port) for _ in range(6)]
    for client in [*others, admin]:
        assert client.is_served()
    set_configs(admin, max_connections="2")
    wait_until(lambda: _open(others) <= 1, seconds=10, what="eviction of the idle ones")
    assert admin.is_served(), "it was active last"


def _open(some: list[Client]) -> int:
    """How many the broker has not closed."""
    count = 0
    for client in some:
        client.socket.setblocking(False)
        try:
            count += client.socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            count += 1
        except ConnectionError:
            continue
        finally:
            client.socket.setblocking(True)
    return count


def two_listeners(**more: str) -> dict[str, Any]:
    return {
        "listeners": "EXTERNAL://127.0.0.1:0,INTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "EXTERNAL:PLAINTEXT,INTERNAL:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def test_inter_broker_connection_evicts_one_of_other_listener(
    start_broker: StartBroker, connect: Callable[..., Client]
) -> None:
    """Kafka's DynamicConnectionQuotaTest: an inter-broker connect evicts connections of another listener."""
    external, internal = ports(start_broker(settings=two_listeners(max_connections="3")))
    outside = [connect(external) for _ in range(3)]
    assert all(client.is_served() for client in outside)
    late = connect(external)
    assert late.waits()
    inside = connect(internal)
    assert inside.is_served(), "the limit does not hold it up"
    wait_until(lambda: _open(outside) == 2, seconds=10, what="one of the others to go")
    assert inside.is_served()
    assert late.waits(), "the broker is still full"


def test_max_connections_does_not_count_control_listener(
    start_broker: StartBroker, connect: Callable[..., Client]
) -> None:
    """Kafka's testControlPlaneAsPrivilegedListener: its connections are counted among themselves."""
    settings = {"kproc.control.listener": "127.0.0.1:0", "max.connections": "2", PER_IP: "2"}
    broker = start_broker(settings=settings)
    with KprocClient.connect("127.0.0.1", port_of(broker)) as client:
        control = int(str(client.operate("status")["control"]).rpartition(":")[2])
    for held in [connect(port_of(broker)) for _ in range(2)]:
        wait_until(held.is_served, what="the place of the one that asked is free")
    assert connect(port_of(broker)).waits()
    assert served(lambda: connect(control), 2) == [True, True]
    assert connect(control).waits(), "a plain max.connections is every listener's own limit, too"


def test_max_connections_of_a_listener(
    start_broker: StartBroker, connect: Callable[..., Client]
) -> None:
    settings = two_listeners(**{"listener.name.internal.max.connections": "1"})
    external, internal = ports(start_broker(settings=settings))
    first = connect(internal)
    assert first.is_served()
    late = connect(internal)
    assert late.waits()
    assert served(lambda: connect(external), 4) == [True] * 4
    set_configs(first, **{"listener.name.internal.max.connections": "2"})
    assert late.is_answered()


def test_connection_creation_rate_of_ip_closes_connections(
    start_broker: StartBroker, connect: Callable[..., Client]
) -> None:
    """Kafka's testConnectionRatePerIp, with an entity set while the broker runs."""
    port = port_of(start_broker(settings={"quota.window.num": "2"}))
    admin = connect(port)
    set_ip_rate(admin, "127.0.0.2", 2.0)
    wait_until(lambda: not all(served_at_once(lambda: connect(port, "127.0.0.2"), 8)), what="the limit")
    wait_until(lambda: connect(port, "127.0.0.2").is_served(), what="the rate to be below it again")
    assert all(served(lambda: connect(port, "127.0.0.3"), 8)), "another address has no limit"
    set_ip_rate(admin, "127.0.0.2", None)
    wait_until(
        lambda: all(served_at_once(lambda: connect(port, "127.0.0.2"), 5)), seconds=10, what="no limit any more"
    )


def test_connection_creation_rate_of_listener_delays_clients(
    start_broker: StartBroker, connect: Callable[..., Client]
) -> None:
    """Kafka's testConnectionRateLimit."""
    port = port_of(start_broker(settings={"quota.window.num": "2"}))
    set_configs(connect(port), max_connection_creation_rate="10")
    waiting = [connect(port) for _ in range(25)]
    assert all(client.is_served() for client in waiting)


def test_connection_counts_are_right_after_death_of_any_role(
    start_broker: StartBroker, connect: Callable[..., Client]
) -> None:
    """What a dead Processor held is free again; what the others hold counts for a new Acceptor."""
    settings = {"num.network.threads": "2", PER_IP: "6"}
    broker = start_broker(settings=settings)
    port = port_of(broker)
    pids = {(row["role"], row["index"]): row["pid"] for row in broker.processes}
    kept = [connect(port) for _ in range(6)]
    assert all(client.is_served() for client in kept)
    os.kill(pids["acceptor", 0], signal.SIGKILL)
    assert not connect(port).is_served(), "the new Acceptor knows of the six"
    os.kill(pids["processor", 0], signal.SIGKILL)
    wait_until(lambda: _open(kept) == 3, seconds=10, what="the dead one's connections to end")
    fresh: list[Client] = []

    def has_room() -> bool:
        client = connect(port)
        if client.is_served():
            fresh.append(client)
        return len(fresh) == 3

    wait_until(has_room, seconds=20, what="the places of the dead Processor")
    assert not connect(port).is_served(), "six again"


@pytest.mark.transports("process", "thread", "inline")
@pytest.mark.parametrize(
    "settings", [{PER_IP: "0", f"{PER_IP}.overrides": "192.0.2.1:5"}, {"max.connections": "0"}]
)
def test_connection_limits_do_not_block_the_start(
    start_broker: StartBroker, settings: dict[str, str]
) -> None:
    """It asks itself whether it serves, by a connection that came by no listener."""
    start_broker(settings=settings)


def test_full_early_listener_does_not_block_the_start() -> None:
    """Clients that come as soon as they are let in hold every place there is before the broker serves."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    limits = {"early.start.listeners": "PLAINTEXT", "max.connections": 2}
    broker = forked_broker()({"listeners": f"PLAINTEXT://127.0.0.1:{port}", **limits})
    with ThreadPoolExecutor(1) as pool, ExitStack() as crowd:
        starting = pool.submit(broker.start)
        places = 20
        while places and not starting.done():
            try:
                crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS))
                places -= 1
            except ConnectionRefusedError:
                wait([starting], timeout=0.002)
        starting.result()
    broker.stop()


def test_first_client_is_the_first_connection_that_is_counted(start_broker: StartBroker) -> None:
    with KprocClient.connect("127.0.0.1", port_of(start_broker())) as client:

        def created() -> int:
            rows = client.operate("status")["network"]["listeners"]
            return sum(row["created_total"] for row in rows.values())

        wait_until(lambda: created() > 0, what="it is counted")
        assert created() == 1
