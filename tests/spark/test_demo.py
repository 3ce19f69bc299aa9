"""The demo's pipeline and that of the telemetry, small, in the shared session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from kproc.pipeline.build import Builder
from kproc.pipeline.demo.events import Events
from kproc.pipeline.demo.run import INPUTS, OUTPUTS, Demo, spec_text
from kproc.pipeline.demo.send import PARTITIONS, Sender
from kproc.pipeline.demo.verify import (
    check_conversions,
    check_pages,
    check_sessions,
    read_topic,
    wrong,
)
from kproc.pipeline.sinks import start_stream, write_table
from kproc.pipeline.spec import Outside, parse_spec
from kproc.pipeline.telemetry import report
from kproc.spark.brokers import Cluster
from tests.support.broker import EmbeddedBroker
from tests.support.raw import RawClient, batch
from tests.support.telemetry import lines
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 100_000
SETTINGS = {
    "kproc.telemetry": "all",
    "kproc.telemetry.interval.ms": 200,
}


def test_every_figure_of_the_demo_is_what_numpy_counts_and_telemetry_tells_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    with EmbeddedBroker(transport="process", settings=SETTINGS) as broker:
        demo = Demo(broker.bootstrap, tmp_path, RECORDS, environ={}, note=lambda _text: None)
        demo.make_topics()
        events = Events(RECORDS)
        sent: list[dict[str, int]] = []
        Sender(broker.bootstrap, {name: f"demo.{name}" for name in INPUTS}, events).run(sent.append)
        assert sum(sent[-1].values()) == RECORDS
        text = spec_text().replace('"2 seconds"', '"available-now"')
        # On the broker's host records are read from its files, and telemetry has no bytes that went out.
        text = text.replace('topic = "demo.views"', 'topic = "demo.views"\noptions."kproc.data.dir" = "none"')
        pipeline = parse_spec(text, tmp_path / "SPEC.toml", Outside(bootstrap=broker.bootstrap))
        builder = Builder(pipeline, spark)
        for sink in pipeline.sinks:  # One by one: Spark gives each of its Python processes 10 s to start.
            query = start_stream(pipeline, sink, builder.frame(sink), lambda _text: None)
            assert query.awaitTermination(120)
        expected = events.expected()
        cluster = Cluster(broker.bootstrap)
        pages, conversions = (read_topic(cluster, f"demo.{name}", PARTITIONS) for name in OUTPUTS)
        checks = [
            *check_pages(pages, expected),
            *check_conversions(conversions, expected),
            *check_sessions(tmp_path / "sessions", expected),
        ]
        cluster.close()
        assert not wrong(checks)
        _check_telemetry(spark, broker.bootstrap, tmp_path, events)


def _check_telemetry(spark: SparkSession, bootstrap: str, tmp_path: Path, events: Events) -> None:
    """What the broker told of that run, by the pipeline that comes with the package."""
    with RawClient(bootstrap) as client:
        client.create_topic("uneven", partitions=4)
        client.produce("uneven", batch(b"v"))
        client.create_topic("last")
        client.produce("last", batch(b"v"))

        def told() -> list[dict[str, Any]]:
            # Each Handler tells of its own at its own time.
            found = lines(client)
            views = [line for line in found if line.get("topic") == "demo.views"]
            came, went = (sum(line[name] for line in views) for name in ("bytes_in", "bytes_out"))
            assert sum(line["records_in"] for line in views) > events.views_count
            assert went >= 2 * came  # Two queries read the views.
            assert {"last", "uneven"} <= {line.get("topic") for line in found}
            return found

        produced = sum(
            line["requests"]
            for line in wait_until(told, seconds=60, what="what came and went is told of")
            if line["kind"] == "api" and line["api"] == "Produce"
        )
    text = report.spec_text()
    pipeline = parse_spec(text, tmp_path / "TELEMETRY.toml", Outside(bootstrap=bootstrap))
    builder = Builder(pipeline, spark)
    for sink in pipeline.sinks:
        write_table(pipeline, sink, builder.frame(sink), lambda _text: None)
    tables = report.read_tables(tmp_path)
    views = [row for row in tables["partitions"] if row["topic"] == "demo.views"]
    assert sum(row["records_in"] for row in views) == events.views_count + 1
    assert sum(row["bytes_out"] for row in views) >= 2 * sum(row["bytes_in"] for row in views)
    assert sum(row["share"] for row in tables["partitions"]) == pytest.approx(1)
    apis = {row["api"]: row for row in tables["apis"]}
    assert apis["Produce"]["requests"] >= produced
    total = {row["api"]: row for row in tables["latency"] if row["stage"] == "TotalTimeMs"}["Produce"]
    assert 0 < total["p50"] <= total["p95"] <= total["p99"] <= total["p999"] <= total["below"]
    with RawClient(bootstrap) as client:
        produces = [line for line in lines(client) if line.get("api") == "Produce" and line["kind"] == "api"]
    largest = max(line["stages"]["TotalTimeMs"]["largest"] for line in produces if line["stages"])
    assert total["below"] <= largest / 1000, "no quantile is above all that was measured"
    assert apis["Produce"]["per_s"] <= apis["Produce"]["peak_per_s"]
    (uneven,) = (row for row in tables["partitions"] if row["topic"] == "uneven")
    assert uneven["times_its_topics_mean"] == pytest.approx(4)
    (told,) = tables["brokers"]
    assert (told["dropped"], told["transport"]) == (0, "process")
    assert 0 < told["seconds"] <= (told["to_ms"] - told["from_ms"]) / 1000 + 0.1
    assert str(told["looks"]) in report.summary(told)
    proposals = report.propose(tables["load"])
    assert {each.role for each in proposals} == {"processor", "handler"}
    assert all(each.count_wanted >= 1 for each in proposals)
