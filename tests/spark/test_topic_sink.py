"""Output modes of streams into topics: `topic_sink` for update, `format("kproc")` for complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from kproc.spark import topic_sink
from kproc.spark.option_values import OptionError
from tests.support.adapters import confluent
from tests.support.raw import RawClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.transports("process")


class Counts:
    """A query that counts words of text files into a topic; each run takes one more file."""

    def __init__(self, spark: SparkSession, directory: Path, bootstrap: str, topic: str) -> None:
        self.spark, self.directory, self.bootstrap, self.topic = spark, directory, bootstrap, topic
        (directory / "in").mkdir()
        with RawClient(bootstrap) as client:
            client.create_topic(topic)
        self.files = 0

    def add(self, *words: str) -> None:
        self.files += 1
        (self.directory / "in" / f"{self.files}.txt").write_text("\n".join(words))

    def writer(self, mode: str) -> Any:
        rows = (
            self.spark.readStream.format("text")
            .load(str(self.directory / "in"))
            .groupBy("value")
            .count()
            .select(F.col("value").alias("key"), F.col("count").cast("string").alias("value"))
        )
        writer = rows.writeStream.outputMode(mode).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self.directory / "checkpoint"))

    def records(self) -> list[tuple[str, str]]:
        found = confluent.consume_committed(self.bootstrap, self.topic)
        return sorted((bytes(each.key).decode(), bytes(each.value).decode()) for each in found)


def test_topic_sink_in_update_mode_writes_changed_rows_once(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """A batch that Spark runs again after its rows were committed writes nothing."""
    counts = Counts(spark, tmp_path, bootstrap, "updated")
    write = topic_sink(bootstrap, "updated")
    counts.add("a", "b", "a")

    def failing(rows: DataFrame, batch: int) -> None:
        write(rows, batch)
        raise RuntimeError("the driver dies after the batch was written")

    def run(function: Callable[[DataFrame, int], None]) -> None:
        counts.writer("update").foreachBatch(function).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="the driver dies"):
        run(failing)
    once = [("a", "2"), ("b", "1")]
    assert counts.records() == once
    run(write)
    assert counts.records() == once
    counts.add("b", "c")
    run(write)
    assert counts.records() == sorted([*once, ("b", "2"), ("c", "1")])


def test_complete_mode_appends_the_whole_result_in_every_batch(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    counts = Counts(spark, tmp_path, bootstrap, "completed")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": "completed", "delivery": "exactly-once"}
    for words in (("a", "b"), ("b",)):
        counts.add(*words)
        counts.writer("complete").format("kproc").options(**options).start().awaitTermination()
    assert counts.records() == [("a", "1"), ("a", "1"), ("b", "1"), ("b", "2")]


def test_topic_sink_rejects_wrong_options_before_a_query_starts() -> None:
    with pytest.raises(OptionError, match=r"there is no option kafka\.ack: did you mean kafka\.acks\?"):
        topic_sink("127.0.0.1:9092", "t", options={"kafka.ack": "all"})
    with pytest.raises(OptionError, match=r"use name=\.\.\. to identify the query"):
        topic_sink("127.0.0.1:9092", "t", options={"txnVersion": "1"})


def test_topic_sink_outside_of_a_query_needs_a_name(spark: SparkSession, bootstrap: str) -> None:
    rows = spark.createDataFrame([("1",)], "value string")
    with pytest.raises(OptionError, match="give it a name"):
        topic_sink(bootstrap, "named")(rows, 0)
    for batch in (0, 0, 1):
        topic_sink(bootstrap, "named", name="by-hand")(rows, batch)
    assert len(confluent.consume_committed(bootstrap, "named")) == 2, "batches 0 and 1, each once"
