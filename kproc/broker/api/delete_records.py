"""DeleteRecords (key 21), versions 0-2 (KIP-107).

It moves the start of a log to the requested offset (-1: the high watermark), and deletes the whole segments below it.
The new start is written to log-start-offset-checkpoint and synced before the response.

Differs from Kafka: Kafka writes that file once a minute, so a crash can undo a deletion. `timeout_ms` is ignored,
because there is no follower to wait for.

Versions: v2 flexible.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import FromImage, Lost
from kproc.broker.calls.cleaner_calls import WRITE_CHECKPOINTS, Done
from kproc.broker.cluster.image import PartitionImage, TopicImage
from kproc.broker.peers.forwarding import Answer, OnAnswer, OperationPaused, answer_by_topic, operation
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.common.log_rate import LogRate
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.request.context import RequestContext, Services
    from kproc.broker.storage.log import Log

logger = logging.getLogger(__name__)
_rejection_lines: Final = LogRate(
    logger, "rejected %d more DeleteRecords of topics with cleanup.policy=compact"
)

_OPERATION: Final = "delete_records"
_HIGH_WATERMARK: Final = -1
_UNKNOWN: Final = -1


@api(ApiKey.DELETE_RECORDS, versions=(0, 2), rows=(rows_at("topics.partitions", "topics.partitions"),))
def handle_delete_records(context: RequestContext, request: dict[str, Any]) -> None:
    topics = [
        (topic["name"], [(row["partition_index"], row["offset"]) for row in topic["partitions"]])
        for topic in request["topics"]
    ]
    answer_by_topic(context, _OPERATION, topics, Operation.DELETE)


def error_response(request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [_failed(row["partition_index"], code) for row in topic["partitions"]],
            }
            for topic in request["topics"]
        ]
    }


def _failed(index: int, code: int, _message: str | None = None) -> Answer:
    return {"partition_index": index, "low_watermark": _UNKNOWN, "error_code": int(code)}


@operation(_OPERATION, _failed, int)
def handle_partition(
    services: Services, owned: OwnedPartition, partition: PartitionImage, offset: int, on_answer: OnAnswer
) -> None:
    """Advance the start of a log of this Handler, and answer when the new start is on disk.

    After a crash, OperationPaused is raised until the log's first sync, which determines the high watermark.
    """
    # Before the first sync after a crash, the high watermark is too low. Higher offsets would be rejected as out of
    # range, and a deletion up to the high watermark would delete too little.
    if owned.is_recovering:
        raise OperationPaused(offset, owned)
    index = partition.index
    log = owned.log
    try:
        _validate_deletable(services, services.image.topics_by_name[owned.key[0]], log)
        before = log.state.start_offset
        start = log.retention.advance_start(log.state.high_watermark if offset == _HIGH_WATERMARK else offset)
    except KafkaError as error:
        on_answer(_failed(index, error.code))
        return
    except OSError:  # The log is offline.
        on_answer(_failed(index, ErrorCode.KAFKA_STORAGE_ERROR))
        return
    if start != before:
        owned.after_start_moved()
    # Confirm the start even if the log starts there already, because an earlier request may have failed to write it.
    _confirm_start(services, log, index, start, on_answer)


def _confirm_start(services: Services, log: Log, index: int, start: int, on_answer: OnAnswer) -> None:
    """Answer when log-start-offset-checkpoint, which the cleaner writes, has this start of the log."""
    answer = {"partition_index": index, "low_watermark": start, "error_code": int(ErrorCode.NONE)}
    # A log without a row in the checkpoint begins at its first segment, so a start of 0 needs no row.
    if not start:
        on_answer(answer)
        return

    def on_reply(reply: Done | Lost) -> None:
        # The cleaner has died. Its successor will write the new start, but this cannot be confirmed now.
        if isinstance(reply, Lost):
            on_answer(_failed(index, ErrorCode.REQUEST_TIMED_OUT))
        elif reply.error is not None:
            on_answer(_failed(index, ErrorCode.KAFKA_STORAGE_ERROR))
        else:
            log.retention.mark_start(start)
            on_answer(answer)

    services.peers.ask_cleaner(WRITE_CHECKPOINTS, FromImage(services.image.version), on_reply)


def _validate_deletable(services: Services, topic: TopicImage, log: Log) -> None:
    """Raise KafkaError if the records of a topic may not be deleted."""
    # As in ReplicaManager.deleteRecords, internal topics are excluded: a coordinator would lose states that no newer
    # record has replaced.
    if topic.is_internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    # In a log that is only compacted, a record may disappear only when a newer record of its key replaces it.
    if log.state.config.cleanup_policy == {"compact"}:
        # The response has no field for a message.
        if _rejection_lines.has_room(services.clock.host_ns()):
            logger.info(
                "rejected a DeleteRecords of topic %s, because it has cleanup.policy=compact", topic.name
            )
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
