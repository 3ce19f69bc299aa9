"""Readers of the Spark source as Spark creates and asks them, without Spark."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import StructType

from kproc.spark.reader import StreamReader, batch_reader, stream_reader
from kproc.spark.schema import spark_schema
from tests.support.raw import RawClient

SCHEMA = spark_schema()


def stream(bootstrap: str, schema: StructType = SCHEMA, **options: Any) -> StreamReader:
    given = {"kafka.bootstrap.servers": bootstrap, **{name: str(value) for name, value in options.items()}}
    reader = stream_reader(given, schema)
    assert isinstance(reader, StreamReader)
    return reader


def batch(bootstrap: str, schema: StructType = SCHEMA, **options: Any) -> Any:
    return batch_reader({"kafka.bootstrap.servers": bootstrap, **options}, schema)


def values(reader: Any, partitions: Any) -> list[str]:
    return [
        bytes(value).decode()
        for partition in partitions
        for rows in reader.read(partition)
        for value in rows.column("value").to_pylist()
    ]


def between(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Read a batch. Start and end pass through JSON, as in Spark's checkpoint."""
    return values(reader, reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end))))


def trim(bootstrap: str, topic: str, partition: int, before: int) -> None:
    """Delete the records of a partition below an offset."""
    with RawClient(bootstrap) as client:
        client.delete_records(topic, before, partition=partition)
