"""Records of a topic as `kproc.Broker.topic(...).records()` returns them, without a client library."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")

from confluent_kafka import Producer
from kafka import KafkaProducer

from kproc.embedded import Broker
from kproc.embedded.topic_records import TooManyRecords
from tests.support.topics import fresh_name

pytestmark = [pytest.mark.clients, pytest.mark.transports("process", "inline")]


def values(broker: Broker, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    return [record.value for record in broker.topic(topic).records(isolation=isolation)]  # type: ignore[arg-type]


def test_records_of_two_libraries_are_decoded(observed: Broker) -> None:
    topic = fresh_name("seen")
    observed.create_topic(topic, partitions=2)
    producer = Producer(observed.client_config() | {"compression.type": "lz4"})
    producer.produce(topic, b"v", key=b"k", headers=[("h", b"x")], partition=1, timestamp=1_700_000_000_123)
    assert producer.flush(30) == 0
    with KafkaProducer(**observed.client_config("kafka-python")) as other:
        other.send(topic, value=None, key=b"gone", partition=0).get(30)
    first, second = observed.topic(topic).records()
    assert (first.partition, first.offset, first.key, first.value, first.headers) == (0, 0, b"gone", None, ())
    assert second == (1, 0, 1_700_000_000_123, b"k", b"v", (("h", b"x"),))
    assert observed.topic(topic).records([1]) == [second]


def test_records_of_open_and_aborted_transactions_are_left_out(observed: Broker) -> None:
    topic = fresh_name("bank")
    observed.create_topic(topic)
    producer = Producer(observed.client_config() | {"transactional.id": topic})
    producer.init_transactions(30)
    for value, is_kept in ((b"a", True), (b"b", False), (b"c", True)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        (producer.commit_transaction if is_kept else producer.abort_transaction)(30)
    producer.begin_transaction()
    producer.produce(topic, b"d")
    producer.flush(30)
    assert values(observed, topic) == [b"a", b"c"]
    assert values(observed, topic, "read_uncommitted") == [b"a", b"b", b"c", b"d"]
    producer.abort_transaction(30)


def test_records_beyond_the_limit_and_missing_topics_are_errors(observed: Broker) -> None:
    topic = fresh_name("many")
    observed.create_topic(topic)
    producer = Producer(observed.client_config())
    for _ in range(3):
        producer.produce(topic, b"a")
    producer.flush(30)
    with pytest.raises(TooManyRecords, match=f"topic '{topic}' has more than 2 records"):
        observed.topic(topic).records(limit=2)
    with pytest.raises(RuntimeError, match="topic 'nowhere': "):
        observed.topic("nowhere").records()
    with pytest.raises(RuntimeError, match=f"topic '{topic}', partition 7: "):
        observed.topic(topic).records([7])
    with pytest.raises(ValueError, match="unknown isolation 'all'"):
        values(observed, topic, "all")
