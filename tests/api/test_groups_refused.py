"""Consumer groups come later: a client that asks for one gets a clear answer at once, never a hang."""

from __future__ import annotations

import time

import pytest

from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.raw import RawClient

GROUP_KEYS = (
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.OFFSET_COMMIT,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
)


@pytest.fixture
def own(broker: BrokerUnderTest) -> BrokerUnderTest:
    if broker.pid is None:
        pytest.skip("about what kproc does not serve yet")
    return broker


def test_group_apis_are_not_advertised(own: BrokerUnderTest, client: RawClient) -> None:
    rows = client.call(ApiKey.API_VERSIONS, 3, {"client_software_name": "t", "client_software_version": "1"})[
        "api_keys"
    ]
    assert not {row["api_key"] for row in rows} & set(GROUP_KEYS)


def test_group_requests_close_the_connection_at_once(own: BrokerUnderTest) -> None:
    import struct

    for key in GROUP_KEYS:
        with RawClient(own.bootstrap) as one:
            body = struct.pack(">hhih", key, 0, 1, -1) + bytes(40)
            one.send_bytes(struct.pack(">i", len(body)) + body)
            started = time.monotonic()
            assert one.is_closed_by_broker(), key.name
            assert time.monotonic() - started < 2


@pytest.mark.clients
def test_kafka_python_with_a_group_is_told_so(own: BrokerUnderTest) -> None:
    kafka = pytest.importorskip("kafka")
    # The bootstrap succeeds; the first poll needs the coordinator.
    consumer = kafka.KafkaConsumer("some-topic", bootstrap_servers=own.bootstrap, group_id="g")
    try:
        with pytest.raises(kafka.errors.KafkaError):
            consumer.poll(timeout_ms=5_000)
    finally:
        consumer.close(autocommit=False)


@pytest.mark.clients
def test_confluent_that_subscribes_is_told_so_at_once(own: BrokerUnderTest) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    consumer = confluent_kafka.Consumer({"bootstrap.servers": own.bootstrap, "group.id": "g", "log_level": 0})
    try:
        consumer.subscribe(["some-topic"])
        message = consumer.poll(5)
        assert message is not None
        assert "does not coordinate consumer groups" in message.error().str()
    finally:
        consumer.close()


@pytest.mark.clients
def test_confluent_that_assigns_is_told_once_and_served(own: BrokerUnderTest, log: tuple[str, bytes]) -> None:
    from tests.support.adapters import confluent
    from tests.support.records import samples

    confluent.produce(own.bootstrap, log[0], samples([10] * 5, partitions=1, seed=3))
    consumer = confluent._consumer(own.bootstrap)
    try:
        consumer.assign([confluent.TopicPartition(log[0], 0, 0)])
        messages = consumer.consume(100, timeout=3)
    finally:
        consumer.close()
    errors = [message.error() for message in messages if message.error() is not None]
    assert len(errors) <= 1
    assert all(confluent.is_group_notice(error) for error in errors)
    assert len(messages) - len(errors) == 5
