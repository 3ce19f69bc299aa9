"""Produce (key 0), versions 3-13; 0-2 are shown and refused, as Kafka does for librdkafka (KAFKA-18659).

Requests that arrive together are gathered by `ProduceBatcher` and appended per partition with one
Log.append, that is one writev. acks=0 answers nothing and closes the connection on an error; acks=1 is
answered once the bytes are in the page cache; acks=all (-1) waits for fdatasync when kproc.flush=group.
min.insync.replicas asks for no more replicas than there are, as in Kafka since 3.7 (apache/kafka#14594): for one.
A transactional id, or a batch of a transaction, has the whole request refused (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
until the broker has transactions.
Versions: v3 record batch v2; v5 log start offset; v8 record errors; v9 flexible; v10 current leader; v13
topic ids instead of names (KIP-516).

This file is long because gathering, forwarding and the order over a change of owners share one batcher's few fields.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from kproc.api.context import OwnedPartition, PartitionKey, PartitionMoving, RequestContext, Services
from kproc.api.registry import api
from kproc.cluster.image import PartitionImage, TopicImage
from kproc.errors import ErrorCode, KafkaError
from kproc.storage.results import AppendResult
from kproc.wire.compression import Compression
from kproc.wire.header import ApiKey
from kproc.wire.hot import (
    ProduceRequest,
    decode_produce,
    encode_produce_response,
    encode_produce_response_one,
)
from kproc.wire.record_batch import check_one_batch

logger = logging.getLogger(__name__)

# One partition's result on the wire: index, error, base offset, append time, log start, message, record errors.
Result = tuple[int, int, int, int, int, str | None, Sequence[tuple[int, str]]]
_NO_TOPIC_ID: Final = bytes(16)
_FIRST_WITH_ZSTD: Final = 7  # KIP-110: an older client could not read such a batch back.
_FIRST_WITH_IDS: Final = 13
_CODEC_AT: Final = 22  # The low byte of a batch's attributes.


def _failed(index: int, code: int, message: str | None = None) -> Result:
    return (index, int(code), -1, -1, -1, message, ())


def _has_zstd(records: memoryview) -> bool:
    return len(records) > _CODEC_AT and records[_CODEC_AT] & 7 == Compression.ZSTD


def _error_before_acks(version: int, records: memoryview | None) -> int:
    """What is said of a request whose acks are wrong: Kafka looks at the batch's shape and codec first."""
    try:
        check_one_batch(records if records is not None else b"")
    except KafkaError as error:
        return error.code
    if version < _FIRST_WITH_ZSTD and records is not None and _has_zstd(records):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.INVALID_REQUIRED_ACKS


@api(ApiKey.PRODUCE, versions=(3, 13), advertised_from=0)
def handle_produce(context: RequestContext, request: ProduceRequest) -> None:
    """Listed for the registry. The Handler gives Produce requests to its ProduceBatcher instead."""
    raise AssertionError("Produce is handled by ProduceBatcher")


def _unknown(version: int) -> int:
    """The error for a topic that is not there, as a client of that version names topics."""
    return ErrorCode.UNKNOWN_TOPIC_ID if version >= _FIRST_WITH_IDS else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# The result of a partition whose owner died before it answered: it ends the connection, as its home's death does.
# An error would be answered to this request alone, and those that the client has sent behind it would be refused with
# OUT_OF_ORDER_SEQUENCE_NUMBER; librdkafka then sends everything again under a new epoch, which is stored twice.
LOST: Final = int(ErrorCode.NETWORK_EXCEPTION)


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

    def fail(self) -> None:
        """As if an owner had died: it ends when the other partitions are decided."""
        for at, result in enumerate(self.results):
            if result is None:
                self.decide(at, _failed(-1, LOST))


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
        if result[1]:
            context.count_error(result[1])
        if self.acks == 0 or result[1] == LOST:
            _finish_unanswered(context, result[1])
        else:
            version, correlation_id = context.api_version, context.correlation_id
            name, topic_id = self._name, self._topic_id
            if context.throttle_ms:
                topics = [(name, topic_id, [result])]
                context.send(encode_produce_response(version, correlation_id, topics, context.throttle_ms))
            else:
                context.send(answer_one(version, correlation_id, name, topic_id, result))

    def fail(self) -> None:
        """End the connection."""
        self._context.fail()


