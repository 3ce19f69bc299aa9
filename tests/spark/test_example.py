"""The example's pipeline, small, in the shared session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from examples.clicks.events import Events
from examples.clicks.run import INPUTS, OUTPUTS, Clicks, spec_text
from examples.clicks.send import PARTITIONS, EventSender
from examples.clicks.verify import check_conversions, check_pages, check_sessions, read_topic, wrong
from kproc.pipeline.build import Builder
from kproc.pipeline.sinks import start_stream
from kproc.pipeline.spec import Outside, parse_spec
from kproc.spark.brokers import Cluster
from tests.support.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 12_000


# Its operators are tested one by one in test_pipeline.py. Together they take 30 s of CPU.
@pytest.mark.slow
def test_example_pipeline_results_equal_numpy(spark: SparkSession, tmp_path: Path) -> None:
    with EmbeddedBroker(transport="process") as broker:
        example = Clicks(broker.bootstrap, tmp_path, RECORDS, environ={}, note=lambda _text: None)
        example.make_topics()
        events = Events(RECORDS)
        sent: list[dict[str, int]] = []
        EventSender(broker.bootstrap, {name: f"shop.{name}" for name in INPUTS}, events).run(sent.append)
        assert sum(sent[-1].values()) == RECORDS
        text = spec_text().replace('"2 seconds"', '"available-now"')
        pipeline = parse_spec(text, tmp_path / "SPEC.toml", Outside(bootstrap=broker.bootstrap))
        builder = Builder(pipeline, spark)
        for sink in pipeline.sinks:  # One by one: Spark gives each of its Python processes 10 s to start.
            query = start_stream(pipeline, sink, builder.frame(sink), lambda _text: None)
            assert query.awaitTermination(120)
        expected = events.expected()
        cluster = Cluster(broker.bootstrap)
        pages, conversions = (read_topic(cluster, f"shop.{name}", PARTITIONS) for name in OUTPUTS)
        checks = [
            *check_pages(pages, expected),
            *check_conversions(conversions, expected),
            *check_sessions(tmp_path / "sessions", expected),
        ]
        cluster.close()
        assert not wrong(checks)
