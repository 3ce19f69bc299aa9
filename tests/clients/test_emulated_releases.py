"""Unmodified clients against a broker that emulates an older release: they choose its versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from kafka import KafkaConsumer

from kproc import BrokerFailed
from kproc.broker.request.releases import load_releases
from kproc.client import Client
from kproc.client.errors import ConnectionLost
from kproc.wire.header import ApiKey
from tests.support.broker import forked_broker
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.clients, pytest.mark.transports("process"), pytest.mark.usefixtures("fork_server")]
PRODUCE_AND_FETCH = {"2.1": (7, 10), "3.3": (9, 13), "4.0": (12, 17)}


@pytest.fixture(scope="module", params=PRODUCE_AND_FETCH)
def emulated(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """A release, and a broker that emulates it."""
    with forked_broker()(emulate=request.param) as broker:
        broker.create_topic("t")
        yield request.param, broker


def test_clients_use_versions_of_emulated_release(emulated: tuple[str, Any]) -> None:
    """Transactions, groups and compression work in the versions of each release."""
    release, broker = emulated
    with Client.connect(broker.host, broker.port) as client:
        versions = client.api_versions()
        with pytest.raises(ConnectionLost):
            client.call(ApiKey.LIST_OFFSETS, 11, {"replica_id": -1, "isolation_level": 0, "topics": [], "timeout": 0})
    with Client.connect(broker.host, broker.port) as client, pytest.raises(ConnectionLost):
        client.call(ApiKey.PRODUCE, 13, {"transactional_id": None, "acks": 1, "timeout": 0, "topic_data": []})
    assert (versions[ApiKey.PRODUCE][1], versions[ApiKey.FETCH][1]) == PRODUCE_AND_FETCH[release]
    producer = Producer({**broker.client_config(), "transactional.id": "x", "compression.type": "lz4"})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce("t", b"a" * 200)
    producer.commit_transaction(PATIENCE_SECONDS)
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**broker.client_config(), **settings})
    consumer.subscribe(["t"])
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"a" * 200)
    consumer.commit(message, asynchronous=False)
    assert [each.offset for each in consumer.committed([TopicPartition("t", 0)])] == [1]
    group = broker.group("g")
    assert (group.type, group.state, len(group.members)) == ("classic", "Stable", 1)
    # The marker of the transaction has the offset 1.
    assert (group.offsets, group.lag) == ({("t", 0): 1}, {("t", 0): 1})
    consumer.close()
    pure = KafkaConsumer("t", **broker.client_config("kafka-python"), auto_offset_reset="earliest")
    assert next(pure).value == b"a" * 200
    pure.close()


def test_client_sees_group_configs_of_emulated_release(emulated: tuple[str, Any]) -> None:
    """`kproc.Broker` sets the default of a config that the release lacks: streams.initial.rebalance.delay.ms."""
    release, broker = emulated
    group = ConfigResource(ResourceType.GROUP, "configured")
    admin = AdminClient(broker.client_config())
    described = admin.describe_configs([group])[group]
    if release != "4.0":
        with pytest.raises(KafkaException, match="Unexpected resource type"):
            described.result(PATIENCE_SECONDS)
        return
    rows = described.result(PATIENCE_SECONDS)
    assert rows.keys() == set(load_releases()[release].group_configs)
    assert all(row.is_default for row in rows.values())
    broker.configure_group("configured", {"consumer.session.timeout.ms": 50_000})
    with pytest.raises(RuntimeError, match=r"Unknown group config name: streams\.initial\.rebalance\.delay\.ms"):
        broker.configure_group("configured", {"streams.initial.rebalance.delay.ms": 5})


def test_data_of_newer_release_are_refused(tmp_path: Path) -> None:
    with forked_broker()(data=tmp_path / "data"):
        pass
    with pytest.raises(BrokerFailed, match=r"at level \d+, and this broker supports at most \d+"):
        forked_broker()(data=tmp_path / "data", emulate="3.9").start()


def test_unknown_release_is_refused() -> None:
    with pytest.raises(BrokerFailed, match=r"kproc\.emulate\.release.*2\.1, 2\.8"):
        forked_broker()(emulate="1.0").start()
