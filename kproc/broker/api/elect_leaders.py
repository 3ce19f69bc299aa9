"""ElectLeaders (key 43), versions 0-2 (KIP-183): answer that no election is needed, because the only replica leads.

Preferred and unclean elections get the same response. As in Kafka, a request for all partitions omits those without an
election, so its response is empty.

Versions: v1 election types (KIP-460) and an error of the whole response; v2 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.broker.cluster.image import ClusterImage
from kproc.broker.request.division import rows_at
from kproc.broker.request.listing import list_items
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_PREFERRED, _UNCLEAN = 0, 1
_NOT_NEEDED: Final = "Leader election not needed for topic partition."


def _check_type(_context: RequestContext, request: dict[str, Any]) -> None:
    election_type = request.get("election_type", _PREFERRED)
    if election_type not in (_PREFERRED, _UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}")


@api(
    ApiKey.ELECT_LEADERS,
    versions=(0, 2),
    needs=(on_cluster(Operation.ALTER),),
    prepare=_check_type,
    rows=(rows_at("topic_partitions.partitions", "replica_election_results.partition_result"),),
)
def handle_elect_leaders(context: RequestContext, request: dict[str, Any]) -> dict[str, Any] | None:
    image, wanted = context.services.image, request["topic_partitions"]
    # As in ReplicationControlManager.electLeaders, a request for all partitions omits those that need no
    # election. Here that is every partition.
    if wanted is None:
        results = ({"topic": name, "partition_result": []} for name in list(image.topics_by_name))
        list_items(context, "replica_election_results", results)
        return None
    rows = [
        {
            "topic": topic["topic"],
            "partition_result": [_result(image, topic["topic"], index) for index in topic["partitions"]],
        }
        for topic in wanted
    ]
    return {"error_code": int(ErrorCode.NONE), "replica_election_results": rows}


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    rows = [
        {
            "topic": topic["topic"],
            "partition_result": [_row(index, code, message) for index in topic["partitions"]],
        }
        for topic in request["topic_partitions"] or []
    ]
    return {"error_code": int(code), "replica_election_results": rows}


def _result(image: ClusterImage, name: str, index: int) -> dict[str, Any]:
    if image.topic(name) is None:
        return _row(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if image.partition(name, index) is None:
        return _row(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    return _row(index, ErrorCode.ELECTION_NOT_NEEDED, _NOT_NEEDED)


def _row(index: int, code: int, message: str | None) -> dict[str, Any]:
    return {"partition_id": index, "error_code": int(code), "error_message": message}
