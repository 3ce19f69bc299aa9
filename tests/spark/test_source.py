"""`spark.read.format("kproc")` against a broker: it returns the written records, by every option."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tests.spark.streams import numbered, send
from tests.support.broker import BrokerUnderTest
from tests.support.topics import TopicFactory
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.transports("process")

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_MS = 1_600_000_000_000
PER_CODEC = 40


def expected_row(topic: str, partition: int, offset: int) -> tuple[Any, ...]:
    """What record number `offset` of the partition is: keys, values and headers, null, empty and long."""
    key = (None, b"", f"key-{offset}".encode())[offset % 3]
    value = (None, b"", b"\x00\xff" + str(offset).encode(), b"long" * 500)[offset % 4]
    headers = (None, [("a", b"1"), ("a", None), ("b", b"")], [("trace", str(offset).encode())])[offset % 3]
    at = datetime.fromtimestamp(FIRST_MS / 1000, UTC) + timedelta(milliseconds=1000 * partition + offset)
    return key, value, topic, partition, offset, at, 0, headers


def fill(bootstrap: str, topic: str, partitions: int) -> list[tuple[Any, ...]]:
    """Every codec into every partition, a batch or more each."""
    rows = []
    for index, codec in enumerate(CODECS):
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50})
        for partition in range(partitions):
            for offset in range(index * PER_CODEC, (index + 1) * PER_CODEC):
                row = expected_row(topic, partition, offset)
                rows.append(row)
                producer.produce(
                    topic,
                    key=row[0],
                    value=row[1],
                    partition=partition,
                    headers=row[7],
                    timestamp=FIRST_MS + 1000 * partition + offset,
                )
        assert producer.flush(PATIENCE_SECONDS) == 0
    return rows


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    def plain(row: Any) -> tuple[Any, ...]:
        cells = [bytes(cell) if isinstance(cell, bytearray) else cell for cell in row]
        if len(cells) == 8 and cells[7] is not None:
            cells[7] = [(key, None if value is None else bytes(value)) for key, value in cells[7]]
        # Spark gives times without a zone, in that of the process.
        return tuple(cell.astimezone(UTC) if isinstance(cell, datetime) else cell for cell in cells)

    return sorted(map(plain, frame.collect()), key=lambda row: (row[2], row[3], row[4]))


def test_batch_source_reads_topic_as_written(
    spark: SparkSession, broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name = topic(partitions=3)
    rows = sorted(fill(broker.bootstrap, name, 3), key=lambda row: (row[3], row[4]))
    total = len(CODECS) * PER_CODEC

    def read(**options: Any) -> DataFrame:
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": name, **options}
        return spark.read.format("kproc").options(**given).load()

    assert collected(read(includeHeaders="true")) == rows

    # A schema of one's own is a projection, in its own order.
    chosen = (
        spark.read.format("kproc")
        .schema("offset long, value binary, partition int")
        .options(**{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": name})
    )
    assert sorted(map(tuple, chosen.load().collect()), key=lambda row: (row[2], row[0])) == [
        (row[4], row[1], row[3]) for row in rows
    ]

    # More tasks, the same rows; and none of either.
    many = read(minPartitions="6")
    assert many.rdd.getNumPartitions() == 6
    assert collected(many) == [row[:7] for row in rows]
    assert read(subscribe=topic(partitions=2)).count() == 0

    # As a view of SQL, and in a session that nobody prepared.
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": name}
    spark.sql(
        f"CREATE OR REPLACE TEMP VIEW records USING kproc OPTIONS ('kafka.bootstrap.servers' '{broker.bootstrap}', "
        f"subscribe '{name}')"
    )
    assert spark.sql("SELECT count(*) AS n FROM records WHERE partition = 2").first().n == total
    assert spark.newSession().read.format("kproc").options(**options).load().count() == 3 * total


def test_batch_source_filters_are_independent(
    spark: SparkSession, broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    """Spark keeps one plan for each load() and shares it among its uses, also with filters pushed down.

    With pushdown a query that has a `where` plans anew, so that it sees later records. SPARK.md says so.
    """
    name = topic()
    send(broker.bootstrap, name, numbered(0, 100))
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": name}
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("kproc").options(**options).load()
        ends = frame.where("offset < 5").union(frame.where("offset >= 95"))
        assert sorted(row.offset for row in ends.collect()) == [*range(5), *range(95, 100)]
        assert frame.where("offset < 5").count() == 5
        assert frame.count() == 100
        frame.where("offset >= 0").createOrReplaceTempView("later")
        send(broker.bootstrap, name, numbered(100, 10))
        assert spark.sql("SELECT count(*) AS n FROM later").first().n == 110
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
