"""AlterConfigs replaces all configs of a resource."""

from __future__ import annotations

import pytest

import kproc.broker.api.alter_configs
import kproc.broker.api.describe_configs
import kproc.broker.api.incremental_alter_configs  # noqa: F401 - the imports register the handlers
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker
from tests.support.in_memory_controller import topic

TOPIC = 2


@pytest.fixture
def broker() -> Broker:
    broker = Broker({"log.retention.hours": "100", "num.partitions": "3"})
    broker.cluster.create(topic("t", configs={"flush.ms": "5000"}))
    return broker


@pytest.mark.parametrize("version", range(3))
def test_configs_are_replaced_as_a_whole(broker, version):
    resource = {
        "resource_type": TOPIC,
        "resource_name": "t",
        "configs": [{"name": "retention.ms", "value": "7"}],
    }
    for validate_only, expected in ((True, {"flush.ms": "5000"}), (False, {"retention.ms": "7"})):
        fields = broker.ask(ApiKey.ALTER_CONFIGS, version, resources=[resource], validate_only=validate_only)
        assert [row["error_code"] for row in fields["responses"]] == [0]
        assert broker.cluster.image.topic("t").configs == expected
