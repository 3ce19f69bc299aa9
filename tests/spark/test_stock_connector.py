"""Spark's own Kafka connector against kproc: one specification, `connector` changed, the same rows.

So an existing Spark job moves over by its bootstrap address, and a pipeline between the two by one word.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kproc.pipeline.build import Builder
from kproc.pipeline.model import Pipeline
from kproc.pipeline.sinks import start_stream, write_table
from kproc.pipeline.spec import parse_spec
from tests.support import spark_jars
from tests.support.topics import TopicFactory
from tests.support.wait import PATIENCE_SECONDS

pytestmark = pytest.mark.transports("process")
PARTITIONS = 3
RECORDS = 300
STEP_MS = 1000
BEGAN_MS = 1_767_225_600_000
BATCH_SECONDS = 600


# kproc's own source shows the same in test_source.py and test_pipeline.py; here, by hand, from the same specifications.
@pytest.fixture(params=["kafka", pytest.param("kproc", marks=pytest.mark.slow)])
def connector(request: pytest.FixtureRequest) -> str:
    """The stock connector where its jars are, and kproc's source for comparison."""
    reason = spark_jars.missing_reason() if request.param == "kafka" else None
    if reason is not None:
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture(scope="module")
def records(broker: Any) -> tuple[str, list[tuple[Any, ...]]]:
    """A topic, and its rows as (partition, offset, timestamp in ms, key, value, header)."""
    name = TopicFactory(broker.bootstrap)(partitions=PARTITIONS)
    return name, produce(broker.bootstrap, name, 0, RECORDS)


def produce(bootstrap: str, topic: str, first: int, count: int) -> list[tuple[Any, ...]]:
    """Records with keys, headers and timestamps that are known; a null key and a null value among them."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    rows = []
    for number in range(first, first + count):
        partition, offset = number % PARTITIONS, number // PARTITIONS
        key = None if number % 7 == 0 else f"k{number}".encode()
        value = None if number % 11 == 0 else json.dumps({"id": number, "even": number % 2 == 0}).encode()
        at = BEGAN_MS + number * STEP_MS
        producer.produce(topic, value, key, partition, timestamp=at, headers=[("n", str(number).encode())])
        rows.append((partition, offset, at, key, value, ("n", str(number).encode())))
    assert producer.flush(PATIENCE_SECONDS) == 0
    return rows


def pipeline_of(
    tmp_path: Path,
    bootstrap: str,
    connector: str,
    source: str,
    sink: str = "noop = true",
    sql: str = "select * from t",
) -> Pipeline:
    text = f"""
[pipeline]
name = "stock"
checkpoint = "state"
bootstrap = "{bootstrap}"
connector = "{connector}"
trigger = "available-now"

[[source]]
name = "t"
{source}

[[transform]]
name = "rows"
sql = '''{sql}'''

[[sink]]
name = "out"
input = "rows"
{sink}
"""
    return parse_spec(text, tmp_path / "stock.toml")


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    """Rows as `produce` returns them."""
    selected = frame.selectExpr(
        "partition", "offset", "unix_millis(timestamp)", "key", "value", "headers[0].key", "headers[0].value"
    )
    return sorted(
        (
            row[0],
            row[1],
            row[2],
            *(None if v is None else bytes(v) for v in row[3:5]),
            (row[5], bytes(row[6])),
        )
        for row in selected.collect()
    )


def read(spark: Any, pipeline: Pipeline, state: Path | None = None) -> list[tuple[Any, ...]]:
    return rows_of(Builder(pipeline, spark, state=state).frame(pipeline.sinks[0]))


def run_stream(spark: Any, pipeline: Pipeline, state: Path) -> None:
    """The pipeline's one query until what was there is done."""
    [sink] = pipeline.sinks
    query = start_stream(pipeline, sink, Builder(pipeline, spark, state=state).frame(sink), print)
    assert query.awaitTermination(BATCH_SECONDS)


COLUMNS = 'columns = ["key", "value", "partition", "offset", "timestamp", "headers"]'


