"""ListPartitionReassignments (key 46), version 0 (KIP-455): answer that no reassignment is in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext


@api(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    needs=(on_cluster(Operation.DESCRIBE),),
    rows=(rows_at("topics.partition_indexes", "topics.partitions"),),
)
def handle_list_partition_reassignments(_context: RequestContext, _request: dict[str, Any]) -> dict[str, Any]:
    return {"error_code": int(ErrorCode.NONE), "error_message": None, "topics": []}


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    """Return an error response. As in Kafka, it names the requested partitions, with empty lists of replicas."""
    nowhere: dict[str, Any] = {"replicas": [], "adding_replicas": [], "removing_replicas": []}
    topics = [
        {
            "name": topic["name"],
            "partitions": [{"partition_index": index, **nowhere} for index in topic["partition_indexes"]],
        }
        for topic in request["topics"] or ()
    ]
    return {"error_code": int(code), "error_message": message, "topics": topics}
