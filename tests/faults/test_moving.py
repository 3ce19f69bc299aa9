"""The guide MOVING.md, as it stands there: a real Kafka's files, and back by clients."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers.kafka import KafkaPeer
from tests.support.broker import ROOT, ServedBroker, run_kproc
from tests.support.command_server import kproc_on_path
from tests.support.documents import code_to_run
from tests.support.java_tools import run_process
from tests.support.kafka_jars import missing_reason
from tests.support.secured_kafka import JVM
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytest.importorskip("confluent_kafka", reason="confluent is not installed: it writes and reads")

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = [
    pytest.mark.faults,
    pytest.mark.java,
    pytest.mark.own_broker,
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

GROUP = "billing"
SETTINGS = {
    "num.network.threads": 1,
    "num.io.threads": 2,
    "group.initial.rebalance.delay.ms": 0,
}
# Kafka's cleaner drops the last batch of the first two segments of `latest`.
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
KEYS = [b"a", b"b", b"k", b"c", b"d", b"k", b"e", b"f", b"k", b"g"]  # Three make a segment.
KAFKA_SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "share.coordinator.state.topic.num.partitions": "1",
}


def steps(section: int) -> list[str]:
    """The commands of a section of the guide, block by block."""
    text = (ROOT / "kproc" / "MOVING.md").read_text()
    (part,) = re.findall(rf"^## {section}\. .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", part, re.MULTILINE | re.DOTALL)
    assert blocks
    return blocks


def test_all_blocks_of_the_guide_are_in_its_first_sections() -> None:
    assert len(steps(1)) + len(steps(2)) == len(code_to_run("kproc/MOVING.md", "sh"))


def run_step(block: str, **variables: str) -> str:
    """Run a block in a shell."""
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{block}"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let `kproc` in a shell be this one."""
    with kproc_on_path(tmp_path) as directory:
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        yield


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaPeer]:
    peer = KafkaPeer(settings=KAFKA_SETTINGS, under=tmp_path, jvm=JVM)
    peer.start()
    try:
        yield peer
    finally:
        peer.kill()


