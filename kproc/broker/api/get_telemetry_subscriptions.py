"""GetTelemetrySubscriptions (key 71), version 0 (KIP-714): return an empty subscription.

kproc requests no metrics from clients. A client asks again after the push interval.

Differs from Kafka: Kafka advertises this API only if a receiver is configured. kproc always answers, so that a client
that pushes by default learns that it must not.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.cluster.client_metrics_config import PUSH_INTERVAL_MS
from kproc.broker.request.registry import api
from kproc.common.errors import ErrorCode
from kproc.wire.compression import Compression
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

# The id of the only subscription, which is an empty set of metrics. A client sends it back with PushTelemetry.
SUBSCRIPTION_ID: Final = 0
TELEMETRY_BYTES_MAX: Final = 1 << 20
ACCEPTED: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
NO_INSTANCE: Final = bytes(16)


@api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions=(0, 0))
def handle_get_telemetry_subscriptions(_context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    # KIP-714: a client without an id sends zeros, and the broker assigns one. The client keeps it for its
    # whole life, so a known id is returned unchanged.
    instance_id = request["client_instance_id"]
    return _answer(ErrorCode.NONE, uuid.uuid4().bytes if instance_id == NO_INSTANCE else instance_id)


def error_response(request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return _answer(code, request["client_instance_id"])


def _answer(code: int, instance_id: bytes) -> dict[str, Any]:
    return {
        "error_code": int(code),
        "client_instance_id": instance_id,
        "subscription_id": SUBSCRIPTION_ID,
        "accepted_compression_types": [int(codec) for codec in ACCEPTED],
        "push_interval": PUSH_INTERVAL_MS,
        "telemetry_max_bytes": TELEMETRY_BYTES_MAX,
        "delta_temporality": True,
        "requested_metrics": [],
    }
