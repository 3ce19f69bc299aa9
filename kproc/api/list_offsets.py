"""ListOffsets (key 2), versions 1-11.

Finds the offset for a timestamp, or one of the special ones: -1 latest, -2 earliest, -3 the record with the
largest timestamp (v7, KIP-734), -4 earliest local (v8) and -5 latest tiered (v9), -6 earliest pending upload
(v11). Without tiered storage the earliest local offset is the log start, and the tiered ones answer -1 as
Kafka does for a topic that has no remote storage.
Versions: v2 isolation level; v4 leader epochs; v6 flexible; v7 -3; v8 -4; v9 -5; v10 timeout; v11 -6.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from kproc.api.context import RequestContext, Services
from kproc.api.registry import api
from kproc.cluster.image import PartitionImage
from kproc.errors import Corrupt, ErrorCode, KafkaError
from kproc.wire.header import ApiKey

logger = logging.getLogger(__name__)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
# The first version in which a client may ask for a special timestamp; older ones get UNSUPPORTED_VERSION.
_SINCE: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

Answer = dict[str, Any]


@api(ApiKey.LIST_OFFSETS, versions=(1, 11))
def handle_list_offsets(context: RequestContext, request: dict[str, Any]) -> None:
    """Look up our partitions, ask the owners of the others, answer when all are there."""
    _Lookup(context, request).start()


def error_response(request: dict[str, Any], code: int, message: str | None) -> dict[str, Any]:
    """Every partition with the same error."""
    del message  # The response has no room for it.
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [_failed(each["partition_index"], code) for each in topic["partitions"]],
            }
            for topic in request["topics"]
        ]
    }


class _Lookup:
    """One ListOffsets request: a list of answers, filled by us and by other owners."""

    def __init__(self, context: RequestContext, request: dict[str, Any]) -> None:
        self._context = context
        self._topics = request["topics"]
        self._answers: dict[tuple[int, int], Answer] = {}
        self._replies_due = 1  # Ours, until start() is through.

    def start(self) -> None:
        services = self._context.services
        remote: dict[int, list[tuple[tuple[int, int], str, dict[str, Any]]]] = {}
        times_asked = Counter(
            (topic["name"], wanted["partition_index"])
            for topic in self._topics
            for wanted in topic["partitions"]
        )
        for topic_at, topic in enumerate(self._topics):
            for part_at, wanted in enumerate(topic["partitions"]):
                at = (topic_at, part_at)
                index = wanted["partition_index"]
                partition = services.image.partition(topic["name"], index)
                if times_asked[topic["name"], index] > 1:
                    self._answers[at] = _failed(index, ErrorCode.INVALID_REQUEST)
                elif partition is None:
                    self._answers[at] = _failed(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                elif partition.owner == services.handler_index:
                    version = self._context.api_version
                    self._answers[at] = look_up(services, topic["name"], partition, wanted, version)
                else:
                    remote.setdefault(partition.owner, []).append((at, topic["name"], wanted))
        for owner, parts in remote.items():
            self._replies_due += 1
            body = {
                "version": self._context.api_version,
                "parts": [[name, wanted] for _, name, wanted in parts],
            }
            services.peers.call(owner, "list_offsets", body, self._on_reply([at for at, _, _ in parts]))
        self._finish_one()

    def _on_reply(self, ats: list[tuple[int, int]]) -> Callable[[dict[str, Any]], None]:
        def take(reply: dict[str, Any]) -> None:
            for number, (topic_at, part_at) in enumerate(ats):
                index = self._topics[topic_at]["partitions"][part_at]["partition_index"]
                lost = _failed(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                self._answers[topic_at, part_at] = reply["answers"][number] if "answers" in reply else lost
            self._finish_one()

        return take

    def _finish_one(self) -> None:
        self._replies_due -= 1
        if self._replies_due:
            return
        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    self._answers[topic_at, part_at] for part_at in range(len(topic["partitions"]))
                ],
            }
            for topic_at, topic in enumerate(self._topics)
        ]
        self._context.reply({"topics": topics})


def look_up(
    services: Services, name: str, partition: PartitionImage, wanted: dict[str, Any], version: int
) -> Answer:
    """Answer for one partition of ours."""
    index = partition.index
    epoch = wanted.get("current_leader_epoch", -1)
    if 0 <= epoch != partition.leader_epoch:
        is_old = epoch < partition.leader_epoch
        return _failed(index, ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
    timestamp = wanted["timestamp"]
    if version < _SINCE.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        return _failed(index, ErrorCode.UNSUPPORTED_VERSION)
    try:
        log = services.partitions.get(name, partition).log
        found: tuple[int, int] | None
        if timestamp == LATEST:
            found = (log.end_offset, -1)
        elif timestamp in (EARLIEST, EARLIEST_LOCAL):
            found = (log.start_offset, -1)
        elif timestamp == MAX_TIMESTAMP:
            found = log.max_timestamp()
        elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            found = None
        else:
            found = log.offset_for_timestamp(timestamp)
    except KafkaError as error:
        return _failed(index, error.code)
    except (Corrupt, OSError) as error:
        logger.error("look-up in %s-%d: %s", name, index, error)
        return _failed(index, ErrorCode.KAFKA_STORAGE_ERROR)
    offset, at_ms = found if found is not None else (-1, -1)
    return {
        "partition_index": index,
        "error_code": 0,
        "timestamp": at_ms,
        "offset": offset,
        "leader_epoch": partition.leader_epoch if found is not None else -1,
    }


def serve_forwarded(services: Services, body: dict[str, Any]) -> dict[str, Any]:
    """Look up our partitions for another Handler."""
    answers = []
    for name, wanted in body["parts"]:
        partition = services.image.partition(name, wanted["partition_index"])
        if partition is None or partition.owner != services.handler_index:
            answers.append(_failed(wanted["partition_index"], ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            answers.append(look_up(services, name, partition, wanted, body["version"]))
    return {"answers": answers}


def _failed(index: int, code: int) -> Answer:
    return {
        "partition_index": index,
        "error_code": int(code),
        "timestamp": -1,
        "offset": -1,
        "leader_epoch": -1,
    }
