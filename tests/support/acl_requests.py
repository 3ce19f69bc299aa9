"""Requests of the ACL APIs to an API broker, and what they answer."""

from __future__ import annotations

from typing import Any

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker

NONE, INVALID = int(ErrorCode.NONE), int(ErrorCode.INVALID_REQUEST)
ANYTHING = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def describe(broker: Broker, **wanted: Any) -> list[tuple[Any, ...]]:
    answer = broker.ask(ApiKey.DESCRIBE_ACLS, 3, **(ANYTHING | wanted))
    assert (answer["error_code"], answer["error_message"]) == (NONE, "")
    return [
        (
            resource["resource_type"],
            resource["resource_name"],
            resource["pattern_type"],
            *(acl[name] for name in ("principal", "host", "operation", "permission_type")),
        )
        for resource in answer["resources"]
        for acl in resource["acls"]
    ]


def delete(broker: Broker, *filters: dict[str, Any]) -> list[tuple[int, str | None, list[str]]]:
    answer = broker.ask(ApiKey.DELETE_ACLS, 3, filters=[ANYTHING | each for each in filters])
    return [
        (row["error_code"], row["error_message"], [acl["resource_name"] for acl in row["matching_acls"]])
        for row in answer["filter_results"]
    ]
