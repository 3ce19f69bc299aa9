"""The examples of SPARK.md run as they stand there, in their order, over the paths and ports of a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kproc.pipeline.build import Builder
from kproc.pipeline.sinks import start_stream
from kproc.pipeline.spec import parse_spec
from tests.spark.streams import BATCH_SECONDS, send
from tests.support.broker import ROOT, EmbeddedBroker
from tests.support.raw import RawClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.own_broker, pytest.mark.spark]
GUIDE = ROOT / "kproc" / "SPARK.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module", name="broker")
def broker_with_orders(shared_broker: EmbeddedBroker) -> EmbeddedBroker:
    """The shared broker, with the topics of the examples."""
    with RawClient(shared_broker.bootstrap) as client:
        for topic in ("orders", "orders.copy", "orders.once", "orders.counts"):
            client.create_topic(topic)
    order = '{"id": 1, "at": "2026-01-31T12:00:00Z", "customer": 7, "amount": 2.5}'
    send(shared_broker.bootstrap, "orders", [order])
    return shared_broker


def placed(text: str, broker: EmbeddedBroker, directory: Path) -> str:
    """The example with the test's address and paths."""
    properties = directory / "client.properties"
    properties.write_text("security.protocol=PLAINTEXT\n")
    text = text.replace("127.0.0.1:9092", broker.bootstrap)
    text = text.replace("/etc/kproc/client.properties", str(properties))
    text = text.replace("/var/lib/kproc", str(broker.data))
    text = re.sub(r'"(state[\w/]*|lake)"', rf'"{directory}/\1"', text)
    return text


def test_python_examples_of_spark_guide_run(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format("kproc")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", "orders")
        .load()
    )
    frame = spark.range(3)
    names: dict[str, Any] = {"spark": spark, "stream": stream, "frame": frame}
    examples = blocks("python")
    assert len(examples) >= 6
    for example in examples:
        names.pop("query", None)
        exec(compile(placed(example, broker, tmp_path), str(GUIDE), "exec"), names)
        query = names.get("query")
        if query is not None:
            # The first batch is planned, written and committed: what an example does wrong is seen by then.
            query.processAllAvailable()
            query.stop()
            assert query.exception() is None, example
    assert names["cold"].count() > 0


def test_pipeline_example_of_spark_guide_runs(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    [example] = blocks("toml")
    (tmp_path / "client.properties").write_text("security.protocol=PLAINTEXT\n")
    (tmp_path / "customers.csv").write_text("customer,name\n7,Ada\n")
    text = example.replace("127.0.0.1:9092", broker.bootstrap)
    text = text.replace('trigger = "1 second"', 'trigger = "available-now"')
    pipeline = parse_spec(text, tmp_path / "orders.toml")
    builder = Builder(pipeline, spark, state=tmp_path / "initial")
    for sink in pipeline.sinks:
        query = start_stream(pipeline, sink, builder.frame(sink), lambda _text: None)
        assert query.awaitTermination(int(BATCH_SECONDS))
    assert list((tmp_path / "lake").glob("*.parquet"))
