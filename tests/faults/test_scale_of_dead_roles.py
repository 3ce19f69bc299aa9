"""Scaling away a role that is dead and waits for its restart: no role waits for it or keeps its state."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import ServedBroker
from tests.support.configs import set_config
from tests.support.raw import RawClient, batch, values_of
from tests.support.status import Role, connect, processes, rows, status, wait_replaced
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS = 12
CLIENTS = 6
# Each death right after a start doubles the wait for the next one: 1.6 s after the fifth, 3.2 s after the sixth.
DEATHS = 6
SETTINGS = {
    "num.network.threads": 2,
    "num.io.threads": 3,
    "kproc.control.listener": "127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT",
}
ONE = "PLAINTEXT://127.0.0.1:0"
BOTH = f"{ONE},EXTERNAL://127.0.0.1:0"


@pytest.fixture
def broker(tmp_path: Path, transport: str) -> Iterator[ServedBroker]:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as running:
        with RawClient(running.bootstrap) as client:
            client.create_topic("t", partitions=PARTITIONS)
        yield running


def keep_down(broker: ServedBroker, role: Role) -> None:
    """Kill it until its successor has to wait."""
    pid = processes(broker.control)[role]
    for _ in range(DEATHS - 1):
        os.kill(pid, signal.SIGKILL)
        pid = wait_replaced(broker.control, role, pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: row_of(broker, role)["state"] == "restarting", what=f"{role} is down")


def row_of(broker: ServedBroker, role: Role) -> dict[str, Any]:
    return next(row for row in rows(broker.control) if (row["role"], row["index"]) == role)


def scale(broker: ServedBroker, **counts: int) -> None:
    """Change the counts and see what is shown."""
    with connect(broker.control) as client:
        assert client.scale(**counts)["counts"].items() >= counts.items()
    for what, count in counts.items():
        wait_shown(broker, what.removesuffix("s"), count)


def wait_shown(broker: ServedBroker, kind: str, count: int) -> None:
    """So many of the data plane are shown, and each runs."""
    wait_until(
        lambda: (
            [row["state"] for row in rows(broker.control) if row["role"] == kind and row["pool"] != "control"]
            == ["running"] * count
        ),
        what=f"{count} of {kind}",
    )


def check_served(client: RawClient, value: bytes) -> None:
    """A record goes into each partition and comes out of it."""
    for partition in range(PARTITIONS):
        row = client.produce("t", batch(value), partition=partition)
        assert row["error_code"] == 0
        fetched = client.fetch("t", row["base_offset"], partition=partition)
        assert values_of(fetched["records"]) == [(row["base_offset"], value)]


def test_scale_down_of_a_dead_handler(broker: ServedBroker) -> None:
    role = ("handler", 2)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.bootstrap)) for _ in range(CLIENTS)]
        for client in clients:
            client.describe_topic("t")
        keep_down(broker, role)
        scale(broker, handlers=2)
        for number, client in enumerate(clients):
            check_served(client, b"without it %d" % number)
        scale(broker, handlers=3)
        before = row_of(broker, role)["counters"]["requests"]

        def is_home() -> bool:
            for client in clients:
                client.describe_topic("t")
            return bool(row_of(broker, role)["counters"]["requests"] > before)

        wait_until(is_home, what="clients that were there before are at home at the new Handler")
        clients += [stack.enter_context(RawClient(broker.bootstrap)) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            check_served(client, b"with a new one %d" % number)


def test_scale_down_of_a_dead_processor(broker: ServedBroker) -> None:
    role = ("processor", 1)
    keep_down(broker, role)
    scale(broker, processors=1)
    with RawClient(broker.bootstrap) as client:
        check_served(client, b"without it")
    scale(broker, processors=2)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.bootstrap)) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            check_served(client, b"with a new one %d" % number)
        wait_until(lambda: row_of(broker, role)["connections"] > 0, what="the new Processor has clients")


def test_listener_removal_with_a_dead_acceptor(broker: ServedBroker) -> None:
    with RawClient(broker.bootstrap) as client:
        assert set_config(client, "listeners", BOTH) == (0, None)
        wait_shown(broker, "acceptor", 2)
        keep_down(broker, ("acceptor", 1))
        assert set_config(client, "listeners", ONE) == (0, None)
        wait_shown(broker, "acceptor", 1)
        assert set_config(client, "listeners", BOTH) == (0, None)
        wait_shown(broker, "acceptor", 2)
        address = status(broker.control)["listeners"]["EXTERNAL"]["bound"]
        with RawClient(address) as stranger:
            check_served(stranger, b"by the new one")
