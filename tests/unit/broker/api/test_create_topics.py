"""CreateTopics in every version."""

from __future__ import annotations

import pytest

import kproc.broker.api.create_partitions
import kproc.broker.api.create_topics
import kproc.broker.api.delete_topics  # noqa: F401 - the imports register the handlers
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker
from tests.support.in_memory_controller import NO_ID, topic

EXISTS, STORAGE = 36, 56


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    broker.cluster.create(topic("there"))
    return broker


@pytest.mark.parametrize("version", range(2, 8))
def test_topics_are_created_in_every_version(broker, version):
    wishes = [topic("new", 3, configs={"retention.ms": "5"}), topic("there")]
    answer = broker.send(ApiKey.CREATE_TOPICS, version, topics=wishes, validate_only=False)
    assert answer.is_parked
    broker.run_controller()
    made, refused = answer.fields["topics"]
    assert (made["error_code"], made["error_message"]) == (0, None)
    assert (refused["error_code"], refused["error_message"]) == (EXISTS, "Topic 'there' already exists.")
    if version >= 5:
        assert (made["num_partitions"], made["replication_factor"]) == (3, 1)
        configs = {row["name"]: row for row in made["configs"]}
        assert (configs["retention.ms"]["value"], configs["retention.ms"]["config_source"]) == ("5", 1)
        assert (refused["num_partitions"], refused["replication_factor"]) == (-1, -1)
    if version >= 7:
        assert made["topic_id"] == broker.cluster.image.topic("new").topic_id
        assert refused["topic_id"] == NO_ID


@pytest.mark.parametrize("version", range(2, 8))
def test_controller_error_is_reported_for_every_topic(broker, version):
    broker.fail_controller(ErrorCode.KAFKA_STORAGE_ERROR, "The metadata log cannot grow.")
    fields = broker.ask(ApiKey.CREATE_TOPICS, version, topics=[topic("x"), topic("y")], validate_only=False)
    assert [(row["error_code"], row["error_message"]) for row in fields["topics"]] == [
        (STORAGE, "The metadata log cannot grow.")
    ] * 2
