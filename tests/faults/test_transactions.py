"""Transactions while processes die: a read_committed reader gets each committed one whole and once, and no aborted
one.

`--rounds 100` is the number that a release needs; the default keeps the test short.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="confluent is not installed")

from confluent_kafka import KafkaException, Producer

from bench.peers.base import free_ports
from tests.support.adapters.transactional import SECONDS, read_all
from tests.support.broker import ServedBroker
from tests.support.raw import RawClient
from tests.support.status import connect, processes, wait_replaced
from tests.support.wait import pause, wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.clients,
    pytest.mark.own_broker,
    pytest.mark.transports("process"),
]

TOPIC, PARTITIONS, PRODUCERS = "ledger", 4, 3
SETTINGS = {
    "num.network.threads": 2,
    "num.io.threads": 2,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


class Ledger(threading.Thread):
    """One producer: each transaction writes its number to every partition; each third is aborted."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(name=name)
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()
        self.unknown: set[bytes] = set()  # The commit was not answered: all or nothing.
        self.stopping = threading.Event()
        self.problem: BaseException | None = None
        self._address = bootstrap
        self._count = 0

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._live()
        except BaseException as problem:  # noqa: BLE001 - the test's thread shows it
            self.problem = problem

    def _live(self) -> None:
        """One producer's life: until it is told to stop, or fails for good and another one takes its id."""
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": self.name,
                "transaction.timeout.ms": 20_000,
                "reconnect.backoff.max.ms": 200,
                "linger.ms": 0,
            }
        )
        producer.init_transactions(SECONDS)
        while not self.stopping.is_set():
            self._count += 1
            value = f"{self.name}-{self._count}".encode()
            commits = self._count % 3 != 0
            try:
                self._one(producer, value, commits=commits)
            except KafkaException as problem:
                if not problem.args[0].fatal():
                    raise
                (self.unknown if commits else self.aborted).add(value)
                return

    def _one(self, producer: Producer, value: bytes, *, commits: bool) -> None:
        producer.begin_transaction()
        try:
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, value, partition=partition)
            if commits:
                _again(lambda: producer.commit_transaction(10))
                self.committed.add(value)
                return
        except KafkaException as problem:
            if not problem.args[0].txn_requires_abort():
                raise
        _again(lambda: producer.abort_transaction(10))
        self.aborted.add(value)


def _again(work: object) -> None:
    """Repeat what librdkafka says may be repeated."""
    assert callable(work)
    for _ in range(4):
        try:
            work()
        except KafkaException as problem:
            if not problem.args[0].retriable():
                raise
        else:
            return
    raise AssertionError("the end of a transaction is retriable for ever")


@contextlib.contextmanager
def ledgers_of(broker: ServedBroker, what: str) -> Iterator[None]:
    """Producers that write while the block does something to the broker; then what they wrote is judged."""
    with RawClient(broker.bootstrap) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
    ledgers = [Ledger(broker.bootstrap, f"p{number}") for number in range(PRODUCERS)]
    for ledger in ledgers:
        ledger.start()
    try:
        wait_until(
            lambda: sum(len(ledger.committed) for ledger in ledgers) > PRODUCERS
            or any(ledger.problem for ledger in ledgers),
            what="the producers commit",
        )
        yield
        pause(0.3)
    finally:
        for ledger in ledgers:
            ledger.stopping.set()
        for ledger in ledgers:
            ledger.join(SECONDS)
    for ledger in ledgers:
        assert not ledger.is_alive(), f"{what}: {ledger.name} hangs"
        assert ledger.problem is None, f"{what}: {ledger.problem!r}"
    judge(broker.bootstrap, ledgers, what)


def test_kill_9_of_random_roles_tears_and_doubles_no_transaction(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    with (
        ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker,
        ledgers_of(broker, f"seed {seed}"),
    ):
        for _ in range(rounds):
            pause(source.uniform(0.2, 0.6))
            alive = processes(broker.bootstrap)
            role = source.choice(sorted(role for role, pid in alive.items() if pid != broker.pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(alive[role], signal.SIGKILL)
            wait_replaced(broker.bootstrap, role, alive[role])


def test_transactions_survive_handler_scaling_and_kill_of_all(
    tmp_path: Path, transport: str
) -> None:
    (port,) = free_ports(1)  # It comes back where its clients look for it.
    with (
        ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS, port=port) as broker,
        ledgers_of(broker, "other counts of Handlers"),
    ):
        for count in (3, 1, 2):
            with connect(broker.bootstrap) as client:
                client.scale(handlers=count)
            pause(0.4)
        for pid in processes(broker.bootstrap).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        broker.wait()
        broker.stop()
        broker.start()


def judge(bootstrap: str, ledgers: list[Ledger], what: str) -> None:
    committed = set().union(*(ledger.committed for ledger in ledgers))
    aborted = set().union(*(ledger.aborted for ledger in ledgers))
    assert len(committed) > PRODUCERS, f"{what}: hardly anything was committed"
    seen = Counter(read_all(bootstrap, TOPIC, PARTITIONS, isolation="read_committed"))
    torn = {value: count for value, count in seen.items() if count != PARTITIONS}
    assert not torn, f"{what}: not once in each partition: {torn}"
    assert committed <= set(seen), f"{what}: lost: {sorted(committed - set(seen))[:5]}"
    assert not aborted & set(seen), f"{what}: aborted and seen: {sorted(aborted & set(seen))[:5]}"
