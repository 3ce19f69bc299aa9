"""Consumer groups while processes die or come and go: committed offsets stay, nothing is skipped, groups settle.

`--rounds 100` is the number that a release needs; the default keeps the test short.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from kproc.client import Client
from kproc.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.group_load import GroupLoad
from tests.support.groups import (
    Member,
    commit,
    describe,
    fetch_group,
    find_coordinator,
    offsets_of,
    settle,
)
from tests.support.raw import RawClient
from tests.support.status import processes, wait_replaced
from tests.support.wait import pause

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS, MEMBERS = 8, 8
SETTLE_SECONDS = 10.0
SETTINGS = {"num.network.threads": 2, "num.io.threads": 2, "group.initial.rebalance.delay.ms": 0}


def scale(bootstrap: str, **counts: int) -> None:
    host, _, port = bootstrap.rpartition(":")
    with Client.connect(host, int(port)) as client:
        client.scale(**counts)


def test_kill_9_of_random_roles_under_a_working_group(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("work", partitions=PARTITIONS)
        with GroupLoad(broker.bootstrap, "work", PARTITIONS, members=MEMBERS) as load:
            load.wait_settled("at first", 30.0)
            for number in range(rounds):
                pause(source.uniform(0.05, 0.4))
                alive = processes(broker.bootstrap)
                role = source.choice(sorted(role for role, pid in alive.items() if pid != broker.pid))
                os.kill(alive[role], signal.SIGKILL)
                wait_replaced(broker.bootstrap, role, alive[role])
                load.wait_settled(f"round {number}, {role}", SETTLE_SECONDS)
        violations = load.finish()
        assert not violations, f"seed {seed}:\n" + "\n".join(violations[:20])


def test_a_group_works_on_while_handlers_come_and_go(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    source = random.Random(int(pytestconfig.getoption("seed")))
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("work", partitions=PARTITIONS)
        with GroupLoad(broker.bootstrap, "work", PARTITIONS, members=3) as load:
            load.wait_settled("at first", 30.0)
            for number in range(int(pytestconfig.getoption("rounds"))):
                count = source.randint(1, 4)
                scale(broker.bootstrap, handlers=count)
                load.wait_settled(f"round {number}, {count} Handlers", SETTLE_SECONDS)
        violations = load.finish()
        assert not violations, "\n".join(violations[:20])


def test_waiting_joins_do_not_keep_a_handler_from_leaving(tmp_path: Path, transport: str) -> None:
    """Joins that wait at the owner or at the home of their connection: both answer when one of them leaves."""
    settings = {**SETTINGS, "num.io.threads": 3}
    served = ServedBroker(tmp_path / "data", transport=transport, settings=settings)
    with served as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        find_coordinator(client, "any")
        stable = [Member(broker.bootstrap, f"g{number}") for number in range(9)]
        joining = [Member(broker.bootstrap, member.group_id) for member in stable]
        for member, other in zip(stable, joining, strict=True):
            settle([member])
            assert member.commit("t", {0: 7}) == {0: 0}
            other.send_join()
            other.member_id = other.client.receive(ApiKey.JOIN_GROUP, 9)[1]["member_id"]
            other.send_join()
        scale(broker.bootstrap, handlers=1)
        for member in stable:
            assert offsets_of(client, member.group_id) == {("t", 0): 7}
            assert describe(client, member.group_id)["error_code"] == 0
        for member in [*stable, *joining]:
            member.client.close()
        assert commit(client, "other", "t", {0: 1}) == {0: 0}


def test_a_large_coordinator_loads_in_pieces_and_completely(tmp_path: Path, transport: str) -> None:
    """Its Handler answers others meanwhile, and heartbeats as if nothing had happened."""
    settings = {**SETTINGS, "num.io.threads": 1, "offsets.topic.num.partitions": 1}
    served = ServedBroker(tmp_path / "data", transport=transport, settings=settings)
    width, rounds = 200, 150
    with served as broker:
        with RawClient(broker.bootstrap) as client, Member(broker.bootstrap, "alive") as member:
            client.create_topic("wide", partitions=width)
            find_coordinator(client, "big")
            settle([member])
            for number in range(rounds):
                codes = commit(client, "big", "wide", dict.fromkeys(range(width), number), metadata="x" * 50)
                assert set(codes.values()) == {0}
        (pid,) = [pid for (role, _), pid in processes(broker.bootstrap).items() if role == "handler"]
        os.kill(pid, signal.SIGKILL)
        wait_replaced(broker.bootstrap, ("handler", 0), pid)
        with RawClient(broker.bootstrap) as client:
            codes_seen = set()
            while (row := fetch_group(client, "big", None))["error_code"]:
                codes_seen.add(row["error_code"])
                member.client = client
                assert member.heartbeat() == 0
                # A request that has nothing to do with groups is not held up by the load.
                assert client.end_offset("wide") == 0
            assert codes_seen == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            found = {
                part["partition_index"]: part["committed_offset"] for part in row["topics"][0]["partitions"]
            }
            assert found == dict.fromkeys(range(width), rounds - 1)
            assert member.heartbeat() == 0
