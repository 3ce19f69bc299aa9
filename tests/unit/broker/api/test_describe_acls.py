"""DescribeAcls: filters find what Kafka's filters find."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.api import load_all
from tests.support.acl_requests import (
    ALLOW,
    DENY,
    DESCRIBE,
    GROUP,
    LITERAL,
    MATCH,
    NONE,
    PREFIXED,
    READ,
    SETTINGS,
    TOPIC,
    WRITE,
    create,
    delete,
    describe,
)
from tests.support.api_broker import Broker

load_all()


@pytest.fixture
def broker() -> Broker:
    return Broker(SETTINGS)


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
