"""ListOffsets (key 2), versions 1-11.

It finds the offset of a timestamp, or one of the special offsets: -1 latest, -2 earliest, -3 the record with the
largest timestamp (KIP-734), -4 earliest local (KIP-405), -5 latest tiered (KIP-1005), -6 earliest pending upload
(KIP-1023). Without tiered storage, the earliest local offset is the log start. For the tiered offsets the response is
-1, as Kafka answers for a topic without remote storage.

The latest offset is the high watermark, and later records are not found. Records of acks=all are below it when they are
synced. With read_committed, the last stable offset takes its place (KIP-98).

Versions: v2 isolation level; v4 leader epochs (KIP-320); v6 flexible; v7 -3; v8 -4; v9 -5; v10 timeout (KIP-1075); v11
-6.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kproc.broker.cluster.image import PartitionImage
from kproc.broker.peers.forwarding import Answer, OnAnswer, OnAnswers, OperationPaused, gather, operation
from kproc.broker.request.division import divide, rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics
from kproc.broker.security.acl import Operation
from kproc.broker.storage.timestamp_search import SearchPaused, TimestampSearch
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from kproc.common.reading import EARLIEST, LATEST, MAX_TIMESTAMP, READ_COMMITTED
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.request.context import RequestContext, Services
    from kproc.broker.storage.log import Log

logger = logging.getLogger(__name__)

_OPERATION: Final = "list_offsets"
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
# The first version with each special timestamp. Older versions get UNSUPPORTED_VERSION for it.
_SINCE: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


class Search(NamedTuple):
    """A look-up in one partition and its progress. A long one takes several duty cycles."""

    timestamp: int
    leader_epoch: int
    isolation: int
    progress: TimestampSearch


_ROWS: Final = rows_at("topics.partitions", "topics.partitions")
# A field that `_find_repeated` adds: the partitions that the request names several times, by topic.
_REPEATED: Final = "repeated"


def _find_repeated(_context: RequestContext, request: dict[str, Any]) -> Iterator[None]:
    """Find the partitions that several slices name, because no slice can see the others."""
    named: dict[str, set[int]] = {}
    repeated: dict[str, set[int]] = {}
    for part in divide(request, _ROWS):
        for topic in part.fields["topics"]:
            known = named.setdefault(topic["name"], set())
            for wanted in topic["partitions"]:
                index = wanted["partition_index"]
                (repeated.setdefault(topic["name"], set()) if index in known else known).add(index)
        yield
    request[_REPEATED] = repeated


@api(ApiKey.LIST_OFFSETS, versions=(1, 11), prepare=_find_repeated, rows=(_ROWS,))
def handle_list_offsets(context: RequestContext, request: dict[str, Any]) -> None:
    """Look up this Handler's partitions, call the owners of the others, and respond when all results are there."""
    topics = request["topics"]
    refused, parts = _refused_and_wanted(context, request)

    def on_done(answers: list[Answer]) -> None:
        rows = iter(answers)
        context.reply(
            {
                "topics": [
                    {
                        "name": topic["name"],
                        "partitions": [
                            refused.get((topic_at, part_at)) or next(rows)
                            for part_at in range(len(topic["partitions"]))
                        ],
                    }
                    for topic_at, topic in enumerate(topics)
                ]
            }
        )

    gather(context.services, _OPERATION, parts, on_done)


def gather_ends(services: Services, partitions: Sequence[tuple[str, int]], on_done: OnAnswers) -> None:
    """Request the high watermarks of partitions. `on_done` gets a row of ListOffsets for each of them."""
    gather(services, _OPERATION, [(*each, (LATEST, -1, 0)) for each in partitions], on_done)


def _refused_and_wanted(
    context: RequestContext, request: dict[str, Any]
) -> tuple[dict[tuple[int, int], Answer], list[tuple[str, int, tuple[int, int, int]]]]:
    """Return the error rows of a request, and the look-ups of its other partitions.

    The error rows are by (position of the topic in the request, position of the partition in the topic).
    """
    topics = request["topics"]
    isolation = request.get("isolation_level", 0)
    times_asked = Counter(
        (topic["name"], wanted["partition_index"]) for topic in topics for wanted in topic["partitions"]
    )
    repeated = request.get(_REPEATED, {})
    denied = denied_topics(context, Operation.DESCRIBE, (topic["name"] for topic in topics))
    refused: dict[tuple[int, int], Answer] = {}
    parts: list[tuple[str, int, tuple[int, int, int]]] = []
    for topic_at, topic in enumerate(topics):
        name = topic["name"]
        for part_at, wanted in enumerate(topic["partitions"]):
            index, timestamp = wanted["partition_index"], wanted["timestamp"]
            if name in denied:
                # The right comes first, so that no other error shows a client without rights that the topic
                # exists.
                refused[topic_at, part_at] = _failed(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            # As in Kafka, a partition that is named twice is rejected.
            elif times_asked[name, index] > 1 or index in repeated.get(name, ()):
                refused[topic_at, part_at] = _failed(index, ErrorCode.INVALID_REQUEST)
            elif not _is_known(timestamp, context.api_version):
                refused[topic_at, part_at] = _failed(index, ErrorCode.UNSUPPORTED_VERSION)
            else:
                parts.append((name, index, (timestamp, wanted.get("current_leader_epoch", -1), isolation)))
    return refused, parts


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    """Return a response with the same error for every partition."""
    del message  # The response has no field for a message.
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [_failed(each["partition_index"], code) for each in topic["partitions"]],
            }
            for topic in request["topics"]
        ]
    }


