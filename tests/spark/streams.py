"""Streams for tests: a source, and what of it arrived."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.wait import PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

# A first micro-batch starts Python processes, on two cores beside other tests.
BATCH_SECONDS = 600.0


def send(bootstrap: str, topic: str, values: list[str], *, partition: int = 0, **config: Any) -> None:
    """Write the values, each acknowledged, to one partition."""
    producer = Producer({"bootstrap.servers": bootstrap, **config})
    for value in values:
        producer.produce(topic, value=value.encode(), partition=partition)
    left = producer.flush(PATIENCE_SECONDS)
    assert left == 0, f"{left} records were not acknowledged"


def recreate_topic(bootstrap: str, topic: str) -> None:
    """Delete the topic and create it again, empty, with one partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)

    def is_created() -> bool:
        problem = admin.create_topics([NewTopic(topic, 1, 1)])[topic].exception(30)
        assert problem is None, problem
        return True

    wait_until(is_created, what=f"{topic} is created again")


def numbered(first: int, count: int) -> list[str]:
    """`v000007`, `v000008`, ..."""
    return [f"v{number:06d}" for number in range(first, first + count)]


class Stream:
    """A query with a checkpoint whose values are collected; started again it goes on."""

    def __init__(self, spark: SparkSession, directory: Path, bootstrap: str, **options: Any) -> None:
        self.spark = spark
        self.checkpoint = directory / "checkpoint"
        self.options = {"kafka.bootstrap.servers": bootstrap, **{k: str(v) for k, v in options.items()}}
        self.values: list[str] = []
        self.batches: list[int] = []
        self.fails_in_batch: int | None = None
        self.query: StreamingQuery | None = None

    def start(self, *, trigger: str | None = None, **options: Any) -> StreamingQuery:
        """`trigger` is a time; without one the query ends with what is there now."""
        given = {**self.options, **{name: str(value) for name, value in options.items()}}
        frame = self.spark.readStream.format("kproc").options(**given).load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        chosen = writer.trigger(processingTime=trigger) if trigger else writer.trigger(availableNow=True)
        self.query = chosen.start()
        return self.query

    def run(self, **options: Any) -> list[str]:
        """Everything that is there now; the values that this run brought."""
        before = len(self.values)
        query = self.start(**options)
        assert query.awaitTermination(int(BATCH_SECONDS)), "the query does not end"
        return self.values[before:]

    def fail(self, **options: Any) -> str:
        """Run to a failure and return its text."""
        from pyspark.errors import StreamingQueryException  # Here: whoever only sends needs no Spark.

        query = self.start(**options)
        with pytest.raises(StreamingQueryException) as raised:
            query.awaitTermination(int(BATCH_SECONDS))
        query.stop()
        return str(raised.value)

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        if self.fails_in_batch == batch_id:
            raise RuntimeError("this batch is to fail")
        rows = frame.selectExpr("cast(value as string) as value").collect()
        self.batches.append(len(rows))
        self.values += [row.value for row in rows]
