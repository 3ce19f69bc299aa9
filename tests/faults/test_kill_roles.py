"""kill -9 of every role, over and over, under load: nothing acknowledged is lost, reordered or doubled.

`--rounds 100` is the number that a release needs; the default keeps the test short.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.checker import Load, clients_are_served
from tests.support.raw import RawClient, fetch_fields
from tests.support.status import processes, wait_replaced
from tests.support.wait import pause, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS = 6
# Two of each, so that a dead one's work has somewhere to be routed past, and forwarding happens.
SETTINGS = {"num.network.threads": 2, "num.io.threads": 2}


def test_kill_9_of_each_role_under_load_loses_nothing(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=PARTITIONS)
        roles = sorted(role for role, pid in processes(broker.bootstrap).items() if pid != broker.pid)
        assert {name for name, _ in roles} >= {"acceptor", "processor", "handler", "controller"}, roles
        rounds = max(rounds, len(roles))
        order = [role for _ in range(rounds // len(roles) + 1) for role in source.sample(roles, len(roles))][
            :rounds
        ]
        with Load(broker.bootstrap, "load", PARTITIONS) as load:
            for number, role in enumerate(order):
                pause(source.uniform(0.05, 0.4))
                pid = processes(broker.bootstrap)[role]
                os.kill(pid, signal.SIGKILL)
                wait_replaced(broker.bootstrap, role, pid)
                served = clients_are_served(broker.bootstrap, "load")
                wait_until(served, what=f"served after round {number}, {role}")
                load.wait_progress(f"round {number}, {role}")
            violations = load.finish()
            assert load.acknowledged_count() > 10 * rounds
        assert not violations, f"seed {seed}, {len(violations)} in all:\n" + "\n".join(violations[:20])
        assert broker.is_running()


def test_kill_9_of_two_roles_at_once_loses_nothing(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    source = random.Random(int(pytestconfig.getoption("seed")) + 1)
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=PARTITIONS)
        with Load(broker.bootstrap, "load", PARTITIONS) as load:
            for _ in range(max(1, int(pytestconfig.getoption("rounds")) // 6)):
                pause(source.uniform(0.05, 0.4))
                alive = processes(broker.bootstrap)
                pair = source.sample(sorted(role for role, pid in alive.items() if pid != broker.pid), 2)
                for role in pair:
                    os.kill(alive[role], signal.SIGKILL)
                for role in pair:
                    wait_replaced(broker.bootstrap, role, alive[role])
            wait_until(clients_are_served(broker.bootstrap, "load"), what="served")
            violations = load.finish()
        assert not violations, "\n".join(violations[:20])


def test_processor_death_closes_connections_in_long_poll(
    tmp_path: Path, transport: str
) -> None:

    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
        waiting = [RawClient(broker.bootstrap) for _ in range(8)]
        try:
            for one in waiting:
                one.send(ApiKey.FETCH, 12, fetch_fields([("t", b"", [(0, 0)])], max_wait_ms=60_000))
            pause(0.2)
            for role, pid in processes(broker.bootstrap).items():
                if role[0] == "processor":
                    os.kill(pid, signal.SIGKILL)
            for one in waiting:
                assert one.is_closed_by_broker(), "a client of a dead Processor must not wait for ever"
        finally:
            for one in waiting:
                one.close()
