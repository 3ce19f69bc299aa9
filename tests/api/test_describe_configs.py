"""DescribeConfigs of a topic in every version, and of the broker."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.described_configs import describe
from tests.support.raw import RawClient
from tests.support.topics import fresh_name

TOPIC, BROKER = 2, 4
SOURCE_TOPIC, SOURCE_DEFAULT = 1, 5


def values(result: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["value"] for row in result["configs"]}


@pytest.fixture
def name(client: RawClient) -> str:
    made = fresh_name("cfg")
    client.create_topic(made, configs={"retention.ms": "12345"})
    return made


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs_of_topic_in_every_version(client: RawClient, name: str, version: int) -> None:
    result = describe(client, TOPIC, name, version=version)
    assert (result["error_code"], result["resource_type"], result["resource_name"]) == (
        ErrorCode.NONE,
        TOPIC,
        name,
    )
    rows = {row["name"]: row for row in result["configs"]}
    assert (rows["retention.ms"]["value"], rows["retention.ms"]["config_source"]) == ("12345", SOURCE_TOPIC)
    assert (rows["segment.bytes"]["value"], rows["segment.bytes"]["config_source"]) == (
        "1073741824",
        SOURCE_DEFAULT,
    )
    assert rows["max.message.bytes"]["value"] == "1048588"
    assert rows["cleanup.policy"]["value"] == "delete"


def test_describe_configs_of_broker_uses_kafka_names(client: RawClient) -> None:
    node_id = client.call(ApiKey.METADATA, 9, {"topics": []})["brokers"][0]["node_id"]
    shown = values(describe(client, BROKER, str(node_id)))
    assert shown["message.max.bytes"] == "1048588"
    assert {
        "num.io.threads",
        "num.network.threads",
        "log.retention.hours",
        "auto.create.topics.enable",
    } <= set(shown)
    assert describe(client, BROKER, "12321")["error_code"] == ErrorCode.INVALID_REQUEST
