"""DescribeAcls: filters find what Kafka's filters find."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.api import load_all
from kproc.wire.header import ApiKey
from tests.support.acl_requests import NONE, delete, describe
from tests.support.api_broker import Broker

load_all()

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


@pytest.fixture
def broker() -> Broker:
    return Broker(SETTINGS)


def create(broker: Broker, *rules: dict[str, Any]) -> list[tuple[int, str | None]]:
    """Each rule with RULE's fields where it has none of its own."""
    answer = broker.ask(ApiKey.CREATE_ACLS, 3, creations=[RULE | rule for rule in rules])
    return [(row["error_code"], row["error_message"]) for row in answer["results"]]


def test_filters_mean_what_kafkas_mean(broker: Broker) -> None:
    create(
        broker,
        {"resource_name": "*"},
        {"resource_name": "or", "resource_pattern_type": PREFIXED},
        {"resource_name": "orders"},
        {"resource_name": "orders", "resource_pattern_type": PREFIXED, "principal": "User:bob"},
        {"resource_name": "orders-eu", "permission_type": DENY},
        {"resource_name": "orders", "resource_type": GROUP, "operation": DESCRIBE, "host": "h"},
    )

    def names(**wanted: Any) -> list[tuple[str, int]]:
        return [(row[1], row[2]) for row in describe(broker, **wanted)]

    assert names(resource_type_filter=TOPIC, resource_name_filter="orders", pattern_type_filter=MATCH) == [
        ("*", LITERAL),
        ("or", PREFIXED),
        ("orders", LITERAL),
        ("orders", PREFIXED),
    ]
    assert names(resource_type_filter=TOPIC, resource_name_filter="orders", pattern_type_filter=1) == [
        ("orders", LITERAL),
        ("orders", PREFIXED),
    ]
    assert names(resource_type_filter=TOPIC, resource_name_filter="orders", pattern_type_filter=LITERAL) == [
        ("orders", LITERAL)
    ]
    assert names(resource_name_filter="*", pattern_type_filter=LITERAL) == [("*", LITERAL)]
    assert names(pattern_type_filter=PREFIXED) == [("or", PREFIXED), ("orders", PREFIXED)]
    assert len(names(pattern_type_filter=MATCH)) == 6
    assert names(permission_type=DENY) == [("orders-eu", LITERAL)]
    assert names(operation=DESCRIBE) == names(host_filter="h") == [("orders", LITERAL)]
    assert names(principal_filter="User:bob") == [("orders", PREFIXED)]
    assert names(principal_filter="bob") == names(resource_name_filter="") == []
    for unknown in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        assert names(**{unknown: 50}) == names(**{unknown: 0}) == []


def test_rule_named_in_full_is_found(broker: Broker) -> None:
    create(broker, {}, {"operation": WRITE})
    exact = {
        "resource_type_filter": TOPIC,
        "resource_name_filter": "t",
        "pattern_type_filter": LITERAL,
        "principal_filter": "User:alice",
        "host_filter": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    assert describe(broker, **exact) == [(TOPIC, "t", LITERAL, "User:alice", "*", READ, ALLOW)]
    assert describe(broker, **(exact | {"permission_type": DENY})) == []
    assert delete(broker, exact) == [(NONE, None, ["t"])]
    assert [row[5] for row in describe(broker)] == [WRITE]
