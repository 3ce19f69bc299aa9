"""Topics and groups that `kproc.Broker` changes: what clients find then, and the broker's reasons for errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kproc import Broker
from kproc.client import Client
from kproc.wire.header import ApiKey
from tests.support.broker import forked_broker

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def topic_broker(fork_server: None) -> Iterator[Broker]:
    with forked_broker()({"auto.create.topics.enable": False}) as broker:
        yield broker


def test_created_topic_is_found_until_it_is_deleted(topic_broker: Broker) -> None:
    topic_broker.create_topic("made", partitions=3, configs={"retention.ms": 60_000})
    with Client.connect(topic_broker.host, topic_broker.port) as client:
        answer = client.call_latest(
            ApiKey.METADATA, {"topics": [{"name": "made"}], "allow_auto_topic_creation": False}
        )
    assert [len(topic["partitions"]) for topic in answer["topics"]] == [3]
    with pytest.raises(RuntimeError, match=r"topic 'made': .*exists"):
        topic_broker.create_topic("made")
    with pytest.raises(RuntimeError, match=r"topic 'bad': .*retention\.ms"):
        topic_broker.create_topic("bad", configs={"retention.ms": "soon"})
    topic_broker.delete_topic("made")
    with Client.connect(topic_broker.host, topic_broker.port) as client:
        answer = client.call_latest(ApiKey.METADATA, {"topics": None, "allow_auto_topic_creation": False})
    assert answer["topics"] == []
    with pytest.raises(RuntimeError, match="topic 'made': "):
        topic_broker.delete_topic("made")


def test_group_config_is_set_or_rejected_with_its_reason(topic_broker: Broker) -> None:
    topic_broker.configure_group("workers", {"consumer.session.timeout.ms": 50_000})
    with pytest.raises(RuntimeError, match=r"group 'workers': .*consumer\.session\.timeout\.ms"):
        topic_broker.configure_group("workers", {"consumer.session.timeout.ms": "soon"})
    resource = {"resource_type": 32, "resource_name": "workers", "configuration_keys": None}
    with Client.connect(topic_broker.host, topic_broker.port) as client:
        answer = client.call_latest(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]})
    values = {row["name"]: row["value"] for row in answer["results"][0]["configs"]}
    assert values["consumer.session.timeout.ms"] == "50000"
