"""IncrementalAlterConfigs changes configs one by one."""

from __future__ import annotations

import pytest

import kproc.broker.api.alter_configs
import kproc.broker.api.describe_configs
import kproc.broker.api.incremental_alter_configs  # noqa: F401 - the imports register the handlers
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker
from tests.support.in_memory_controller import changes, topic

TOPIC = 2
UNKNOWN = 3


@pytest.fixture
def broker() -> Broker:
    broker = Broker({"log.retention.hours": "100", "num.partitions": "3"})
    broker.cluster.create(topic("t", configs={"flush.ms": "5000"}))
    return broker


@pytest.mark.parametrize("version", [0, 1])
def test_configs_are_altered_one_by_one(broker, version):
    resources = [changes(TOPIC, "t", ("retention.ms", 0, "7"), ("flush.ms", 1, None)), changes(TOPIC, "nope")]
    answer = broker.send(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=resources, validate_only=False)
    assert answer.is_parked
    broker.run_controller()
    assert [(row["error_code"], row["resource_name"]) for row in answer.fields["responses"]] == [
        (0, "t"),
        (UNKNOWN, "nope"),
    ]
    assert broker.cluster.image.topic("t").configs == {"retention.ms": "7"}


@pytest.mark.parametrize(
    ("key", "version"), [(ApiKey.ALTER_CONFIGS, 2), (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)]
)
def test_controller_error_is_reported_for_every_resource(broker, key, version):
    broker.fail_controller(ErrorCode.KAFKA_STORAGE_ERROR, "disk full")
    fields = broker.ask(key, version, resources=[changes(TOPIC, "t")], validate_only=False)
    assert [
        (row["error_code"], row["error_message"], row["resource_name"]) for row in fields["responses"]
    ] == [(ErrorCode.KAFKA_STORAGE_ERROR, "disk full", "t")]
