"""kill -9 of everything under a Spark job that copies a topic: no record is lost; duplicates are counted and shown.

In turn, in an order drawn from the seed: the driver (Python and JVM), an executor's JVM, a Python worker of an
executor, a role of the broker, the whole broker (started again on its port). The sink is at least once, so a batch
that was cut short is written again: duplicates are right, a missing record is not.

Kills are spaced by what has arrived, not by time. A cold start of Spark is 7 to 15 s of CPU, a cluster's twice that.
CI therefore runs one JVM, which is driver and executor, starts it once and kills everything but the driver. On a
cluster, which is slow, each kind is killed once under 21,000 records; there `--rounds 30` is 30 kills under 1,000,000:
10 of the driver, 10 of executors (5 of a JVM, 5 of a Python worker) and 10 of the broker (5 of a role, 5 of all of it):
count with 10 minutes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.spark_kills import ONE_JVM, Copying, copy_under_kills
from tests.support.spark_session import missing_reason

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.own_broker,
    pytest.mark.no_leak_guard,  # The test itself waits for the end of every process; the JVM leaves scratch files.
    pytest.mark.timeout(3_600),  # Waits by condition, each with its own limit.
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason())),
]

CLUSTER = "local-cluster[1,2,512]"
KINDS = ("driver", "executor", "worker", "role", "broker")
# A driver as often as an executor or a part of one, and as often as a broker or a part of one.
CYCLE = (*KINDS, "driver")
FULL_CYCLES = 5


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("seed"))


def test_kill_9_of_worker_role_and_broker_loses_no_record(
    tmp_path: Path, transport: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    source = random.Random(seed)
    order = source.sample(("worker", "role", "broker"), 3)
    copying = Copying(tmp_path, master=ONE_JVM, records=6_000, batch_records=1_500, source=source)
    record_property("outcome", copy_under_kills(copying, order))


@pytest.mark.slow
def test_spark_copy_survives_kill_9_of_driver_workers_and_broker(
    tmp_path: Path,
    transport: str,
    seed: int,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    cycles = int(pytestconfig.getoption("rounds")) // len(CYCLE)
    source = random.Random(seed)
    records, batch_records = (1_000_000, 20_000) if cycles >= FULL_CYCLES else (21_000, 1_000)
    kinds = CYCLE if cycles > 1 else KINDS
    order = [kind for _ in range(max(1, cycles)) for kind in source.sample(kinds, len(kinds))]
    copying = Copying(tmp_path, master=CLUSTER, records=records, batch_records=batch_records, source=source)
    record_property("outcome", copy_under_kills(copying, order))
