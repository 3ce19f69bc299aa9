"""PushTelemetry (key 72), version 0 (KIP-714): validate the request as Kafka does, then discard the metrics.

kproc requests no metrics (api/get_telemetry_subscriptions.py), but a client that stops may push once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.api.get_telemetry_subscriptions import (
    ACCEPTED,
    NO_INSTANCE,
    SUBSCRIPTION_ID,
    TELEMETRY_BYTES_MAX,
)
from kproc.broker.request.registry import api
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.compression import Compression
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(ApiKey.PUSH_TELEMETRY, versions=(0, 0))
def handle_push_telemetry(_context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    # KIP-714: a client has an id before it pushes, from GetTelemetrySubscriptions.
    if request["client_instance_id"] == NO_INSTANCE:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    # KIP-714: this error makes the client request its subscription again. It then learns that no metrics are
    # wanted.
    if request["subscription_id"] != SUBSCRIPTION_ID:
        raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
    if request["compression_type"] not in (Compression.NONE, *ACCEPTED):
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    # The size is that of the compressed metrics, because kproc never decompresses them.
    if len(request["metrics"]) > TELEMETRY_BYTES_MAX:
        raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE)
    return error_response(request, ErrorCode.NONE, None)


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"error_code": int(code)}
