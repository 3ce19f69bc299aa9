"""AlterPartitionReassignments (key 45), versions 0-1 (KIP-455): assign a partition to this broker, where it is already.

Any other assignment gets Kafka's error for an unknown broker, because there is no other broker. With
kproc.clamp.replication.factor, the other brokers of an assignment are ignored.

Versions: v1 AllowReplicationFactorChange (KIP-860).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kproc.broker.cluster.topic_changes import problem_with_assignment
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage
    from kproc.broker.config import Config
    from kproc.broker.request.context import RequestContext

Row = dict[str, Any]


@api(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    versions=(0, 1),
    needs=(on_cluster(Operation.ALTER),),
    rows=(rows_at("topics.partitions", "responses.partitions"),),
)
def handle_alter_partition_reassignments(context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    image, config = context.services.image, context.services.config
    responses = [
        {
            "name": topic["name"],
            "partitions": [_result(image, config, topic["name"], wanted) for wanted in topic["partitions"]],
        }
        for topic in request["topics"]
    ]
    return {
        # KIP-860: the response repeats the option. Before v1 the client could not set it, and the change was
        # always allowed.
        "allow_replication_factor_change": request.get("allow_replication_factor_change", True),
        "error_code": int(ErrorCode.NONE),
        "error_message": None,
        "responses": responses,
    }


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {
        "allow_replication_factor_change": True,  # As in Kafka, always True, whatever the request says.
        "error_code": int(code),
        "error_message": message,
        "responses": [
            {
                "name": topic["name"],
                "partitions": [_row(each["partition_index"], code, message) for each in topic["partitions"]],
            }
            for topic in request["topics"]
        ],
    }


def _result(image: ClusterImage, config: Config, name: str, wanted: dict[str, Any]) -> Row:
    index, replicas = wanted["partition_index"], wanted["replicas"]
    if image.topic(name) is None:
        return _row(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if image.partition(name, index) is None:
        return _row(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    # KIP-455: null cancels a reassignment. There is never one to cancel, because a host has a single replica.
    if replicas is None:  # Null cancels.
        return _row(index, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    # KIP-455: an assignment that the partition has already is no change, and succeeds.
    problem = problem_with_assignment(replicas, config)
    if problem is not None:
        return _row(index, ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return _row(index, ErrorCode.NONE, None)


def _row(index: int, code: int, message: str | None) -> Row:
    return {"partition_index": index, "error_code": int(code), "error_message": message}
