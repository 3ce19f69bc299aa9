"""Produce (key 0), versions 3-13; 0-2 are shown and refused, as Kafka does for librdkafka (KAFKA-18659).

Requests that arrive together are gathered by `ProduceBatcher` and appended per partition with one
Log.append, that is one writev. acks=0 answers nothing and closes the connection on an error; acks=1 is
answered once the bytes are in the page cache; acks=all (-1) waits for fdatasync when kproc.flush=group.
Differs from Kafka: one replica, so min.insync.replicas is 1. A transactional id is refused
(TRANSACTIONAL_ID_AUTHORIZATION_FAILED) until the broker has transactions.
Versions: v3 record batch v2; v5 log start offset; v8 record errors; v9 flexible; v10 current leader; v13
topic ids instead of names (KIP-516).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from kproc.api.context import OwnedPartition, PartitionKey, PartitionMoving, RequestContext, Services
from kproc.api.registry import api
from kproc.cluster.image import MovedPartition, PartitionImage, TopicImage
from kproc.errors import ErrorCode, KafkaError
from kproc.wire.compression import Compression
from kproc.wire.header import ApiKey
from kproc.wire.hot import (
    ProduceRequest,
    decode_produce,
    encode_produce_response,
    encode_produce_response_one,
)

logger = logging.getLogger(__name__)

# One partition's result on the wire: index, error, base offset, append time, log start, message.
Result = tuple[int, int, int, int, int, str | None]
_NO_TOPIC_ID: Final = bytes(16)
_FIRST_WITH_ZSTD: Final = 7  # KIP-110: an older client could not read such a batch back.
_CODEC_AT: Final = 22  # The low byte of a batch's attributes.


def _failed(index: int, code: int, message: str | None = None) -> Result:
    return (index, int(code), -1, -1, -1, message)


@api(ApiKey.PRODUCE, versions=(3, 13), advertised_from=0)
def handle_produce(context: RequestContext, request: ProduceRequest) -> None:
    """Listed for the registry. The Handler gives Produce requests to its ProduceBatcher instead."""
    raise AssertionError("Produce is handled by ProduceBatcher")


class PendingProduce:
    """One Produce request whose partitions are not all decided yet."""

    __slots__ = ("acks", "on_done", "results", "undecided")

    def __init__(self, acks: int, count: int, on_done: Callable[[PendingProduce], None]) -> None:
        self.acks = acks
        self.results: list[Result | None] = [None] * count
        self.undecided = count
        self.on_done = on_done

    def decide(self, at: int, result: Result) -> None:
        """Fix one partition's result; the last one finishes the request."""
        assert self.results[at] is None, "a Produce partition was answered twice"
        self.results[at] = result
        self.undecided -= 1
        if self.undecided == 0:
            self.on_done(self)


class OneProduce:
    """A Produce request of one partition: nearly all there are, so it is its own pending and its own answer."""

    __slots__ = ("_context", "_name", "_topic_id", "acks")

    def __init__(self, context: RequestContext, acks: int, name: str | None, topic_id: bytes | None) -> None:
        self.acks = acks
        self._context = context
        self._name = name
        self._topic_id = topic_id

    def decide(self, at: int, result: Result) -> None:
        """Answer."""
        del at  # There is only one.
        context = self._context
        if self.acks == 0:
            _finish_unacknowledged(context, result[1])
        else:
            version, correlation_id = context.api_version, context.correlation_id
            context.send(answer_one(version, correlation_id, self._name, self._topic_id, result))


def answer_one(
    version: int, correlation_id: int, name: str | None, topic_id: bytes | None, result: Result
) -> bytes:
    """The whole response frame of a one-partition request."""
    index, code, base_offset, append_time_ms, log_start, message = result
    if message is None:
        return encode_produce_response_one(
            version, correlation_id, name, topic_id, index, code, base_offset, append_time_ms, log_start
        )
    return encode_produce_response(version, correlation_id, [(name, topic_id, [result])])


class Pending(Protocol):
    """A request that waits for its partitions' results."""

    acks: int

    def decide(self, at: int, result: Result) -> None: ...


class Placed(NamedTuple):
    """Where a one-partition request went: to an open partition of ours, or to another Handler."""

    owner: int
    owned: OwnedPartition | None
    records_bytes: int
    acks: int
    name: str | None
    topic_id: bytes | None


