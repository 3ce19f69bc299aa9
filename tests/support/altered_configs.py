"""Changes of configs by IncrementalAlterConfigs."""

from __future__ import annotations

from kproc.wire.header import ApiKey
from tests.support.raw import RawClient

# -- configs of groups and client metrics ------------------------------------------------------------------


def alter(
    client: RawClient, kind: int, name: str, *operations: tuple[str, int, str | None]
) -> tuple[int, str | None]:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in operations]
    fields = {"resources": [{"resource_type": kind, "resource_name": name, "configs": configs}]}
    (row,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {**fields, "validate_only": False})["responses"]
    return row["error_code"], row["error_message"]