def answer_one(
    version: int, correlation_id: int, name: str | None, topic_id: bytes | None, result: Result
) -> bytes:
    """The whole response frame of a one-partition request."""
    index, code, base_offset, append_time_ms, log_start, message, _ = result
    if message is None:
        return encode_produce_response_one(
            version, correlation_id, name, topic_id, index, code, base_offset, append_time_ms, log_start
        )
    return encode_produce_response(version, correlation_id, [(name, topic_id, [result])])


class Pending(Protocol):
    """A request that waits for its partitions' results."""

    acks: int

    def decide(self, at: int, result: Result) -> None: ...

    def fail(self) -> None:
        """A surprise came up: end the request, by its connection if need be."""


class Placed(NamedTuple):
    """Where a one-partition request went: to an open partition of ours, or to another Handler."""

    owner: int
    owned: OwnedPartition | None
    records_bytes: int
    acks: int
    name: str | None
    topic_id: bytes | None


class KnownAnswers(Protocol):
    """Who answers requests of known shape; see handler/known_produce.py. The targets are its own."""

    def pending(self, target: Any) -> Pending: ...
    def answer(self, targets: Sequence[Any], results: Sequence[AppendResult], index: int) -> None: ...


class Gathered:
    """What one flush appends to one partition. Either `targets` or `known` is empty."""

    __slots__ = ("known", "targets", "views")

    def __init__(self) -> None:
        self.views: list[memoryview] = []
        self.targets: list[tuple[Pending, int]] = []
        self.known: list[Any] = []  # Requests of known shape that wait for nothing but the append.


