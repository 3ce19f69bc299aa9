"""Fetch (key 1), versions 4-18.

Answers are header bytes plus file ranges that the Processor sends with sendfile. A request that finds less
than min.bytes parks in the purgatory and is woken by the append. Partitions of other Handlers are read by
their owners: the home Handler asks, joins, and is told once when there is more (see `serve_forwarded`).
Differs from Kafka: one replica and no followers, so preferred read replicas, diverging epochs and the fetch
from a follower never occur; the high watermark is the log end at append. Until transactions exist the last
stable offset is the high watermark.
Versions: v5 log start; v7 sessions (KIP-227); v9 leader epoch; v11 rack; v12 flexible; v13 topic ids
(KIP-516); v15 replica state; v17 directory id; v18 high watermark tag.

This file is long because a Fetch in work, over several owners that may change, is one state machine.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import astuple

from kproc.api.context import OnReply, PartitionKey, PartitionMoving, RequestContext, Services
from kproc.api.fetch_session import FetchSession, FetchTarget
from kproc.api.registry import api
from kproc.clock import NS_PER_MS, NS_PER_S
from kproc.cluster.image import PartitionImage, TopicImage
from kproc.errors import Corrupt, ErrorCode, KafkaError
from kproc.purgatory.purgatory import DelayedOperation
from kproc.wire.file_range import FileRange
from kproc.wire.header import ApiKey
from kproc.wire.hot import FetchPartition, FetchPartitionResult, FetchRequest, encode_fetch_response

logger = logging.getLogger(__name__)

_watch_numbers: Final = itertools.count()  # With the home's index a name for each watch at another owner.


class PartitionRead:
    """What one read of one partition gave: an error, or offsets and (perhaps no) file ranges."""

    __slots__ = ("bytes", "end", "error", "ranges", "start")

    def __init__(self, error: int, start: int, end: int, ranges: list[FileRange], count: int) -> None:
        self.error = error
        self.start = start
        self.end = end
        self.ranges = ranges
        self.bytes = count


def _error(code: int) -> PartitionRead:
    return PartitionRead(int(code), -1, -1, [], 0)


def read_partition(
    services: Services,
    name: str,
    partition: PartitionImage,
    request: FetchPartition,
    limit: int,
    *,
    minimum_one: bool,
) -> PartitionRead:
    """Read an owned partition at the offset that `request` names, at most `limit` bytes."""
    epoch = request.current_leader_epoch
    if epoch >= 0 and epoch != partition.leader_epoch:
        is_old = epoch < partition.leader_epoch
        return _error(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
    try:
        log = services.partitions.get(name, partition).log
        offset = request.fetch_offset
        is_full = limit <= 0 and not minimum_one
        if offset == log.end_offset or (is_full and log.start_offset <= offset <= log.end_offset):
            return PartitionRead(0, log.start_offset, log.end_offset, [], 0)
        found = log.read(offset, min(limit, request.max_bytes), minimum_one=minimum_one)
    except PartitionMoving as moving:
        # Nothing yet; its arrival wakes like an append. Offsets of -1 mean that nobody knows them yet.
        return PartitionRead(0, moving.start_offset, moving.end_offset, [], 0)
    except KafkaError as error:
        return _error(error.code)
    except (Corrupt, OSError) as error:  # Of this partition alone: the others of the request are served.
        logger.error("read of %s-%d at %d: %s", name, partition.index, request.fetch_offset, error)
        return _error(ErrorCode.KAFKA_STORAGE_ERROR)
    return PartitionRead(0, log.start_offset, log.end_offset, list(found.ranges), found.bytes)


# A log that is not open yet: how much longer than max.wait.ms a Fetch waits, and how often it looks.
_LOG_PATIENCE_NS: Final = NS_PER_S
_LOOK_AGAIN_NS: Final = 20 * NS_PER_MS
_NOT_THERE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


@api(ApiKey.FETCH, versions=(4, 18))
def handle_fetch(context: RequestContext, request: FetchRequest) -> None:
    """Answer at once if there is enough, else park."""
    services = context.services
    cache = services.session_cache
    now_ns = services.clock.now_ns()
    try:
        targets, session, is_incremental = cache.resolve(request, context.api_version, now_ns)
    except KafkaError as error:
        context.count_error(error.code)
        context.send_parts(
            encode_fetch_response(context.api_version, context.correlation_id, 0, error.code, 0, [])
        )
        return
    operation = DelayedFetch(context, request, targets, session, is_incremental=is_incremental, now_ns=now_ns)
    operation.start()


class DelayedFetch(DelayedOperation):
    """One Fetch in work.

    Case A: no partitions, no wait allowed, or an error in some partition: answer now.
    Case B: min.bytes are there: answer now.
    Case C: wait for an append (of ours, or told by another Handler), the deadline, or the client's end.
    Case D: nothing is there and a log is still being opened, or on its way from another Handler: wait for it, beyond
    max.wait.ms, too. Kafka's logs are open before their topic can be asked for.
    """

    __slots__ = (
        "_attempt",
        "_context",
        "_due_ns",
        "_has_moved",
        "_is_incremental",
        "_local",
        "_reads",
        "_remote",
        "_replies_due",
        "_request",
        "_session",
        "_targets",
        "_watches",
    )

    def __init__(
        self,
        context: RequestContext,
        request: FetchRequest,
        targets: list[FetchTarget],
        session: FetchSession | None,
        *,
        is_incremental: bool,
        now_ns: int,
    ) -> None:
        super().__init__(now_ns + max(0, request.max_wait_ms) * 1_000_000)
        self._due_ns = self.deadline_ns
        self._context = context
        self._request = request
        self._targets = targets
        self._session = session
        self._is_incremental = is_incremental
        self._reads: dict[int, PartitionRead] = {}  # by position in targets
        # Places in targets, with what was found: a topic that is made anew under its name is another one.
        self._local: list[tuple[int, TopicImage, PartitionImage]] = []
        self._remote: dict[int, list[tuple[int, TopicImage, PartitionImage]]] = {}
        self._replies_due = 0
        self._watches: dict[int, list[int]] = {}  # Owner -> the watch that it keeps for us.
        self._attempt = 0  # Grows when owners have changed: answers of those of before do not count.
        self._has_moved = False

    # -- the life of the operation -----------------------------------------------------------------------------

    def start(self) -> None:
        """Find the owners and read for the first time."""
        services = self._context.services
        for at, target in enumerate(self._targets):
            found = find_partition(services, target)
            if isinstance(found, int):
                self._reads[at] = _error(found)
                continue
            topic, partition = found
            if partition.owner == services.handler_index:
                self._local.append((at, topic, partition))
            else:
                self._remote.setdefault(partition.owner, []).append((at, topic, partition))
        self._read_local()
        if not self._remote:
            self._decide()
            return
        self._replies_due = len(self._remote)
        for owner in self._remote:
            self._ask(owner)

    def resume(self, topic: TopicImage, partition: PartitionImage) -> None:
        """Instead of `start`: go on from where somebody else waited for a request's one partition, which was ours."""
        self._local.append((0, topic, partition))
        self._read_local()
        self._decide()

    def try_complete(self) -> bool:
        """An append happened to a partition of ours that this Fetch watches. Other owners tell of theirs."""
        self._read_local()
        if self._has_moved:
            self.restart()
            return self.is_completed
        return self._complete_if_enough()

    def restart(self) -> None:
        """Owners have changed: find the new ones and read again."""
        if self.is_completed:
            return
        self._end_watches()
        self._context.services.purgatory.finished(self)
        self._attempt += 1
        self._has_moved = False
        self._local = []  # What was read stays: files do not change with their owner, and the deadline may come first.
        self._remote = {}
        self._replies_due = 0
        self.start()

    def on_expire(self) -> None:
        """max.wait.ms is over: answer with what the last reads found."""
        self._read_local()
        now_ns = self._context.services.clock.now_ns()
        if self._waits_for_a_log(now_ns):
            self.deadline_ns = now_ns + _LOOK_AGAIN_NS
            self.restart()
        else:
            self.complete()

    def _decide(self) -> None:
        """Every owner has answered: answer or wait."""
        if self.is_completed:
            return
        if self._remote and not self.is_parked:
            self._read_local()  # What was appended while the others were asked woke nobody: we watch from here on.
        if self._has_moved:
            self.restart()
            return
        if self._complete_if_enough() or self.is_parked:
            return
        services = self._context.services
        services.purgatory.watch(self, [(topic.name, each.index) for _, topic, each in self._local])
        self._context.when_gone(self.cancel)

    def cancel(self) -> None:
        """The client left."""
        self._context.services.purgatory.cancel(self)
        self._end_watches()

    def _end_watches(self) -> None:
        """Nobody needs to be told any more; left alone, each would wait for its append or for max.wait.ms."""
        watches, self._watches = self._watches, {}
        for owner, watch in watches.items():
            self._context.services.peers.call(owner, "fetch", {"end": watch}, lambda _reply: None)

    def _complete_if_enough(self) -> bool:
        is_due = self._is_due()
        if is_due and not self.is_completed:
            self.complete()
            self._context.services.purgatory.finished(self)
        return is_due

    def _is_due(self) -> bool:
        reads = self._reads.values()
        if not self._targets or any(read.error for read in reads):
            return True
        count = sum(read.bytes for read in reads)
        if count and count >= self._request.min_bytes:
            return True
        now_ns = self._context.services.clock.now_ns()
        if self._waits_for_a_log(now_ns):
            return False
        return self._request.max_wait_ms <= 0 or count >= self._request.min_bytes or now_ns >= self._due_ns

    def _waits_for_a_log(self, now_ns: int) -> bool:
        return now_ns < self._due_ns + _LOG_PATIENCE_NS and any(
            read.end < 0 and not read.error for read in self._reads.values()
        )

    # -- reading -----------------------------------------------------------------------------------------------

    def _budget(self) -> int:
        services = self._context.services
        budget = min(self._request.max_bytes, services.config.fetch_max_bytes)
        if services.client_rates.is_on:
            limit = services.client_rates.fetch_bytes_max(self._context.client_id_bytes)
            budget = budget if limit is None else min(budget, limit)
        return budget

    def _read_local(self) -> None:
        """Read our partitions in order; the first with data may exceed every limit by its first batch."""
        services = self._context.services
        left = self._budget()
        has_data = False
        for at, topic, before in self._local:
            target = self._targets[at]
            partition = _now(services, topic.topic_id, before.index)
            if partition is None:  # Deleted meanwhile.
                self._reads[at] = _error(_deleted(services, topic.name, target))
                continue
            if partition.owner != services.handler_index:
                self._has_moved = True
                continue
            read = read_partition(
                services, topic.name, partition, target.request, left, minimum_one=not has_data
            )
            self._reads[at] = read
            left -= read.bytes
            has_data = has_data or read.bytes > 0

    def _ask(self, owner: int) -> None:
        """Let an owner read; it answers at once, and tells us later, once, if there was too little."""
        parts = self._remote[owner]
        watch = [self._context.services.handler_index, next(_watch_numbers)]
        body = {
            "image": self._context.services.image.version,
            "watch": watch,
            "min_bytes": self._request.min_bytes,
            "max_bytes": self._budget(),
            "wait_ns": 0 if self._request.max_wait_ms <= 0 else self.deadline_ns,
            "parts": [
                [topic.name, topic.topic_id, *astuple(self._targets[at].request)] for at, topic, _ in parts
            ],
        }
        on_reply = _RemoteRead(self, owner, watch, self._attempt)
        self._context.services.peers.call(owner, "fetch", body, on_reply)

    def on_reads(self, owner: int, reply: dict[str, Any], watch: list[int], attempt: int) -> None:
        """An owner's first reply: what it read, that it is lost, or that it is the owner no more."""
        services = self._context.services
        if attempt != self._attempt:
            if reply.get("is_open"):
                services.peers.call(owner, "fetch", {"end": watch}, lambda _reply: None)
            return
        if "moved" in reply:
            services.hand_over.when_image(reply["moved"], lambda: self._restart_of(attempt))
            return
        if reply.get("lost") and self._is_moved(owner):
            self.restart()
            return
        self._replies_due -= 1
        if reply.get("is_open"):
            self._watches[owner] = watch
            if self.is_completed:
                self._end_watches()
        ats = [at for at, _, _ in self._remote[owner]]
        reads = reply.get("reads")
        for at, read in zip(ats, reads or [None] * len(ats), strict=True):
            if read is None:
                self._reads[at] = _error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                error, start, end, ranges, count = read
                self._reads[at] = PartitionRead(
                    error, start, end, [FileRange(*each) for each in ranges], count
                )
        if not self._replies_due:
            self._decide()

    def on_watched(self, owner: int, attempt: int) -> None:
        """An owner's watch has ended."""
        if attempt == self._attempt:
            self._watches.pop(owner, None)

    def on_more(self, owner: int, attempt: int) -> None:
        """An owner's second reply: something was appended there (or it died, and its successor must be asked).

        Only that owner is asked again: the others still watch for us.
        """
        if self.is_completed or attempt != self._attempt:
            return
        if self._is_moved(owner):
            self.restart()
            return
        self._replies_due += 1
        self._ask(owner)

    def _restart_of(self, attempt: int) -> None:
        if attempt == self._attempt:
            self.restart()

    def _is_moved(self, owner: int) -> bool:
        """Whether something that was asked of that owner belongs to another one now, or is deleted."""
        services = self._context.services
        for _, topic, before in self._remote[owner]:
            partition = _now(services, topic.topic_id, before.index)
            if partition is None or partition.owner != owner:
                return True
        return False

    # -- the answer --------------------------------------------------------------------------------------------

    def on_complete(self) -> None:
        self._end_watches()
        if self._context.services.client_rates.is_on and self._is_throttled():
            return
        context = self._context
        session = self._session
        traffic = context.services.traffic
        budget = self._budget()
        has_data = False
        topics: dict[str | bytes | None, tuple[str | None, bytes | None, list[FetchPartitionResult]]] = {}
        served: list[tuple[str | bytes | None, int]] = []
        for at, target in enumerate(self._targets):
            read = self._reads.get(at)
            if read is None or (read.end < 0 and not read.error):
                read = _error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if read.bytes and has_data and read.bytes > budget:
                read = PartitionRead(
                    0, read.start, read.end, [], 0
                )  # Owners that read side by side overshot.
            budget -= read.bytes
            has_data = has_data or read.bytes > 0
            if read.bytes:
                context.services.count_fetched(target.key[0], read.bytes)
                if traffic is not None:
                    traffic.fetched(target.key, read.bytes)
            is_news = (
                read.error or read.bytes or read.end != target.last_end or read.start != target.last_start
            )
            if self._is_incremental and not is_news:
                continue
            if session is not None:
                target.last_end, target.last_start = (-1, -1) if read.error else (read.end, read.start)
                if read.bytes:
                    served.append(target.key)
            if read.error:
                context.count_error(read.error)
            entry = topics.setdefault(target.key[0], (target.name, target.topic_id, []))
            # A list of aborted transactions is only asked for by read_committed; without transactions it is empty.
            # Kafka has an empty one for what is not there, too.
            is_committed = self._request.isolation_level == 1 and not read.error
            aborted: list[tuple[int, int]] | None = [] if is_committed or read.error in _NOT_THERE else None
            entry[2].append(
                FetchPartitionResult(
                    target.index, read.error, read.end, read.end, read.start, aborted, read.ranges
                )
            )
        session_id = 0
        if session is not None:
            if self._is_incremental:
                session.served(served)
            session_id = session.id
        context.send_parts(
            encode_fetch_response(
                context.api_version, context.correlation_id, 0, 0, session_id, list(topics.values())
            )
        )

    def _is_throttled(self) -> bool:
        """A client above its quota is told so, without records, and reads on when it may."""
        context = self._context
        count = sum(read.bytes for read in self._reads.values())
        throttle_ms = context.services.client_rates.on_fetch(context.client_id_bytes, count)
        if not throttle_ms:
            return False
        session_id = self._session.id if self._session is not None and self._is_incremental else 0
        context.throttle(throttle_ms)
        context.send_parts(
            encode_fetch_response(context.api_version, context.correlation_id, throttle_ms, 0, session_id, [])
        )
        return True


