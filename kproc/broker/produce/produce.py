"""Produce (key 0), versions 3-13. ApiVersions lists 0-2 too, but they are rejected, as in Kafka (KAFKA-18659).

`ProduceBatcher`, one per Handler, collects the requests of one duty cycle. `flush` then appends them with one
Log.append (one writev) per partition.

- acks=0: no response. An error closes the connection.
- acks=1: the response is sent when the records are in the page cache.
- acks=all (-1): with kproc.flush=group the response waits for fdatasync.

min.insync.replicas never asks for more replicas than exist, as in Kafka since 3.7 (apache/kafka#14594). kproc has one.
Batches of transactions are verified first (verification.py). Records for partitions of other Handlers are forwarded
(produce_order.py).

Versions: v3 record batch v2; v5 log start offset; v8 record errors; v9 flexible; v10 current leader; v13 topic ids
instead of names (KIP-516).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kproc.broker.calls.calls import B, Call, OnResult
from kproc.broker.cluster.image import PartitionImage, TopicImage
from kproc.broker.produce.produce_answers import (
    DecideWhenSynced,
    ManyAnswer,
    OneProduce,
    Pending,
    failed,
    pending_of,
    row_of,
)
from kproc.broker.produce.produce_order import (
    PRODUCE,
    PRODUCE_RECORDS,
    Fence,
    ForwardReply,
    Later,
    MovingRecords,
    ProduceAsked,
    ProduceResults,
    RecordsAsked,
    Served,
)
from kproc.broker.produce.verification import TransactionalProduce
from kproc.broker.request.context import (
    PartitionKey,
    PartitionMoving,
    RequestContext,
    Services,
)
from kproc.broker.request.registry import api
from kproc.broker.request.rights import refusal_of_topic
from kproc.broker.security.acl import Operation
from kproc.broker.storage.results import AppendResult
from kproc.broker.storage.validate import CLIENT, CONFIRMED
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.compression import Compression
from kproc.wire.header import ApiKey
from kproc.wire.hot import ProduceRequest, ProduceTopic, decode_produce
from kproc.wire.record_batch import check_one_batch

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition

logger = logging.getLogger(__name__)

_NO_TOPIC_ID: Final = bytes(16)
_FIRST_WITH_ZSTD: Final = 7  # KIP-110: an older client could not read such a batch back.
_FIRST_WITH_IDS: Final = 13
_CODEC_AT: Final = 22  # Position of the low byte of a batch's attributes. Its lowest 3 bits are the codec.


def _has_zstd(records: memoryview) -> bool:
    return len(records) > _CODEC_AT and records[_CODEC_AT] & 7 == Compression.ZSTD


def _error_before_acks(version: int, records: memoryview | None) -> int:
    """Return the error code of a partition in a request with invalid acks.

    Kafka validates the batch's shape and codec before acks (ProduceRequest.validateRecords), so their errors win.
    """
    try:
        check_one_batch(records if records is not None else b"")
    except KafkaError as error:
        return error.code
    if version < _FIRST_WITH_ZSTD and records is not None and _has_zstd(records):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.INVALID_REQUIRED_ACKS


@api(ApiKey.PRODUCE, versions=(3, 13), advertised_from=0)
def handle_produce(context: RequestContext, request: ProduceRequest) -> None:
    """Register the API and its versions. The Handler passes Produce requests to its ProduceBatcher instead."""
    raise AssertionError("Produce is handled by ProduceBatcher")


def _refusal_of(context: RequestContext, topic: ProduceTopic) -> int:
    return refusal_of_topic(context, Operation.WRITE, topic.name, topic.topic_id, len(topic.partitions))


def _unknown(version: int) -> int:
    """Return the error for a topic that does not exist. It depends on whether `version` names topics or ids."""
    return ErrorCode.UNKNOWN_TOPIC_ID if version >= _FIRST_WITH_IDS else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Placed(NamedTuple):
    """The destination of a one-partition request: an open partition of this Handler, or another Handler.

    `owned` is None if the request was forwarded to `owner`.
    """

    owner: int
    owned: OwnedPartition | None
    records_bytes: int
    acks: int
    name: str | None
    topic_id: bytes | None


class KnownAnswers(Protocol):
    """Responds to the requests of the fast path (FastAnswers in handler/produce_fast_path.py). It defines the targets.

    pending: convert a target to an ordinary pending request.
    answer: send the responses of all targets of the partition `index`.
    """

    def pending(self, target: Any) -> Pending: ...
    def answer(self, targets: Sequence[Any], results: Sequence[AppendResult], index: int) -> None: ...


class Gathered:
    """The batches that the next flush appends to one partition. Either `targets` or `known` is empty.

    The entry of `targets` (or `known`) at an index belongs to the batch at the same index of `views`.
    """

    __slots__ = ("hidden_from", "known", "origin", "targets", "views")

    def __init__(self, origin: str = CLIENT) -> None:
        self.origin = origin
        # Index of the first batch with acks=all. It and all later batches become visible only when they are synced.
        self.hidden_from: int | None = None
        self.views: list[memoryview] = []
        self.targets: list[tuple[Pending, int]] = []
        # Targets of the fast path. They need only the append, so no object is created for them.
        self.known: list[Any] = []


class ProduceBatcher:
    """Collects Produce requests between two `flush` calls. One per Handler.

    The records are views into rings or arenas, so the Handler must call `flush` before it releases those. `flush` has
    work while `gathered` is not empty.
    """

    def __init__(self, services: Services, known_answers: KnownAnswers | None = None) -> None:
        self._services = services
        self._known_answers = known_answers
        self._transactions = TransactionalProduce(services, self)
        self.gathered: dict[OwnedPartition, Gathered] = {}
        # Calls to other owners that have no last reply yet, oldest first.
        self._open_forwards: dict[ForwardReply, None] = {}
        # These keep the order of records when owners change: see "partitions of other Handlers" below.
        self._fences: dict[PartitionKey, Fence] = {}
        self._moved_at: dict[PartitionKey, int] = {}
        self._known_since = 0
        self.append_calls = 0
        self.batches = 0
        self.bytes = 0
        self.forwarded = 0

    def add(self, context: RequestContext, body: memoryview) -> Placed | None:
        """Handle one request. The response is sent at `flush`, or later if it waits for a sync or another role.

        Returns the destination of a one-partition request, from which the fast path learns. Returns None for every
        other shape, for transactions, and for a request that was rejected or must wait.
        """
        version = context.api_version
        request = decode_produce(version, body)
        if request.is_transactional:
            self._transactions.add(context, body, request)
            return None
        topics = request.topics
        acks = request.acks
        if len(topics) == 1 and len(topics[0].partitions) == 1:
            topic = topics[0]
            index, records = topic.partitions[0]
            pending = OneProduce(context, acks, topic.name, topic.topic_id)
            found = _refusal_of(context, topic) or self._find_for(request, version, topic, index, records)
            if isinstance(found, int):
                pending.decide(0, failed(index, found))
                return None
            image, partition = found
            size = len(records) if records is not None else 0
            fence = self._fences.get((image.name, index)) if self._fences else None
            if fence is not None and records:
                fence.waiting.append(Later(image.topic_id, index, bytearray(records), pending, 0, version))
                return None
            if partition.owner == self._services.handler_index:
                owned = self._append(image, partition, records, pending, 0, version)
                if owned is None:
                    return None
                return Placed(partition.owner, owned, size, acks, topic.name, topic.topic_id)
            self._forward(context, body, pending, {partition.owner: [(0, 0, 0, (image.name, index))]})
            return Placed(partition.owner, None, size, acks, topic.name, topic.topic_id)
        self.add_many(context, body, request)
        return None

    def add_known(self, pending: Pending, owned: OwnedPartition, records: memoryview) -> None:
        """Add one request of the fast path that needs an object, for a partition of ours that is open."""
        self.gather(owned, records, pending, 0)

    def take_known(self, owned: OwnedPartition, records: memoryview, target: Any) -> bool:
        """Add one request that KnownAnswers responds to. `target` is what KnownAnswers needs for that.

        Returns False, and adds nothing, if ordinary requests are already queued for the partition. The caller then
        falls back to `serve_frame`, which uses `add_known`.
        """
        gathered = self.gathered.get(owned)
        if gathered is None:
            gathered = self.gathered[owned] = Gathered()
        elif gathered.targets:
            return False
        gathered.views.append(records)
        gathered.known.append(target)
        return True

    def gather(
        self, owned: OwnedPartition, records: memoryview, pending: Pending, at: int, origin: str = CLIENT
    ) -> None:
        """Queue a batch for the next flush. A different `origin` than that of the queued batches flushes those first.

        at: the position of the partition in the request, for `pending.decide`.
        """
        gathered = self.gathered.get(owned)
        if gathered is not None and gathered.origin is not origin:
            self.flush()
            gathered = None
        if gathered is None:
            gathered = self.gathered[owned] = Gathered(origin)
        elif gathered.known:
            self._name_targets(gathered)
        if pending.acks == -1 and gathered.hidden_from is None and self._services.waits_for_sync:
            gathered.hidden_from = len(gathered.views)
        gathered.views.append(records)
        gathered.targets.append((pending, at))

    def _name_targets(self, gathered: Gathered) -> None:
        """Convert fast-path entries to ordinary ones, because the group is mixed now or all of it must wait."""
        assert self._known_answers is not None
        gathered.targets = [(self._known_answers.pending(each), 0) for each in gathered.known]
        gathered.known = []

    def add_many(
        self, context: RequestContext, body: memoryview, request: ProduceRequest, refusal: int = 0
    ) -> None:
        """Handle a request of any number of partitions. A `refusal` other than 0 is the error of all of them."""
        total = sum(len(topic.partitions) for topic in request.topics)
        if total == 0:
            ManyAnswer(context, request)([])
            return
        pending = pending_of(context, request, total)
        remote: dict[int, list[tuple[int, int, int, PartitionKey]]] = {}
        at = 0
        for topic_at, topic in enumerate(request.topics):
            refused = refusal or _refusal_of(context, topic)
            for part_at, (index, records) in enumerate(topic.partitions):
                found = refused or self._find_for(request, context.api_version, topic, index, records)
                if isinstance(found, int):
                    pending.decide(at, failed(index, found))
                elif (fence := self._fences.get((found[0].name, index))) is not None and records:
                    fence.waiting.append(
                        Later(found[0].topic_id, index, bytearray(records), pending, at, context.api_version)
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
        topic: ProduceTopic,
        index: int,
        records: memoryview | None,
    ) -> tuple[TopicImage, PartitionImage] | int:
        """Return a partition for a client's request, or the error code.

        As in Kafka, acks are validated last, after the topic and the batch.
        """
        found = self._find(topic.name, topic.topic_id, index)
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
            return ErrorCode.INVALID_TOPIC_EXCEPTION  # Only coordinators may write to internal topics.
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
        """Queue one partition's records for the next flush. Return None if they were rejected or wait for their log."""
        if records is None or len(records) == 0:
            pending.decide(at, failed(partition.index, ErrorCode.INVALID_RECORD, "no records"))
            return None
        if version < _FIRST_WITH_ZSTD and _has_zstd(records):
            pending.decide(at, failed(partition.index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
            return None
        try:
            owned = self._services.partitions.get(topic.name, partition)
        except PartitionMoving as moving:
            # The view is valid only until the end of this duty cycle, so copy the records.
            later = Later(topic.topic_id, partition.index, bytearray(records), pending, at, version)
            self._services.transfers.when_ready(moving.key, MovingRecords(self, later).go_on)
            return None
        except KafkaError as error:
            pending.decide(at, failed(partition.index, error.code, error.message))
            return None
        self._transactions.take(owned, topic.topic_id, records, pending, at, version)
        return owned

    def flush(self) -> None:
        """Append the queued batches, one call per partition, and respond to requests that need no sync.

        An unexpected exception fails the requests of its partition only.
        """
        if not self.gathered:
            return
        appends, self.gathered = self.gathered, {}
        waits_for_sync = self._services.waits_for_sync
        for owned, gathered in appends.items():
            try:
                views = gathered.views
                results = owned.log.append(views, gathered.origin, hidden_from=gathered.hidden_from)
                self.append_calls += 1
                self.batches += len(views)
                size = sum(map(len, views))
                self.bytes += size
                owned.after_append()
                log = owned.log.state
                # As in Kafka, flush.messages makes every response wait for the disk, whatever its acks are.
                must_flush = log.end_offset - log.recovery_point >= log.config.flush_messages
                index = owned.key[1]
                if gathered.known:
                    if not must_flush and self._known_answers is not None:
                        self._known_answers.answer(gathered.known, results, index)
                        continue
                    self._name_targets(gathered)
                elif gathered.origin is CONFIRMED:
                    self._transactions.appended(owned)
                for result, (pending, at) in zip(results, gathered.targets, strict=True):
                    code = result.error_code
                    answer = row_of(index, result)
                    if code or not (must_flush or (waits_for_sync and pending.acks == -1)):
                        pending.decide(at, answer)
                    else:
                        owned.when_synced(result.last_offset + 1, DecideWhenSynced(pending, at, answer))
            # A FatalError, which says that the log's state is half changed, ends the role: `caught` raises it again.
            except Exception as error:  # noqa: BLE001 - contained
                self._fail(owned, gathered, error)

    def _fail(self, owned: OwnedPartition, gathered: Gathered, error: Exception) -> None:
        """Fail the requests of one partition after an unexpected exception. The records may be in the log.

        The clients retry. Idempotent producers then get the offsets of the records that were appended.
        """
        self._services.containment.caught("the answers of an append", error)
        self._transactions.appended(owned)
        if gathered.known:
            self._name_targets(gathered)
        for pending, _ in gathered.targets:
            pending.fail()

    # -- partitions of other Handlers --------------------------------------------------------------------------
    #
    # Records of one connection must stay in order when a partition gets a new owner. Otherwise an idempotent producer
    # gets OUT_OF_ORDER_SEQUENCE_NUMBER. The protocol:
    #
    # 1. The sender attaches the version of its metadata image to the records.
    # 2. The owner appends the records only if the partition has not moved since that version. Otherwise it returns
    #    ("bounces") them. So it appends what a sender sent up to some point, and returns everything after that point.
    # 3. The sender routes returned records again when its own image shows the move.
    # 4. When a partition moves while calls about it are open, the sender puts a `Fence` in front of it. Later records
    #    are parked behind the fence until those calls are finished.
    #
    # So records never overtake others of their connection, and a receiver never forwards them to a third Handler.

    def _forward(
        self,
        context: RequestContext,
        body: memoryview,
        pending: Pending,
        remote: dict[int, list[tuple[int, int, int, PartitionKey]]],
    ) -> None:
        """Send each owner the whole body with the positions of its partitions. `remote` has them by owner.

        The body is sent as it came, because cutting it into parts would copy and encode the records again.
        """
        version = context.api_version
        for owner, parts in remote.items():
            on_reply = ForwardReply(self, pending, version, [(at, key) for at, _, _, key in parts])
            wanted = [(topic_at, part_at) for _, topic_at, part_at, _ in parts]
            asked = ProduceAsked(self._services.image.version, version, wanted)
            self._ask(owner, PRODUCE, asked, on_reply, body)

    def _ask(
        self,
        owner: int,
        call: Call[B, ProduceResults],
        body: B,
        on_reply: ForwardReply,
        payload: bytes | memoryview,
    ) -> None:
        self.forwarded += 1
        self._open_forwards[on_reply] = None
        self._services.peers.ask(owner, call, body, on_reply, payload)

    def serve_forwarded(
        self, body: ProduceAsked, payload: memoryview | bytearray, on_reply: OnResult[ProduceResults]
    ) -> None:
        """Handle another Handler's call for partitions of a Produce that we own."""
        version = body.version
        request = decode_produce(version, memoryview(payload))
        wanted = [(request.topics[topic_at], part_at) for topic_at, part_at in body.parts]
        pending = Served(self._services, request.acks, request.transactional_id, len(wanted), on_reply)
        for at, (topic, part_at) in enumerate(wanted):
            index, records = topic.partitions[part_at]
            found = self._find(topic.name, topic.topic_id, index)
            if isinstance(found, int):
                pending.decide(at, failed(index, found))
            else:
                self._take(*found, records, pending, at, version, sent_at=body.image)
        self._transactions.ask()

    def serve_records(
        self, body: RecordsAsked, payload: memoryview | bytearray, on_reply: OnResult[ProduceResults]
    ) -> None:
        """Handle another Handler's call with records that a former owner returned to it."""
        pending = Served(self._services, body.acks, body.transactional_id, 1, on_reply)
        found = self._find(None, body.topic_id, body.index)
        if isinstance(found, int):
            pending.decide(0, failed(body.index, _unknown(body.version)))
        else:
            self._take(*found, memoryview(payload), pending, 0, body.version, sent_at=body.image)
            self._transactions.ask()

    def _take(
        self,
        topic: TopicImage,
        partition: PartitionImage,
        records: memoryview | None,
        pending: Served,
        at: int,
        version: int,
        *,
        sent_at: int,
    ) -> None:
        """Append records that another Handler sent, or return them if the partition has moved since `sent_at`."""
        moved_at = self._moved_at.get((topic.name, partition.index), self._known_since)
        if partition.owner != self._services.handler_index or sent_at < moved_at:
            pending.bounce(at, topic.topic_id, partition.index, records)
        else:
            self._append(topic, partition, records, pending, at, version)

    def place(self, later: Later) -> None:
        """Route records that were parked or returned to the present owner of their partition."""
        found = self._find(None, later.topic_id, later.partition)
        records, pending, version = later.records, later.pending, later.version
        if isinstance(found, int):  # The topic was deleted meanwhile.
            pending.decide(later.at, failed(later.partition, _unknown(version)))
        elif found[1].owner == self._services.handler_index:
            self._append(*found, memoryview(records), pending, later.at, version)
            self._transactions.ask()
        elif isinstance(pending, Served):
            pending.bounce(later.at, later.topic_id, later.partition, records)
        else:
            on_reply = ForwardReply(self, pending, version, [(later.at, (found[0].name, later.partition))])
            image = self._services.image.version
            body = RecordsAsked(
                image, version, pending.acks, pending.transactional_id, later.topic_id, later.partition
            )
            self._ask(found[1].owner, PRODUCE_RECORDS, body, on_reply, memoryview(records))

    def on_moved(self, moved: Iterable[PartitionKey]) -> None:
        """Guard the order of records for partitions whose owner has changed, and route those that are parked again."""
        version = self._services.image.version
        moved = set(moved)
        for key in moved:
            self._moved_at[key] = version
        for reply in self._open_forwards:
            for _, key in reply.parts:
                if self._moved_at.get(key) == version:
                    self._fence(key, reply)
        self._transactions.on_moved(moved)

    def on_unknown(self) -> None:
        """Handle a replacement of the whole image: assume that every partition has moved.

        A partition can have moved away and back in between, which the new image does not show.
        """
        self._known_since = self._services.image.version
        self._moved_at.clear()
        for reply in self._open_forwards:
            for _, key in reply.parts:
                self._fence(key, reply)

    def _fence(self, key: PartitionKey, reply: ForwardReply) -> None:
        fence = self._fences.get(key)
        if fence is None:
            fence = self._fences[key] = Fence(key)
        if fence not in reply.fences:
            fence.left += 1
            reply.fences.append(fence)

    def settled(self, reply: ForwardReply) -> None:
        """Close a forwarded call whose parts are all decided or routed again. Route the records behind its fences."""
        del self._open_forwards[reply]
        for fence in reply.fences:
            fence.left -= 1
            if not fence.left:
                del self._fences[fence.key]
                for later in fence.waiting:
                    self.place(later)

    def when_image(self, version: int, on_image: Callable[[], None]) -> None:
        self._services.transfers.when_image(version, on_image)
