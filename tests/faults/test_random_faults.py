"""Everything at once, over and over: kills, stops and changes of the counts at random, one or two, under load.

`--rounds 300` is the number that a release needs; the default keeps the test short.
"""

from __future__ import annotations

import contextlib
import gc
import random
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker
from tests.support.chaos import Chaos
from tests.support.checker import Load, clients_are_served
from tests.support.configs import set_config
from tests.support.descriptors import CONTROL, HANDLERS, PROCESSORS, check_control, check_sockets
from tests.support.raw import RawClient
from tests.support.status import processes, rows
from tests.support.wait import wait_until
from tests.support.waiting import WaitingClients

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS = 12
SETTINGS = {
    "num.network.threads": PROCESSORS,
    "num.io.threads": HANDLERS,
    "kproc.control.listener": "127.0.0.1:0",
}
ADMITTED = 5  # Connections of our address, in the end.


def test_random_faults_of_every_kind_under_load_lose_nothing(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=PARTITIONS)
        chaos = Chaos(broker, random.Random(seed))
        with (
            WaitingClients(broker.bootstrap, "load", PARTITIONS) as waiting,
            Load(broker.bootstrap, "load", PARTITIONS) as load,
        ):
            for number in range(rounds):
                what = f"round {number}, {chaos.strike()}"
                if number % 3:  # Else the next one strikes while this one is being repaired.
                    chaos.wait_settled(what)
                wait_until(clients_are_served(broker.bootstrap, "load"), seconds=20, what=f"served: {what}")
                load.wait_progress(what)
                assert not waiting.violations, (what, waiting.violations)
            chaos.wait_settled("the last")
            violations = load.finish()
            assert load.acknowledged_count() > 10 * rounds
        violations += waiting.violations
        assert not violations, f"seed {seed}, {len(violations)} in all:\n" + "\n".join(violations[:20])
        assert waiting.answers
        load.producers.clear()  # A librdkafka client keeps its connections until it is destroyed.
        gc.collect()
        _check_what_is_left(broker, chaos)


def _check_what_is_left(broker: ServedBroker, chaos: Chaos) -> None:
    """As many descriptors and counted connections as in a broker that has seen no trouble."""
    chaos.wanted = {"processors": PROCESSORS, "handlers": HANDLERS}
    chaos.scale()
    chaos.wait_settled("all")
    roles = processes(broker.control)

    def is_clean() -> bool:
        check_control(roles, transfers=PROCESSORS - 1)
        check_sockets({role: pid for role, pid in roles.items() if role not in CONTROL})
        return True

    wait_until(is_clean, seconds=10, what="every role holds what it needs")
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(RawClient(broker.bootstrap))
        assert set_config(admin, "max.connections.per.ip", str(ADMITTED)) == (0, None)
        for _ in range(ADMITTED - 1):
            client = stack.enter_context(RawClient(broker.bootstrap))
            client.describe_topic("load")
        assert stack.enter_context(RawClient(broker.bootstrap)).is_closed_by_broker(), "one too many"
        wait_until(
            lambda: (
                sum(row["connections"] for row in rows(broker.control) if row["role"] == "processor")
                == ADMITTED + 1  # The one that asks.
            ),
            what="the status counts as many",
        )
