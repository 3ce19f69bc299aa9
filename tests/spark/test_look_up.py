"""Where records could be left out without a word: each is read, or the read fails and says why."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.spark.streams import numbered, send
from tests.support.broker import BrokerUnderTest
from tests.support.topics import TopicFactory

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs the spark extra")
pytest.importorskip("pyarrow", reason="needs the spark extra")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kproc.client import ApiError
from kproc.common.errors import ErrorCode, KafkaError
from kproc.common.reading import EARLIEST, LATEST
from kproc.spark.broker_clients import BrokerClients
from kproc.spark.brokers import Cluster, UnknownTopic
from kproc.spark.input_partitions import TopicRange
from kproc.spark.look_up import DataLoss, LookUp
from kproc.spark.offsets import TopicPartition
from kproc.spark.schema import spark_schema
from kproc.wire.header import ApiKey
from tests.support.spark_readers import batch, values
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.transports("process"), pytest.mark.usefixtures("own_connections")]


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)


def send_at(bootstrap: str, topic: str, *timestamps_ms: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for at in timestamps_ms:
        producer.produce(topic, value=b"v", partition=0, timestamp=at)
    assert producer.flush(PATIENCE_SECONDS) == 0


def test_timestamp_out_of_spark_range_is_an_error(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name = topic(configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    largest = (2**63 - 1) // 1000
    send_at(broker.bootstrap, name, largest, 1)
    reader = batch(broker.bootstrap, subscribe=name)
    assert values(reader, reader.partitions()) == ["v", "v"]
    send_at(broker.bootstrap, name, 1_700_000_000_000_000_000)  # Somebody's nanoseconds.
    with pytest.raises(
        KafkaError, match="has a timestamp of 1700000000000000000 ms, which a Spark timestamp cannot hold"
    ):
        values(reader, reader.partitions())
    without = StructType([field for field in spark_schema().fields if field.name != "timestamp"])
    reader = batch(broker.bootstrap, without, subscribe=name)
    assert values(reader, reader.partitions()) == ["v"] * 3


def test_a_start_behind_the_end_is_an_error(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name = topic()
    send(broker.bootstrap, name, numbered(0, 20))
    given = {
        "subscribe": name,
        "startingOffsets": f'{{"{name}": {{"0": 15}}}}',
        "endingOffsets": f'{{"{name}": {{"0": 5}}}}',
    }
    with pytest.raises(DataLoss, match=rf"{name}-0 is to be read from offset 15, and only up to 5"):
        batch(broker.bootstrap, **given).partitions()
    assert batch(broker.bootstrap, **given, failOnDataLoss="false").partitions() == []


@pytest.mark.usefixtures("short_looks")
def test_topic_deleted_between_start_and_end_offset_requests(
    broker: BrokerUnderTest, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(stem="goes")
    send(broker.bootstrap, name, numbered(0, 5))
    resolve = LookUp._resolve

    def resolve_and_delete(self: LookUp, *given: Any, is_start: bool) -> Any:
        found = resolve(self, *given, is_start=is_start)
        if is_start:
            delete(broker.bootstrap, name)
        return found

    monkeypatch.setattr(LookUp, "_resolve", resolve_and_delete)
    with pytest.raises(UnknownTopic, match=f"{name}-0"):
        batch(broker.bootstrap, subscribePattern=f"^{name}$").partitions()


@pytest.mark.usefixtures("short_looks")
def test_topic_deleted_while_task_requests_start_is_data_loss(
    broker: BrokerUnderTest, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    send(broker.bootstrap, name, numbered(0, 5))
    list_offsets = Cluster.list_offsets

    def deleted_before(self: Cluster, wanted: Any, **more: Any) -> Any:
        delete(broker.bootstrap, name)
        monkeypatch.setattr(Cluster, "list_offsets", list_offsets)
        return list_offsets(self, wanted, **more)

    lax = batch(broker.bootstrap, subscribe=name, failOnDataLoss="false")
    planned = lax.partitions()
    monkeypatch.setattr(Cluster, "list_offsets", deleted_before)
    assert values(lax, planned) == []
    with pytest.raises(DataLoss, match=f"there is no partition {name}-0"):
        values(batch(broker.bootstrap, subscribe=name), planned)


def test_reader_rejects_partition_that_is_no_range(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    reader = batch(broker.bootstrap, subscribe=topic())
    assert list(reader.read(InputPartition(None))) == []
    with pytest.raises(TypeError, match="is not a range of a topic"):
        reader.read(InputPartition(("t", 0, 5)))


def test_source_retries_topic_without_partitions(
    broker: BrokerUnderTest, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    send(broker.bootstrap, name, numbered(0, 5))
    request_any = Cluster._request_any
    asked: list[ApiKey] = []

    def being_made(self: Cluster, api_key: ApiKey, *given: Any, **more: Any) -> dict[str, Any]:
        answer = request_any(self, api_key, *given, **more)
        asked.append(api_key)
        if len(asked) < 3:
            for row in answer["topics"]:
                row["error_code"] = (0, ErrorCode.LEADER_NOT_AVAILABLE)[len(asked) % 2]
                row["partitions"] = []
        return answer

    monkeypatch.setattr(Cluster, "_request_any", being_made)
    reader = batch(broker.bootstrap, subscribe=name)
    assert [
        (each.wanted.start, each.wanted.end) for each in reader.partitions() if isinstance(each, TopicRange)
    ] == [(0, 5)]
    assert len(asked) >= 3


def test_an_answer_that_leaves_partitions_out_is_an_error(
    broker: BrokerUnderTest, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=2)
    ask = BrokerClients.request

    def partly(self: BrokerClients, address: Any, api_key: ApiKey, *given: Any, **more: Any) -> dict[str, Any]:
        answer = ask(self, address, api_key, *given, **more)
        if api_key == ApiKey.LIST_OFFSETS:
            del answer["topics"][0]["partitions"][1:]
        return answer

    monkeypatch.setattr(BrokerClients, "request", partly)
    cluster = Cluster(broker.bootstrap)
    wanted = {TopicPartition(name, 0): EARLIEST, TopicPartition(name, 1): LATEST}
    with pytest.raises(ApiError, match=rf"the response to ListOffsets lacks {name}-[01]"):
        cluster.list_offsets(wanted)
    cluster.close()