def test_stock_connector_batch_reads_every_field(spark, broker, records, connector, tmp_path) -> None:
    topic, expected = records
    whole = pipeline_of(
        tmp_path, broker.bootstrap, connector, f'topic = "{topic}"\nread = "batch"\n{COLUMNS}'
    )
    assert read(spark, whole) == sorted(expected)

    # Offsets by partition (end exclusive, -2 earliest, -1 latest), then a time: what is at or after it.
    some = f'starting = {{ "{topic}" = {{ 0 = 10, 1 = -2, 2 = 95 }} }}\n'
    some += f'ending = {{ "{topic}" = {{ 0 = 12, 1 = 3, 2 = -1 }} }}'
    part = pipeline_of(
        tmp_path, broker.bootstrap, connector, f'topic = "{topic}"\nread = "batch"\n{COLUMNS}\n{some}'
    )
    ranges = {0: range(10, 12), 1: range(3), 2: range(95, 100)}
    assert read(spark, part) == sorted(row for row in expected if row[1] in ranges[row[0]])

    late = f"starting = 2026-01-01T00:04:30Z\n{COLUMNS}"
    since = pipeline_of(tmp_path, broker.bootstrap, connector, f'topic = "{topic}"\nread = "batch"\n{late}')
    assert read(spark, since) == sorted(row for row in expected if row[2] >= BEGAN_MS + 270_000)


def test_stock_connector_stream_by_pattern_resumes(spark, broker, connector, tmp_path) -> None:
    topic = TopicFactory(broker.bootstrap)(partitions=PARTITIONS)
    first = produce(broker.bootstrap, topic, 0, 60)
    source = f'pattern = "^{topic}$"\nstarting = "earliest"\nmax_offsets_per_trigger = 30\n{COLUMNS}'
    pipeline = pipeline_of(tmp_path, broker.bootstrap, connector, source, f'parquet = "{tmp_path}/out"')
    run_stream(spark, pipeline, tmp_path / "initial")
    assert rows_of(spark.read.parquet(f"{tmp_path}/out")) == sorted(first)
    assert len(list((tmp_path / "state" / "out" / "commits").glob("[0-9]*"))) >= 2, "the limit makes batches"

    more = produce(broker.bootstrap, topic, 60, 30)
    run_stream(spark, pipeline, tmp_path / "initial")
    assert rows_of(spark.read.parquet(f"{tmp_path}/out")) == sorted([*first, *more])


def test_json_is_read_and_written_alike(spark, broker, records, connector, tmp_path) -> None:
    topic, expected = records
    target = TopicFactory(broker.bootstrap)(partitions=PARTITIONS)
    source = f'topic = "{topic}"\nread = "batch"\nformat = "json"\nmetadata = ["partition"]\n'
    source += 'schema = "id long, even boolean"'
    sink = f'topic = "{target}"\nkey = "id"\nvalue = "to_json(struct(id, even))"\npartition = "_partition"'
    pipeline = pipeline_of(
        tmp_path, broker.bootstrap, connector, source, sink, "select * from t where id is not null"
    )
    [out] = pipeline.sinks
    write_table(pipeline, out, Builder(pipeline, spark).frame(out), print)
    wanted = sorted((row[0], str(json.loads(row[4])["id"]).encode(), row[4]) for row in expected if row[4])
    assert consumed(broker.bootstrap, target, len(wanted)) == [
        (partition, key, json.loads(value)) for partition, key, value in wanted
    ]


def consumed(bootstrap: str, topic: str, count: int) -> list[tuple[int, bytes | None, Any]]:
    """(partition, key, value) of all records, which are so many."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), 10)[1]
            for number in range(PARTITIONS)
        ]
        assert sum(ends) == count
        messages: list[Any] = []
        while len(messages) < count:
            message = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            messages.append(message)
        found = [(each.partition(), each.key(), each.value()) for each in messages]
        return [(partition, key, json.loads(value)) for partition, key, value in sorted(found)]
    finally:
        consumer.close()
