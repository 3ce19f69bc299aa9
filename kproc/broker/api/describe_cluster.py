"""DescribeCluster (key 60), versions 0-2 (KIP-700).

It shows one broker, which is its own controller, with the address of the client's listener.

Versions: v1 endpoint type (KIP-919), where only brokers can be described; v2 fenced brokers (KIP-1073), of which there
are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.broker.request.authorized_operations import NOT_TOLD, operations_on_cluster
from kproc.broker.request.registry import api
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


@api(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2))
def handle_describe_cluster(context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    endpoint_type = request.get("endpoint_type", _BROKERS)
    # KIP-919: a client that looks for controllers has connected to a listener of brokers. Kafka gives this error in
    # AuthHelper.computeDescribeClusterResponse.
    if endpoint_type == _CONTROLLERS:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, "
            "but we wanted an endpoint of type CONTROLLER",
        )
    if endpoint_type != _BROKERS:
        raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {endpoint_type}")
    node_id = context.services.config.node_id
    broker = {
        "broker_id": node_id,
        # Name the listener through which the client has come, because that is the only address that it certainly
        # reaches.
        "host": context.advertised_host,
        "port": context.advertised_port,
        "rack": None,
        "is_fenced": False,
    }
    wants_operations = request["include_cluster_authorized_operations"]
    return {
        "error_code": int(ErrorCode.NONE),
        "error_message": None,
        "endpoint_type": _BROKERS,
        "cluster_id": context.services.image.cluster_id,
        "controller_id": node_id,
        "brokers": [broker],
        "cluster_authorized_operations": operations_on_cluster(context) if wants_operations else NOT_TOLD,
    }


def error_response(_request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": [],
        "cluster_authorized_operations": NOT_TOLD,
    }
