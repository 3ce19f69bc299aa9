"""The source against Apache Kafka itself: its Metadata, ListOffsets and Fetch, and its transactions."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench.peers.kafka import KafkaPeer
from tests.spark.streams import numbered, send
from tests.support.kafka_jars import missing_reason
from tests.support.topics import TopicFactory, wait_for_markers
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs the spark extra")
pytest.importorskip("pyarrow", reason="needs the spark extra")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from kproc.spark.look_up import DataLoss
from tests.support.spark_readers import batch, between, stream, trim, values

pytestmark = [
    pytest.mark.usefixtures("own_connections"),
    pytest.mark.java,
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]


@pytest.fixture
def kafka(kafka_peer: KafkaPeer) -> str:
    return kafka_peer.bootstrap


def transact(bootstrap: str, topic: str, first: int, count: int, *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{first}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in numbered(first, count):
        producer.produce(topic, value=value.encode(), partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    wait_for_markers(bootstrap, topic)


def test_transactions_are_read_as_kafkas_consumer_reads_them(kafka: str) -> None:
    topic = TopicFactory(kafka)()
    transact(kafka, topic, 0, 50, commit=True)
    transact(kafka, topic, 50, 30, commit=False)
    send(kafka, topic, numbered(80, 5))
    transact(kafka, topic, 85, 40, commit=True)
    transact(kafka, topic, 125, 7, commit=False)
    # What is open now is behind the last stable offset.
    open_one = Producer({"bootstrap.servers": kafka, "transactional.id": f"{topic}-open"})
    open_one.init_transactions(30)
    open_one.begin_transaction()
    open_one.produce(topic, value=b"open", partition=0)
    assert open_one.flush(PATIENCE_SECONDS) == 0

    committed = [*numbered(0, 50), *numbered(80, 45)]
    options: dict[str, Any] = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.fetch.max.bytes": "1k",
    }
    strict = stream(kafka, **options, **{"kafka.isolation.level": "read_committed"})
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    # 132 records and a marker for each of the four transactions that ended.
    assert end[topic] == {"0": 136}
    assert between(strict, start, end) == committed
    table = batch(kafka, **options, **{"kafka.isolation.level": "read_committed", "minPartitions": "5"})
    pieces = table.partitions()
    assert len(pieces) == 5
    assert values(table, pieces) == committed
    plain = batch(kafka, **options)
    assert values(plain, plain.partitions()) == [*numbered(0, 132), "open"]
    open_one.abort_transaction(30)


def test_offsets_times_patterns_and_losses(kafka: str) -> None:
    topic = TopicFactory(kafka)(partitions=3, stem="on-kafka")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        for partition in range(3):
            send(kafka, topic, numbered(0, 20), partition=partition, **{"compression.type": codec})
    reader = stream(kafka, subscribePattern="^on-k.fka-", startingOffsets="earliest", commitGroup="lag")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end[topic] == {"0": 100, "1": 100, "2": 100}
    assert sorted(between(reader, start, end)) == sorted(numbered(0, 20) * 15)

    def committed() -> bool:
        # The first group makes Kafka make its topic of offsets first.
        reader.commit(end)
        return not reader._commit_failed

    wait_until(committed, seconds=60, what="offsets are committed")
    late = batch(
        kafka, subscribe=topic, startingTimestamp="4000000000000", startingOffsetsByTimestampStrategy="latest"
    )
    assert late.partitions() == []

    trim(kafka, topic, 1, 40)
    with pytest.raises(DataLoss, match=rf"{topic}-1 is to be read from offset 0, its log starts at 40"):
        reader.partitions(start, end)
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
    with pytest.raises(DataLoss, match=rf"{topic}-0 does not exist or is not subscribed"):
        reader.latestOffset({topic: end[topic]}, ReadAllAvailable())
