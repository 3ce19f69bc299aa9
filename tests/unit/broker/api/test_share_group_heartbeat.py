"""ShareGroupHeartbeat: requests that the broker rejects before it looks the group up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kproc.broker.api.share_group_heartbeat import _validate, check_share_enabled
from kproc.broker.cluster.image import ClusterImage
from kproc.common.errors import ErrorCode, KafkaError

REQUEST: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "rack_id": None,
    "subscribed_topic_names": ["t"],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"member_epoch": -2}, "MemberEpoch is invalid."),
        ({"subscribed_topic_names": None}, "SubscribedTopicNames must be set in first request."),
        ({"subscribed_topic_names": []}, "SubscribedTopicNames must be set in first request."),
        (
            {"subscribed_topic_names": ["é" * 25_000] * 21},
            "The names in SubscribedTopicNames have 1050000 bytes",
        ),
    ],
)
def test_invalid_request_is_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KafkaError) as raised:
        _validate({**REQUEST, **change})
    assert raised.value.code == ErrorCode.INVALID_REQUEST
    assert str(raised.value.message).startswith(message)


@pytest.mark.parametrize("epoch", [-1, 0, 3])
def test_valid_request_is_accepted(epoch: int) -> None:
    _validate({**REQUEST, "member_epoch": epoch})


def test_cluster_without_share_groups_rejects_heartbeats() -> None:
    context: Any = SimpleNamespace(services=SimpleNamespace(image=ClusterImage()))
    with pytest.raises(KafkaError) as raised:
        check_share_enabled(context)
    assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
