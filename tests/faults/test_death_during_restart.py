"""Deaths that come while the supervisor is at work on another: it must survive any of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker
from tests.support.proc import child_pids
from tests.support.raw import RawClient, batch
from tests.support.status import Role, processes, wait_replaced
from tests.support.wait import pause

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

# Deaths within two seconds of a start count towards giving the role up, and its successor waits longer and longer.
LONGER_THAN_A_QUICK_DEATH = 2.1


def kill_and_see_successor(broker: ServedBroker, pid: int) -> int:
    """Kill a child; the pid of the process that is forked in its place, at the moment it is there."""
    before = set(child_pids(broker.pid))
    os.kill(pid, signal.SIGKILL)
    # Without a pause, unlike `wait_until`: the supervisor needs two milliseconds for what we want to interrupt.
    deadline = time.monotonic() + 60
    while not (new := set(child_pids(broker.pid)) - before):
        assert time.monotonic() < deadline, "no successor"
    return new.pop()


def test_supervisor_survives_child_death_before_descriptors(
    tmp_path: Path, transport: str
) -> None:
    role: Role = ("processor", 0)
    with ServedBroker(tmp_path / "data", transport=transport, settings={"num.network.threads": 1}) as broker:
        for number in range(3):
            if number:
                pause(LONGER_THAN_A_QUICK_DEATH)
            pid = processes(broker.bootstrap)[role]
            successor = kill_and_see_successor(broker, pid)
            os.kill(successor, signal.SIGKILL)
            wait_replaced(broker.bootstrap, role, successor)
            assert broker.is_running(), broker.log()


def test_supervisor_survives_peer_death_while_linking(
    tmp_path: Path, transport: str
) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings={"num.network.threads": 1}) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
        for _ in range(4):
            alive = processes(broker.bootstrap)
            kill_and_see_successor(broker, alive["processor", 0])
            os.kill(alive["acceptor", 0], signal.SIGKILL)
            for role in (("processor", 0), ("acceptor", 0)):
                wait_replaced(broker.bootstrap, role, alive[role])
            assert broker.is_running(), broker.log()
            with RawClient(broker.bootstrap) as client:
                assert client.produce("t", batch(b"x"))["error_code"] == 0
