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
from typing import Any, Final, NamedTuple

from kproc.api.context import OnReply, PartitionMoving, RequestContext, Services
from kproc.api.registry import api
from kproc.cluster.image import PartitionImage
from kproc.errors import Corrupt, ErrorCode, KafkaError
from kproc.storage.results import RecordPosition
from kproc.storage.timestamp_search import SearchPaused, TimestampSearch
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
At = tuple[int, int]  # Position of the topic, and of the partition in it.


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
        self._answers: dict[At, Answer] = {}
        self._replies_due = 1  # Ours, until start() is through.

    def start(self) -> None:
        times_asked = Counter(
            (topic["name"], wanted["partition_index"])
            for topic in self._topics
            for wanted in topic["partitions"]
        )
        once: list[At] = []
        for topic_at, topic in enumerate(self._topics):
            for part_at, wanted in enumerate(topic["partitions"]):
                index = wanted["partition_index"]
                if times_asked[topic["name"], index] > 1:
                    self._answers[topic_at, part_at] = _failed(index, ErrorCode.INVALID_REQUEST)
                elif not _is_known(wanted["timestamp"], self._context.api_version):
                    self._answers[topic_at, part_at] = _failed(index, ErrorCode.UNSUPPORTED_VERSION)
                else:
                    once.append((topic_at, part_at))
        self._look_up(once)
        self._finish_one()

    def _look_up(self, ats: list[At]) -> None:
        """Find these, here or at their owners. Some of them a second time, when their owner has changed."""
        services = self._context.services
        remote: dict[int, list[At]] = {}
        for at in ats:
            name, wanted = self._wanted(at)
            partition = services.image.partition(name, wanted["partition_index"])
            if partition is None:
                self._answers[at] = _failed(wanted["partition_index"], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif partition.owner != services.handler_index:
                remote.setdefault(partition.owner, []).append(at)
            else:
                try:
                    self._answers[at] = look_up(services, name, partition, wanted)
                except PartitionMoving as moving:
                    self._replies_due += 1
                    services.hand_over.when_ready(moving.key, self._on_ready(at))
                except SearchPaused:
                    self._replies_due += 1
                    services.hand_over.later((name, partition.index), self._on_ready(at))
        for owner, asked in remote.items():
            self._replies_due += 1
            parts = [[name, _without_search(wanted)] for name, wanted in map(self._wanted, asked)]
            body = {"image": services.image.version, "parts": parts}
            services.peers.call(owner, "list_offsets", body, self._on_reply(asked))

    def _wanted(self, at: At) -> tuple[str, dict[str, Any]]:
        topic = self._topics[at[0]]
        return topic["name"], topic["partitions"][at[1]]

    def _on_ready(self, at: At) -> Callable[[bool], None]:
        def go_on(is_ready: bool) -> None:
            if is_ready:
                self._look_up([at])
            else:
                self._fail([at])
            self._finish_one()

        return go_on

    def _on_reply(self, ats: list[At]) -> OnReply:
        def take(reply: dict[str, Any]) -> None:
            if "moved" in reply:
                self._context.services.hand_over.when_image(reply["moved"], lambda: self._ask_again(ats))
                return
            if "answers" in reply:
                self._answers.update(zip(ats, reply["answers"], strict=True))
            else:
                self._fail(ats)
            self._finish_one()

        return take

    def _ask_again(self, ats: list[At]) -> None:
        self._look_up(ats)
        self._finish_one()

    def _fail(self, ats: list[At]) -> None:
        """The owner died, or does not give it up."""
        for at in ats:
            index = self._wanted(at)[1]["partition_index"]
            self._answers[at] = _failed(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)

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


def _is_known(timestamp: int, version: int) -> bool:
    """Whether a client of that version may ask so. Looked at before the partition, as in Kafka."""
    return version >= _SINCE.get(timestamp, 0) and timestamp >= EARLIEST_PENDING_UPLOAD


def look_up(services: Services, name: str, partition: PartitionImage, wanted: dict[str, Any]) -> Answer:
    """Answer for one partition of ours; raises PartitionMoving."""
    index = partition.index
    epoch = wanted.get("current_leader_epoch", -1)
    if 0 <= epoch != partition.leader_epoch:
        is_old = epoch < partition.leader_epoch
        return _failed(index, ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
    timestamp = wanted["timestamp"]
    try:
        log = services.partitions.get(name, partition).log
        found: tuple[int, int] | None
        if timestamp == LATEST:
            found = (log.end_offset, -1)
        elif timestamp in (EARLIEST, EARLIEST_LOCAL):
            found = (log.start_offset, -1)
        elif timestamp == MAX_TIMESTAMP:
            found = _searched(wanted, log.max_timestamp)
        elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            found = None
        else:
            found = _searched(wanted, lambda search: log.offset_for_timestamp(timestamp, search))
        leader_epoch = -1 if found is None else log.epoch_of(found[0])
    except PartitionMoving:
        raise
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
        "leader_epoch": leader_epoch,
    }


def _searched(
    wanted: dict[str, Any], look: Callable[[TimestampSearch], RecordPosition | None]
) -> RecordPosition | None:
    """The next slice of a search. What was found is kept, for a call about several partitions is begun anew."""
    if "found" not in wanted:
        wanted["found"] = look(wanted.setdefault("search", TimestampSearch()))
    found: RecordPosition | None = wanted["found"]
    return found


def _without_search(wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if name not in ("search", "found")}


def serve_forwarded(services: Services, body: dict[str, Any], on_reply: OnReply) -> None:
    """Look up our partitions for another Handler."""
    answers = []
    for name, wanted in body["parts"]:
        partition = services.image.partition(name, wanted["partition_index"])
        if partition is None:
            answers.append(_failed(wanted["partition_index"], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif partition.owner != services.handler_index:
            on_reply(
                {"moved": services.image.version}
            )  # The other side asks the owner when it knows as much.
            return
        else:
            try:
                answers.append(look_up(services, name, partition, wanted))
            except PartitionMoving as moving:
                services.hand_over.when_ready(moving.key, _Again(services, body, on_reply).go_on)
                return
            except SearchPaused:
                services.hand_over.later((name, partition.index), _Again(services, body, on_reply).go_on)
                return
    on_reply({"answers": answers})


class _Again(NamedTuple):
    """A call that waits for a partition on its way to us."""

    services: Services
    body: dict[str, Any]
    on_reply: OnReply

    def go_on(self, is_ready: bool) -> None:
        if is_ready:
            serve_forwarded(self.services, self.body, self.on_reply)
        else:
            self.on_reply({})


def _failed(index: int, code: int) -> Answer:
    return {
        "partition_index": index,
        "error_code": int(code),
        "timestamp": -1,
        "offset": -1,
        "leader_epoch": -1,
    }
