"""DeleteAcls: all filters see the same rules, and too many comparisons are rejected."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.api import load_all
from kproc.broker.cluster import acls as acls_module
from kproc.common.errors import ErrorCode
from tests.support.acl_requests import (
    ALLOW,
    INVALID,
    LITERAL,
    NONE,
    READ,
    SETTINGS,
    TOPIC,
    create,
    delete,
    describe,
)
from tests.support.api_broker import Broker

load_all()


@pytest.fixture
def broker() -> Broker:
    return Broker(SETTINGS)


def test_filters_of_one_request_see_the_same_rules(broker: Broker) -> None:
    create(broker, {"resource_name": "a"}, {"resource_name": "b"}, {"resource_name": "c"})
    named = {"resource_name_filter": "a"}
    assert delete(broker, named, named, {"resource_name_filter": "zz"}, {"resource_name_filter": "b"}) == [
        (NONE, None, ["a"]),
        (NONE, None, ["a"]),
        (NONE, None, []),
        (NONE, None, ["b"]),
    ]
    assert [row[1] for row in describe(broker)] == ["c"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resource_type_filter": 99}, "Unknown patternFilter."),
        ({"pattern_type_filter": 50}, "Unknown patternFilter."),
        ({"operation": 50}, "Unknown entryFilter."),
        ({"permission_type": 50}, "Unknown entryFilter."),
        ({"operation": 0}, "Unknown entryFilter."),  # Kafka closes the connection.
    ],
)
def test_unknown_filter_deletes_nothing(broker: Broker, change: dict[str, Any], message: str) -> None:
    create(broker, {"resource_name": "a"}, {"resource_name": "b"})
    assert delete(broker, change, {"resource_name_filter": "a"}) == [
        (INVALID, message, []),
        (NONE, None, ["a"]),
    ]
    assert [row[1] for row in describe(broker)] == ["b"]


def test_delete_acls_filter_comparing_too_many_rules_is_rejected(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker, *({"resource_name": f"t{number}"} for number in range(4)))
    monkeypatch.setattr(acls_module, "LOOKS_MAX", 11)
    several = [{"resource_name_filter": name} for name in ("t0", "t1", "t2")]
    message = (
        "3 filters are too many at once while there are 4 acls. "
        "The limit is 11 comparisons of a filter with an acl."
    )
    assert delete(broker, *several) == [(int(ErrorCode.POLICY_VIOLATION), message, [])] * 3
    assert len(describe(broker)) == 4
    only = {
        "resource_type_filter": TOPIC,
        "pattern_type_filter": LITERAL,
        "principal_filter": "User:alice",
        "host_filter": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    assert delete(broker, *(each | only for each in several)) == [
        (NONE, None, [name]) for name in ("t0", "t1", "t2")
    ]  # Each of these means one rule, and is found without a look at the others.