def create_topics(bootstrap: str) -> None:
    topics = [
        NewTopic("orders", 2, 1, config={"retention.ms": "-1"}),
        NewTopic("latest", 1, 1, config=COMPACTED),
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(PATIENCE_SECONDS)


def produce(bootstrap: str, topic: str, values: list[bytes], *, keys: list[bytes] | None = None) -> None:
    """By an idempotent producer that writes to partition 0."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=keys[number] if keys else None, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0


def produce_latest(bootstrap: str) -> None:
    """Each record is a batch, and of no idempotent producer: Kafka keeps the last batch of such a one."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for key in KEYS:
        producer.produce("latest", key + bytes(300_000), key=key, partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0


def await_gaps(directory: Path) -> None:
    """Kafka has compacted both segments."""

    def are_shorter() -> bool:
        try:
            return all((directory / f"{base:020d}.log").stat().st_size < 700_000 for base in (0, 3))
        except FileNotFoundError:
            return False  # Kafka renames the compacted segment just now.

    wait_until(are_shorter, seconds=60, what="Kafka's compaction")


def transact(bootstrap: str, values: list[bytes], *, is_commit: bool) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "mover"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce("orders", value, partition=1)
    producer.flush(30)
    producer.commit_transaction(30) if is_commit else producer.abort_transaction(30)


def read_partition(bootstrap: str, topic: str, partition: int, count: int, offset: int = 0) -> list[bytes]:
    """The committed values from an offset on."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, offset)])
    values: list[bytes] = []
    while len(values) < count:
        message = consumer.poll(30)
        assert message is not None, f"{len(values)} of {count}"
        assert message.error() is None, message.error()
        values.append(message.value())
    consumer.close()
    return values


def latest_of(bootstrap: str) -> list[bytes]:
    """The keys of all records of `latest`."""
    return sorted(value[:1] for value in read_partition(bootstrap, "latest", 0, len(set(KEYS))))


def commit(bootstrap: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def committed(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    (position,) = consumer.committed([TopicPartition("orders", 0)], 30)
    consumer.close()
    return int(position.offset)


def java_consumer(bootstrap: str, group: str, count: int) -> list[str]:
    """Values that Java's consumer reads; it begins where the group is, and gives up after a while."""
    result = run_process(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", "orders", "--group", group, "--timeout-ms", "8000"),
        *("--max-messages", str(count), "--formatter-property", "print.offset=false"),
        *("--command-property", "auto.offset.reset=earliest"),
    )
    return result.stdout.split()


ORDERS = [b"k%d" % number for number in range(5)]


def use(kafka: KafkaPeer) -> None:
    """Write records, gaps that Kafka's cleaner leaves, transactions of both ends and a group's offset."""
    create_topics(kafka.bootstrap)
    produce(kafka.bootstrap, "orders", ORDERS)
    produce_latest(kafka.bootstrap)
    await_gaps(kafka.data / "latest-0")
    transact(kafka.bootstrap, [b"committed"], is_commit=True)
    transact(kafka.bootstrap, [b"aborted"], is_commit=False)
    commit(kafka.bootstrap, 3)


def move_to_kproc(variables: dict[str, str], data: Path, orders: list[bytes]) -> None:
    """Run section 1 of the guide and check what was moved."""
    create, move, show = steps(1)
    with ServedBroker(data, settings=SETTINGS) as broker:
        run_step(create, KPROC=broker.bootstrap, **variables)
    assert "orders-0: 1 segments" in run_step(move, **variables)
    with ServedBroker(data, settings=SETTINGS) as broker:
        assert GROUP in run_step(show, KPROC=broker.bootstrap, **variables)
        assert read_partition(broker.bootstrap, "orders", 0, len(orders)) == orders
        assert read_partition(broker.bootstrap, "orders", 1, 1) == [b"committed"]
        assert latest_of(broker.bootstrap) == sorted(set(KEYS))
        assert committed(broker.bootstrap) == 3
        change = ("config", "set", "cleanup.policy=delete", "--topic", "latest", "--yes")
        assert run_kproc(*change, "--bootstrap", broker.bootstrap).returncode == 0


def copy_back(broker: ServedBroker, variables: dict[str, str], orders: list[bytes]) -> None:
    """Run section 2 of the guide: copy to the broker `KAFKA`, which has none of the topics."""
    target = variables["KAFKA"]
    create_topics(target)
    commit(target, 0)
    for step in steps(2):
        run_step(step, KPROC=broker.bootstrap, **variables)
    assert read_partition(target, "orders", 0, len(orders)) == orders
    assert latest_of(target) == sorted(set(KEYS))
    assert committed(target) == len(orders)


def test_moving_guide_from_kafka_to_kproc_and_on(kafka: KafkaPeer, tmp_path: Path) -> None:
    """Copies of the records go to another kproc, which stands for the Kafka of section 2."""
    use(kafka)
    kafka.end()
    data = tmp_path / "kproc"
    variables = {"KAFKA": kafka.bootstrap, "KAFKA_DATA": str(kafka.data), "KPROC_DATA": str(data)}
    move_to_kproc(variables, data, ORDERS)
    with (
        ServedBroker(data, settings=SETTINGS) as broker,
        ServedBroker(tmp_path / "other", settings=SETTINGS) as other,
    ):
        assert latest_of(broker.bootstrap) == sorted(set(KEYS)), "the gaps count as no damage"
        # A new producer must not be taken for one of Kafka's with the same id.
        produce(broker.bootstrap, "orders", [b"new"])
        transact(broker.bootstrap, [b"by the same id"], is_commit=True)
        assert read_partition(broker.bootstrap, "orders", 1, 2) == [b"committed", b"by the same id"]
        copy_back(broker, {**variables, "KAFKA": other.bootstrap}, [*ORDERS, b"new"])
        assert read_partition(other.bootstrap, "orders", 1, 2) == [b"committed", b"by the same id"]


@pytest.mark.slow  # Two more starts of Kafka and two Java consumers.
@pytest.mark.timeout(600)
def test_moving_guide_from_kafka_and_back(kafka: KafkaPeer, tmp_path: Path) -> None:
    use(kafka)
    # Kafka's leader epochs grow by two with a restart: they are above those of the new topic.
    kafka.restart()
    orders = [*ORDERS, b"k5"]
    produce(kafka.bootstrap, "orders", [b"k5"])
    kafka.end()
    data = tmp_path / "kproc"
    variables = {"KAFKA": kafka.bootstrap, "KAFKA_DATA": str(kafka.data), "KPROC_DATA": str(data)}
    move_to_kproc(variables, data, orders)
    with ServedBroker(data, settings=SETTINGS) as broker:
        produce(broker.bootstrap, "orders", [b"new"])
        transact(broker.bootstrap, [b"by the same id"], is_commit=True)
        # Java's takes a partition whose leader epoch is below that of its records for one that it must wait for.
        values = java_consumer(broker.bootstrap, GROUP, 100)
        assert [value for value in values if value[0] in "kn"] == ["k3", "k4", "k5", "new"]
        assert read_partition(broker.bootstrap, "orders", 0, 1, offset=6) == [b"new"]
        kafka.start()
        copy_back(broker, {**variables, "KAFKA": kafka.bootstrap}, [*orders, b"new"])
        assert read_partition(kafka.bootstrap, "orders", 1, 2) == [b"committed", b"by the same id"]
        produce(kafka.bootstrap, "orders", [b"back"])
        assert "back" in java_consumer(kafka.bootstrap, GROUP, 100)
