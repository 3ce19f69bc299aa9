"""OffsetForLeaderEpoch (key 23), versions 2-4 (KIP-320).

It returns the end offset of a leader epoch, from the log's leader-epoch-checkpoint. By this, a consumer notices that
the log was truncated below its position.

Versions: v3 the replica's id; v4 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.broker.cluster.image import PartitionImage
from kproc.broker.peers.forwarding import Answer, OnAnswer, answer_by_topic, operation
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import has_on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.request.context import RequestContext, Services

_OPERATION: Final = "leader_epoch_end"
_UNKNOWN: Final = -1


@api(
    ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4), rows=(rows_at("topics.partitions", "topics.partitions"),)
)
def handle_offset_for_leader_epoch(context: RequestContext, request: dict[str, Any]) -> None:
    topics = [
        (
            topic["topic"],
            [
                (row["partition"], (row["current_leader_epoch"], row["leader_epoch"]))
                for row in topic["partitions"]
            ],
        )
        for topic in request["topics"]
    ]
    # Brokers need CLUSTER_ACTION for this API. Since KIP-320 consumers use it, too, and need DESCRIBE on the topic.
    right = None if has_on_cluster(context, Operation.CLUSTER_ACTION) else Operation.DESCRIBE
    answer_by_topic(context, _OPERATION, topics, right, label="topic")


def error_response(request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {
        "topics": [
            {
                "topic": topic["topic"],
                "partitions": [_failed(row["partition"], code) for row in topic["partitions"]],
            }
            for topic in request["topics"]
        ]
    }


def _failed(index: int, code: int, _message: str | None = None) -> Answer:
    return {"partition": index, "error_code": int(code), "leader_epoch": _UNKNOWN, "end_offset": _UNKNOWN}


@operation(_OPERATION, _failed, tuple[int, int])
def handle_partition(
    _services: Services,
    owned: OwnedPartition,
    partition: PartitionImage,
    wanted: tuple[int, int],
    on_answer: OnAnswer,
) -> None:
    """Answer with the end offset of an epoch in a log of this Handler (KIP-320)."""
    current_epoch, epoch = wanted
    # KIP-320: a client with an older epoch must refresh its metadata. One with a newer epoch has heard from the
    # controller before this Handler has, and retries.
    if 0 <= current_epoch != partition.leader_epoch:
        is_old = current_epoch < partition.leader_epoch
        code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
        on_answer(_failed(partition.index, code))
        return
    try:
        # KIP-279: for an epoch without an entry the log returns the largest smaller one with its end, so that
        # the client finds the point where both histories are still equal.
        found, end_offset = owned.log.reader.epoch_end_offset(epoch)
    except KafkaError as error:
        on_answer(_failed(partition.index, error.code))
        return
    on_answer(
        {
            "partition": partition.index,
            "error_code": int(ErrorCode.NONE),
            "leader_epoch": found,
            "end_offset": end_offset,
        }
    )
