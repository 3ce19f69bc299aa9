"""Share groups while clients and roles die: every record is accepted once, and none is lost.

`--rounds 20` is what a release needs; the default keeps the test short.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from kproc.client.requests import group_configuration
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.raw import RawClient
from tests.support.share_load import GROUP, ShareLoad
from tests.support.status import processes, wait_replaced
from tests.support.wait import pause

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS, MEMBERS = 6, 4
# A member that was killed, or a home, holds its records for the lock's duration at worst.
LOCK_MS = 2_000
SETTINGS = {
    "num.network.threads": 2,
    "num.io.threads": 2,
    "group.share.min.record.lock.duration.ms": 1_000,
    "group.share.record.lock.duration.ms": LOCK_MS,
    "group.share.min.session.timeout.ms": 6_000,
    "group.share.session.timeout.ms": 6_000,
    "group.share.min.heartbeat.interval.ms": 500,
    "group.share.heartbeat.interval.ms": 500,
}
# They are produced for as long as roles are killed. Each commit of a member waits for the disk.
RECORDS, PAUSE_SECONDS = 1_200, 5e-3
RELEASE_ROUNDS, RELEASE_RECORDS = 20, 20_000


def test_kills_of_clients_and_roles_lose_no_record(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("work", partitions=PARTITIONS)
            configs = group_configuration(GROUP, {"share.auto.offset.reset": "earliest"})
            answer = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, configs)
            assert answer["responses"][0]["error_code"] == 0
        records = RELEASE_RECORDS if rounds >= RELEASE_ROUNDS else RECORDS
        load = ShareLoad(
            broker.bootstrap, "work", PARTITIONS, members=MEMBERS, records=records, pause_seconds=PAUSE_SECONDS
        )
        with load:
            load.wait_accepted(100)
            for number in range(rounds):
                pause(source.uniform(0.2, 1.0))
                if number % 2:
                    load.kill_worker(source)
                    continue
                alive = processes(broker.bootstrap)
                role = source.choice(sorted(role for role, pid in alive.items() if pid != broker.pid))
                os.kill(alive[role], signal.SIGKILL)
                wait_replaced(broker.bootstrap, role, alive[role])
            violations = load.finish(60.0)
        assert violations == [], (
            f"seed {seed}; deliveries {load.deliveries}; errors {load.errors.most_common(5)}"
        )
        assert load.released, "no record was released"
