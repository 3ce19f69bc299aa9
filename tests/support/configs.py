"""Settings of the broker, the cluster, or a topic, by IncrementalAlterConfigs and DescribeConfigs."""

from __future__ import annotations

from typing import Any

from kproc.wire.header import ApiKey
from tests.support.raw import RawClient

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1


def set_config(
    client: RawClient, name: str, value: str | None, *, kind: int = BROKER, resource: str = "1"
) -> tuple[int, str | None]:
    """Set a setting, or with None take it back; (error code, message). The broker named "" is all of them."""
    config = {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
    asked = {"resource_type": kind, "resource_name": resource, "configs": [config]}
    fields = {"resources": [asked], "validate_only": False}
    (row,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)["responses"]
    return row["error_code"], row["error_message"]


def read_configs(
    client: RawClient, *names: str, kind: int = BROKER, resource: str = "1"
) -> dict[str, dict[str, Any]]:
    """Return the rows of DescribeConfigs by name: those of `names`, or all."""
    code, rows = describe_configs(client, kind, resource, list(names) or None)
    assert code == 0, rows
    return rows


def describe_configs(
    client: RawClient, kind: int, resource: str, names: list[str] | None = None
) -> tuple[int, dict[str, dict[str, Any]]]:
    """(error code, rows of DescribeConfigs by name)."""
    wanted = {"resource_type": kind, "resource_name": resource, "configuration_keys": names}
    fields = {"resources": [wanted], "include_synonyms": True, "include_documentation": True}
    (result,) = client.call(ApiKey.DESCRIBE_CONFIGS, 4, fields)["results"]
    return result["error_code"], {row["name"]: row for row in result["configs"]}