def _now(services: Services, topic_id: bytes, index: int) -> PartitionImage | None:
    """A partition as it is now; None when its topic is deleted, also when there is another one of its name."""
    topic = services.image.topics_by_id.get(topic_id)
    return None if topic is None else topic.partitions[index]


def find_partition(services: Services, target: FetchTarget) -> tuple[TopicImage, PartitionImage] | int:
    """The partition that a Fetch names, or the error for it."""
    if target.name is not None:
        topic = services.image.topics_by_name.get(target.name)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        topic = services.image.topics_by_id.get(target.topic_id or b"")
        if topic is None:
            return _missing(services, target)
        target.found_name = topic.name
    if not 0 <= target.index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return topic, topic.partitions[target.index]


def _missing(services: Services, target: FetchTarget) -> ErrorCode:
    """The error for an id that no topic has. As in Kafka a session knows the name that was found by it before."""
    if target.found_name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return _deleted(services, target.found_name, target)


def _deleted(services: Services, name: str, target: FetchTarget) -> ErrorCode:
    """The error for a topic of that name that was there and is deleted: by its id a namesake is another topic."""
    is_made_anew = target.name is None and services.image.partition(name, target.index) is not None
    return ErrorCode.INCONSISTENT_TOPIC_ID if is_made_anew else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class _RemoteRead:
    """Takes the one or two replies of an owner: the reads, and later `more` or `end`."""

    __slots__ = ("_attempt", "_fetch", "_has_read", "_owner", "_watch")

    def __init__(self, fetch: DelayedFetch, owner: int, watch: list[int], attempt: int) -> None:
        self._attempt = attempt
        self._fetch = fetch
        self._owner = owner
        self._watch = watch
        self._has_read = False

    def __call__(self, reply: dict[str, Any]) -> None:
        if not self._has_read:
            self._has_read = True
            self._fetch.on_reads(self._owner, reply, self._watch, self._attempt)
            return
        self._fetch.on_watched(self._owner, self._attempt)
        if not reply.get("end"):
            self._fetch.on_more(self._owner, self._attempt)


