"""Every process holds the descriptors that its role needs and no other: compared with /proc/PID/fd.

What a child inherits by mistake does harm from afar: with a sibling's copy of a handoff socket, passing a
client to a dead Processor succeeds; with one of a client's socket, closing it does not close the connection;
with one of a listening socket, a stopped broker keeps its port.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.support.broker import EmbeddedBroker, ServedBroker
from tests.support.descriptors import (
    CHILDREN,
    EPOLL,
    HANDLERS,
    PIDFD,
    PROCESSORS,
    SEGMENT,
    SOCKET,
    TABLE,
    check_all,
    check_control,
    check_each,
    check_sockets,
    held,
    kind_of,
)
from tests.support.proc import child_pids, open_descriptors
from tests.support.raw import RawClient, batch
from tests.support.status import Role, connect, processes, wait_replaced
from tests.support.wait import pause, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS = 4
SETTINGS = {"num.network.threads": PROCESSORS, "num.io.threads": HANDLERS}


def touch_all(broker: ServedBroker) -> None:
    """Give every Handler something to hold."""
    with RawClient(broker.bootstrap) as client:
        client.create_topic("t", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            assert client.produce("t", batch(b"x"), partition=partition)["error_code"] == 0


def wait_checked(
    broker: ServedBroker, roles: dict[Role, int], extra: dict[str, Counter[str]] | None = None
) -> None:
    def is_as_wanted() -> bool:
        check_all(roles, extra=extra or {})
        return True

    # The connection that asked for the status takes a moment to be closed.
    wait_until(is_as_wanted, seconds=5, what="every role holds what it needs")


def test_every_role_holds_exactly_its_descriptors(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        touch_all(broker)
        roles = processes(broker.bootstrap)
        assert len(roles) == CHILDREN + 1
        wait_checked(broker, roles)
        for (role, index), pid in roles.items():
            if role == "handler":
                files = [target for target in held(pid).values() if kind_of(target) == SEGMENT]
                # Of each log the records; a few of them need no index.
                assert len(files) == PARTITIONS // HANDLERS, f"{role}-{index} holds {files}"


def test_role_restarts_leak_no_descriptors_in_other_roles(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        touch_all(broker)
        wait_checked(broker, processes(broker.bootstrap))
        for _ in range(2):
            for role in [role for role, pid in processes(broker.bootstrap).items() if pid != broker.pid]:
                pid = processes(broker.bootstrap)[role]
                os.kill(pid, signal.SIGKILL)
                wait_replaced(broker.bootstrap, role, pid)
        wait_checked(broker, processes(broker.bootstrap))


def test_connection_costs_one_descriptor_in_its_processor_only(
    tmp_path: Path, transport: str
) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        clients = [RawClient(broker.bootstrap) for _ in range(2 * PROCESSORS)]
        try:
            pause(0.1)
            roles = processes(broker.bootstrap)
            wait_checked(broker, roles, {"processor": Counter({SOCKET: 2})})
        finally:
            for client in clients:
                client.close()
        wait_checked(broker, roles)


def test_scaling_leaks_no_descriptors_in_other_roles(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        touch_all(broker)
        clients = [RawClient(broker.bootstrap) for _ in range(4 * PROCESSORS)]
        try:
            for _ in range(2):
                with connect(broker.bootstrap) as operator:
                    # Connections go to the new Processors and come back when those leave.
                    operator.scale(processors=PROCESSORS + 2, handlers=HANDLERS + 2)
                    operator.scale(processors=PROCESSORS, handlers=HANDLERS)
            roles = processes(broker.bootstrap)
            assert len(roles) == CHILDREN + 1
            check_sockets(roles)
        finally:
            for client in clients:
                client.close()
        wait_checked(broker, roles)


def test_control_plane_roles_hold_exactly_their_descriptors(tmp_path: Path, transport: str) -> None:
    settings = {**SETTINGS, "kproc.control.listener": "127.0.0.1:0"}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        roles = processes(broker.control)

        def is_as_wanted() -> bool:
            check_control(roles)
            return True

        wait_until(is_as_wanted, seconds=5, what="every role holds what it needs")


def test_only_controller_holds_the_metrics_listener(tmp_path: Path, transport: str) -> None:
    settings = {**SETTINGS, "kproc.metrics.listener": "127.0.0.1:0"}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        roles = processes(broker.bootstrap)

        def is_as_wanted() -> bool:
            # The listening socket, which the supervisor keeps for a successor, the responder's own epoll, and the
            # table, which has the ends of logs.
            controller = Counter({SOCKET: 1, EPOLL: 1, TABLE: 1})
            check_each(roles, extra={"controller": controller, "supervisor": Counter({SOCKET: 1})})
            return True

        wait_until(is_as_wanted, seconds=5, what="every role holds what it needs")


def test_janitor_holds_only_the_pidfd_of_the_broker(transport: str) -> None:
    with EmbeddedBroker(transport=transport) as broker:
        known = {int(row["pid"]) for row in broker.processes}
        (janitor,) = set(child_pids(broker.pid)) - known
        assert [kind_of(target) for target in open_descriptors(janitor).values()] == [PIDFD]
