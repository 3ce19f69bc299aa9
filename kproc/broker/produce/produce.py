"""Produce (key 0), versions 3-13. ApiVersions lists 0-2 too, but they are rejected, as in Kafka (KAFKA-18659).

A Produce takes four steps, each in a file of its own:

1. Parse: `wire/hot_produce.py: decode_produce`, or the cached parse of a connection whose request repeats the last one
   except for its records (handler/produce_fast_path.py).
2. Route (this file): authorize, find the partition, and open its log or forward the records to its owner (forward.py).
   Batches of transactions are verified first (verification.py).
3. Append: `append_queue.py: AppendQueue` collects the batches of one duty cycle and makes one write per partition.
4. Reply: `reply.py`.

- acks=0: no response. An error closes the connection.
- acks=1: the response is sent when the records are in the page cache.
- acks=all (-1): with kproc.flush=group the response waits for fdatasync.

min.insync.replicas never asks for more replicas than exist, as in Kafka since 3.7 (apache/kafka#14594). kproc has one.

Versions: v3 record batch v2 (KIP-98); v5 log start offset; v8 record errors (KIP-467); v9 flexible; v10 current leader
(KIP-951); v12 transaction version 2 (KIP-890); v13 topic ids instead of names (KIP-516).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.broker.produce.forward import (
    PRODUCE,
    PRODUCE_RECORDS,
    DeferredRecords,
    ForwardedPart,
    ForwardedProduce,
    ForwardReply,
    ProduceParts,
    ReorderGuard,
    ReturnedRecords,
)
from kproc.broker.produce.reply import OneProduce, failed, targets_of, unknown_topic
from kproc.broker.produce.verification import TransactionalProduce, refusal_of_transaction
from kproc.broker.request.context import PartitionMoving
from kproc.broker.request.registry import api
from kproc.broker.request.rights import refusal_of_topic
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.batch_header import ATTRIBUTES_AT, HEADER_BYTES, MAGIC_AT, STAMP
from kproc.wire.compression import Compression
from kproc.wire.header import ApiKey
from kproc.wire.hot import ProduceRequest, decode_produce
from kproc.wire.record_batch import CODEC_MASK, LOG_OVERHEAD_BYTES, MAGIC, check_one_batch

if TYPE_CHECKING:
    from kproc.broker.calls.calls import B, Call, OnResult
    from kproc.broker.cluster.image import PartitionImage, TopicImage
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.produce.append_queue import AppendQueue
    from kproc.broker.produce.forward import ProduceResults
    from kproc.broker.produce.reply import ProduceTarget
    from kproc.broker.request.context import PartitionKey, RequestContext, Services

logger = logging.getLogger(__name__)

# KIP-516: from v13 on a request names topics by id only. The zero id names none, so it gets UNKNOWN_TOPIC_ID.
_NO_TOPIC_ID: Final = bytes(16)
_FIRST_WITH_ZSTD: Final = 7  # KIP-110: an older client could not read such a batch back.
# A partition of a request for another owner: target, position of its topic in the request, position in the topic, key.
_RemotePart = tuple["ProduceTarget", int, int, "PartitionKey"]


def _begins_with_zstd(records: memoryview) -> bool:
    """Return True if the first batch is complete, of version 2, and compressed with zstd.

    Older formats have other fields at the offset of the attributes. They and an incomplete batch are rejected for other
    reasons, as in Kafka (ProduceRequest.validateRecords).
    """
    if len(records) <= ATTRIBUTES_AT or records[MAGIC_AT] != MAGIC:
        return False
    _, batch_length, _ = STAMP.unpack_from(records)
    return (
        HEADER_BYTES - LOG_OVERHEAD_BYTES <= batch_length <= len(records) - LOG_OVERHEAD_BYTES
        and records[ATTRIBUTES_AT] & CODEC_MASK == Compression.ZSTD
    )


def _error_before_acks(version: int, records: memoryview | None) -> int:
    """Return the error code of a partition in a request with invalid acks.

    Kafka checks before acks that the first batch has a permitted codec, and that it is of version 2 and the only one.
    So those errors win, in this order (ProduceRequest.validateRecords).
    """
    if version < _FIRST_WITH_ZSTD and records is not None and _begins_with_zstd(records):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    try:
        check_one_batch(records if records is not None else b"")
    except KafkaError as error:
        return error.code
    return ErrorCode.INVALID_REQUIRED_ACKS


@api(ApiKey.PRODUCE, versions=(3, 13), advertised_from=0)
def handle_produce(context: RequestContext, request: ProduceRequest) -> None:
    """Register the API and its versions. Never called: the Handler passes Produce requests to its RecordRouter."""
    raise AssertionError("handle_produce was called, but the RecordRouter handles Produce")


class Destination(NamedTuple):
    """The destination of a one-partition request: an open partition of this Handler, or another Handler.

    `owned` is None if the request was forwarded to `owner`.
    """

    owner: int
    owned: OwnedPartition | None
    records_bytes: int
    target: OneProduce


class RecordRouter:
    """Routes the records of Produce requests: into the append queue, or to the owners of their partitions.

    One per Handler.
    """

    def __init__(self, services: Services, queue: AppendQueue) -> None:
        self._services = services
        self._partitions, self._transfers = services.owner.partitions, services.owner.transfers
        self._queue = queue
        self._transactions = TransactionalProduce(services, queue)
        # Calls to other owners that have no last reply yet, oldest first.
        self._open_forwards: dict[ForwardReply, None] = {}
        # The next three fields keep the order of records when owners change: see "partitions of other Handlers" below.
        self._guards: dict[PartitionKey, ReorderGuard] = {}
        self._moved_at: dict[PartitionKey, int] = {}
        self._known_since = 0
        self.forwarded = 0

    def handle(self, context: RequestContext, body: memoryview) -> Destination | None:
        """Handle a client's request. The response is sent at the next flush, or when a sync or another role is done.

        Returns the destination of a one-partition request, from which the fast path learns. Returns None for several
        partitions, for transactions, and for a request that was rejected or must wait.
        """
        version = context.api_version
        request = decode_produce(version, body)
        is_transactional = request.is_transactional
        refused = refusal_of_transaction(context, request) if is_transactional else 0
        targets = targets_of(context, request)
        remote: dict[int, list[_RemotePart]] = {}
        destination: Destination | None = None
        for topic_at, topic in enumerate(request.topics):
            name, topic_id, partitions = topic.name, topic.topic_id, topic.partitions
            refusal = refused or refusal_of_topic(context, Operation.WRITE, name, topic_id, len(partitions))
            for part_at, (index, records) in enumerate(partitions):
                target = next(targets)
                found = refusal or self._find(name, topic_id, index)
                # As in Kafka, acks are validated last, after the topic and the batch.
                if request.acks not in (-1, 0, 1) and not isinstance(found, int):
                    found = _error_before_acks(version, records)
                if isinstance(found, int):
                    target.decide(failed(index, found))
                    continue
                image, partition = found
                owned = None
                if self._guards and records and (guard := self._guards.get((image.name, index))) is not None:
                    guard.waiting.append(
                        DeferredRecords(image.topic_id, index, bytearray(records), target, version)
                    )
                    continue
                if partition.owner == self._services.handler_index:
                    owned = self._append(image, partition, records, target, version)
                    if owned is None:
                        continue
                else:
                    part = target, topic_at, part_at, (image.name, index)
                    remote.setdefault(partition.owner, []).append(part)
                if isinstance(target, OneProduce) and not is_transactional:
                    size = len(records) if records is not None else 0
                    destination = Destination(partition.owner, owned, size, target)
        if remote:
            self._forward(version, body, remote)
        if is_transactional:
            self._transactions.send_requests()
        return destination

    def _find(
        self, name: str | None, topic_id: bytes | None, index: int
    ) -> tuple[TopicImage, PartitionImage] | int:
        """Return a partition with its topic, or the error code for the client."""
        image = self._services.image
        if name is not None:
            topic = image.topics_by_name.get(name)
        else:
            topic = image.topics_by_id.get(topic_id or _NO_TOPIC_ID)
            # A producer that knew the topic by its id before the topic was deleted and created again must not
            # write into the new one (KIP-516).
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
        target: ProduceTarget,
        version: int,
    ) -> OwnedPartition | None:
        """Queue records for a partition of this Handler, or let TransactionalProduce verify them. Return the partition.

        Return None if the records were rejected before that, and `target` has the error, or if they wait until the
        partition's log is transferred to this Handler or opened.
        """
        if records is None or len(records) == 0:
            target.decide(failed(partition.index, ErrorCode.INVALID_RECORD, "no records"))
            return None
        if version < _FIRST_WITH_ZSTD and _begins_with_zstd(records):
            target.decide(failed(partition.index, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
            return None
        try:
            owned = self._partitions.get(topic.name, partition)
        # The former owner has not closed the log yet, or this Handler has not opened it after a death. The
        # records wait, because an error would break the order of an idempotent producer.
        except PartitionMoving as moving:
            # The view is valid only until the end of this duty cycle, so copy the records.
            deferred = DeferredRecords(topic.topic_id, partition.index, bytearray(records), target, version)
            self._transfers.when_ready(moving.key, partial(self._on_ready, deferred))
            return None
        except KafkaError as error:
            target.decide(failed(partition.index, error.code, error.message))
            return None
        if target.transactional_id is None:
            self._queue.enqueue(owned, records, target)
        else:
            self._transactions.enqueue(owned, topic.topic_id, records, target, version)
        return owned

    def _on_ready(self, deferred: DeferredRecords, is_ready: bool) -> None:
        """Route records whose partition can be tried again, or fail them if `is_ready` is False, after a timeout."""
        if is_ready:
            self.route(deferred)
        else:
            deferred.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- partitions of other Handlers --------------------------------------------------------------------------
    #
    # Records of one connection must stay in order when a partition gets a new owner. Otherwise an idempotent producer
    # gets OUT_OF_ORDER_SEQUENCE_NUMBER. The protocol:
    #
    # 1. The sender attaches the version of its metadata image to the records.
    # 2. The owner appends the records only if the partition has not moved since that version. Otherwise it returns
    #    them. So it appends what a sender sent up to some point, and returns everything after that point.
    # 3. The sender routes returned records again when its own image shows the move.
    # 4. When a partition moves while calls about it are open, the sender puts a `ReorderGuard` in front of it. Later
    #    records are parked behind the guard until those calls are finished.
    #
    # So records never overtake others of their connection, and a receiver never forwards them to a third Handler.

    def _forward(self, version: int, body: memoryview, remote: dict[int, list[_RemotePart]]) -> None:
        """Send each owner the whole body with the positions of its partitions. `remote` has them by owner.

        The body is sent as it came, because cutting it into parts would copy and encode the records again.
        """
        for owner, parts in remote.items():
            on_reply = ForwardReply(self, version, [(target, key) for target, _, _, key in parts])
            positions = [(topic_at, part_at) for _, topic_at, part_at, _ in parts]
            self._send(
                owner, PRODUCE, ProduceParts(self._services.image.version, version, positions), on_reply, body
            )

    def _send(
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

    def handle_forwarded(
        self, body: ProduceParts, payload: memoryview | bytearray, on_reply: OnResult[ProduceResults]
    ) -> None:
        """Handle another Handler's call with the partitions of a Produce that this Handler owns."""
        version = body.version
        request = decode_produce(version, memoryview(payload))
        pending = ForwardedProduce(
            self._services, request.acks, request.transactional_id, len(body.parts), on_reply
        )
        for part, (topic_at, part_at) in zip(pending.parts(), body.parts, strict=True):
            topic = request.topics[topic_at]
            index, records = topic.partitions[part_at]
            found = self._find(topic.name, topic.topic_id, index)
            if isinstance(found, int):
                part.decide(failed(index, found))
            else:
                self._append_or_return(*found, records, part, version, sent_at=body.image)
        self._transactions.send_requests()

    def handle_returned(
        self, body: ReturnedRecords, payload: memoryview | bytearray, on_reply: OnResult[ProduceResults]
    ) -> None:
        """Handle another Handler's call with records that a former owner returned to it."""
        pending = ForwardedProduce(self._services, body.acks, body.transactional_id, 1, on_reply)
        (part,) = pending.parts()
        found = self._find(None, body.topic_id, body.index)
        if isinstance(found, int):
            part.decide(failed(body.index, unknown_topic(body.version)))
        else:
            self._append_or_return(*found, memoryview(payload), part, body.version, sent_at=body.image)
            self._transactions.send_requests()

    def _append_or_return(
        self,
        topic: TopicImage,
        partition: PartitionImage,
        records: memoryview | None,
        part: ForwardedPart,
        version: int,
        *,
        sent_at: int,
    ) -> None:
        """Append records that another Handler sent, or return them if the partition has moved since `sent_at`."""
        moved_at = self._moved_at.get((topic.name, partition.index), self._known_since)
        if partition.owner != self._services.handler_index or sent_at < moved_at:
            part.return_records(topic.topic_id, partition.index, records)
        else:
            self._append(topic, partition, records, part, version)

    def route(self, deferred: DeferredRecords) -> None:
        """Route parked or returned records to the Handler that owns their partition now."""
        topic_id, index, records, target, version = deferred
        found = self._find(None, topic_id, index)
        if isinstance(found, int):  # The topic was deleted meanwhile.
            deferred.fail(unknown_topic(version))
        elif found[1].owner == self._services.handler_index:
            self._append(*found, memoryview(records), target, version)
            self._transactions.send_requests()
        # These records came from another Handler, and the partition has moved once more. Return them: a third
        # Handler must never get them from here, or their order would be lost.
        elif isinstance(target, ForwardedPart):
            target.return_records(topic_id, index, records)
        else:
            on_reply = ForwardReply(self, version, [(target, (found[0].name, index))])
            body = ReturnedRecords(
                self._services.image.version, version, target.acks, target.transactional_id, topic_id, index
            )
            self._send(found[1].owner, PRODUCE_RECORDS, body, on_reply, memoryview(records))

    def on_moved(self, moved: Iterable[PartitionKey]) -> None:
        """Guard the order of records for partitions whose owner has changed. Route their parked records again."""
        version = self._services.image.version
        moved = set(moved)
        for key in moved:
            self._moved_at[key] = version
        for reply in self._open_forwards:
            for _, key in reply.parts:
                if self._moved_at.get(key) == version:
                    self._guard(key, reply)
        for deferred in self._transactions.on_moved(moved):
            self.route(deferred)

    def on_unknown(self) -> None:
        """Handle a replacement of the whole image: assume that every partition has moved.

        A partition can have moved away and back in between, which the new image does not show.
        """
        self._known_since = self._services.image.version
        self._moved_at.clear()
        for reply in self._open_forwards:
            for _, key in reply.parts:
                self._guard(key, reply)

    def _guard(self, key: PartitionKey, reply: ForwardReply) -> None:
        guard = self._guards.get(key)
        if guard is None:
            guard = self._guards[key] = ReorderGuard(key)
        if guard not in reply.guards:
            guard.left += 1
            reply.guards.append(guard)

    def on_settled(self, reply: ForwardReply) -> None:
        """Close a forwarded call whose partitions are all decided or routed again.

        Route the records behind each ReorderGuard for which this was the last open call.
        """
        del self._open_forwards[reply]
        for guard in reply.guards:
            guard.left -= 1
            if not guard.left:
                del self._guards[guard.key]
                for deferred in guard.waiting:
                    self.route(deferred)

    def when_image(self, version: int, on_image: Callable[[], None]) -> None:
        self._transfers.when_image(version, on_image)
