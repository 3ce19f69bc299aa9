"""Log levels that change on the running broker: what is set holds at once, for every connection, and is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.configs import read_configs, set_config
from tests.support.raw import RawClient

TOPIC, LOGGERS = 2, 8
SET = 0
SOURCE_LOGGER = 6
# Of what the cleaner logs nothing is awaited by another test.
PACKAGE, MODULE = "kproc.broker.cleaner", "kproc.broker.cleaner.strays"


@pytest.fixture(autouse=True)
def as_before(client: RawClient) -> Iterator[None]:
    yield
    for name in (PACKAGE, MODULE):
        assert level(client, name, None) == (0, None)


def level(client: RawClient, name: str, value: str | None) -> tuple[int, str | None]:
    return set_config(client, name, value, kind=LOGGERS)


def rows(client: RawClient, *names: str) -> dict[str, dict[str, Any]]:
    return read_configs(client, *names, kind=LOGGERS)


def levels(client: RawClient, *names: str) -> list[str]:
    found = rows(client, *names)
    return [found[name]["value"] for name in names]


def test_describe_configs_lists_loggers_with_effective_level(client: RawClient) -> None:
    shown = rows(client)
    assert {"root", "kproc", "kproc.broker.processor", "kproc.broker.handler.handler", PACKAGE, MODULE} <= set(shown)
    for row in shown.values():
        assert row["value"] in {"FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"}
        assert (row["config_source"], row["read_only"], row["is_sensitive"]) == (SOURCE_LOGGER, False, False)
        assert (row["synonyms"], row["documentation"]) == ([], "")
    assert list(rows(client, MODULE, "no.such.logger")) == [MODULE]


def test_log_level_applies_on_every_connection_once_answered(
    client: RawClient, broker: BrokerUnderTest
) -> None:
    assert level(client, PACKAGE, "DEBUG") == (0, None)
    for _ in range(4):  # Of several Handlers some other one answers.
        with RawClient(broker.bootstrap) as other:
            assert levels(other, PACKAGE, MODULE) == ["DEBUG", "DEBUG"]
    assert level(client, MODULE, "FATAL") == (0, None)
    assert levels(client, PACKAGE, MODULE) == ["DEBUG", "FATAL"]
    assert level(client, PACKAGE, None) == (0, None)
    (root,) = levels(client, "root")
    assert levels(client, PACKAGE, MODULE) == [root, "FATAL"]


def test_validated_or_rejected_log_level_changes_nothing(client: RawClient) -> None:
    before = levels(client, PACKAGE, MODULE)
    change = {"name": MODULE, "config_operation": SET, "value": "TRACE"}
    asked = {"resource_type": LOGGERS, "resource_name": "1", "configs": [change]}
    fields = {"resources": [asked], "validate_only": True}
    (row,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)["responses"]
    assert row["error_code"] == 0
    assert level(client, MODULE, "LOUD")[0] == ErrorCode.INVALID_CONFIG
    assert level(client, "no.such.logger", "INFO")[0] == ErrorCode.INVALID_CONFIG
    assert level(client, "root", None)[0] == ErrorCode.INVALID_REQUEST
    del change["config_operation"]
    (row,) = client.call(ApiKey.ALTER_CONFIGS, 2, {**fields, "validate_only": False})["responses"]
    assert row["error_code"] == ErrorCode.INVALID_REQUEST
    assert levels(client, PACKAGE, MODULE) == before


def test_alter_configs_with_loggers_and_topics_keeps_order(
    client: RawClient, log: tuple[str, bytes]
) -> None:
    name, _ = log

    def wish(kind: int, resource: str, key: str, value: str) -> dict[str, Any]:
        change = {"name": key, "config_operation": SET, "value": value}
        return {"resource_type": kind, "resource_name": resource, "configs": [change]}

    wishes = [
        wish(LOGGERS, "2", MODULE, "TRACE"),
        wish(TOPIC, name, "retention.ms", "5000"),
        wish(LOGGERS, "1", MODULE, "TRACE"),
        wish(TOPIC, "no-such-topic", "retention.ms", "5000"),
    ]
    fields = {"resources": wishes, "validate_only": False}
    answers = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)["responses"]
    assert [(row["resource_type"], row["resource_name"], row["error_code"]) for row in answers] == [
        (LOGGERS, "2", ErrorCode.INVALID_REQUEST),
        (TOPIC, name, 0),
        (LOGGERS, "1", 0),
        (TOPIC, "no-such-topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert levels(client, MODULE) == ["TRACE"]
