"""kafka-python against the broker: codecs, sizes, several partitions, idempotence, the long poll."""

from __future__ import annotations

import pytest

pytest.importorskip("kafka", reason="kafka_python is not installed")

from tests.clients import suite
from tests.support.adapters import kafka_python as client
from tests.support.broker import BrokerUnderTest
from tests.support.records import samples
from tests.support.topics import TopicFactory, fresh_name

pytestmark = [pytest.mark.clients, pytest.mark.transports("process", "thread", slow=["thread"])]


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
@pytest.mark.parametrize("compression", client.compressions)
def test_records_of_1_byte_to_100_kb_on_three_partitions_come_back_byte_for_byte(
    broker: BrokerUnderTest, topic: TopicFactory, compression: str, idempotent: bool
) -> None:
    name = topic(partitions=3)
    records = suite.small_records(client)
    suite.round_trip(client, broker.bootstrap, name, records, compression=compression, idempotent=idempotent)


@pytest.mark.parametrize("compression", client.compressions)
def test_records_of_up_to_20_mb_come_back_byte_for_byte(
    broker: BrokerUnderTest, topic: TopicFactory, compression: str
) -> None:
    name = topic(partitions=2, configs=suite.LARGE_TOPIC)
    suite.round_trip(client, broker.bootstrap, name, suite.large_records(), compression=compression)


def test_consumer_at_the_end_of_the_log_is_woken_by_the_append(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    suite.is_woken_by_append(client, broker.bootstrap, topic())


def test_auto_created_topic_takes_the_first_record(broker: BrokerUnderTest) -> None:
    name = fresh_name("auto")
    records = samples([10, 20], partitions=1, seed=13)
    suite.round_trip(client, broker.bootstrap, name, records, compression="none")
