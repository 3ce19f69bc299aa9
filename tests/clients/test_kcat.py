"""kcat against the broker, as a person types it: every codec, idempotence, lines, files, the end of a log."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.clients import suite
from tests.support.adapters import kcat as client
from tests.support.broker import BrokerUnderTest
from tests.support.records import FIRST_TIMESTAMP_MS, Sample, assert_same, payload
from tests.support.topics import TopicFactory, fresh_name
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.clients,
    pytest.mark.transports("process", "thread", slow=["thread"]),
    pytest.mark.skipif(client.EXECUTABLE is None, reason="no kcat on the PATH"),
]


@pytest.mark.parametrize("compression", client.compressions)
def test_kcat_round_trips_binary_files_keys_and_headers(
    broker: BrokerUnderTest, topic: TopicFactory, compression: str
) -> None:
    sizes = (1, 100, 16_384, 100_000)
    records = [
        Sample(number % 2, f"key-{number}".encode(), payload(size, number), (("h", b"v%d" % number),), 0)
        for number, size in enumerate(sizes)
    ]
    suite.round_trip(client, broker.bootstrap, topic(partitions=2), records, compression=compression)


def test_kcat_round_trips_1000_lines_in_order(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name = topic()
    lines = [(f"k{number % 7}", f"line {number} " + "x" * (number % 300)) for number in range(1000)]
    client.produce_lines(broker.bootstrap, name, 0, lines, codec="lz4")
    received = [
        suite.without_timestamp(record) for record in client.consume(broker.bootstrap, name, {0: 1000})
    ]
    assert_same([Sample(0, key.encode(), value.encode(), (), 0) for key, value in lines], received)


def test_kcat_round_trips_files_of_up_to_20_mb(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name = topic(configs=suite.LARGE_TOPIC)
    sizes = (1_000_000, 20_000_000)
    records = [Sample(0, b"k", payload(size, number), (), 0) for number, size in enumerate(sizes)]
    suite.round_trip(client, broker.bootstrap, name, records, compression="none")


def test_kcat_consumer_at_log_end_is_woken_by_append(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    suite.is_woken_by_append(client, broker.bootstrap, topic())


def test_kcat_lists_broker_topic_and_partitions(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name = topic(partitions=3)
    done = subprocess.run(
        [str(client.EXECUTABLE), "-b", broker.bootstrap, "-L", "-J"],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    listing = json.loads(done.stdout)
    assert [row["name"] for row in listing["brokers"]] == [broker.bootstrap]
    partitions = next(row["partitions"] for row in listing["topics"] if row["topic"] == name)
    assert [row["partition"] for row in partitions] == [0, 1, 2]
    assert {row["leader"] for row in partitions} == {listing["brokers"][0]["id"]}


def test_kcat_query_finds_offset_of_timestamp(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    from tests.support.adapters import confluent

    name = topic()
    records = [Sample(0, b"k", b"v", (), FIRST_TIMESTAMP_MS + number * 1000) for number in range(10)]
    confluent.produce(broker.bootstrap, name, records)
    command = [
        str(client.EXECUTABLE),
        "-b",
        broker.bootstrap,
        "-Q",
        "-t",
        f"{name}:0:{FIRST_TIMESTAMP_MS + 4500}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert done.stdout.strip() == f"{name} [0] offset 5"


def test_kcat_auto_creates_topic(broker: BrokerUnderTest) -> None:
    name = fresh_name("auto")
    client.produce_lines(broker.bootstrap, name, 0, [("k", "v")], codec="none")
    assert [record.value for record in client.consume(broker.bootstrap, name, {0: 1})] == [b"v"]
