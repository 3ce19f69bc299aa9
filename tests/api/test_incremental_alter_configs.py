"""IncrementalAlterConfigs: a changed setting takes effect, and its removal, too."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.described_configs import describe
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

TOPIC = 2
SET, DELETE, APPEND, SUBTRACT = range(4)


def values(result: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["value"] for row in result["configs"]}


def alter(
    client: RawClient,
    name: str,
    *operations: tuple[str, int, str | None],
    version: int = 1,
    kind: int = TOPIC,
    validate_only: bool = False,
) -> int:
    configs = [
        {"name": key, "config_operation": operation, "value": value} for key, operation, value in operations
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = client.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, version, {"resources": [resource], "validate_only": validate_only}
    )
    return int(answer["responses"][0]["error_code"])


@pytest.fixture
def name(client: RawClient) -> str:
    made = fresh_name("cfg")
    client.create_topic(made, configs={"retention.ms": "12345"})
    return made


@pytest.mark.parametrize("version", [0, 1])
def test_topic_config_set_takes_effect_and_is_removed(client: RawClient, name: str, version: int) -> None:
    assert client.produce(name, batch(bytes(5_000)))["error_code"] == ErrorCode.NONE
    assert alter(client, name, ("max.message.bytes", SET, "1000"), version=version) == ErrorCode.NONE
    wait_until(lambda: values(describe(client, TOPIC, name))["max.message.bytes"] == "1000", what="shown")
    refused = ErrorCode.MESSAGE_TOO_LARGE
    wait_until(lambda: client.produce(name, batch(bytes(5_000)))["error_code"] == refused, what="obeyed")
    assert alter(client, name, ("max.message.bytes", DELETE, None), version=version) == ErrorCode.NONE
    wait_until(
        lambda: client.produce(name, batch(bytes(5_000)))["error_code"] == ErrorCode.NONE, what="taken back"
    )
    assert values(describe(client, TOPIC, name))["retention.ms"] == "12345", "other configs stay"
