"""Errors of the formats reach the user as a sentence at the top of the message, without a Python stack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from tests.spark.streams import BATCH_SECONDS, Stream, numbered, recreate_topic, send
from tests.support.broker import BrokerUnderTest
from tests.support.raw import RawClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.transports("process")
# Spark puts the query's ids and the task's number before the sentence.
TOP_LINES = 2
NO_BROKER = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "500"}
NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "500"}


@pytest.fixture(scope="module")
def bootstrap(broker: BrokerUnderTest) -> str:
    """The shared broker, with a topic of five records."""
    with RawClient(broker.bootstrap) as client:
        client.create_topic("there")
    send(broker.bootstrap, "there", numbered(0, 5))
    return broker.bootstrap


def assert_sentence_first(error: object, sentence: str) -> None:
    text = str(error)
    top = "\n".join(text.splitlines()[:TOP_LINES])
    assert sentence in top, text
    assert "Traceback" not in text
    assert "UnboundLocalError" not in text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "there", "kafka.auto.offset.reset": "earliest"}, "startingOffsets says where"),
        ({"subscribe": "absent"}, "there is no topic absent on"),
        ({"subscribe": "there", **NOBODY}, "cannot connect to 127.0.0.1:1"),
    ],
)
def test_stream_source_error_is_a_sentence(
    spark: SparkSession, bootstrap: str, tmp_path: Path, options: dict[str, str], sentence: str
) -> None:
    given = {"kafka.bootstrap.servers": bootstrap, **options}
    frame = spark.readStream.format("kproc").options(**given).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(PySparkException) as raised:
        query.awaitTermination(int(BATCH_SECONDS))
    assert_sentence_first(raised.value, sentence)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "there", "nonsense": "1"}, "there is no option nonsense"),
        ({"subscribe": "absent"}, "there is no topic absent on"),
        ({"subscribe": "there", **NOBODY}, "cannot connect to 127.0.0.1:1"),
    ],
)
def test_batch_source_error_is_a_sentence(
    spark: SparkSession, bootstrap: str, options: dict[str, str], sentence: str
) -> None:
    given = {"kafka.bootstrap.servers": bootstrap, **options}
    with pytest.raises(PySparkException) as raised:
        spark.read.format("kproc").options(**given).load().count()
    assert_sentence_first(raised.value, sentence)


def test_data_loss_of_a_stream_is_a_sentence(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """A topic is deleted and created again with as many records between two runs of a query."""
    with RawClient(bootstrap) as client:
        client.create_topic("again")
    send(bootstrap, "again", numbered(0, 5))
    stream = Stream(spark, tmp_path, bootstrap, subscribe="again", startingOffsets="earliest")
    assert stream.run() == numbered(0, 5)
    recreate_topic(bootstrap, "again")
    send(bootstrap, "again", numbered(100, 5))
    assert_sentence_first(stream.fail(), "topic again was deleted and created again")


@pytest.mark.parametrize(
    ("columns", "options", "sentence", "has_stream"),
    [
        (["cast(id as string) as body"], {}, "Required attribute 'value' not found: the columns are body", True),
        (["cast(id as string) as value"], {"kafka.acks": "2"}, "kafka.acks must be all, -1, 1 or 0, not", False),
        (["cast(id as string) as value"], NO_BROKER, "kafka.max.block.ms=500", True),
        (["cast(id as string) as value", "7 as partition"], {}, "topic there has no partition 7: it has 1", True),
        (["'v' as value", "cast(null as string) as topic"], {"topic": None}, "null topic present in the", False),
    ],
)
def test_sink_error_is_a_sentence(
    spark: SparkSession,
    bootstrap: str,
    tmp_path: Path,
    columns: list[str],
    options: dict[str, str | None],
    sentence: str,
    has_stream: bool,
) -> None:
    """In a batch write, and in a stream where Spark calls another method of the sink."""
    every = {"kafka.bootstrap.servers": bootstrap, "topic": "there", **options}
    given: dict[str, Any] = {name: value for name, value in every.items() if value is not None}
    frame = spark.range(1).selectExpr(*columns)
    with pytest.raises(PySparkException) as raised:
        frame.write.format("kproc").options(**given).mode("append").save()
    assert_sentence_first(raised.value, sentence)
    if not has_stream:
        return
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1\n")
    lines = spark.readStream.format("text").load(str(tmp_path / "in")).selectExpr("value as id")
    rows = lines.selectExpr(*columns)
    writer = rows.writeStream.format("kproc").options(**given).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(PySparkException) as raised:
        query.awaitTermination(int(BATCH_SECONDS))
    assert_sentence_first(raised.value, sentence)
