"""Requests of the ACL APIs to an API broker, and what they answer."""

from __future__ import annotations

from typing import Any

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SETTINGS: dict[str, object] = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}
TOPIC, GROUP, CLUSTER, USER = 2, 3, 4, 7
LITERAL, PREFIXED, MATCH = 3, 4, 2
READ, WRITE, ALTER, DESCRIBE = 3, 4, 7, 8
DENY, ALLOW = 2, 3
RULE = {
    "resource_type": TOPIC,
    "resource_name": "t",
    "resource_pattern_type": LITERAL,
    "principal": "User:alice",
    "host": "*",
    "operation": READ,
    "permission_type": ALLOW,
}
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


def create(broker: Broker, *rules: dict[str, Any]) -> list[tuple[int, str | None]]:
    """Each rule with RULE's fields where it has none of its own."""
    answer = broker.ask(ApiKey.CREATE_ACLS, 3, creations=[RULE | rule for rule in rules])
    return [(row["error_code"], row["error_message"]) for row in answer["results"]]
