"""Processors and Handlers come and go under load: no connection breaks, no record is lost, doubled or reordered.

`--rounds 40` is the number that a release needs; the default keeps the test short.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kproc.client import Client, ClientError
from tests.support.broker import ServedBroker
from tests.support.checker import Load, clients_are_served
from tests.support.raw import RawClient
from tests.support.status import processes, rows
from tests.support.steady import SteadyLoad
from tests.support.wait import pause, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS = 12
MOST = 6


def connect(bootstrap: str) -> Client:
    host, _, port = bootstrap.rpartition(":")
    return Client.connect(host, int(port))


def scale(bootstrap: str, **counts: int) -> dict[str, Any]:
    with connect(bootstrap) as client:
        return client.scale(**counts)


def counts(bootstrap: str) -> Counter[str]:
    return Counter(role for role, _ in processes(bootstrap))


def test_random_scale_operations_under_load_break_and_lose_nothing(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    settings = {"num.network.threads": 2, "num.io.threads": 2}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=PARTITIONS)
        with SteadyLoad(broker.bootstrap, "load", PARTITIONS) as load:
            load.wait_progress("before the first")
            for number in range(rounds):
                wanted = {"processors": source.randint(1, MOST), "handlers": source.randint(1, MOST)}
                assert scale(broker.bootstrap, **wanted)["counts"] == wanted
                found = counts(broker.bootstrap)
                assert {"processors": found["processor"], "handlers": found["handler"]} == wanted
                load.wait_progress(f"round {number}, {wanted}")
            violations = load.finish()
            assert load.acknowledged_count > 100 * rounds
        assert not violations, f"seed {seed}, {len(violations)} in all:\n" + "\n".join(violations[:20])


def test_rebalance_under_load_breaks_and_loses_nothing(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings={"num.network.threads": 1}) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=PARTITIONS)
        with SteadyLoad(broker.bootstrap, "load", PARTITIONS) as load:
            load.wait_progress("on one Processor")
            scale(broker.bootstrap, processors=3)
            load.wait_progress("on three")

            def held() -> list[int]:
                return [r["connections"] for r in rows(broker.bootstrap) if r["role"] == "processor"]

            wait_until(lambda: min(held()) >= 30, what="the new Processors were given connections")
            for _ in range(3):
                with connect(broker.bootstrap) as client:
                    client.operate("rebalance")
                load.wait_progress("after a rebalance")
            assert not load.finish()


def test_death_in_the_middle_of_a_scale_ends_in_what_was_wanted(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    settings = {"num.network.threads": 2, "num.io.threads": 2}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=PARTITIONS)
        with Load(broker.bootstrap, "load", PARTITIONS) as load:
            for number in range(rounds):
                alive = processes(broker.bootstrap)
                victim = source.choice(sorted(role for role, pid in alive.items() if pid != broker.pid))
                wanted = {"processors": source.randint(1, 4), "handlers": source.randint(1, 4)}
                with connect(broker.bootstrap) as client:
                    client.operate("scale", **wanted)  # Answered within a tick, done or not.
                    pause(source.uniform(0, 0.03))
                    with contextlib.suppress(ProcessLookupError):  # It has left in time.
                        os.kill(alive[victim], signal.SIGKILL)
                wait_until(
                    lambda wanted=wanted: _settled(broker.bootstrap, wanted),
                    seconds=60,
                    what=f"{wanted} after {victim} was killed",
                )
                wait_until(clients_are_served(broker.bootstrap, "load"), what=f"served, round {number}")
                load.wait_progress(f"round {number}, {victim}")
            violations = load.finish()
        assert not violations, f"seed {seed}, {len(violations)} in all:\n" + "\n".join(violations[:20])
        assert broker.is_running()


def _settled(bootstrap: str, wanted: dict[str, int]) -> bool:
    try:
        shown = rows(bootstrap)
    except (ClientError, OSError) as problem:
        raise AssertionError(f"no status: {problem}") from problem
    found = Counter(row["role"] for row in shown)
    assert {row["state"] for row in shown} == {"running"}, [(r["role"], r["state"]) for r in shown]
    assert {"processors": found["processor"], "handlers": found["handler"]} == wanted, found
    return True
