"""ListConfigResources, and resources without a name or of an unknown type."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.altered_configs import alter
from tests.support.configs import describe_configs
from tests.support.raw import RawClient

GROUP, CLIENT_METRICS, BROKER, LOGGER = 32, 16, 4, 8


def node_id(client: RawClient) -> int:
    return int(client.call(ApiKey.METADATA, 9, {"topics": []})["brokers"][0]["node_id"])


def test_alter_configs_of_empty_name_and_unknown_type(client: RawClient) -> None:
    for kind in (GROUP, CLIENT_METRICS, LOGGER, 1, 64):
        assert describe_configs(client, kind, "")[0] == ErrorCode.INVALID_REQUEST
    assert alter(client, GROUP, "", ("consumer.session.timeout.ms", 0, "50000"))[1] == (
        "Default group resources are not allowed."
    )
    assert alter(client, CLIENT_METRICS, "", ("metrics", 0, "*"))[1] == "Subscription name can't be empty"
    here = str(node_id(client))
    listed = client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [BROKER, LOGGER]})
    assert {(row["resource_type"], row["resource_name"]) for row in listed["config_resources"]} == {
        (BROKER, here),
        (LOGGER, here),
    }
    unknown = client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [99]})
    assert unknown["error_code"] == ErrorCode.UNSUPPORTED_VERSION
