"""kill -9 of the cleaner and of Handlers while logs are compacted under load: every key's newest record stays.

`--rounds 100` is the number that a release needs; the default keeps the test short.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import ServedBroker
from tests.support.keyed_load import KeyedProducer, TailReader, violations
from tests.support.raw import RawClient
from tests.support.status import processes, rows, wait_replaced
from tests.support.wait import pause, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS = 4
SETTINGS = {
    "num.io.threads": 2,
    "log.cleaner.backoff.ms": 100,
    "log.segment.delete.delay.ms": 2000,
    "log.cleaner.dedupe.buffer.size": 1 << 20,
}
# Segments fill by bytes: 3 MB/s in few large records cost a third of the CPU of many small ones.
LOAD: dict[str, Any] = {"keys": 50, "value_bytes": 12_000, "pause_seconds": 0.008}
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.01"}


def compactions(bootstrap: str) -> int:
    """Of all cleaners that there were: counters outlive them."""
    (row,) = [row for row in rows(bootstrap) if row["role"] == "cleaner"]
    return int(row["counters"]["compactions"])


def test_kill_9_during_compaction_loses_no_record(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds = int(pytestconfig.getoption("rounds"))
    source = random.Random(int(pytestconfig.getoption("seed")))
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t", partitions=PARTITIONS, configs=CONFIGS)
        producers = [
            KeyedProducer(broker.bootstrap, "t", PARTITIONS, f"p{n}", **LOAD) for n in range(2)
        ]
        reader = TailReader(broker.bootstrap, "t", PARTITIONS)
        for one in (*producers, reader):
            one.start()
        try:
            wait_until(lambda: compactions(broker.bootstrap), seconds=30, what="the first compaction")
            for number in range(rounds):
                pause(source.uniform(0.1, 0.6))
                role = [("cleaner", 0), ("handler", 0), ("handler", 1)][number % 3]
                before, pid = compactions(broker.bootstrap), processes(broker.bootstrap)[role]
                os.kill(pid, signal.SIGKILL)
                wait_replaced(broker.bootstrap, role, pid)
                wait_until(
                    lambda before=before: compactions(broker.bootstrap) > before,
                    seconds=60,
                    what=f"a compaction after round {number}, {role}",
                )
        finally:
            for one in producers:
                one.stop()
            reader.stop()
        wrong, total = violations(broker.bootstrap, "t", PARTITIONS, producers)
        sent = sum(each.count for each in producers)
        assert total < sent
        assert not wrong + reader.problems, "\n".join((wrong + reader.problems)[:20])
        assert broker.is_running()
    # And after a clean stop and a start the same is there.
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        wrong, _ = violations(broker.bootstrap, "t", PARTITIONS, producers)
        assert not wrong, "\n".join(wrong[:20])