class _RemoteWatch(DelayedOperation):
    """Another Handler's Fetch waits for our partitions: tell it once, at the first append."""

    __slots__ = ("_on_reply",)

    def __init__(self, deadline_ns: int, on_reply: OnReply) -> None:
        super().__init__(deadline_ns)
        self._on_reply = on_reply

    def try_complete(self) -> bool:
        return self.complete()

    def on_complete(self) -> None:
        self._on_reply({"more": True})

    def on_expire(self) -> None:
        self.is_completed = True  # The other side has the same deadline and answers by itself.
        self._on_reply({"end": True})


def serve_forwarded(services: Services, body: dict[str, Any], on_reply: OnReply) -> None:
    """Read for another Handler. Replies once with the reads, and once more if it should read again."""
    if "end" in body:
        services.purgatory.check(("watch", *body["end"]))
        on_reply({})
        return
    if _has_moved(services, [(topic_id, fields[0]) for _, topic_id, *fields in body["parts"]]):
        if (
            services.image.version < body["image"]
        ):  # We have not heard yet that it is ours, or that it is there.
            services.hand_over.when_image(body["image"], lambda: serve_forwarded(services, body, on_reply))
            return
        # The other side finds the new owner, or that the topic is deleted, when it knows as much.
        on_reply({"moved": services.image.version})
        return
    left = body["max_bytes"]
    has_data = False
    reads: list[list[Any]] = []
    watched: list[PartitionKey] = []
    for name, topic_id, *fields in body["parts"]:
        request = FetchPartition(*fields)
        partition = services.image.topics_by_id[topic_id].partitions[request.index]
        read = read_partition(services, name, partition, request, left, minimum_one=not has_data)
        watched.append((name, request.index))
        left -= read.bytes
        has_data = has_data or read.bytes > 0
        reads.append([read.error, read.start, read.end, [list(each) for each in read.ranges], read.bytes])
    # What is enough by itself, or an error, is answered at once by the other side, too.
    is_enough = any(read[0] for read in reads) or sum(read[4] for read in reads) >= body["min_bytes"]
    waits = bool(body["wait_ns"] and watched and not is_enough)
    on_reply({"reads": reads, "is_open": waits})
    if waits:
        keys = [*watched, ("watch", *body["watch"])]
        services.purgatory.watch(_RemoteWatch(body["wait_ns"], on_reply), keys)


def _has_moved(services: Services, parts: Iterable[tuple[bytes, int]]) -> bool:
    """Whether one of these, by topic id and index, is not ours, as far as we know: another's, or deleted."""
    for topic_id, index in parts:
        topic = services.image.topics_by_id.get(topic_id)
        if topic is None or index >= len(topic.partitions):
            return True
        if topic.partitions[index].owner != services.handler_index:
            return True
    return False
