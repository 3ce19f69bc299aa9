"""Data directories that Apache Kafka itself wrote: live and after its stop, with transactions and every codec."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as Assigned

from bench.peers.kafka import KafkaPeer
from kproc.broker.storage.checkpoints import read_partition_metadata
from kproc.broker.storage.log import Log, LogConfig, LogIdentity
from kproc.broker.storage.os_fs import OsFs
from kproc.common.clock import SystemClock
from kproc.common.reading import LATEST, READ_COMMITTED, READ_UNCOMMITTED
from kproc.spark.brokers import cluster_of
from kproc.spark.decode import Decoder
from kproc.spark.local import local_files
from kproc.spark.log_options import LogOptions
from kproc.spark.log_plan import plan
from kproc.spark.offsets import TopicPartition
from kproc.spark.options import parse_source
from tests.support.kafka_jars import missing_reason
from tests.support.transactions import Values, committed_fetch, read_committed
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.usefixtures("own_connections"),
    pytest.mark.java,
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def kafka(kafka_peer: KafkaPeer) -> KafkaPeer:
    return kafka_peer


def produce(peer: KafkaPeer, topic: str, values: list[bytes], **settings: str) -> None:
    producer = Producer({"bootstrap.servers": peer.bootstrap, "linger.ms": 5, **settings})
    for value in values:
        producer.produce(topic, value, key=value[:2], headers=[("h", value[:1])], partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0


def values_of(peer: KafkaPeer, topic: str, **options: str) -> list[bytes]:
    parsed = LogOptions.parse({"path": str(peer.data), "topics": topic, **options})
    found = []
    for files, first, end in plan(parsed):
        decoder = Decoder(["value"], files.topic, files.partition, first, end, isolation=parsed.isolation)
        for table in files.read(decoder, isolation=parsed.isolation):
            found += table.column(0).to_pylist()
    return found


def test_segment_reader_of_live_directory_with_every_codec(kafka: KafkaPeer) -> None:
    chance = random.Random(1)
    expected = []
    for codec in CODECS:
        values = [b"%s %05d " % (codec.encode(), number) + chance.randbytes(900) for number in range(400)]
        produce(kafka, "codecs", values, **{"compression.type": codec})
        expected += values
    assert len(list((kafka.data / "codecs-0").glob("*.log"))) > 1
    assert values_of(kafka, "codecs") == expected
    assert values_of(kafka, "codecs", maxPartitionBytes="40k") == expected
    assert values_of(kafka, "codecs", startingOffsets='{"codecs": {"0": 1999}}') == expected[1999:]


def test_segment_reader_agrees_with_transaction_index(kafka: KafkaPeer) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "segments"})
    producer.init_transactions(30)
    committed = []
    for number in range(12):
        producer.begin_transaction()
        values = [b"%d of %d" % (each, number) for each in range(20)]
        for value in values:
            producer.produce("transactions", value, partition=0)
        producer.flush(30)
        if number % 3 == 0:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            committed += values
    producer.begin_transaction()
    producer.produce("transactions", b"open", partition=0)
    producer.flush(30)
    committed_only = {"isolation.level": "read_committed"}
    assert values_of(kafka, "transactions", **committed_only) == committed
    assert values_of(kafka, "transactions", **committed_only, maxPartitionBytes="1k") == committed
    assert len(values_of(kafka, "transactions")) == 241
    producer.abort_transaction(30)


def test_the_source_believes_a_directory_that_is_the_leaders(kafka: KafkaPeer) -> None:
    produce(kafka, "local", [b"one", b"two"])
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "local"}
    partition = TopicPartition("local", 0)
    named = parse_source({**given, "kproc.data.dir": str(kafka.data)}, is_stream=False)
    files = local_files(named, partition)
    assert files is not None
    assert files.find_end_offset() == 2
    # Kafka does not say where its files are: what is not known is fetched.
    assert local_files(parse_source(given, is_stream=False), partition) is None


def consumed(peer: KafkaPeer, topic: str) -> Values:
    """(offset, value) of what Kafka's own broker gives a reader of committed records."""
    settings = {"group.id": "g", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": peer.bootstrap, **settings})
    consumer.assign([Assigned(topic, 0, 0)])
    found: Values = []
    while True:
        (message,) = consumer.consume(1, 30)
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return found
        found.append((message.offset(), message.value()))


@pytest.mark.parametrize("has_index", [True, False], ids=["as it is", "without its index"])
def test_kproc_rebuilds_kafkas_transaction_index(
    kafka: KafkaPeer, tmp_path: Path, has_index: bool
) -> None:
    topic = f"opened-{has_index}"
    producers = [
        Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-{number}"})
        for number in range(3)
    ]
    for producer in producers:
        producer.init_transactions(30)
        producer.begin_transaction()
    chance = random.Random(5)
    for number in range(60):
        producer = producers[number % 3 if number > 56 else chance.randrange(3)]
        producer.produce(topic, b"%d " % number + bytes(chance.choice((10, 3000))), partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        if number % 3 == 0 and number < 55:
            if chance.random() < 0.5:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
            producer.begin_transaction()
    partition = TopicPartition(topic, 0)
    stable, end = (
        cluster_of(kafka.bootstrap).list_offsets({partition: LATEST}, isolation=isolation)[partition]
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED)
    )
    seen = consumed(kafka, topic)
    directory = tmp_path / f"{topic}-0"
    shutil.copytree(kafka.data / directory.name, directory)
    indexes = {path: path.read_bytes() for path in directory.glob("*.txnindex")}
    assert any(indexes.values())
    for path in () if has_index else indexes:
        path.unlink()
    topic_id = read_partition_metadata(OsFs(), directory)
    assert topic_id is not None
    log = Log.open(
        LogIdentity(directory, topic, topic_id, 0), LogConfig(), leader_epoch=1,
        clock=SystemClock(), fs=OsFs(),
    )  # fmt: skip
    assert (log.state.last_stable_offset, log.state.end_offset) == (stable, end)
    assert read_committed(committed_fetch(log, lambda: 1000), 0) == (seen, stable)
    log.close()
    assert {path: path.read_bytes() for path in indexes} == indexes
    for producer in producers:
        producer.abort_transaction(30)
