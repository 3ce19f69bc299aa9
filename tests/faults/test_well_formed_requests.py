"""Whatever a well-formed request asks for is answered with a reason: nothing is a surprise, and no role dies of it."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.minimal import REFUSED, advertised, error_codes
from tests.support.proc import child_pids
from tests.support.raw import Closed, RawClient
from tests.support.well_formed import WellFormed

pytestmark = pytest.mark.faults

SETTINGS = {"auto.create.topics.enable": "false", "num.io.threads": 2, "group.initial.rebalance.delay.ms": 0}
ROUNDS = 15
# These may wait for others, or for data: what becomes of them is seen in the log.
PARKED = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
# More would be served, and that takes the time of making them.
PARTITION_COUNT_MAX = 100


def modest(api_key: ApiKey, fields: dict[str, Any]) -> dict[str, Any]:
    """With no more new partitions than a test has time for."""
    name = {ApiKey.CREATE_TOPICS: "num_partitions", ApiKey.CREATE_PARTITIONS: "count"}.get(api_key)
    if name is not None:
        for topic in fields["topics"]:
            topic[name] = min(topic[name], PARTITION_COUNT_MAX)
    return fields


def test_well_formed_requests_never_get_unknown_server_error(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        attack(broker, int(pytestconfig.getoption("seed")))


def attack(broker: ServedBroker, seed: int) -> None:
    source = random.Random(seed)
    with RawClient(broker.bootstrap) as healthy:
        topics = {name: healthy.create_topic(name, partitions=2) for name in ("one", "other")}
        served = advertised(healthy)
        pids = sorted(child_pids(broker.pid))
        make = WellFormed(source, topics, ["group", "another"])
        answered: set[int] = set()
        for _ in range(ROUNDS):
            for key, versions in served.items():
                api_key = ApiKey(key)
                version = source.choice([each for each in versions if (key, each) not in REFUSED])
                fields = modest(api_key, make.request(api_key, version))
                is_unanswered = api_key in PARKED or fields.get("acks") == 0
                # A Produce with acks=0 has no other way to say no than the end of the connection.
                silence = (TimeoutError, Closed) if is_unanswered else ()
                seconds = 0.05 if is_unanswered else 30
                with RawClient(broker.bootstrap, timeout=seconds) as one, contextlib.suppress(*silence):
                    answer = one.call(api_key, version, fields)
                    assert ErrorCode.UNKNOWN_SERVER_ERROR not in error_codes(answer), (
                        f"seed {seed}: {api_key.name} v{version}: {fields} -> {answer}"
                    )
                    answered.add(key)
        # Whether a Fetch or a join that waits is answered in that time depends on the machine.
        assert answered | {*PARKED} == set(served)
        assert sorted(child_pids(broker.pid)) == pids, f"seed {seed}: {broker.log()}"
    assert "Traceback" not in broker.log(), f"seed {seed}: {broker.log()}"
