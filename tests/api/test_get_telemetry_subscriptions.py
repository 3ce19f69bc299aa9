"""GetTelemetrySubscriptions and PushTelemetry: the subscription is empty."""

from __future__ import annotations

from typing import Any

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.raw import NO_TOPIC_ID, RawClient


def test_telemetry_subscription_is_empty(client: RawClient, broker: BrokerUnderTest) -> None:
    answer = client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, {"client_instance_id": NO_TOPIC_ID})
    instance_id = answer["client_instance_id"]
    assert answer["error_code"] == 0
    if broker.pid is None:
        return  # Kafka asks for what a subscription names, though it has nobody who takes it.
    again = client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, {"client_instance_id": instance_id})
    assert again["client_instance_id"] == instance_id

    def push(**changed: Any) -> int:
        fields = {
            "client_instance_id": instance_id,
            "subscription_id": answer["subscription_id"],
            "terminating": True,
            "compression_type": 0,
            "metrics": b"",
        }
        return int(client.call(ApiKey.PUSH_TELEMETRY, 0, {**fields, **changed})["error_code"])

    assert answer["requested_metrics"] == []
    assert push() == ErrorCode.NONE
    assert push(client_instance_id=NO_TOPIC_ID) == ErrorCode.INVALID_REQUEST
    assert push(subscription_id=77) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert push(compression_type=9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
