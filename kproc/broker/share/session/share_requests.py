"""Parts of ShareFetch and ShareAcknowledge: checks of a request, the names of its topics, fields of a response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.cluster.features import share_version
from kproc.broker.share.partition.messages import ShareKey
from kproc.broker.share.session.acknowledge import find_partition
from kproc.broker.share.session.sessions import SESSION_PARTITIONS_MAX
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext, Services

Fields = dict[str, Any]
# Limit of the rows of a request: batches, partitions, and types of single records. They are decoded in steps, and sent
# to the owners in steps (acknowledge.py).
ROWS_MAX: Final = 100_000
_MEMBER_ID_MAX: Final = 36
# Errors after which a client looks up the leader. The response tells the leader with the error (KIP-951).
_LEADER_ERRORS: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def check_request(context: RequestContext, request: Mapping[str, Any]) -> None:
    """Reject a request without a valid group and member, and one with too many partitions.

    Without the feature share.version, reject every request.
    """
    if share_version(context.services.image) < 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if request["group_id"] is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    member_id = request["member_id"]
    # Member ids are UUIDs as text (KIP-932), which have at most 36 characters. The id is a key of the session
    # table, so longer ones would let clients use up memory.
    if not member_id or len(member_id) > _MEMBER_ID_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    if sum(len(topic["partitions"]) for topic in request["topics"]) > SESSION_PARTITIONS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST)


def topic_names(services: Services, keys: Iterable[ShareKey]) -> Iterator[str]:
    """Yield the topic's name of each partition whose topic exists.

    The names are looked up only as they are read, because without an authorizer nobody reads them.
    """
    by_id = services.image.topics_by_id
    return (topic.name for topic_id, _ in keys if (topic := by_id.get(topic_id)) is not None)


def add_leader(services: Services, key: ShareKey, row: Fields) -> None:
    """Add the partition's leader to the row if its error makes a client look for the leader."""
    if row["error_code"] in _LEADER_ERRORS:
        partition = find_partition(services, key)
        epoch = -1 if partition is None else partition.leader_epoch
        leader = services.config.node_id if partition is not None else -1
        row["current_leader"] = {"leader_id": leader, "leader_epoch": epoch}


def by_topic(context: RequestContext, rows: Mapping[ShareKey, Fields]) -> Fields:
    """Return the response fields `responses`, which are the rows grouped by topic, and `node_endpoints`."""
    topics: dict[bytes, list[Fields]] = {}
    has_leader = False
    for (topic_id, _), row in rows.items():
        topics.setdefault(topic_id, []).append(row)
        has_leader = has_leader or "current_leader" in row
    node = {
        "node_id": context.services.config.node_id,
        "host": context.advertised_host,
        "port": context.advertised_port,
        "rack": None,
    }
    return {
        "responses": [{"topic_id": topic_id, "partitions": each} for topic_id, each in topics.items()],
        "node_endpoints": [node] if has_leader else [],
    }
