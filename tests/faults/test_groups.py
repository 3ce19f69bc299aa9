"""Consumer groups while processes die or come and go: committed offsets stay, nothing is skipped, groups settle.

`--rounds 100` is the number that a release needs; the default keeps the test short.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from pathlib import Path

import pytest

from bench.peers.base import free_ports
from kproc.client import ClientError
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.coordinator_log import write_commits
from tests.support.group_load import GroupLoad
from tests.support.groups import Member, commit, describe, fetch_group, find_coordinator, offsets_of, settle
from tests.support.proc import living
from tests.support.raw import RawClient
from tests.support.status import connect, processes, wait_replaced
from tests.support.wait import PATIENCE_SECONDS, pause, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS, MEMBERS = 8, 4
# A member of the consumer protocol keeps its partitions while its coordinator is away.
SETTLE_SECONDS = {"classic": 10.0, "consumer": 5.0}
SETTINGS = {
    "num.network.threads": 2,
    "num.io.threads": 2,
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 200,
}
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def scale(bootstrap: str, **counts: int) -> None:
    with connect(bootstrap) as client:
        client.scale(**counts)


@PROTOCOLS
def test_kill_9_of_random_roles_under_active_group(
    tmp_path: Path, transport: str, protocol: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("work", partitions=PARTITIONS)
        load = GroupLoad(broker.bootstrap, "work", PARTITIONS, members=MEMBERS, protocol=protocol)
        with load:
            load.wait_settled("at first", 30.0)
            for number in range(rounds):
                pause(source.uniform(0.05, 0.4))
                alive = processes(broker.bootstrap)
                role = source.choice(sorted(role for role, pid in alive.items() if pid != broker.pid))
                os.kill(alive[role], signal.SIGKILL)
                wait_replaced(broker.bootstrap, role, alive[role])
                load.wait_settled(f"round {number}, {role}", SETTLE_SECONDS[protocol])
            load.wait_processed()
        report(load, f"seed {seed}")


class Changes:
    """What happens to a broker in one round; each returns when it is over, and says what it was."""

    def __init__(self, broker: ServedBroker, source: random.Random) -> None:
        self._broker = broker
        self._source = source

    def change(self) -> str:
        return self._source.choice(
            [self.kill, self.scale, self.kill_while_scaling, self.restart, self.kill_everything]
        )()

    def kill(self) -> str:
        role, pid = self._victim()
        os.kill(pid, signal.SIGKILL)
        wait_replaced(self._broker.bootstrap, role, pid)
        return f"kill -9 of {role}"

    def scale(self) -> str:
        count = self._source.randint(1, 4)
        scale(self._broker.bootstrap, handlers=count)
        return f"{count} Handlers"

    def kill_while_scaling(self) -> str:
        """A new role that dies undoes the change, and the Processor may die with the answer: both are no success."""
        count = self._source.randint(1, 4)
        role, pid = self._victim()

        def change() -> None:
            with contextlib.suppress(ClientError, OSError):
                scale(self._broker.bootstrap, handlers=count)

        thread = threading.Thread(target=change)
        thread.start()
        pause(self._source.uniform(0, 0.3))
        with contextlib.suppress(ProcessLookupError):  # It has left already.
            os.kill(pid, signal.SIGKILL)
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
        return f"{count} Handlers and kill -9 of {role}"

    def restart(self) -> str:
        assert self._broker.stop() == 0
        self._broker.start()
        return "stop and start"

    def kill_everything(self) -> str:
        alive = processes(self._broker.bootstrap)
        for pid in alive.values():
            with contextlib.suppress(ProcessLookupError):  # The supervisor's end is theirs.
                os.kill(pid, signal.SIGKILL)
        self._broker.wait()
        wait_until(lambda: not living(list(alive.values())), what="every process is gone")
        self._broker.stop()
        self._broker.start()
        return "kill -9 of everything"

    def _victim(self) -> tuple[tuple[str, int], int]:
        alive = processes(self._broker.bootstrap)
        role = self._source.choice(sorted(role for role, pid in alive.items() if pid != self._broker.pid))
        return role, alive[role]


@PROTOCOLS
def test_active_group_survives_kills_restarts_and_scaling(
    tmp_path: Path, transport: str, protocol: str, pytestconfig: pytest.Config
) -> None:
    """One after the other, and kills in the middle of a change. Committed offsets outlive each."""
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    (port,) = free_ports(1)  # It comes back where its clients look for it.
    served = ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS, port=port)
    with served as broker:
        changes = Changes(broker, source)
        with RawClient(broker.bootstrap) as client:
            client.create_topic("work", partitions=PARTITIONS)
        load = GroupLoad(broker.bootstrap, "work", PARTITIONS, members=MEMBERS, protocol=protocol)
        with load:
            load.wait_settled("at first", 30.0)
            for number in range(rounds):
                pause(source.uniform(0.05, 0.4))
                load.wait_settled(f"round {number}, {changes.change()}", SETTLE_SECONDS[protocol])
            load.wait_processed()
        report(load, f"seed {seed}")


def report(load: GroupLoad, what: str) -> None:
    """Fail with what was lost; `-rP` shows how long the group needed after each round."""
    violations = load.finish()
    assert not violations, f"{what}:\n" + "\n".join(violations[:20])
    seconds = sorted(load.settle_seconds[1:])
    if seconds:
        middle, last = seconds[len(seconds) // 2], seconds[-1]
        print(
            f"{what}: {len(seconds)} rounds, {load.commits} commits; settled in {middle:.2f} s, at most {last:.2f} s"
        )


def test_group_continues_while_handlers_scale(
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
                load.wait_settled(f"round {number}, {count} Handlers", SETTLE_SECONDS["classic"])
            load.wait_processed()
        report(load, "changes of the Handler count")


def test_parked_join_groups_do_not_block_scale_down(tmp_path: Path, transport: str) -> None:
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


def test_large_coordinator_loads_completely_in_slices(tmp_path: Path, transport: str) -> None:
    """Its Handler answers others meanwhile, and heartbeats as if nothing had happened.

    120,000 offsets that differ in their keys take over a second to load. A request waits 200 ms before it is refused.
    """
    settings = {**SETTINGS, "num.io.threads": 1, "offsets.topic.num.partitions": 1}
    served = ServedBroker(tmp_path / "data", transport=transport, settings=settings)
    width, groups = 200, [f"big-{number}" for number in range(600)]
    with served as broker, RawClient(broker.bootstrap) as client, Member(broker.bootstrap, "alive") as member:
        client.create_topic("wide", partitions=width)
        find_coordinator(client, "alive")
        settle([member])
    write_commits(tmp_path / "data", groups, "wide", width, 7)
    with served as broker, RawClient(broker.bootstrap) as client:
        member.client = client
        codes_seen = set()
        while code := fetch_group(client, groups[0], None)["error_code"]:
            codes_seen.add(code)
            assert member.heartbeat() == 0
            # A request that has nothing to do with groups is not held up by the load.
            assert client.end_offset("wide") == 0
        assert codes_seen == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        for group in (groups[0], groups[300], groups[-1]):
            assert offsets_of(client, group) == {("wide", index): 7 for index in range(width)}
        assert member.heartbeat() == 0
