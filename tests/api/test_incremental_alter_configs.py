"""IncrementalAlterConfigs: set, append, subtract, delete, and errors that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.described_configs import describe
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

TOPIC, BROKER = 2, 4
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


def test_incremental_alter_configs_append_and_subtract(client: RawClient, name: str) -> None:
    assert alter(client, name, ("cleanup.policy", APPEND, "compact")) == ErrorCode.NONE
    both = {"delete", "compact"}
    wait_until(
        lambda: set(values(describe(client, TOPIC, name))["cleanup.policy"].split(",")) == both, what="both"
    )
    assert alter(client, name, ("cleanup.policy", SUBTRACT, "compact")) == ErrorCode.NONE
    wait_until(lambda: values(describe(client, TOPIC, name))["cleanup.policy"] == "delete", what="one")


@pytest.mark.parametrize(
    ("key", "operation", "value", "code"),
    [
        ("retention.ms", SET, "soon", ErrorCode.INVALID_CONFIG),
        ("no.such.key", SET, "1", ErrorCode.INVALID_CONFIG),
        ("retention.ms", APPEND, "1", ErrorCode.INVALID_CONFIG),
        ("retention.ms", SET, None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_invalid_config_change_is_rejected_as_a_whole(
    client: RawClient, name: str, key: str, operation: int, value: str | None, code: int
) -> None:
    assert alter(client, name, (key, operation, value)) == code
    assert values(describe(client, TOPIC, name))["retention.ms"] == "12345"


def test_alter_configs_with_unknown_operation_is_rejected(client: RawClient, name: str) -> None:
    # Kafka lets this surprise it and answers UNKNOWN_SERVER_ERROR.
    assert alter(client, name, ("retention.ms", 9, "1")) in (
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    )
    assert values(describe(client, TOPIC, name))["retention.ms"] == "12345"


def test_alter_configs_of_unknown_topic_is_rejected(client: RawClient) -> None:
    code = alter(client, fresh_name("absent"), ("retention.ms", SET, "1"))
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_alter_configs_validate_only_changes_nothing(client: RawClient, name: str) -> None:
    assert alter(client, name, ("retention.ms", SET, "99999"), validate_only=True) == ErrorCode.NONE
    assert values(describe(client, TOPIC, name))["retention.ms"] == "12345"
