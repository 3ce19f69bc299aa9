"""Read, process, write while processes die: each record of the source is in the target once, in its order.

The copier's position is in the same transaction as its records, so whatever fails, the next copier goes on behind what
was committed. `--rounds 100` is the number that a release needs; the default keeps the test short.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="confluent is not installed")

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.broker import ServedBroker
from tests.support.raw import RawClient
from tests.support.status import processes, wait_replaced
from tests.support.wait import pause, wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.clients,
    pytest.mark.own_broker,
    pytest.mark.transports("process"),
]

SOURCE, TARGET, GROUP, PARTITIONS = "source", "target", "copiers", 2
SECONDS = 120.0
# librdkafka 2.16 forgets the broker when all connections to it have broken, and what waits for it then waits for ever.
CLIENT = {"reconnect.backoff.max.ms": 200, "metadata.recovery.strategy": "none"}
AT_ONCE = 20
SETTINGS = {
    "num.network.threads": 1,
    "num.io.threads": 2,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
}


class Copier(threading.Thread):
    """Copies records, one transaction for every few; after any error another producer and consumer go on."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="copier", daemon=True)
        self.transactions = 0
        self.stopping = threading.Event()
        self.problem: BaseException | None = None
        self._servers = bootstrap

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                with contextlib.suppress(KafkaException):
                    self._live()
        except BaseException as problem:  # noqa: BLE001 - the test's thread shows it
            self.problem = problem

    def _live(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": "copier",
                "linger.ms": 0,
                **CLIENT,
            }
        )
        producer.init_transactions(SECONDS)  # What the copier before left open is aborted.
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 300,
                **CLIENT,
            }
        )
        try:
            consumer.subscribe([SOURCE])
            while not self.stopping.is_set():
                self._copy(producer, consumer)
        finally:
            consumer.close()

    def _copy(self, producer: Producer, consumer: Consumer) -> None:
        records = [each for each in consumer.consume(AT_ONCE, 0.2) if each.error() is None]
        if not records:
            return
        producer.begin_transaction()
        for each in records:
            producer.produce(TARGET, each.value(), partition=each.partition())
        positions = {each.partition(): each.offset() + 1 for each in records}
        offsets = [TopicPartition(SOURCE, index, offset) for index, offset in positions.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), SECONDS)
        producer.commit_transaction(SECONDS)
        self.transactions += 1


def committed(bootstrap: str, topic: str) -> dict[int, list[bytes]]:
    """Every record that a reader of committed ones gets, by partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed"}
    )
    found: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    try:
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        ends = {at.partition: consumer.get_watermark_offsets(at, SECONDS)[1] for at in places}
        consumer.assign([TopicPartition(topic, at.partition, 0) for at in places])

        def is_read() -> bool:
            for each in consumer.consume(1_000, 0.1):
                assert each.error() is None, each.error()
                found[each.partition()].append(each.value())
            return all(position.offset >= ends[position.partition] for position in consumer.position(places))

        wait_until(is_read, seconds=SECONDS, what=f"{topic} is read")
    finally:
        consumer.close()
    return found


def test_transactional_copy_is_exactly_once_under_kill_9(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            for topic in (SOURCE, TARGET):
                client.create_topic(topic, partitions=PARTITIONS)
        count = 200 * rounds
        feed(broker.bootstrap, count)
        copier = Copier(broker.bootstrap)
        copier.start()
        try:
            for _ in range(rounds):
                pause(source.uniform(0.2, 0.6))
                alive = processes(broker.bootstrap)
                role = source.choice(sorted(role for role, pid in alive.items() if pid != broker.pid))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(alive[role], signal.SIGKILL)
                wait_replaced(broker.bootstrap, role, alive[role])
            given = committed(broker.bootstrap, SOURCE)
            assert sum(map(len, given.values())) == count
            wait_until(
                lambda: (
                    sum(map(len, committed(broker.bootstrap, TARGET).values())) >= count or copier.problem
                ),
                seconds=4 * SECONDS,
                what=f"seed {seed}: all is copied",
            )
        finally:
            copier.stopping.set()
            copier.join(4 * SECONDS)
        assert not copier.is_alive(), "the copier hangs"
        assert copier.problem is None, f"seed {seed}: {copier.problem!r}"
        assert committed(broker.bootstrap, TARGET) == given, f"seed {seed}"
        assert copier.transactions > rounds


def feed(bootstrap: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(count):
        producer.produce(SOURCE, b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    assert not producer.flush(SECONDS)
