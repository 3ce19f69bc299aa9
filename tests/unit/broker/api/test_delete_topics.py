"""DeleteTopics in every version, by name and by id."""

from __future__ import annotations

import pytest

import kproc.broker.api.create_partitions
import kproc.broker.api.create_topics
import kproc.broker.api.delete_topics  # noqa: F401 - the imports register the handlers
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker
from tests.support.in_memory_controller import NO_ID, topic

UNKNOWN, INVALID_REQUEST, DISABLED, UNKNOWN_ID = 3, 42, 73, 100


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    broker.cluster.create(topic("there"))
    return broker


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_in_every_version(broker, version):
    if version < 6:
        request = {"topic_names": ["there", "nope"]}
    else:
        request = {"topics": [{"name": "there", "topic_id": NO_ID}, {"name": "nope", "topic_id": NO_ID}]}
    fields = broker.ask(ApiKey.DELETE_TOPICS, version, **request)
    assert [(row["name"], row["error_code"]) for row in fields["responses"]] == [
        ("there", 0),
        ("nope", UNKNOWN),
    ]
    assert broker.cluster.image.topic("there") is None


def test_a_topic_is_deleted_by_id(broker):
    topic_id = broker.cluster.image.topic("there").topic_id
    wishes = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": b"?" * 16}]
    fields = broker.ask(ApiKey.DELETE_TOPICS, 6, topics=wishes)
    assert [(row["name"], row["error_code"]) for row in fields["responses"]] == [
        ("there", 0),
        (None, UNKNOWN_ID),
    ]


@pytest.mark.parametrize(
    ("version", "code"), [(1, INVALID_REQUEST), (2, INVALID_REQUEST), (3, DISABLED), (5, DISABLED)]
)
def test_disabled_deletion_answers_error_known_to_version(version, code):
    broker = Broker({"delete.topic.enable": "false"})
    broker.cluster.create(topic("there"))
    fields = broker.ask(ApiKey.DELETE_TOPICS, version, topic_names=["there"])
    assert [row["error_code"] for row in fields["responses"]] == [code]
    assert broker.cluster.image.topic("there") is not None
