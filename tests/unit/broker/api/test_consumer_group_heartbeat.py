"""ConsumerGroupHeartbeat: requests that the broker rejects before it looks the group up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kproc.broker.api.consumer_group_heartbeat import (
    _assignment_of,
    _validate,
    check_enabled,
    handle_consumer_group_heartbeat,
)
from kproc.broker.api.member_requests import NAMES_BYTES_MAX, NAMES_MAX, check_topic_names
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.config import Config
from kproc.common.errors import ErrorCode, KafkaError

CONTEXT: Any = SimpleNamespace(api_version=1, services=SimpleNamespace(config=Config()))
REQUEST: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": 60_000,
    "subscribed_topic_names": ["t"],
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": [],
}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"member_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "other"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
    ],
)
def test_malformed_heartbeat_is_rejected(change: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as raised:
        _validate(CONTEXT, REQUEST | change)
    assert raised.value.code == code


@pytest.mark.parametrize("names", [["é" * 25_000] * 21, ["t"] * (NAMES_MAX + 1)])
def test_too_many_names_are_rejected_before_authorization(names: list[str]) -> None:
    """An authorizer takes time for each name. This context has none, so that a question to it would fail."""
    image = ClusterImage()
    image.feature_levels["group.version"] = 1
    context: Any = SimpleNamespace(api_version=1, services=SimpleNamespace(image=image))
    with pytest.raises(KafkaError) as raised:
        handle_consumer_group_heartbeat(context, REQUEST | {"subscribed_topic_names": names})
    assert raised.value.code == ErrorCode.INVALID_REQUEST


def test_names_up_to_the_limits_are_accepted() -> None:
    check_topic_names(["x" * 25_000] * (NAMES_BYTES_MAX // 25_000))
    check_topic_names(["t"] * NAMES_MAX)
    check_topic_names(None)


@pytest.mark.parametrize("level", [0, 1])
def test_cluster_below_group_version_1_lacks_the_protocol(level: int) -> None:
    image = ClusterImage()
    image.feature_levels["group.version"] = level
    context: Any = SimpleNamespace(services=SimpleNamespace(image=image))
    if level:
        check_enabled(context)
        return
    with pytest.raises(KafkaError) as raised:
        check_enabled(context)
    assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_owned_partitions_of_a_topic_in_several_rows_count_all() -> None:
    """Else a partition would have two owners: it would count as given up."""
    rows = [{"topic_id": b"t", "partitions": [number]} for number in (0, 2, 1)]
    assert _assignment_of([*rows, {"topic_id": b"u", "partitions": []}]) == {b"t": {0, 1, 2}, b"u": set()}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"subscribed_topic_names": None, "subscribed_topic_regex": ""},
    ],
)
def test_well_formed_heartbeat_is_accepted(change: dict[str, Any]) -> None:
    _validate(CONTEXT, REQUEST | change)
