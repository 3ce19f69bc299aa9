"""confluent-kafka, kafka-python and aiokafka against the broker: codecs, sizes, partitions, idempotence, long polls."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")
pytest.importorskip("aiokafka")

from tests.clients import suite
from tests.support.adapters import aiokafka_client, confluent, kafka_python
from tests.support.adapters.base import ClientAdapter
from tests.support.broker import BrokerUnderTest
from tests.support.records import assert_same, samples
from tests.support.topics import TopicFactory, fresh_name

pytestmark = [pytest.mark.clients, pytest.mark.transports("process", "thread", slow=["thread"])]

CLIENTS: dict[str, ClientAdapter] = {
    "confluent": confluent,
    "kafka_python": kafka_python,
    "aiokafka": aiokafka_client,
}
each_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
each_codec = pytest.mark.parametrize(
    ("client", "codec"),
    [(client, codec) for client in CLIENTS.values() for codec in client.compressions],
    ids=[f"{name}-{codec}" for name, client in CLIENTS.items() for codec in client.compressions],
)


@each_codec
def test_client_round_trips_small_records(
    broker: BrokerUnderTest, topic: TopicFactory, client: ClientAdapter, codec: str
) -> None:
    name = topic(partitions=3)
    suite.round_trip(client, broker.bootstrap, name, suite.small_records(client), compression=codec)


@each_client
def test_client_round_trips_small_records_without_idempotence(
    broker: BrokerUnderTest, topic: TopicFactory, client: ClientAdapter
) -> None:
    records = suite.small_records(client)
    name = topic(partitions=3)
    suite.round_trip(client, broker.bootstrap, name, records, compression="none", idempotent=False)


@pytest.mark.parametrize(
    ("client", "codec"),
    [(confluent, "none"), (confluent, "zstd"), (kafka_python, "none"), (aiokafka_client, "gzip")],
    ids=["confluent-none", "confluent-zstd", "kafka_python-none", "aiokafka-gzip"],
)
def test_client_round_trips_records_of_20_mb(
    broker: BrokerUnderTest, topic: TopicFactory, client: ClientAdapter, codec: str
) -> None:
    """The broker handles a large batch alike in every codec: small records go through all of them."""
    name = topic(partitions=2, configs=suite.LARGE_TOPIC)
    suite.round_trip(client, broker.bootstrap, name, suite.large_records(), compression=codec)


@each_client
@pytest.mark.transports("process", "thread")
def test_append_wakes_consumer_at_end_of_log(
    broker: BrokerUnderTest, topic: TopicFactory, client: ClientAdapter
) -> None:
    suite.is_woken_by_append(client, broker.bootstrap, topic())


@each_client
@pytest.mark.transports("process", "thread")
def test_auto_created_topic_stores_first_record(broker: BrokerUnderTest, client: ClientAdapter) -> None:
    name = fresh_name("auto")
    records = samples([10, 20], partitions=1, seed=13)
    suite.round_trip(client, broker.bootstrap, name, records, compression="none")


def test_writers_of_all_clients_and_codecs_share_one_partition(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    """Every client reads what every client wrote with every codec."""
    name = topic()
    sent = []
    for seed, (writer, compression) in enumerate(
        (each, codec) for each in CLIENTS.values() for codec in each.compressions
    ):
        records = samples((1, 500, 100_000), partitions=1, seed=100 + seed)
        writer.produce(broker.bootstrap, name, records, compression=compression)
        sent += records
    for reader in CLIENTS.values():
        assert_same(sent, reader.consume(broker.bootstrap, name, {0: len(sent)}))
