"""What one client writes, every other reads: the libraries' encoders differ in more than they should."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")
pytest.importorskip("aiokafka")

from tests.support.adapters import aiokafka_client, confluent, kafka_python
from tests.support.adapters.base import ClientAdapter
from tests.support.broker import BrokerUnderTest
from tests.support.records import SMALL_SIZES, assert_same, by_partition, samples
from tests.support.topics import TopicFactory

pytestmark = [pytest.mark.clients, pytest.mark.transports("process", "thread", slow=["thread"])]

CLIENTS: dict[str, ClientAdapter] = {
    "confluent": confluent,
    "kafka_python": kafka_python,
    "aiokafka": aiokafka_client,
}


@pytest.mark.parametrize("writer_name", CLIENTS)
def test_records_of_each_client_are_read_by_every_client(
    broker: BrokerUnderTest, topic: TopicFactory, writer_name: str
) -> None:
    name = topic(partitions=3)
    records = samples(SMALL_SIZES * 2, partitions=3, seed=21)
    CLIENTS[writer_name].produce(broker.bootstrap, name, records, compression="none")
    counts = {partition: len(rows) for partition, rows in by_partition(records).items()}
    for reader in CLIENTS.values():
        assert_same(records, reader.consume(broker.bootstrap, name, counts))


def test_writers_of_all_clients_and_codecs_share_one_partition(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
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
