"""DescribeProducers (key 61), version 0 (KIP-664): list the idempotent producers that a partition remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kproc.broker.cluster.image import PartitionImage
from kproc.broker.cluster.topic_names import problem_with
from kproc.broker.peers.forwarding import Answer, OnAnswer, gather_allowed, operation
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.security.acl import Operation
from kproc.broker.storage.producer_state import ProducerEntry
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import NO_SEQUENCE

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.request.context import RequestContext, Services

_OPERATION: Final = "describe_producers"


@api(
    ApiKey.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    # A slice has 2 rows: a topic and one of its partitions, which may have 10,000 producers.
    rows=(rows_at("topics.partition_indexes", "topics.partitions.active_producers", size=2),),
)
def handle_describe_producers(context: RequestContext, request: dict[str, Any]) -> None:
    topics = [(topic["name"], topic["partition_indexes"]) for topic in request["topics"]]

    def on_done(answers: list[Answer]) -> None:
        rows = iter(answers)
        context.reply(
            {
                "topics": [
                    {"name": name, "partitions": [_explained(next(rows), name) for _ in indexes]}
                    for name, indexes in topics
                ]
            }
        )

    parts = [(name, index, None) for name, indexes in topics for index in indexes]
    gather_allowed(context, _OPERATION, parts, Operation.READ, on_done)


def _explained(row: Answer, name: str) -> Answer:
    """Return the row of a partition. Add Kafka's message if the partition does not exist.

    If the topic's name is invalid, the row has an error that says so.
    """
    if row["error_code"] not in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ):
        return row
    if problem := problem_with(name):
        return _failed(row["partition_index"], ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    # A forbidden topic gets no message about hosting it, because the message would reveal whether it exists.
    if row["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return row
    return {**row, "error_message": "This server does not host this topic-partition."}


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [_failed(index, code, message) for index in topic["partition_indexes"]],
            }
            for topic in request["topics"]
        ]
    }


def _failed(index: int, code: int, message: str | None) -> Answer:
    return {
        "partition_index": index,
        "error_code": int(code),
        "error_message": message,
        "active_producers": [],
    }


def _last_timestamp(entry: ProducerEntry) -> int:
    """Return the timestamp of the producer's newest batch, or of the marker behind it."""
    # A marker counts as activity of its producer (KAFKA-9144). Otherwise a producer that only aborts would be
    # forgotten.
    has_ended = entry.coordinator_epoch >= 0 and entry.open_txn_offset < 0
    return entry.last_timestamp if has_ended or not entry.batches else entry.batches[-1][3]


@operation(_OPERATION, _failed, None)
def handle_partition(
    _services: Services, owned: OwnedPartition, partition: PartitionImage, _wanted: None, on_answer: OnAnswer
) -> None:
    """Answer with the producers of a log of this Handler."""
    producers = [
        {
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "last_sequence": entry.batches[-1][0] if entry.batches else NO_SEQUENCE,
            "last_timestamp": _last_timestamp(entry),
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_start_offset": entry.open_txn_offset,
        }
        for entry in owned.log.state.producers.entries()
    ]
    on_answer(
        {
            "partition_index": partition.index,
            "error_code": int(ErrorCode.NONE),
            "error_message": None,
            "active_producers": producers,
        }
    )
