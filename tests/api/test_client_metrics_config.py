"""Configs of client-metrics subscriptions."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.altered_configs import alter
from tests.support.configs import describe_configs
from tests.support.raw import RawClient
from tests.support.topics import fresh_name

CLIENT_METRICS = 16


def test_client_metrics_subscriptions_alter_describe_and_list(client: RawClient) -> None:
    name = fresh_name("subscription")
    assert set(describe_configs(client, CLIENT_METRICS, name)[1]) == {"interval.ms", "match", "metrics"}
    wanted = (("metrics", 0, "org.apache.kafka."), ("interval.ms", 0, "60000"), ("match", 0, "client_id=a.*"))
    assert alter(client, CLIENT_METRICS, name, *wanted) == (0, None)
    rows = describe_configs(client, CLIENT_METRICS, name)[1]
    assert {key: (row["value"], row["config_source"]) for key, row in rows.items()} == {
        key: (value, 7) for key, _, value in wanted
    }
    for fields, version in (({}, 0), ({"resource_types": [CLIENT_METRICS]}, 1)):
        listed = client.call(ApiKey.LIST_CONFIG_RESOURCES, version, fields)["config_resources"]
        assert name in [row["resource_name"] for row in listed]
    for key, value, code in (
        ("interval.ms", "1", ErrorCode.INVALID_REQUEST),
        ("no.such", "1", ErrorCode.INVALID_REQUEST),
        ("match", "bogus=1", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=((", ErrorCode.INVALID_CONFIG),
    ):
        assert alter(client, CLIENT_METRICS, name, (key, 0, value))[0] == code
    both = (("match", 0, "bogus=1"), ("interval.ms", 0, "1"))
    code, _ = alter(client, CLIENT_METRICS, fresh_name("subscription"), *both)
    assert code == ErrorCode.INVALID_REQUEST, "the interval comes first"
