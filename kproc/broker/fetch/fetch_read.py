"""Read one partition for a Fetch: find the partition that the client names, and read its log in this Handler."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from kproc.broker.cluster.image import ClusterImage, PartitionImage, TopicImage
from kproc.broker.request.context import PartitionMoving
from kproc.broker.request.fetch_session import FetchTarget
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from kproc.wire.file_range import FileRange
from kproc.wire.hot import FetchPartition

if TYPE_CHECKING:
    from kproc.broker.handler.partitions import Partitions

logger = logging.getLogger(__name__)

FoundPartition = tuple[TopicImage, PartitionImage]
"""A partition with its topic, of the same image."""


class PartitionRead(msgspec.Struct, gc=False, array_like=True):
    """The result of one read of one partition: an error code, or offsets and file ranges (which may be empty)."""

    error: int
    start: int
    end: int  # The high watermark.
    # The last stable offset. -1 while the log is being transferred, because only the former owner knows which
    # transactions are open.
    stable: int
    ranges: Sequence[FileRange]
    bytes: int
    # (producer id, first offset) of each aborted transaction among the records. None if no transaction was aborted, or
    # if the isolation level is read_uncommitted.
    aborted: list[tuple[int, int]] | None = None


def failed_read(code: int) -> PartitionRead:
    return PartitionRead(int(code), -1, -1, -1, (), 0)


def _not_yet(start: int, end: int) -> PartitionRead:
    """Return an empty read without an error for a log that is still in transfer or recovery.

    The end of the transfer, or the log's first sync, wakes the Fetch as an append does. `start` and `end` are the log's
    start and its high watermark, or -1 if they are unknown.
    """
    return PartitionRead(0, start, end, -1, (), 0)


def read_partition(
    partitions: Partitions,
    found: FoundPartition,
    request: FetchPartition,
    limit: int,
    *,
    minimum_one: bool,
    committed: bool,
) -> PartitionRead:
    """Read a partition of this Handler from the offset in `request`.

    limit: the most bytes to read. With `minimum_one` the first batch may exceed it, as in Kafka (KIP-74).
    committed: read up to the last stable offset instead of the high watermark.

    Returns errors in the result and never raises them. A stale or unknown leader epoch is an error (KIP-320).
    """
    topic, partition = found
    if request.current_leader_epoch >= 0 and request.current_leader_epoch != partition.leader_epoch:
        is_old = request.current_leader_epoch < partition.leader_epoch
        return failed_read(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
    try:
        owned = partitions.get(topic.name, partition)
        log = owned.log
        offset = request.fetch_offset
        state = log.state
        if state.unconfirmed and owned.is_recovering:
            return _not_yet(-1, -1)
        high_watermark = state.high_watermark
        # There is nothing to read, or earlier partitions of the request have used up the limit.
        if offset == high_watermark or (
            limit <= 0 and not minimum_one and state.start_offset <= offset <= state.end_offset
        ):
            return PartitionRead(0, state.start_offset, high_watermark, state.last_stable_offset, (), 0)
        read = log.read(offset, min(limit, request.max_bytes), minimum_one=minimum_one, committed=committed)
        aborted = log.aborted_in(offset, read) if committed else None
    except PartitionMoving as moving:
        # The log is still at another Handler, or is opened in a later duty cycle. The Fetch waits for it.
        return _not_yet(moving.start_offset, moving.high_watermark)
    except KafkaError as error:
        return failed_read(error.code)
    except (Corrupt, OSError) as error:
        # Only this partition is damaged. The other partitions of the request are read.
        logger.error(
            "cannot read %s-%d at offset %d, answering Fetch with KAFKA_STORAGE_ERROR: %s",
            topic.name,
            partition.index,
            request.fetch_offset,
            error,
        )
        return failed_read(ErrorCode.KAFKA_STORAGE_ERROR)
    return PartitionRead(
        0,
        state.start_offset,
        high_watermark,
        read.last_stable_offset,
        read.ranges,
        read.bytes,
        [(each.producer_id, each.first_offset) for each in aborted] if aborted else None,
    )


def partition_now(image: ClusterImage, topic_id: bytes, index: int) -> PartitionImage | None:
    """Return a partition by its topic's id and its index. None if the topic does not exist in the present metadata."""
    topic = image.topics_by_id.get(topic_id)
    return None if topic is None else topic.partitions[index]


def find_partition(image: ClusterImage, target: FetchTarget) -> FoundPartition | int:
    """Return the partition that a Fetch names, or the error code for it."""
    topic = target.topic(image)
    if topic is None:
        return _missing(image, target)
    if not 0 <= target.index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return topic, topic.partitions[target.index]


def _missing(image: ClusterImage, target: FetchTarget) -> ErrorCode:
    """Return the error for a target whose topic name or topic id does not exist in the metadata."""
    if target.name is not None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # KIP-516: the id was never known here. The client refreshes its metadata and finds the present id.
    if target.found_name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return _deleted_code(image, target.found_name, target)


def _deleted_code(image: ClusterImage, name: str, target: FetchTarget) -> ErrorCode:
    """Return the error for a deleted topic. A fetch by id gets INCONSISTENT_TOPIC_ID if the name is in use again."""
    is_made_anew = target.name is None and image.partition(name, target.index) is not None
    return ErrorCode.INCONSISTENT_TOPIC_ID if is_made_anew else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
