"""`df.write` and `df.writeStream` with format("kproc"): the records in the topic, and the errors with their words."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

import kproc.spark
from tests.support.adapters import confluent
from tests.support.raw import RawClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.transports("process")
PARTITIONS = 3


def make(bootstrap: str, *topics: str, **configs: str) -> None:
    with RawClient(bootstrap) as client:
        for topic in topics:
            client.create_topic(topic, partitions=PARTITIONS, configs=configs)


def save(frame: DataFrame, bootstrap: str, **options: Any) -> None:
    writer = frame.write.format("kproc").options(**{"kafka.bootstrap.servers": bootstrap, **options})
    writer.mode("append").save()


def received(bootstrap: str, topic: str) -> list[Any]:
    with RawClient(bootstrap) as client:
        counts = {number: client.end_offset(topic, partition=number) for number in range(PARTITIONS)}
    return confluent.consume(bootstrap, topic, counts)


HEADERS = (
    "array(named_struct('key', 'h', 'value', cast('x' as binary)), "
    "named_struct('key', 'n', 'value', cast('' as binary)))"
)


def test_sink_columns_are_read_by_librdkafka(spark: SparkSession, bootstrap: str) -> None:
    make(bootstrap, "columns")
    frame = spark.range(3_000).selectExpr(
        "if(id % 7 = 0, null, concat('k', id % 50)) as key",
        "if(id % 11 = 0, null, cast(concat('v', id) as binary)) as value",
        f"if(id % 5 = 0, {HEADERS}, null) as headers",
        "if(id % 3 = 0, cast(id % 3 as int), null) as partition",
        "if(id % 2 = 0, timestamp_millis(1700000000000 + id), null) as timestamp",
        "'columns' as topic",
        "id as left_out",
    )
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        save(frame, bootstrap, **{"kafka.compression.type": codec})
    got = received(bootstrap, "columns")
    assert len(got) == 5 * 3_000
    values = sorted(record.value for record in got if record.value is not None)
    assert values == sorted(b"v%d" % number for number in range(3_000) if number % 11 for _ in range(5))
    by_key: dict[bytes, set[int]] = {}
    for record in got:
        if record.value is None:
            continue
        number = int(record.value[1:])
        assert record.key == (None if number % 7 == 0 else b"k%d" % (number % 50))
        assert list(record.headers) == ([("h", b"x"), ("n", b"")] if number % 5 == 0 else [])
        if number % 2 == 0:
            assert record.timestamp_ms == 1_700_000_000_000 + number
        if number % 3 == 0:
            assert record.partition == 0
        elif record.key is not None:
            by_key.setdefault(record.key, set()).add(record.partition)
    assert {len(partitions) for partitions in by_key.values()} == {1}
    assert {next(iter(partitions)) for partitions in by_key.values()} == {0, 1, 2}


def test_topic_option_overrides_topic_column(
    spark: SparkSession, bootstrap: str
) -> None:
    make(bootstrap, "even", "odd", "all")
    frame = spark.range(1_000).selectExpr(
        "cast(id as string) as value", "if(id % 2 = 0, 'even', 'odd') as topic"
    )
    save(frame, bootstrap)
    save(frame, bootstrap, topic="all")
    for topic, wanted in (("even", range(0, 1_000, 2)), ("odd", range(1, 1_000, 2)), ("all", range(1_000))):
        got = received(bootstrap, topic)
        assert sorted(int(record.value) for record in got) == list(wanted)
        assert {record.partition for record in got} == {0, 1, 2}


def test_register_enables_writes_from_another_thread(spark: SparkSession, bootstrap: str) -> None:
    """Spark looks for a sink in Python in the calling thread's active session. A new thread has none."""
    make(bootstrap, "threaded")
    frame = spark.range(2).selectExpr("cast(id as string) as value")

    def write() -> None:
        kproc.spark.register(spark)
        save(frame, bootstrap, topic="threaded")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    assert sorted(record.value for record in received(bootstrap, "threaded")) == [b"0", b"1"]


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("id as value", {"topic": "t"}, "value attribute type must be a string or binary, not bigint"),
        ("'v' as value", {"topic": "t", "kafka.akcs": "1"}, "did you mean kafka.acks"),
    ],
)
def test_sink_rejects_invalid_schema_before_tasks_run(
    spark: SparkSession, bootstrap: str, columns: str, options: dict[str, str], words: str
) -> None:
    """All the words are in test_writer.py, this is that Spark shows them."""
    with pytest.raises(AnalysisException, match=words):
        save(spark.range(1).selectExpr(*columns.split(", ")), bootstrap, **options)


def test_stream_sink_resumes_after_restart(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    make(bootstrap, "streamed")
    (tmp_path / "in").mkdir()

    def run(lines: range) -> list[int]:
        (tmp_path / "in" / f"{lines.start}.txt").write_text("".join(f"{line}\n" for line in lines))
        query = (
            spark.readStream.format("text")
            .load(str(tmp_path / "in"))
            .select(F.col("value").alias("key"), "value")
            .writeStream.format("kproc")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", "streamed")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert json.loads(query.lastProgress.json)["numInputRows"] == len(lines)
        return sorted(int(record.value) for record in received(bootstrap, "streamed"))

    assert run(range(500)) == list(range(500))
    assert run(range(500, 700)) == list(range(700))


def test_rejected_batch_fails_the_streaming_query(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    make(bootstrap, "compacted", **{"cleanup.policy": "compact"})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\n")
    query = (
        spark.readStream.format("text")
        .load(str(tmp_path / "in"))
        .writeStream.format("kproc")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "compacted")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match=r"compacted-\d: .*\(INVALID_RECORD\)"):
        query.awaitTermination()
