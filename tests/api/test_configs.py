"""DescribeConfigs and IncrementalAlterConfigs on topics and the broker: what is set is shown, and obeyed."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
SOURCE_TOPIC, SOURCE_DEFAULT = 1, 5


def describe(
    client: RawClient, kind: int, name: str, keys: list[str] | None = None, *, version: int = 4, **more: Any
) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return dict(
        client.call(ApiKey.DESCRIBE_CONFIGS, version, {"resources": [resource], **more})["results"][0]
    )


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


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs_of_topic_in_every_version(
    client: RawClient, name: str, version: int
) -> None:
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


def test_describe_configs_returns_requested_keys_only(client: RawClient, name: str) -> None:
    assert values(describe(client, TOPIC, name, ["retention.ms", "no.such.key"])) == {"retention.ms": "12345"}


def test_describe_configs_synonyms_and_documentation(client: RawClient, name: str) -> None:
    more = {"include_synonyms": True, "include_documentation": True}
    row = describe(client, TOPIC, name, ["retention.ms"], **more)["configs"][0]
    assert next((one["name"], one["value"]) for one in row["synonyms"]) == ("retention.ms", "12345")
    assert row["documentation"]


def test_describe_configs_of_unknown_topic_fails(client: RawClient) -> None:
    assert describe(client, TOPIC, fresh_name("absent"))["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


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
