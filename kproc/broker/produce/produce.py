"""Produce (key 0), versions 3-13; 0-2 are shown and refused, as Kafka does for librdkafka (KAFKA-18659).

Requests that arrive together are gathered by `ProduceBatcher` and appended per partition with one
Log.append, that is one writev. acks=0 answers nothing and closes the connection on an error; acks=1 is
answered once the bytes are in the page cache; acks=all (-1) waits for fdatasync when kproc.flush=group.
min.insync.replicas asks for no more replicas than there are, as in Kafka since 3.7 (apache/kafka#14594): for one.
Batches of transactions: verification.py.
Versions: v3 record batch v2; v5 log start offset; v8 record errors; v9 flexible; v10 current leader; v13
topic ids instead of names (KIP-516).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

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
    OwnedPartition,
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

logger = logging.getLogger(__name__)

_NO_TOPIC_ID: Final = bytes(16)
_FIRST_WITH_ZSTD: Final = 7  # KIP-110: an older client could not read such a batch back.
_FIRST_WITH_IDS: Final = 13
_CODEC_AT: Final = 22  # The low byte of a batch's attributes.


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


def _refusal_of(context: RequestContext, topic: ProduceTopic) -> int:
    return refusal_of_topic(context, Operation.WRITE, topic.name, topic.topic_id, len(topic.partitions))


def _unknown(version: int) -> int:
    """The error for a topic that is not there, as a client of that version names topics."""
    return ErrorCode.UNKNOWN_TOPIC_ID if version >= _FIRST_WITH_IDS else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Placed(NamedTuple):
    """Where a one-partition request went: to an open partition of ours, or to another Handler."""

    owner: int
    owned: OwnedPartition | None
    records_bytes: int
    acks: int
    name: str | None
    topic_id: bytes | None


class KnownAnswers(Protocol):
    """Who answers what the fast path gathered; see handler/produce_fast_path.py. The targets are its own."""

    def pending(self, target: Any) -> Pending: ...
    def answer(self, targets: Sequence[Any], results: Sequence[AppendResult], index: int) -> None: ...


class Gathered:
    """What one flush appends to one partition. Either `targets` or `known` is empty."""

    __slots__ = ("hidden_from", "known", "origin", "targets", "views")

    def __init__(self, origin: str = CLIENT) -> None:
        self.origin = origin
        # Number of the first batch with acks=all: from it on, batches become visible when they are synced.
        self.hidden_from: int | None = None
        self.views: list[memoryview] = []
        self.targets: list[tuple[Pending, int]] = []
        self.known: list[Any] = []  # Requests of the fast path that wait for nothing but the append.


class ProduceBatcher:
    """Gathers Produce requests between two `flush` calls. One per Handler.

    The views of the records lie in rings or arenas: `flush` must run before those are released. It has something to do
    while `gathered` is not empty.
    """

    def __init__(self, services: Services, known_answers: KnownAnswers | None = None) -> None:
        self._services = services
        self._known_answers = known_answers
        self._transactions = TransactionalProduce(services, self)
        self.gathered: dict[OwnedPartition, Gathered] = {}
        self._open_forwards: dict[ForwardReply, None] = {}  # What other owners have not answered yet.
        # Order over changes of the owners: see "partitions of others" below.
        self._fences: dict[PartitionKey, Fence] = {}
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
        """Take one request whose partition is known and open."""
        self.gather(owned, records, pending, 0)

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

    def gather(
        self, owned: OwnedPartition, records: memoryview, pending: Pending, at: int, origin: str = CLIENT
    ) -> None:
        """Queue a batch for the next flush."""
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
        """Take a request of any number of partitions; `refusal` is an error of it as a whole."""
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
        """A partition for a client's request, or the error. As in Kafka acks come after the topic and the batch."""
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
            pending.decide(at, failed(partition.index, ErrorCode.INVALID_RECORD, "no records"))
            return None
        if version < _FIRST_WITH_ZSTD and _has_zstd(records):
            pending.decide(at, failed(partition.index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
            return None
        try:
            owned = self._services.partitions.get(topic.name, partition)
        except PartitionMoving as moving:
            # A copy: the view dies with this pass.
            later = Later(topic.topic_id, partition.index, bytearray(records), pending, at, version)
            self._services.transfers.when_ready(moving.key, MovingRecords(self, later).go_on)
            return None
        except KafkaError as error:
            pending.decide(at, failed(partition.index, error.code, error.message))
            return None
        self._transactions.take(owned, topic.topic_id, records, pending, at, version)
        return owned

    def flush(self) -> None:
        """Append what was gathered, one call per partition, and answer what needs no more waiting."""
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
                # flush.messages: the answer waits for the disk whatever was asked for, as in Kafka.
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
            except Exception as error:  # noqa: BLE001 - contained: appended it is, or the error is fatal
                self._fail(owned, gathered, error)

    def _fail(self, owned: OwnedPartition, gathered: Gathered, error: Exception) -> None:
        """A surprise between the publication of what was appended and its answers: the clients ask again."""
        self._services.containment.caught("the answers of an append", error)
        self._transactions.appended(owned)
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
        """Another Handler's request for partitions of ours."""
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
        """The same for records that an owner of before gave back, without their request."""
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
        """Append what another Handler sent, or give it back."""
        moved_at = self._moved_at.get((topic.name, partition.index), self._known_since)
        if partition.owner != self._services.handler_index or sent_at < moved_at:
            pending.bounce(at, topic.topic_id, partition.index, records)
        else:
            self._append(topic, partition, records, pending, at, version)

    def place(self, later: Later) -> None:
        """What waited, or was given back, goes where its partition is now."""
        found = self._find(None, later.topic_id, later.partition)
        records, pending, version = later.records, later.pending, later.version
        if isinstance(found, int):  # It was deleted meanwhile.
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
        """These have new owners."""
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
        """The image was replaced as a whole: what moved meanwhile, and came back, is not known."""
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
        """All that this forwarding was about is decided or placed anew."""
        del self._open_forwards[reply]
        for fence in reply.fences:
            fence.left -= 1
            if not fence.left:
                del self._fences[fence.key]
                for later in fence.waiting:
                    self.place(later)

    def when_image(self, version: int, on_image: Callable[[], None]) -> None:
        self._services.transfers.when_image(version, on_image)
