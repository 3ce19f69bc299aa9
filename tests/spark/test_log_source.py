"""format("kproc-log") and the source's own look at the files, in a Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from kproc import Broker
from kproc.broker.config.authorizer_settings import STANDARD_AUTHORIZER
from kproc.client import Client
from kproc.spark.local import WrongDirectory, local_files
from kproc.spark.offsets import TopicPartition
from kproc.spark.options import parse_source
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.broker import forked_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("own_connections")
NOW_MS = 1_700_000_000_000


def fill(broker: Broker, topic: str, batches: int = 40) -> None:
    """Two partitions, batches of 25 records, ten milliseconds apart."""
    with Client.connect(broker.host, broker.port) as client:
        row = {"name": topic, "num_partitions": 2, "replication_factor": -1, "assignments": [], "configs": []}
        client.call_latest(ApiKey.CREATE_TOPICS, {"topics": [row], "timeout": 10_000, "validate_only": False})
        for partition in (0, 1):
            for number in range(batches):
                records = [
                    Record(
                        b"k", b"%d" % (number * 25 + each), NOW_MS + (number * 25 + each) * 10, [("h", None)]
                    )
                    for each in range(25)
                ]
                part = {"index": partition, "records": bytes(encode_batch(records, codec=number % 5))}
                answer = client.call_latest(
                    ApiKey.PRODUCE,
                    {
                        "transactional_id": None,
                        "acks": -1,
                        "timeout": 10_000,
                        "topic_data": [{"name": topic, "partition_data": [part]}],
                    },
                )
                assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0


def test_the_table_of_files_is_the_table_of_the_broker(spark: SparkSession) -> None:
    with forked_broker()() as broker:
        fill(broker, "t")

        def load(kind: str, **options: Any) -> Any:
            reader = spark.read.format(kind).option("includeHeaders", "true")
            return reader.options(**options).load()

        def rows(frame: Any) -> list[Any]:
            return sorted(map(str, frame.orderBy("partition", "offset").collect()))

        def fetched(directory: str) -> Any:
            more = {"kafka.bootstrap.servers": broker.bootstrap, "kproc.data.dir": directory}
            return load("kproc", subscribe="t", **more)

        files = load("kproc-log", path=str(broker.data), topics="t", maxPartitionBytes="4k")
        assert files.rdd.getNumPartitions() > 4
        expected = rows(fetched("none"))
        assert len(expected) == 2000
        assert files.schema == fetched("none").schema
        assert rows(files) == expected
        assert rows(fetched(str(broker.data))) == expected
        some = load(
            "kproc-log",
            path=str(broker.data),
            topicsPattern="^t$",
            startingTimestamp=str(NOW_MS + 500),
            endingTimestamp=str(NOW_MS + 700),
        )
        assert sorted(some.select("partition", "offset").collect()) == [
            (partition, offset) for partition in (0, 1) for offset in range(50, 70)
        ]
        narrow = spark.read.format("kproc-log").schema("value binary")
        assert narrow.options(path=str(broker.data), topics="t").load().distinct().count() == 1000
        with pytest.raises(Exception, match="there is no topic u in"):
            load("kproc-log", path=str(broker.data), topics="u").collect()


@pytest.mark.long
def test_log_source_reads_only_directory_of_the_leader(tmp_path: Path) -> None:
    with forked_broker()() as broker, forked_broker()() as other:
        fill(broker, "t", 1)
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t"}

        def found(directory: str) -> Any:
            options = parse_source({**given, "kproc.data.dir": directory}, is_stream=False)
            return local_files(options, TopicPartition("t", 0))

        for directory in ("auto", str(broker.data)):
            assert found(directory).directory == broker.data / "t-0"
        assert found("none") is None
        with pytest.raises(WrongDirectory, match="the leader is node"):
            found(str(other.data))
        with pytest.raises(WrongDirectory, match=r"it has no meta\.properties"):
            found(str(tmp_path))


@pytest.mark.own_broker
def test_log_source_needs_opt_in_if_broker_has_authorizer() -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with forked_broker()(settings) as broker:
        fill(broker, "t", 1)

        def found(directory: str) -> Any:
            given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t"}
            options = parse_source({**given, "kproc.data.dir": directory}, is_stream=False)
            return local_files(options, TopicPartition("t", 0))

        assert found("auto") is None
        assert found(str(broker.data)).directory == broker.data / "t-0"