class ProduceBatcher:
    """Gathers Produce requests between two `flush` calls. One per Handler.

    The views of the records lie in rings or arenas: `flush` must run before those are released.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._appends: dict[OwnedPartition, tuple[list[memoryview], list[tuple[Pending, int]]]] = {}
        # By owner, in the order in which they were sent: what it has not answered yet.
        self._open_forwards: dict[int, dict[_ForwardReply, None]] = {}
        self._fences: dict[PartitionKey, _Fence] = {}
        self.append_calls = 0
        self.batches = 0
        self.bytes = 0
        self.forwarded = 0

    def add(self, context: RequestContext, body: memoryview) -> Placed | None:
        """Take one request; its answer leaves at `flush` or when its last partition is on disk.

        Returns where a request of one partition went; None for any other, and for one that was refused.
        """
        version = context.api_version
        request = decode_produce(version, body)
        topics = request.topics
        acks = request.acks
        if len(topics) == 1 and len(topics[0].partitions) == 1:
            topic = topics[0]
            index, records = topic.partitions[0]
            pending = OneProduce(context, acks, topic.name, topic.topic_id)
            refusal = _refusal(request)
            if refusal is not None:
                pending.decide(0, _failed(index, refusal))
                return None
            found = self._find(topic.name, topic.topic_id, index)
            if isinstance(found, int):
                pending.decide(0, _failed(index, found))
                return None
            image, partition = found
            size = len(records) if records is not None else 0
            fence = self._fences.get((image.name, index)) if self._fences else None
            if fence is not None and records:
                fence.waiting.append(
                    _Later(self, image.topic_id, index, bytearray(records), pending, 0, version)
                )
                return None
            if partition.owner == self._services.handler_index:
                owned = self._append(image, partition, records, pending, 0, version)
                if owned is None:
                    return None
                return Placed(partition.owner, owned, size, acks, topic.name, topic.topic_id)
            self._forward(context, body, pending, {partition.owner: [(0, 0, 0)]}, request)
            return Placed(partition.owner, None, size, acks, topic.name, topic.topic_id)
        self._add_many(context, body, request)
        return None

    def add_known(self, pending: Pending, owned: OwnedPartition, records: memoryview) -> None:
        """Take one request whose partition is known and open."""
        queued = self._appends.get(owned)
        if queued is None:
            self._appends[owned] = ([records], [(pending, 0)])
        else:
            queued[0].append(records)
            queued[1].append((pending, 0))

    def _add_many(self, context: RequestContext, body: memoryview, request: ProduceRequest) -> None:
        total = sum(len(topic.partitions) for topic in request.topics)
        pending = PendingProduce(request.acks, total, _ManyAnswer(context, request))
        if total == 0:
            pending.on_done(pending)
            return
        refusal = _refusal(request)
        remote: dict[int, list[tuple[int, int, int]]] = {}
        at = 0
        for topic_at, topic in enumerate(request.topics):
            for part_at, (index, records) in enumerate(topic.partitions):
                found = self._find(topic.name, topic.topic_id, index) if refusal is None else refusal
                if isinstance(found, int):
                    pending.decide(at, _failed(index, found))
                elif (fence := self._fences.get((found[0].name, index))) is not None and records:
                    fence.waiting.append(
                        _Later(
                            self,
                            found[0].topic_id,
                            index,
                            bytearray(records),
                            pending,
                            at,
                            context.api_version,
                        )
                    )
                elif found[1].owner == self._services.handler_index:
                    self._append(found[0], found[1], records, pending, at, context.api_version)
                else:
                    remote.setdefault(found[1].owner, []).append((at, topic_at, part_at))
                at += 1
        if remote:
            self._forward(context, body, pending, remote, request)

    def _find(
        self, name: str | None, topic_id: bytes | None, index: int
    ) -> tuple[TopicImage, PartitionImage] | int:
        image = self._services.image
        if name is not None:
            topic = image.topics_by_name.get(name)
        else:
            topic = image.topics_by_id.get(topic_id or _NO_TOPIC_ID)
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
        if topic is None or not 0 <= index < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return topic, topic.partitions[index]

    def _append(
        self,
        topic: TopicImage,
        partition: PartitionImage,
        records: memoryview | None,
        pending: Pending,
        at: int,
        version: int,
    ) -> OwnedPartition | None:
        """Queue one partition's records for the next flush; None if they are refused at once."""
        if records is None or len(records) == 0:
            pending.decide(at, _failed(partition.index, ErrorCode.INVALID_RECORD, "no records"))
            return None
        if (
            version < _FIRST_WITH_ZSTD
            and len(records) > _CODEC_AT
            and records[_CODEC_AT] & 7 == Compression.ZSTD
        ):
            pending.decide(at, _failed(partition.index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
            return None
        try:
            owned = self._services.partitions.get(topic.name, partition)
        except PartitionMoving as moving:
            # A copy: the view dies with this pass.
            later = _Later(self, topic.topic_id, partition.index, bytearray(records), pending, at, version)
            self._services.hand_over.when_ready(moving.key, later.go_on)
            return None
        except KafkaError as error:
            pending.decide(at, _failed(partition.index, error.code, error.message))
            return None
        queued = self._appends.get(owned)
        if queued is None:
            self._appends[owned] = ([records], [(pending, at)])
        else:
            queued[0].append(records)
            queued[1].append((pending, at))
        return owned

    def flush(self) -> None:
        """Append what was gathered, one call per partition, and answer what needs no more waiting."""
        if not self._appends:
            return
        appends, self._appends = self._appends, {}
        waits_for_sync = self._services.waits_for_sync
        for owned, (views, targets) in appends.items():
            results = owned.log.append(views)
            self.append_calls += 1
            self.batches += len(views)
            self.bytes += sum(map(len, views))
            owned.after_append()
            index = owned.key[1]
            for result, (pending, at) in zip(results, targets, strict=True):
                code = result.error_code
                answer: Result = (
                    index,
                    code,
                    result.base_offset,
                    result.append_time_ms,
                    result.log_start_offset,
                    result.message,
                )
                if code or pending.acks != -1 or not waits_for_sync:
                    pending.decide(at, answer)
                else:
                    owned.when_synced(result.last_offset + 1, _DecideWhenSynced(pending, at, answer))

    # -- partitions of others ----------------------------------------------------------------------------------

    def _forward(
        self,
        context: RequestContext,
        body: memoryview,
        pending: Pending,
        remote: dict[int, list[tuple[int, int, int]]],
        request: ProduceRequest,
    ) -> None:
        """Give each owner the whole body and say which of its partitions are meant."""
        for owner, parts in remote.items():
            indexes = [request.topics[topic_at].partitions[part_at][0] for _, topic_at, part_at in parts]
            on_reply = _ForwardReply(self, owner, pending, [at for at, _, _ in parts], indexes)
            wanted = [[topic_at, part_at] for _, topic_at, part_at in parts]
            self._ask(owner, "produce", {"version": context.api_version, "parts": wanted}, on_reply, body)

    def _forward_records(
        self, partition: PartitionImage, topic_id: bytes, records: bytes | memoryview, pending: Pending, at: int,
        version: int,
    ) -> None:  # fmt: skip
        """Give the owner one partition's records of a request whose body is gone, or is not all its."""
        on_reply = _ForwardReply(self, partition.owner, pending, [at], [partition.index])
        body = {"version": version, "acks": pending.acks, "topic_id": topic_id, "index": partition.index}
        self._ask(partition.owner, "produce_records", body, on_reply, records)

    def _ask(
        self, owner: int, op: str, body: dict[str, Any], on_reply: _ForwardReply, payload: bytes | memoryview
    ) -> None:
        self.forwarded += 1
        self._open_forwards.setdefault(owner, {})[on_reply] = None
        body["image"] = self._services.image.version
        self._services.peers.call(owner, op, body, on_reply, payload=payload)

    def serve_forwarded(
        self, body: dict[str, Any], payload: memoryview | bytearray, on_reply: Callable[[Any], None]
    ) -> None:
        """Another Handler's request for partitions of ours; answered with a list of results."""
        version = body["version"]
        request = decode_produce(version, memoryview(payload))
        wanted = [(request.topics[topic_at], part_at) for topic_at, part_at in body["parts"]]
        pending = PendingProduce(request.acks, len(wanted), lambda done: on_reply({"results": done.results}))
        for at, (topic, part_at) in enumerate(wanted):
            index, records = topic.partitions[part_at]
            found = self._find(topic.name, topic.topic_id, index)
            if isinstance(found, int):
                pending.decide(at, _failed(index, found))
            else:
                self.place(found[0], found[1], records, pending, at, version)

    def serve_records(
        self, body: dict[str, Any], payload: memoryview | bytearray, on_reply: Callable[[Any], None]
    ) -> None:
        """The same for one partition's records alone."""
        pending = PendingProduce(body["acks"], 1, lambda done: on_reply({"results": done.results}))
        records = memoryview(payload)
        self.place_later(_Later(self, body["topic_id"], body["index"], records, pending, 0, body["version"]))

    def place(
        self,
        topic: TopicImage,
        partition: PartitionImage,
        records: memoryview | None,
        pending: Pending,
        at: int,
        version: int,
    ) -> None:
        """Append, or pass on to the owner: it has changed since these records were sent to us."""
        if partition.owner == self._services.handler_index:
            self._append(topic, partition, records, pending, at, version)
        else:
            self._forward_records(partition, topic.topic_id, records or b"", pending, at, version)

    def place_later(self, later: _Later) -> None:
        """Records alone, by topic id: they go where their partition is now."""
        found = self._find(None, later.topic_id, later.partition)
        if isinstance(found, int):  # It was deleted meanwhile.
            code = ErrorCode.UNKNOWN_TOPIC_ID if later.version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            later.pending.decide(later.at, _failed(later.partition, code))
        else:
            self.place(*found, memoryview(later.records), later.pending, later.at, later.version)

    # -- order over a change of owners -------------------------------------------------------------------------

    def on_moved(self, moved: list[MovedPartition]) -> None:
        """Owners have changed. What was forwarded to an owner of before may still be on its way, and that owner
        passes it on; so what comes for these partitions now must wait until it has been answered.
        """
        fences: dict[int, _Fence] = {}
        for each in moved:
            owner = each.owner_before
            waits_for = self._open_forwards.get(owner)
            key = (each.topic.name, each.partition.index)
            if not waits_for or key in self._fences:
                continue
            fence = fences.get(owner)
            if fence is None:
                fence = fences[owner] = _Fence(self._fences, len(waits_for))
                for reply in waits_for:
                    reply.fences.append(fence)
            fence.keys.append(key)
            self._fences[key] = fence

    def answered(self, owner: int, reply: _ForwardReply) -> None:
        """An owner has answered what was forwarded to it."""
        del self._open_forwards[owner][reply]
        for fence in reply.fences:
            fence.count_down()


class _Later(NamedTuple):
    """One partition's records that wait for a hand-over."""

    batcher: ProduceBatcher
    topic_id: bytes
    partition: int
    records: bytearray | memoryview  # Offsets are written into it.
    pending: Pending
    at: int
    version: int

    def go_on(self, is_ready: bool) -> None:
        if is_ready:
            self.batcher.place_later(self)
        else:
            self.pending.decide(self.at, _failed(self.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER))


class _Fence:
    """Records for partitions that moved wait until their owner of before has answered what it was sent."""

    __slots__ = ("_fences", "_left", "keys", "waiting")

    def __init__(self, fences: dict[PartitionKey, _Fence], left: int) -> None:
        self._fences = fences
        self._left = left
        self.keys: list[PartitionKey] = []
        self.waiting: list[_Later] = []

    def count_down(self) -> None:
        self._left -= 1
        if self._left:
            return
        for key in self.keys:
            del self._fences[key]
        for later in self.waiting:
            later.go_on(True)


class _DecideWhenSynced:
    """acks=all with group commit: the result stands, unless the disk then refuses."""

    __slots__ = ("_answer", "_at", "_pending")

    def __init__(self, pending: Pending, at: int, answer: Result) -> None:
        self._pending = pending
        self._at = at
        self._answer = answer

    def __call__(self, error: int) -> None:
        answer = self._answer
        if error:
            answer = _failed(answer[0], error, "the log could not be synced to disk")
        self._pending.decide(self._at, answer)


class _ForwardReply:
    """Puts an owner's results into the request that waits for them."""

    __slots__ = ("_ats", "_batcher", "_indexes", "_owner", "_pending", "fences")

    def __init__(
        self, batcher: ProduceBatcher, owner: int, pending: Pending, ats: list[int], indexes: list[int]
    ) -> None:
        self._batcher = batcher
        self._owner = owner
        self._pending = pending
        self._ats = ats
        self._indexes = indexes
        self.fences: list[_Fence] = []

    def __call__(self, reply: dict[str, Any]) -> None:
        self._batcher.answered(self._owner, self)
        results = reply.get("results")
        if results is None:
            # The owner died. Whether it appended is not known; a retry of an idempotent producer is sorted out
            # by its sequence, so a retriable error is right.
            results = [_failed(index, ErrorCode.NOT_LEADER_OR_FOLLOWER) for index in self._indexes]
        for at, result in zip(self._ats, results, strict=True):
            self._pending.decide(at, tuple(result))


class _ManyAnswer:
    """Answers a request of any shape."""

    __slots__ = ("_context", "_request")

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        self._context = context
        # Only names and counts are kept: the records' views die with this pass.
        self._request = [(topic.name, topic.topic_id, len(topic.partitions)) for topic in request.topics]

    def __call__(self, pending: PendingProduce) -> None:
        context = self._context
        if pending.acks == 0:
            _finish_unacknowledged(context, next((r[1] for r in pending.results if r and r[1]), 0))
            return
        results = iter(pending.results)
        topics = [
            (name, topic_id, [result for result in islice(results, count) if result is not None])
            for name, topic_id, count in self._request
        ]
        context.send(encode_produce_response(context.api_version, context.correlation_id, topics))


def _finish_unacknowledged(context: RequestContext, code: int) -> None:
    """acks=0: silence, or the end of the connection, which is how the client learns to refresh its metadata."""
    if code:
        logger.info("closing a connection: a Produce with acks=0 failed with %s", ErrorCode(code).name)
        context.close()
    else:
        context.no_op()


def _refusal(request: ProduceRequest) -> int | None:
    """An error that holds for the whole request."""
    if request.acks not in (-1, 0, 1):
        return ErrorCode.INVALID_REQUIRED_ACKS
    if request.transactional_id is not None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return None
