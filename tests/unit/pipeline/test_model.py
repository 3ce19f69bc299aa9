"""Pipeline: what a whole specification becomes."""

from __future__ import annotations

from pathlib import Path

from kproc.pipeline.model import Pipeline, Trigger, Watermark
from kproc.pipeline.spec import parse_spec
from tests.support.pipeline_specification import ORDERS


def parse(text: str) -> Pipeline:
    return parse_spec(text, Path("/work/p.toml"))


def test_a_whole_specification_becomes_a_pipeline() -> None:
    pipeline = parse(ORDERS)
    assert (pipeline.name, pipeline.checkpoint) == ("orders", "/work/state/orders")
    assert pipeline.spark.conf == {"spark.sql.shuffle.partitions": "2"}
    orders, customers = pipeline.sources
    assert (orders.is_stream, orders.is_topic, orders.values) == (True, True, ("orders",))
    assert orders.schema == "`id` long, `at` timestamp, `amount` double"
    assert orders.watermark == Watermark("at", "10 seconds")
    assert orders.options == {
        "kafka.isolation.level": "read_committed",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1000",
    }
    assert (customers.is_stream, customers.values) == (False, ("/work/customers.csv",))
    per_minute, clean = pipeline.transforms
    assert per_minute.sql is not None
    assert "group by 1" in per_minute.sql
    assert (clean.python, clean.inputs, clean.arguments) == (
        "/work/steps.py:clean",
        ("orders", "customers"),
        {"limit": 3},
    )
    topic, lake = pipeline.sinks
    assert (topic.kind, topic.target, topic.trigger) == (
        "topic",
        "orders.per_minute",
        Trigger("available-now", 0),
    )
    assert (lake.kind, lake.target, lake.partition_by) == ("parquet", "/lake", ("day",))
    assert lake.trigger == Trigger("interval", 500)
