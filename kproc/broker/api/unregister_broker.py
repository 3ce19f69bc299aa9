"""UnregisterBroker (key 64), version 0: reject the request, because there is no other broker.

Differs from Kafka: Kafka unregisters even the last broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(ApiKey.UNREGISTER_BROKER, versions=(0, 0), needs=(on_cluster(Operation.ALTER),))
def handle_unregister_broker(context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    broker_id = request["broker_id"]
    if broker_id == context.services.config.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker ID {broker_id} is the only broker and cannot be unregistered"
        )
    raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")


def error_response(_request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "error_message": message}