def _is_known(timestamp: int, version: int) -> bool:
    """Return True if a version of ListOffsets supports a timestamp. Negative timestamps stand for special offsets.

    As in Kafka, this check comes before the partition's errors.
    """
    return version >= _SINCE.get(timestamp, 0) and timestamp >= EARLIEST_PENDING_UPLOAD


def _failed(index: int, code: int, _message: str | None = None) -> Answer:
    return {
        "partition_index": index,
        "error_code": int(code),
        "timestamp": -1,
        "offset": -1,
        "leader_epoch": -1,
    }


@operation(_OPERATION, _failed, tuple[int, int, int])
def handle_partition(
    _services: Services,
    owned: OwnedPartition,
    partition: PartitionImage,
    wanted: tuple[int, int, int] | Search,
    on_answer: OnAnswer,
) -> None:
    """Search a log of this Handler, one slice of a long search at a time.

    wanted: (timestamp, leader epoch, isolation level), or a paused search that continues. After a crash the answer
    waits for the log's first sync, which determines the high watermark.
    """
    # An answer before the first sync after a crash could name an offset that the next crash truncates. A consumer would
    # begin there.
    if owned.is_recovering:
        raise OperationPaused(wanted, owned)
    if not isinstance(wanted, Search):
        timestamp, leader_epoch, isolation = wanted
        wanted = Search(timestamp, leader_epoch, isolation, TimestampSearch())
    try:
        answer = find_offset(owned, partition, wanted)
    except SearchPaused:
        raise OperationPaused(wanted) from None
    on_answer(answer)


def _find(log: Log, search: Search) -> tuple[int, int] | None:
    """Return (offset, timestamp or -1), or None if no readable record matches.

    Raises SearchPaused after a bounded amount of work, with the progress in `search`.
    """
    timestamp = search.timestamp
    readable = (
        log.state.last_stable_offset if search.isolation == READ_COMMITTED else log.state.high_watermark
    )
    if timestamp == LATEST:
        return readable, -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.state.start_offset, -1
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    if timestamp == MAX_TIMESTAMP:
        found = log.reader.max_timestamp(search.progress)
    else:
        found = log.reader.offset_for_timestamp(timestamp, search.progress)
    # A record at or above `readable` cannot be fetched yet. Kafka answers -1, as if it did not exist.
    return found if found is not None and found[0] < readable else None


def find_offset(owned: OwnedPartition, partition: PartitionImage, search: Search) -> Answer:
    """Return the row of one partition. Raises SearchPaused after a bounded amount of work, if it is not finished."""
    index, timestamp, epoch = partition.index, search.timestamp, search.leader_epoch
    # KIP-320: a client with an older epoch must refresh its metadata. One with a newer epoch has heard from the
    # controller before this Handler has, and retries.
    if 0 <= epoch != partition.leader_epoch:
        is_old = epoch < partition.leader_epoch
        return _failed(index, ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
    log = owned.log
    try:
        found = _find(log, search)
        leader_epoch = -1 if found is None else log.reader.epoch_of(found[0])
        # LATEST gets the log's current epoch, even if the high watermark is below the log's end and belongs to an
        # earlier epoch.
        if timestamp == LATEST:
            leader_epoch = log.state.leader_epoch
    except KafkaError as error:
        return _failed(index, error.code)
    except (Corrupt, OSError) as error:
        logger.error(
            "cannot look up an offset in %s-%d, answering ListOffsets with KAFKA_STORAGE_ERROR: %s",
            *owned.key,
            error,
        )
        return _failed(index, ErrorCode.KAFKA_STORAGE_ERROR)
    offset, at_ms = found if found is not None else (-1, -1)
    return {
        "partition_index": index,
        "error_code": 0,
        "timestamp": at_ms,
        "offset": offset,
        "leader_epoch": leader_epoch,
    }
