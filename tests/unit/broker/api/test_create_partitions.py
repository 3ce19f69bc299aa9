"""CreatePartitions in every version."""

from __future__ import annotations

import pytest

import kproc.broker.api.create_partitions
import kproc.broker.api.create_topics
import kproc.broker.api.delete_topics  # noqa: F401 - the imports register the handlers
from kproc.broker.calls.calls import Lost
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker
from tests.support.in_memory_controller import topic

UNKNOWN = 3


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    broker.cluster.create(topic("there"))
    return broker


@pytest.mark.parametrize("version", range(4))
def test_topics_grow_in_every_version(broker, version):
    wishes = [
        {"name": "there", "count": 3, "assignments": None},
        {"name": "nope", "count": 3, "assignments": None},
    ]
    for validate_only, count in ((True, 1), (False, 3)):
        fields = broker.ask(ApiKey.CREATE_PARTITIONS, version, topics=wishes, validate_only=validate_only)
        assert [(row["name"], row["error_code"]) for row in fields["results"]] == [
            ("there", 0),
            ("nope", UNKNOWN),
        ]
        assert len(broker.cluster.image.topic("there").partitions) == count


def test_a_lost_controller_is_an_error_that_clients_retry(broker):
    broker.controller_failure = Lost()
    wish = {"name": "there", "count": 3, "assignments": None}
    fields = broker.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[wish], validate_only=False)
    assert [row["error_code"] for row in fields["results"]] == [ErrorCode.REQUEST_TIMED_OUT]
