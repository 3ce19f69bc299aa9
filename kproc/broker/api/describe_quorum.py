"""DescribeQuorum (key 55), versions 0-2 (KIP-595): show one voter, which leads and has the whole metadata log.

Offsets are counts of metadata records. The epoch grows with every start of the broker. The endpoint is that of the
client's listener, because the controller has no endpoint of its own for clients.

Versions: v1 fetch times (KIP-836); v2 directory ids, error messages and the voters' endpoints (KIP-853).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.broker.cluster.topic_names import CLUSTER_METADATA_TOPIC
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_HAS_QUORUM: Final = "has_quorum"


def _prepare(_context: RequestContext, request: dict[str, Any]) -> None:
    # Decide this for the whole request, because a slice of it could name just the one partition that has a quorum.
    request[_HAS_QUORUM] = _is_metadata_partition(request["topics"])


@api(
    ApiKey.DESCRIBE_QUORUM,
    versions=(0, 2),
    needs=(on_cluster(Operation.DESCRIBE),),
    prepare=_prepare,
    rows=(rows_at("topics.partitions", "topics.partitions"),),
)
def handle_describe_quorum(context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    if not request[_HAS_QUORUM]:
        return _no_quorum(request)
    node_id = context.services.config.node_id
    listener = {"name": context.listener, "host": context.advertised_host, "port": context.advertised_port}
    return {
        "error_code": int(ErrorCode.NONE),
        "error_message": "",
        "topics": [{"topic_name": CLUSTER_METADATA_TOPIC, "partitions": [_quorum(context)]}],
        "nodes": [{"node_id": node_id, "listeners": [listener]}],
    }


def error_response(_request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "error_message": message, "topics": [], "nodes": []}


def _no_quorum(request: dict[str, Any]) -> dict[str, Any]:
    """Return a response with an error for every requested partition."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    rows = [
        {
            "topic_name": topic["topic_name"],
            "partitions": [
                {
                    "partition_index": row["partition_index"],
                    "error_code": int(unknown),
                    "error_message": "This server does not host this topic-partition.",
                    "current_voters": [],
                    "observers": [],
                }
                for row in topic["partitions"]
            ],
        }
        for topic in request["topics"]
    ]
    return {"error_code": int(ErrorCode.NONE), "error_message": "", "topics": rows, "nodes": []}


def _is_metadata_partition(topics: list[dict[str, Any]]) -> bool:
    """Return True if the request names only the metadata partition, as Kafka requires."""
    return [
        (topic["topic_name"], [row["partition_index"] for row in topic["partitions"]]) for topic in topics
    ] == [(CLUSTER_METADATA_TOPIC, [0])]


def _quorum(context: RequestContext) -> dict[str, Any]:
    services = context.services
    version, now_ms = services.image.version, services.clock.wall_ms()
    voter = {
        "replica_id": services.config.node_id,
        "log_end_offset": version,
        # KIP-836: the leader reports the present time for itself, because it has read its own log by definition.
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    return {
        "partition_index": 0,
        "error_code": int(ErrorCode.NONE),
        "error_message": "",
        "leader_id": services.config.node_id,
        "leader_epoch": max(0, services.image.broker_epoch),
        "high_watermark": version,
        "current_voters": [voter],
        "observers": [],
    }
