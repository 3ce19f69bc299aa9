"""Changes of the metadata are checked against the limits before they are sent to the controller."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.api import load_all
from kproc.broker.peers import controller_call
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker

load_all()

MAX = 12
TOPIC = {
    "name": "t",
    "num_partitions": 1,
    "replication_factor": -1,
    "assignments": [],
    "configs": [],
}
CONFIG = {"name": "retention.ms", "value": "1"}
OP = {"key": "producer_byte_rate", "value": 1.0, "remove": False}


def topics(count: int) -> list[dict[str, Any]]:
    return [TOPIC | {"name": f"t{number}"} for number in range(count)]


def resources(count: int, configs: int = 1) -> list[dict[str, Any]]:
    return [
        {"resource_type": 2, "resource_name": f"t{number}", "configs": [CONFIG] * configs}
        for number in range(count)
    ]


def quotas(count: int) -> list[dict[str, Any]]:
    names = [
        [{"entity_type": kind, "entity_name": f"{number}"} for kind in ("user", "client-id")]
        for number in range(count)
    ]
    return [{"entity": entity, "ops": [OP]} for entity in names]


def new_partitions(count: int, each: int) -> list[dict[str, Any]]:
    rows = [{"broker_ids": [1]}] * each
    return [{"name": f"t{number}", "count": 1 + each, "assignments": rows} for number in range(count)]


CASES: list[tuple[ApiKey, int, str, dict[str, Any], dict[str, Any]]] = [
    (ApiKey.CREATE_TOPICS, 7, "topics", {"topics": topics(MAX)}, {"topics": topics(MAX + 1)}),
    (
        ApiKey.CREATE_TOPICS,
        7,
        "topics",
        {"topics": [TOPIC | {"configs": [CONFIG] * (MAX - 1)}]},
        {"topics": [TOPIC | {"configs": [CONFIG] * MAX}]},
    ),
    (
        ApiKey.CREATE_PARTITIONS,
        3,
        "results",
        {"topics": new_partitions(3, 3)},
        {"topics": new_partitions(3, 4)},
    ),
    (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        "responses",
        {"resources": resources(MAX)},
        {"resources": [*resources(MAX - 1), *resources(1, 3)]},
    ),
    (
        ApiKey.ALTER_CONFIGS,
        2,
        "responses",
        {"resources": resources(1, 2 * MAX - 1)},
        {"resources": resources(1, 2 * MAX)},
    ),
    (ApiKey.ALTER_CLIENT_QUOTAS, 1, "entries", {"entries": quotas(MAX)}, {"entries": quotas(MAX + 1)}),
]


@pytest.mark.parametrize(("key", "version", "answered", "fits", "too_large"), CASES)
def test_too_many_rows_are_rejected_before_controller_call(
    monkeypatch: pytest.MonkeyPatch,
    key: ApiKey,
    version: int,
    answered: str,
    fits: dict[str, Any],
    too_large: dict[str, Any],
) -> None:
    monkeypatch.setattr(controller_call, "RECORDS_MAX", MAX)
    broker = Broker()
    common = {"validate_only": False}
    rows_of_record = {ApiKey.ALTER_CONFIGS: 2, ApiKey.INCREMENTAL_ALTER_CONFIGS: 2, ApiKey.ALTER_CLIENT_QUOTAS: 4}
    limit = f"The limit is {MAX * rows_of_record.get(key, 1)} rows in one request."
    message = f"Unable to perform excessively large batch operation. {limit}"
    refused = (int(ErrorCode.POLICY_VIOLATION), message)
    pending = broker.send(key, version, **common, **too_large)
    assert not broker.calls
    rows = pending.fields[answered]
    assert {(row["error_code"], row["error_message"]) for row in rows} == {refused}
    rows = broker.ask(key, version, **common, **fits)[answered]
    assert refused not in {(row["error_code"], row["error_message"]) for row in rows}


def test_unknown_topics_are_created_up_to_request_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kproc.broker.api.metadata.RECORDS_MAX", MAX)
    broker = Broker({"auto.create.topics.enable": "true"})
    wanted = [{"name": f"t{number}", "topic_id": bytes(16)} for number in range(MAX + 1)]
    answer = broker.ask(ApiKey.METADATA, 12, topics=wanted, allow_auto_topic_creation=True)
    assert len(broker.services.image.topics_by_name) == MAX
    unmade = [row["error_code"] for row in answer["topics"] if row["name"] == f"t{MAX}"]
    assert unmade == [int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
