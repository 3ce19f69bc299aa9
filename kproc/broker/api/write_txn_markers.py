"""WriteTxnMarkers (key 27), versions 1-2 (KIP-98): append transaction markers, as a coordinator does.

`kafka-transactions abort` sends it to end a transaction that no coordinator knows.

Versions: v2 the transaction version, which decides how the epoch is validated (KIP-1228).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.broker.coordinator.rules import Marker
from kproc.broker.peers.markers import send_markers
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import check_needs, has_on_cluster, on_cluster
from kproc.broker.security.acl import Operation
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import PartitionKey, RequestContext

_OLDEST_TRANSACTION_VERSION: Final = 0  # v1 has no field for the transaction version and stands for this one.


def _check_rights(context: RequestContext, request: dict[str, Any]) -> None:
    # An administrator who ends a hanging transaction (KIP-664) has ALTER. Brokers have CLUSTER_ACTION. As in KafkaApis,
    # a client without both gets the error for CLUSTER_ACTION.
    if not has_on_cluster(context, Operation.ALTER):
        check_needs(context, (on_cluster(Operation.CLUSTER_ACTION),), request)


@api(
    ApiKey.WRITE_TXN_MARKERS,
    versions=(1, 2),
    prepare=_check_rights,
    rows=(rows_at("markers.topics.partition_indexes", "markers.topics.partitions"),),
)
def handle_write_txn_markers(context: RequestContext, request: dict[str, Any]) -> None:
    parts: list[tuple[PartitionKey, Marker]] = []
    for row in request["markers"]:
        marker = Marker(
            row["producer_id"],
            row["producer_epoch"],
            row["coordinator_epoch"],
            row["transaction_result"],
            row.get("transaction_version", _OLDEST_TRANSACTION_VERSION),
        )
        parts += [
            ((topic["name"], index), marker)
            for topic in row["topics"]
            for index in topic["partition_indexes"]
        ]
    send_markers(context.services, parts, lambda codes: context.reply(_response(request, codes)))


def error_response(request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return _response(request, [code] * _count(request))


def _count(request: dict[str, Any]) -> int:
    return sum(len(topic["partition_indexes"]) for row in request["markers"] for topic in row["topics"])


def _response(request: dict[str, Any], codes: list[int]) -> dict[str, Any]:
    left = iter(codes)
    return {
        "markers": [
            {
                "producer_id": row["producer_id"],
                "topics": [
                    {
                        "name": topic["name"],
                        "partitions": [
                            {"partition_index": index, "error_code": next(left)}
                            for index in topic["partition_indexes"]
                        ],
                    }
                    for topic in row["topics"]
                ],
            }
            for row in request["markers"]
        ]
    }
