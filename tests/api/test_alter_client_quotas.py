"""AlterClientQuotas and DescribeClientQuotas: what is set is shown; the checks stand in tests/unit/broker/cluster."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.quotas import alter_quotas
from tests.support.raw import RawClient
from tests.support.topics import fresh_name


def alter(client: RawClient, version: int, entity: dict[str, str | None], **quotas: float | None) -> int:
    return alter_quotas(client, entity, version=version, **quotas)


def describe(client: RawClient, version: int, kind: str, name: str) -> list[dict[str, Any]]:
    component = {"entity_type": kind, "match_type": 0, "match": name}
    answer = client.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, {"components": [component], "strict": True})
    assert answer["error_code"] == ErrorCode.NONE
    return [{row["key"]: row["value"] for row in entry["values"]} for entry in answer["entries"]]


@pytest.mark.parametrize("version", [0, 1])
def test_client_quota_alter_describe_and_remove(client: RawClient, version: int) -> None:
    name = fresh_name("quota")
    entity: dict[str, str | None] = {"client-id": name}
    assert alter(client, version, entity, producer_byte_rate=5_000_000.0, request_percentage=12.5) == 0
    assert describe(client, version, "client-id", name) == [
        {"producer_byte_rate": 5_000_000.0, "request_percentage": 12.5}
    ]
    assert alter(client, version, entity, producer_byte_rate=None, request_percentage=None) == 0
    assert describe(client, version, "client-id", name) == []


def test_rejected_client_quota_names_its_entity(client: RawClient) -> None:
    assert alter(client, 1, {"ip": "127.0.0.1"}, producer_byte_rate=1.0) == ErrorCode.INVALID_REQUEST
    assert alter(client, 1, {"ip": "localhost\0"}, connection_creation_rate=1.0) == ErrorCode.INVALID_REQUEST
    component = {"entity_type": "nobody", "match_type": 2, "match": None}
    answer = client.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [component], "strict": False})
    assert answer["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    assert answer["entries"] is None
