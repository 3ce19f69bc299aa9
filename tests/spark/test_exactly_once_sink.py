"""`delivery=exactly-once` from Spark to Apache Kafka and to kproc: what a reader of committed records gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from bench.peers.kafka import KafkaPeer
from kproc.pipeline.access import Access
from kproc.pipeline.delivery import has_transactions
from tests.spark.streams import BATCH_SECONDS, numbered, send
from tests.support.broker import EmbeddedBroker
from tests.support.exactly_once_sink import JVM, SETTINGS, read_committed
from tests.support.kafka_jars import missing_reason
from tests.support.raw import RawClient
from tests.support.spark_kills import PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.own_broker, pytest.mark.slow]


@pytest.fixture(scope="module", params=["kafka", "kproc"])
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "kafka":
        if (reason := missing_reason()) is not None:
            pytest.skip(reason)
        with KafkaPeer(settings=SETTINGS, jvm=JVM) as kafka:
            yield kafka.bootstrap
        return
    with EmbeddedBroker(transport="process") as broker:
        if not has_transactions(Access(broker.bootstrap)):
            pytest.skip("this kproc has no transactions")
        yield broker.bootstrap


def make(bootstrap: str, *topics: str) -> None:
    with RawClient(bootstrap) as client:
        for topic in topics:
            client.create_topic(topic, partitions=PARTITIONS)


def save(frame: DataFrame, bootstrap: str, topic: str, **options: Any) -> None:
    options = {"delivery": "exactly-once", "topic": topic, **options}
    writer = frame.write.format("kproc").options(**{"kafka.bootstrap.servers": bootstrap, **options})
    writer.mode("append").save()


def pairs(spark: SparkSession, count: int, value: str = "id") -> DataFrame:
    return spark.range(count).selectExpr(
        f"cast({value} as string) as key", f"cast({value} as string) as value"
    )


def once(count: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(count))


def test_failed_batch_write_is_aborted(
    spark: SparkSession, bootstrap: str
) -> None:
    make(bootstrap, "failing")
    broken = "if(id = 900, raise_error('broken'), id)"
    with pytest.raises(PySparkException, match="broken"):
        save(pairs(spark, 1_000, broken), bootstrap, "failing")
    save(pairs(spark, 10), bootstrap, "failing")
    # Behind a transaction that is still open nothing could be read.
    assert read_committed(bootstrap, "failing") == once(10)


def test_batch_write_is_deduplicated_by_app_id_and_version(
    spark: SparkSession, bootstrap: str
) -> None:
    make(bootstrap, "numbered")
    me = {"txnAppId": "nightly"}
    for cut in (2, 2, 3, 1):
        save(pairs(spark, 100).repartition(cut), bootstrap, "numbered", **me, txnVersion="7")
    assert read_committed(bootstrap, "numbered") == once(100)
    save(pairs(spark, 100), bootstrap, "numbered", **me, txnVersion="6")
    assert read_committed(bootstrap, "numbered") == once(100)
    save(pairs(spark, 100), bootstrap, "numbered", **me, txnVersion="8")
    save(pairs(spark, 100), bootstrap, "numbered", txnAppId="other", txnVersion="7")
    save(pairs(spark, 100), bootstrap, "numbered")
    assert set(read_committed(bootstrap, "numbered").values()) == {4}


@pytest.mark.parametrize(("delivery", "times"), [("exactly-once", 1), ("at-least-once", 2)])
def test_committed_batch_is_not_written_again_after_restart(
    spark: SparkSession, bootstrap: str, tmp_path: Path, delivery: str, times: int
) -> None:
    source, sink = f"source-{delivery}", f"sink-{delivery}"
    make(bootstrap, source, sink)

    def run(**options: str) -> None:
        rows = spark.readStream.format("kproc").option("kafka.bootstrap.servers", bootstrap)
        frame = rows.options(subscribe=source, startingOffsets="earliest", **options).load()
        writer = frame.selectExpr("value as key", "value").writeStream.format("kproc")
        writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", sink)
        writer = writer.option("delivery", delivery).option("checkpointLocation", str(tmp_path / "state"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(int(BATCH_SECONDS))

    for number in range(3):
        send(bootstrap, source, numbered(100 * number, 100), partition=number)
        run()
    # As a driver leaves it that dies after it has committed to the broker.
    commits = tmp_path / "state" / "commits"
    newest = max(commits.iterdir(), key=lambda path: int(path.name) if path.name.isdecimal() else -1)
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    send(bootstrap, source, numbered(300, 100), partition=0)
    # The batch that comes again is cut into more tasks.
    run(minPartitions="9")
    found = read_committed(bootstrap, sink)
    assert sorted(found) == [value.encode() for value in numbered(0, 400)]
    assert set(found.values()) == {1, times}
