"""Groups of every protocol as `kproc.Broker.group(...)` shows them."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")

from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer

from kproc.client import Client
from kproc.embedded import Broker
from kproc.wire.header import ApiKey
from tests.support.groups import streams_join
from tests.support.topics import fresh_name

pytestmark = [pytest.mark.clients, pytest.mark.transports("process", "inline")]


@pytest.fixture
def topic(observed: Broker) -> str:
    """A topic with three records."""
    name = fresh_name("orders")
    observed.create_topic(name)
    producer = Producer(observed.client_config())
    for _ in range(3):
        producer.produce(name, b"a")
    assert producer.flush(30) == 0
    return name


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_of_confluent_shows_members_and_lag(observed: Broker, topic: str, protocol: str) -> None:
    name = fresh_name("shop")
    group = observed.group(name)
    assert group.state == "Dead"
    settings = {
        "group.id": name,
        "group.protocol": protocol,
        "client.id": "till",
        "enable.auto.commit": False,
    }
    consumer = Consumer(observed.client_config() | settings | {"auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None
    group.wait_for_state("Stable", members=1)
    consumer.commit(message, asynchronous=False)
    assert (group.type, [(each.client_id, each.host) for each in group.members]) == (
        protocol,
        [("till", "127.0.0.1")],
    )
    assert (group.offsets, group.lag) == ({(topic, 0): 1}, {(topic, 0): 2})
    consumer.close()
    group.wait_for_state("Empty", members=0)
    with pytest.raises(
        AssertionError, match=f"group '{name}' is not Stable with 2 members within 0 s: it is Empty"
    ):
        group.wait_for_state("Stable", members=2, timeout_s=0)


def test_group_of_kafka_python_is_classic(observed: Broker, topic: str) -> None:
    name = fresh_name("shop")
    settings = observed.client_config("kafka-python")
    consumer = KafkaConsumer(topic, group_id=name, auto_offset_reset="earliest", **settings)
    assert next(consumer).value == b"a"
    group = observed.group(name)
    group.wait_for_state("Stable", members=1)
    assert group.type == "classic"
    consumer.close()  # It commits what it has handed out.
    assert group.lag[topic, 0] == 3 - group.offsets[topic, 0]


def test_share_group_and_streams_group_are_shown(observed: Broker, topic: str) -> None:
    share = {
        "group_id": "queue",
        "member_id": "a-member",
        "member_epoch": 0,
        "subscribed_topic_names": [topic],
    }
    with Client.connect(observed.host, observed.port, client_id="till") as client:
        for key, version, fields in (
            (ApiKey.SHARE_GROUP_HEARTBEAT, 1, share),
            (ApiKey.STREAMS_GROUP_HEARTBEAT, 0, streams_join("app", [topic])),
        ):
            assert client.call(key, version, fields)["error_code"] == 0
    for name, kind in (("queue", "share"), ("app", "streams")):
        group = observed.group(name)
        assert group.type == kind
        assert [each.client_id for each in group.members] == ["till"]
        assert group.state != "Dead"
        assert set(group.lag) <= {(topic, 0)}
    with pytest.raises(RuntimeError, match="group 'nobody' does not exist"):
        _ = observed.group("nobody").members
