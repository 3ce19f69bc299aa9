"""The names in requests, and the conditions of fault rules about them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kproc.broker.calls.own_operations import FaultRule
from kproc.broker.faults.matching import Matcher, RequestNames
from kproc.broker.security.principal import Principal
from kproc.wire import codec
from kproc.wire.header import REQUEST_HEADER, ApiKey
from tests.support.cases import in_one_test

TOPIC_ID = bytes(range(16))


def names_in(
    api: ApiKey, version: int, fields: dict[str, Any], client: str = "shop-1"
) -> tuple[Any, RequestNames]:
    """A request as a Handler sees it, and the names in it."""
    image = SimpleNamespace(topics_by_id={TOPIC_ID: SimpleNamespace(name="orders")})
    request: Any = SimpleNamespace(
        api_key=int(api),
        api_version=version,
        client_id_bytes=client.encode(),
        principal=Principal("User", "alice"),
        services=SimpleNamespace(image=image),
    )
    frame = codec.encode_request(api, version, 0, None, fields)
    return request, RequestNames(request, memoryview(frame)[4 + REQUEST_HEADER.size :])


def matches(found: tuple[Any, RequestNames], **rule: Any) -> bool:
    return Matcher(FaultRule(action="close", **rule)).matches(*found)


@pytest.fixture(params=[9, 13], ids=["by name", "by id"])
def produce(request: pytest.FixtureRequest) -> tuple[Any, RequestNames]:
    topic = {"name": "orders"} if request.param < 13 else {"topic_id": TOPIC_ID}
    rows = [{"index": index, "records": b"x"} for index in (0, 3)]
    data = [{**topic, "partition_data": rows}]
    fields = {"transactional_id": "t-1", "acks": -1, "timeout": 1000, "topic_data": data}
    return names_in(ApiKey.PRODUCE, request.param, fields)


@in_one_test(
    ("rule", "expected"),
    [
        ({}, True),
        ({"apis": ["Produce"]}, True),
        ({"apis": ["Fetch", "Metadata"]}, False),
        ({"versions": (0, 20)}, True),
        ({"versions": (0, 3)}, False),
        ({"client": "shop-1"}, True),
        ({"client": "shop-*"}, True),
        ({"client": "shop"}, False),
        ({"user": "alice"}, True),
        ({"user": "User:alice"}, True),
        ({"user": "bob"}, False),
        ({"topic": "orders"}, True),
        ({"topic": "ord*"}, True),
        ({"topic": "payments"}, False),
        ({"topic": "orders", "partition": 3}, True),
        ({"topic": "orders", "partition": 1}, False),
        ({"partition": 0}, True),
        ({"transactional_id": "t-*"}, True),
        ({"transactional_id": "u"}, False),
        ({"group": "g"}, False),
        ({"topic": "orders", "client": "other"}, False),
    ],
)
def test_all_conditions_of_a_rule_must_hold(
    produce: tuple[Any, RequestNames], rule: dict[str, Any], expected: bool
) -> None:
    assert matches(produce, **rule) is expected


def test_groups_of_requests_are_found() -> None:
    fields = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    assert matches(names_in(ApiKey.HEARTBEAT, 4, fields), group="g")
    groups = [{"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [2]}]}]
    offsets = names_in(ApiKey.OFFSET_FETCH, 8, {"groups": groups, "require_stable": False})
    assert matches(offsets, group="g", topic="orders", partition=2)
    assert not matches(offsets, group="g", topic="orders", partition=1)
    by_type = {0: {"group": "x"}, 1: {"transactional_id": "x"}}
    for key_type, rule in by_type.items():
        found = names_in(ApiKey.FIND_COORDINATOR, 6, {"key_type": key_type, "coordinator_keys": ["x"]})
        assert matches(found, **rule)
        assert not matches(found, **by_type[1 - key_type])


def test_transactional_ids_of_all_versions_are_found() -> None:
    for version, fields in {
        3: {"v3_and_below_transactional_id": "t", "v3_and_below_producer_id": 1, "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": "orders", "partitions": [1]}]},
        4: {"transactions": [{"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "verify_only": False,
                              "topics": [{"name": "orders", "partitions": [1]}]}]},
    }.items():  # fmt: skip
        found = names_in(ApiKey.ADD_PARTITIONS_TO_TXN, version, fields)
        assert matches(found, transactional_id="t", topic="orders", partition=1)
        assert not matches(found, transactional_id="u")


def test_request_for_all_topics_matches_no_topic() -> None:
    found = names_in(ApiKey.METADATA, 12, {"topics": None})
    assert matches(found)
    assert not matches(found, topic="*")