class ProduceBatcher:
    """Gathers Produce requests between two `flush` calls. One per Handler.

    The views of the records lie in rings or arenas: `flush` must run before those are released. It has something to do
    while `gathered` is not empty.
    """

    def __init__(self, services: Services, known_answers: KnownAnswers | None = None) -> None:
        self._services = services
        self._known_answers = known_answers
        self.gathered: dict[OwnedPartition, Gathered] = {}
        self._open_forwards: dict[_ForwardReply, None] = {}  # What other owners have not answered yet.
        # Order over changes of the owners: see "partitions of others" below.
        self._fences: dict[PartitionKey, _Fence] = {}
        self._moved_at: dict[PartitionKey, int] = {}
        self._known_since = 0
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
        is_transactional = request.is_transactional
        topics = request.topics
        acks = request.acks
        if len(topics) == 1 and len(topics[0].partitions) == 1:
            topic = topics[0]
            index, records = topic.partitions[0]
            pending = OneProduce(context, acks, topic.name, topic.topic_id)
            if is_transactional:
                pending.decide(0, _failed(index, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
                return None
            found = self._find_for(request, version, topic.name, topic.topic_id, index, records)
            if isinstance(found, int):
                pending.decide(0, _failed(index, found))
                return None
            image, partition = found
            size = len(records) if records is not None else 0
            fence = self._fences.get((image.name, index)) if self._fences else None
            if fence is not None and records:
                fence.waiting.append(_Later(image.topic_id, index, bytearray(records), pending, 0, version))
                return None
            if partition.owner == self._services.handler_index:
                owned = self._append(image, partition, records, pending, 0, version)
                if owned is None:
                    return None
                return Placed(partition.owner, owned, size, acks, topic.name, topic.topic_id)
            self._forward(context, body, pending, {partition.owner: [(0, 0, 0, (image.name, index))]})
            return Placed(partition.owner, None, size, acks, topic.name, topic.topic_id)
        self._add_many(context, body, request, is_transactional=is_transactional)
        return None

    def add_known(self, pending: Pending, owned: OwnedPartition, records: memoryview) -> None:
        """Take one request whose partition is known and open."""
        self._gather(owned, records, pending, 0)

    def take_known(self, owned: OwnedPartition, records: memoryview, target: Any) -> bool:
        """Take one that KnownAnswers answers. False: not among the others that there are; then by `add_known`."""
        gathered = self.gathered.get(owned)
        if gathered is None:
            gathered = self.gathered[owned] = Gathered()
        elif gathered.targets:
            return False
        gathered.views.append(records)
        gathered.known.append(target)
        return True

    def _gather(self, owned: OwnedPartition, records: memoryview, pending: Pending, at: int) -> None:
        gathered = self.gathered.get(owned)
        if gathered is None:
            gathered = self.gathered[owned] = Gathered()
        elif gathered.known:
            self._name_targets(gathered)
        gathered.views.append(records)
        gathered.targets.append((pending, at))

    def _name_targets(self, gathered: Gathered) -> None:
        """There are others among the known ones now, or all must wait."""
        assert self._known_answers is not None
        gathered.targets = [(self._known_answers.pending(each), 0) for each in gathered.known]
        gathered.known = []

    def _add_many(
        self, context: RequestContext, body: memoryview, request: ProduceRequest, *, is_transactional: bool
    ) -> None:
        total = sum(len(topic.partitions) for topic in request.topics)
        pending = PendingProduce(request.acks, total, _ManyAnswer(context, request))
        if total == 0:
            pending.on_done(pending)
            return
        remote: dict[int, list[tuple[int, int, int, PartitionKey]]] = {}
        at = 0
        for topic_at, topic in enumerate(request.topics):
            for part_at, (index, records) in enumerate(topic.partitions):
                found = (
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                    if is_transactional
                    else self._find_for(
                        request, context.api_version, topic.name, topic.topic_id, index, records
                    )
                )
                if isinstance(found, int):
                    pending.decide(at, _failed(index, found))
                elif (fence := self._fences.get((found[0].name, index))) is not None and records:
                    fence.waiting.append(
                        _Later(found[0].topic_id, index, bytearray(records), pending, at, context.api_version)
                    )
                elif found[1].owner == self._services.handler_index:
                    self._append(found[0], found[1], records, pending, at, context.api_version)
                else:
                    key = (found[0].name, index)
                    remote.setdefault(found[1].owner, []).append((at, topic_at, part_at, key))
                at += 1
        if remote:
            self._forward(context, body, pending, remote)

    def _find_for(
        self,
        request: ProduceRequest,
        version: int,
        name: str | None,
        topic_id: bytes | None,
        index: int,
        records: memoryview | None,
    ) -> tuple[TopicImage, PartitionImage] | int:
        """A partition for a client's request, or the error. As in Kafka acks come after the topic and the batch."""
        found = self._find(name, topic_id, index)
        if not isinstance(found, int) and request.acks not in (-1, 0, 1):
            return _error_before_acks(version, records)
        return found

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
        if topic.is_internal:
            return ErrorCode.INVALID_TOPIC_EXCEPTION  # Its coordinator writes it, and nobody else.
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
        if version < _FIRST_WITH_ZSTD and _has_zstd(records):
            pending.decide(at, _failed(partition.index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
            return None
        try:
            owned = self._services.partitions.get(topic.name, partition)
        except PartitionMoving as moving:
            # A copy: the view dies with this pass.
            later = _Later(topic.topic_id, partition.index, bytearray(records), pending, at, version)
            self._services.hand_over.when_ready(moving.key, _Moving(self, later).go_on)
            return None
        except KafkaError as error:
            pending.decide(at, _failed(partition.index, error.code, error.message))
            return None
        self._gather(owned, records, pending, at)
        return owned

    def flush(self) -> None:
        """Append what was gathered, one call per partition, and answer what needs no more waiting."""
        if not self.gathered:
            return
        appends, self.gathered = self.gathered, {}
        waits_for_sync = self._services.waits_for_sync
        traffic = self._services.traffic
        for owned, gathered in appends.items():
            try:
                views = gathered.views
                results = owned.log.append(views)
                self.append_calls += 1
                self.batches += len(views)
                size = sum(map(len, views))
                self.bytes += size
                if traffic is not None:
                    traffic.appended(owned.key, size, results)
                owned.after_append()
                log = owned.log
                # flush.messages: the answer waits for the disk whatever was asked for, as in Kafka.
                must_flush = log.end_offset - log.recovery_point >= log.config.flush_messages
                index = owned.key[1]
                if gathered.known:
                    if not must_flush and self._known_answers is not None:
                        self._known_answers.answer(gathered.known, results, index)
                        continue
                    self._name_targets(gathered)
                for result, (pending, at) in zip(results, gathered.targets, strict=True):
                    code = result.error_code
                    answer: Result = (
                        index,
                        code,
                        result.base_offset,
                        result.append_time_ms,
                        result.log_start_offset,
                        result.message,
                        result.record_errors,
                    )
                    if code or not (must_flush or (waits_for_sync and pending.acks == -1)):
                        pending.decide(at, answer)
                    else:
                        owned.when_synced(result.last_offset + 1, _DecideWhenSynced(pending, at, answer))
            except Exception as error:  # noqa: BLE001 - contained: appended it is, or the error is fatal
                self._fail(gathered, error)

    def _fail(self, gathered: Gathered, error: Exception) -> None:
        """A surprise between the publication of what was appended and its answers: the clients ask again."""
        self._services.containment.caught("the answers of an append", error)
        if gathered.known:
            self._name_targets(gathered)
        for pending, _ in gathered.targets:
            pending.fail()

    # -- partitions of others ----------------------------------------------------------------------------------
    #
    # Records are sent to their owner with the image version that named it. An owner takes them only if the partition
    # has not moved since then, else it gives them back ("bounced"): so the records that one Handler sends to one owner
    # are taken up to some point, and all after it come back. That Handler places them anew when it knows of the move,
    # and lets later ones for that partition wait until all that it had sent before is decided or placed. No record can
    # overtake another one of its connection, and none makes more than one hop.

    def _forward(
        self,
        context: RequestContext,
        body: memoryview,
        pending: Pending,
        remote: dict[int, list[tuple[int, int, int, PartitionKey]]],
    ) -> None:
        """Give each owner the whole body and say which of its partitions are meant."""
        version = context.api_version
        for owner, parts in remote.items():
            on_reply = _ForwardReply(self, pending, version, [(at, key) for at, _, _, key in parts])
            wanted = [[topic_at, part_at] for _, topic_at, part_at, _ in parts]
            self._ask(owner, "produce", {"version": version, "parts": wanted}, on_reply, body)

    def _ask(
        self, owner: int, op: str, body: dict[str, Any], on_reply: _ForwardReply, payload: bytes | memoryview
    ) -> None:
        self.forwarded += 1
        self._open_forwards[on_reply] = None
        body["image"] = self._services.image.version
        self._services.peers.call(owner, op, body, on_reply, payload=payload)

    def serve_forwarded(
        self, body: dict[str, Any], payload: memoryview | bytearray, on_reply: Callable[[Any], None]
    ) -> None:
        """Another Handler's request for partitions of ours; answered with a list of results."""
        version = body["version"]
        request = decode_produce(version, memoryview(payload))
        wanted = [(request.topics[topic_at], part_at) for topic_at, part_at in body["parts"]]
        pending = _Served(self._services, request.acks, len(wanted), on_reply)
        for at, (topic, part_at) in enumerate(wanted):
            index, records = topic.partitions[part_at]
            found = self._find(topic.name, topic.topic_id, index)
            if isinstance(found, int):
                pending.decide(at, _failed(index, found))
            else:
                self._take(*found, records, pending, at, version, sent_at=body["image"])

    def serve_records(
        self, body: dict[str, Any], payload: memoryview | bytearray, on_reply: Callable[[Any], None]
    ) -> None:
        """The same for records that an owner of before gave back, without their request."""
        pending = _Served(self._services, body["acks"], 1, on_reply)
        found = self._find(None, body["topic_id"], body["index"])
        if isinstance(found, int):
            pending.decide(0, _failed(body["index"], _unknown(body["version"])))
        else:
            self._take(*found, memoryview(payload), pending, 0, body["version"], sent_at=body["image"])

    def _take(
        self,
        topic: TopicImage,
        partition: PartitionImage,
        records: memoryview | None,
        pending: _Served,
        at: int,
        version: int,
        *,
        sent_at: int,
    ) -> None:
        """Append what another Handler sent, or give it back."""
        moved_at = self._moved_at.get((topic.name, partition.index), self._known_since)
        if partition.owner != self._services.handler_index or sent_at < moved_at:
            pending.bounce(at, topic.topic_id, partition.index, records)
        else:
            self._append(topic, partition, records, pending, at, version)

    def place(self, later: _Later) -> None:
        """What waited, or was given back, goes where its partition is now."""
        found = self._find(None, later.topic_id, later.partition)
        records, pending, version = later.records, later.pending, later.version
        if isinstance(found, int):  # It was deleted meanwhile.
            pending.decide(later.at, _failed(later.partition, _unknown(version)))
        elif found[1].owner == self._services.handler_index:
            self._append(*found, memoryview(records), pending, later.at, version)
        elif isinstance(pending, _Served):
            pending.bounce(later.at, later.topic_id, later.partition, records)
        else:
            on_reply = _ForwardReply(self, pending, version, [(later.at, (found[0].name, later.partition))])
            body = {
                "version": version,
                "acks": pending.acks,
                "topic_id": later.topic_id,
                "index": later.partition,
            }
            self._ask(found[1].owner, "produce_records", body, on_reply, memoryview(records))

    def on_moved(self, moved: Iterable[PartitionKey]) -> None:
        """These have new owners."""
        version = self._services.image.version
        for key in moved:
            self._moved_at[key] = version
        for reply in self._open_forwards:
            for _, key in reply.parts:
                if self._moved_at.get(key) == version:
                    self._fence(key, reply)

    def on_unknown(self) -> None:
        """The image was replaced as a whole: what moved meanwhile, and came back, is not known."""
        self._known_since = self._services.image.version
        self._moved_at.clear()
        for reply in self._open_forwards:
            for _, key in reply.parts:
                self._fence(key, reply)

    def _fence(self, key: PartitionKey, reply: _ForwardReply) -> None:
        fence = self._fences.get(key)
        if fence is None:
            fence = self._fences[key] = _Fence(key)
        if fence not in reply.fences:
            fence.left += 1
            reply.fences.append(fence)

    def settled(self, reply: _ForwardReply) -> None:
        """All that this forwarding was about is decided or placed anew."""
        del self._open_forwards[reply]
        for fence in reply.fences:
            fence.left -= 1
            if not fence.left:
                del self._fences[fence.key]
                for later in fence.waiting:
                    self.place(later)

    def when_image(self, version: int, on_image: Callable[[], None]) -> None:
        self._services.hand_over.when_image(version, on_image)


class _Later(NamedTuple):
    """One partition's records that wait for a change of its owner to end. Offsets are written into them."""

    topic_id: bytes
    partition: int
    records: bytearray | memoryview
    pending: Pending
    at: int
    version: int


class _Moving(NamedTuple):
    """Records that wait for a partition on its way to us."""

    batcher: ProduceBatcher
    later: _Later

    def go_on(self, is_ready: bool) -> None:
        if is_ready:
            self.batcher.place(self.later)
        else:
            failed = _failed(self.later.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.later.pending.decide(self.later.at, failed)


class _Fence:
    """Records for a partition that moved wait until all that was sent before them is settled."""

    __slots__ = ("key", "left", "waiting")

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.left = 0
        self.waiting: list[_Later] = []


class _Served:
    """What another Handler asked of us: results in the last reply, what goes back in replies before it.

    Records go back at once: the next request's come back at once, too, and must not be the first.
    """

    __slots__ = ("_left", "_on_reply", "_results", "_services", "acks")

    def __init__(
        self, services: Services, acks: int, count: int, on_reply: Callable[[dict[str, Any]], None]
    ) -> None:
        self.acks = acks
        self._services = services
        self._left = count
        self._on_reply = on_reply
        self._results: list[Result | None] = [None] * count

    def decide(self, at: int, result: Result) -> None:
        self._results[at] = result
        self._left -= 1
        if not self._left:
            self._on_reply({"results": self._results})

    def fail(self) -> None:
        """As if we had died."""
        self._on_reply({"lost": True})

    def bounce(self, at: int, topic_id: bytes, index: int, records: bytearray | memoryview | None) -> None:
        self._left -= 1
        version = self._services.image.version
        self._on_reply(
            {
                "bounced": [at, topic_id, index, bytes(records or b"")],
                "image": version,
                "is_open": self._left > 0,
                "results": self._results,
            }
        )


class _DecideWhenSynced:
    """acks=all with group commit: the result stands, unless the disk then refuses."""

    __slots__ = ("_answer", "_at", "owner")

    def __init__(self, pending: Pending, at: int, answer: Result) -> None:
        self.owner = pending
        self._at = at
        self._answer = answer

    def __call__(self, error: int) -> None:
        answer = self._answer
        if error:
            answer = _failed(answer[0], error, "the log could not be synced to disk")
        self.owner.decide(self._at, answer)


class _ForwardReply:
    """Puts an owner's results into the request that waits for them."""

    __slots__ = ("_batcher", "_bounced", "_image", "_pending", "_version", "fences", "parts")

    def __init__(
        self, batcher: ProduceBatcher, pending: Pending, version: int, parts: list[tuple[int, PartitionKey]]
    ) -> None:
        self._batcher = batcher
        self._pending = pending
        self._version = version
        self._image = 0
        self._bounced: list[int] = []
        self.parts = parts  # Place in the request, and which partition it is.
        self.fences: list[_Fence] = []

    def __call__(self, reply: dict[str, Any]) -> None:
        """What was given back waits for our image; what comes behind it waits with it."""
        self._image = max(self._image, reply.get("image", 0))
        if self._image:
            self._batcher.when_image(self._image, lambda: self._take(reply))
        else:
            self._take(reply)

    def _take(self, reply: dict[str, Any]) -> None:
        bounced = reply.get("bounced")
        if bounced is not None:
            number, topic_id, index, records = bounced
            later = _Later(
                topic_id, index, bytearray(records), self._pending, self.parts[number][0], self._version
            )
            self._bounced.append(number)
            self._batcher.place(later)
        if reply.get("is_open"):
            return
        results = reply.get("results")
        if results is None:
            # The owner died, and nobody knows whether it appended. Or it is away for longer, and did not: the client
            # asks again, as of Kafka's leader that is down, and its other partitions are served meanwhile.
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if reply.get("is_away") else LOST
            results = [_failed(index, code) for _, (_, index) in self.parts]
        for number, ((at, _), result) in enumerate(zip(self.parts, results, strict=True)):
            if number not in self._bounced:
                self._pending.decide(at, tuple(result))
        self._batcher.settled(self)


class _ManyAnswer:
    """Answers a request of any shape."""

    __slots__ = ("_context", "_request")

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        self._context = context
        # Only names and counts are kept: the records' views die with this pass.
        self._request = [(topic.name, topic.topic_id, len(topic.partitions)) for topic in request.topics]

    def __call__(self, pending: PendingProduce) -> None:
        context = self._context
        codes = [result[1] for result in pending.results if result is not None and result[1]]
        for code in codes:
            context.count_error(code)
        if pending.acks == 0 or LOST in codes:
            _finish_unanswered(context, LOST if LOST in codes else next(iter(codes), 0))
            return
        results = iter(pending.results)
        topics = [
            (name, topic_id, [result for result in islice(results, count) if result is not None])
            for name, topic_id, count in self._request
        ]
        version, correlation_id = context.api_version, context.correlation_id
        context.send(encode_produce_response(version, correlation_id, topics, context.throttle_ms))


def _finish_unanswered(context: RequestContext, code: int) -> None:
    """acks=0: silence, or the end of the connection, which is how the client learns to refresh its metadata."""
    if code:
        logger.info("closing a connection: a Produce failed with %s", ErrorCode(code).name)
        context.close()
    else:
        context.no_op()
