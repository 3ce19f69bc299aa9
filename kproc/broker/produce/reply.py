"""Responses to Produce requests: the result of each partition, and the response after the last one.

A `ProduceTarget` waits for the result of one partition:

- `OneProduce`: a client's request for one partition, parsed by the general parser.
- `RepeatedProduce`: the same, recognised as a repetition by handler/produce_fast_path.py.
- `Part`: a partition of a request with several, or of another Handler's call (forward.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from kproc.broker.peers.owners import Join
from kproc.broker.transport.envelope import SEND, SENDS
from kproc.common.errors import ErrorCode
from kproc.wire.hot import ProduceRequest, encode_produce_response

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.handler.produce_fast_path import ProduceFastPath
    from kproc.broker.request.context import RequestContext
    from kproc.broker.storage.results import AppendResult

logger = logging.getLogger(__name__)

# One partition's result on the wire: index, error, base offset, append time, log start, message, record errors.
Result = tuple[int, int, int, int, int, str | None, Sequence[tuple[int, str]]]
# The result of a partition whose owner died before it replied. The connection is closed, as it is when its own Handler
# dies. An error code would fail only this request. The log would reject the requests behind it with
# OUT_OF_ORDER_SEQUENCE_NUMBER, and librdkafka would then send everything again under a new epoch: duplicates.
LOST: Final = int(ErrorCode.NETWORK_EXCEPTION)
_FIRST_WITH_IDS: Final = 13
_FIRST_WITH_LOG_START: Final = 5
_TEMPLATES_KEPT: Final = 4096
_RESPONSES_MAX: Final = 256  # Responses in one SENDS record, which must fit into the smallest ring.


def failed(index: int, code: int, message: str | None = None) -> Result:
    """Return a partition's result with the error `code`. Its offsets and append time are -1."""
    return (index, int(code), -1, -1, -1, message, ())


def row_of(index: int, result: AppendResult) -> Result:
    """Return the result of one partition's batch in the order of the wire format."""
    return (
        index,
        result.error_code,
        result.base_offset,
        result.append_time_ms,
        result.log_start_offset,
        result.message,
        result.record_errors,
    )


def unknown_topic(version: int) -> int:
    """Return the error for a topic that does not exist. It depends on whether `version` names topics or ids."""
    return ErrorCode.UNKNOWN_TOPIC_ID if version >= _FIRST_WITH_IDS else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class ProduceTemplate:
    """A SEND record with a response without an error. Only the ids of the request and three numbers are filled in.

    `pack(connection and sequence, length, correlation id, before, base offset, append time, log start, after)` returns
    the record, `pack_frame` the frame alone, without connection and sequence. Requests of one version for the same
    partition share a template, see `produce_template`.
    """

    __slots__ = ("after", "before", "bytes", "constants", "length", "pack", "pack_frame")

    def __init__(self, version: int, name: str | None, topic_id: bytes | None, index: int) -> None:
        # Encode a response with three marker numbers, and cut the frame around them.
        base, append_time, log_start = marks = (0x0102030405060708, 0x1112131415161718, 0x2122232425262728)
        row = (index, 0, base, append_time, log_start, None, ())
        frame = encode_produce_response(version, 0, [(name, topic_id, [row])])
        numbers = Struct(">qqq").pack(*marks)
        at = frame.index(numbers)
        self.length, self.before, self.after = frame[:4], frame[8:at], frame[at + len(numbers) :]
        rest = f"{len(self.before)}sqqq{len(self.after)}s"
        record = Struct(f">12s4x4s4s{rest}")
        self.pack, self.bytes = record.pack, record.size
        # One field, because `respond` reads all of them in every duty cycle.
        self.constants = self.pack, self.length, self.before, self.after
        self.pack_frame = Struct(f">4si{rest}").pack


produce_template: Final = lru_cache(_TEMPLATES_KEPT)(ProduceTemplate)


class ProduceTarget(Protocol):
    """The receiver of one partition's result. It sends the response when the request's last partition has a result."""

    @property
    def acks(self) -> int: ...

    @property
    def template(self) -> ProduceTemplate | None:
        """The template of a RepeatedProduce whose response is sent as soon as its records are appended, else None."""

    @property
    def transactional_id(self) -> str | None:
        """The request's transactional id. None if its batches cannot belong to transactions."""

    def decide(self, result: Result) -> None:
        """Store the result. If it is the last one of the request, send the response."""

    def fail(self) -> None:
        """Fail the request after an unexpected exception. This may close its connection."""


class OneProduce:
    """A client's request for one partition. Nearly all requests are of this form, so one object does everything."""

    __slots__ = ("_context", "acks", "name", "topic_id", "transactional_id")

    template: Final = None

    def __init__(
        self,
        context: RequestContext,
        acks: int,
        name: str | None,
        topic_id: bytes | None,
        transactional_id: str | None = None,
    ) -> None:
        self.acks = acks
        self.transactional_id = transactional_id
        self.name = name
        self.topic_id = topic_id
        self._context = context

    def decide(self, result: Result) -> None:
        """Send the response, or close the connection if `result` demands it."""
        context = self._context
        if result[1]:
            context.count_error(result[1])
        # acks=0 has no response. For LOST, any response could be false: the records may be stored or not.
        if self.acks == 0 or result[1] == LOST:
            finish_unanswered(context, result[1])
        else:
            if context.meter is not None:
                context.settle()
            index, code, base_offset, append_time_ms, log_start, _, _ = result
            version, correlation_id = context.api_version, context.correlation_id
            # Errors, throttled clients and old versions are rare, so only the usual response has a template.
            if code or context.throttle_ms or version < _FIRST_WITH_LOG_START:
                topics = [(self.name, self.topic_id, (result,))]
                frame = encode_produce_response(version, correlation_id, topics, context.throttle_ms)
            else:
                template = produce_template(version, self.name, self.topic_id, index)
                frame = template.pack_frame(
                    template.length, correlation_id, template.before,
                    base_offset, append_time_ms, log_start, template.after,
                )  # fmt: skip
            context.send(frame)

    def fail(self) -> None:
        """Fail the request: close the connection, unless the response was sent."""
        self._context.fail()


class RepeatedProduce(msgspec.Struct, gc=False, eq=False):
    """A client's request that repeats the last one of its connection except for its records.

    A msgspec struct, because the request needs no other object until it fails.
    """

    path: ProduceFastPath
    ids: bytes  # Connection id and sequence, as in the request's ring record.
    correlation: bytes
    # Set if the response can share a SENDS record. All such requests of one flush are of the same Processor, because
    # the Handler flushes before it reads the next Processor's ring.
    template: ProduceTemplate | None = None

    @property
    def acks(self) -> int:
        return self.path.acks

    @property
    def transactional_id(self) -> None:
        """Return None: transactional requests use the general path, because their partition may have to be verified."""
        return

    def decide(self, result: Result) -> None:
        """Send the response. An ordinary request object (OneProduce) sends an error response."""
        template = self.path.template
        if template is None or result[1]:
            self.path.parsed(self).decide(result)
            return
        record = template.pack(
            self.ids, template.length, self.correlation, template.before, *result[2:5], template.after
        )
        self.path.outbox.push(SEND, record)

    def fail(self) -> None:
        self.path.parsed(self).fail()


class PendingProduce(Join[Result | None]):
    """One request of several partitions, or another Handler's call, whose partitions are not all decided yet."""

    __slots__ = ("acks", "transactional_id")

    def __init__(
        self,
        acks: int,
        transactional_id: str | None,
        count: int,
        on_done: Callable[[list[Result | None]], None],
    ) -> None:
        super().__init__([None] * count, on_done)
        self.acks = acks
        self.transactional_id = transactional_id

    def parts(self) -> Iterator[Part]:
        """Return the targets of all partitions, in the order of the request."""
        return (Part(self, at) for at in range(len(self.answers)))

    def fail(self) -> None:
        """Give every undecided partition the result LOST, so that the client's connection is closed."""
        for at, result in enumerate(self.answers):
            if result is None:
                self.add(at, failed(-1, LOST))


class Part:
    """One partition of a PendingProduce: the target that gets its result."""

    __slots__ = ("acks", "at", "request", "transactional_id")

    template: Final = None

    def __init__(self, request: PendingProduce, at: int) -> None:
        self.request = request
        self.at = at
        self.acks = request.acks
        self.transactional_id = request.transactional_id

    def decide(self, result: Result) -> None:
        self.request.add(self.at, result)

    def fail(self) -> None:
        self.request.fail()


class DecideWhenSynced:
    """Delivers the result of an acks=all batch after the group commit. A failed sync turns it into an error."""

    __slots__ = ("_result", "owner")

    def __init__(self, target: ProduceTarget, result: Result) -> None:
        self.owner = target
        self._result = result

    def __call__(self, error: int) -> None:
        result = self._result
        # The records are in the page cache, but a failed fdatasync may have dropped them. The log is offline
        # from now on.
        if error:
            result = failed(result[0], error, "the log could not be synced to disk")
        self.owner.decide(result)


class SendWhenDecided:
    """Responds to a request of several partitions, or of none, when all have results.

    For acks=0 and LOST there is no response.
    """

    __slots__ = ("_acks", "_context", "_topics")

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        self._context = context
        self._acks = request.acks
        # Keep only names and counts, because the views of the records are valid only in this duty cycle.
        self._topics = [(topic.name, topic.topic_id, len(topic.partitions)) for topic in request.topics]

    def __call__(self, decided: list[Result | None]) -> None:
        context = self._context
        codes = [result[1] for result in decided if result is not None and result[1]]
        for code in codes:
            context.count_error(code)
        if self._acks == 0 or LOST in codes:
            finish_unanswered(context, LOST if LOST in codes else next(iter(codes), 0))
            return
        results = iter(decided)
        topics = [
            (name, topic_id, [result for result in islice(results, count) if result is not None])
            for name, topic_id, count in self._topics
        ]
        context.settle()
        context.send(
            encode_produce_response(context.api_version, context.correlation_id, topics, context.throttle_ms)
        )


def targets_of(context: RequestContext, request: ProduceRequest) -> Iterator[ProduceTarget]:
    """Return the targets of a client's request, one per partition. Respond to a request without partitions at once."""
    topics = request.topics
    if len(topics) == 1 == len(topics[0].partitions):
        topic = topics[0]
        return iter(
            (OneProduce(context, request.acks, topic.name, topic.topic_id, request.transactional_id),)
        )
    send = SendWhenDecided(context, request)
    count = sum(len(topic.partitions) for topic in topics)
    # As in Kafka, a Produce without partitions gets an empty response.
    if not count:
        send([])
    return PendingProduce(request.acks, request.transactional_id, count, send).parts()


def respond(
    owned: OwnedPartition, targets: Sequence[Any], results: Sequence[AppendResult], waits_for_sync: bool
) -> None:
    """Deliver the results of one append, in the order of its batches.

    The responses to repeated requests go to the Processor in one SENDS record if they have the same length. With
    `waits_for_sync` the results of batches with acks=all are delivered by the sync.

    targets: one ProduceTarget per result. They are not typed, because a RepeatedProduce is recognised by its template:
    a call of isinstance would cost more than the rest of the check.
    """
    log = owned.log.state
    # As in Kafka, flush.messages makes every response wait for the disk, whatever its acks are.
    if log.end_offset - log.recovery_point >= log.config.flush_messages:
        for target, result in zip(targets, results, strict=True):
            _deliver(owned, target, result, waits=True)
        return
    responses: list[bytes] = []
    template: ProduceTemplate | None = None
    for target, result in zip(targets, results, strict=True):
        found = target.template
        if found is None or result.error_code:
            _deliver(owned, target, result, waits=waits_for_sync and target.acks == -1)
            continue
        if found is not template:
            template = found
            pack, length, before, after = found.constants
            push = target.path.outbox.push
        responses.append(
            pack(
                target.ids, length, target.correlation, before,
                result.base_offset, result.append_time_ms, result.log_start_offset, after,
            )
        )  # fmt: skip
    if len(responses) > 1 and len(set(map(len, responses))) == 1:
        for first in range(0, len(responses), _RESPONSES_MAX):
            push(SENDS, b"".join(responses[first : first + _RESPONSES_MAX]))
    else:
        for response in responses:
            push(SEND, response)


def _deliver(owned: OwnedPartition, target: ProduceTarget, result: AppendResult, *, waits: bool) -> None:
    """Deliver one result: at once if it is an error or does not wait, otherwise when a sync has confirmed the batch."""
    row = row_of(owned.key[1], result)
    if waits and not result.error_code:
        owned.when_synced(result.last_offset + 1, DecideWhenSynced(target, row))
    else:
        target.decide(row)


def finish_unanswered(context: RequestContext, code: int) -> None:
    """Finish a request without a response. With an error `code`, close its connection.

    For acks=0 the closed connection tells the client to refresh its metadata, as in Kafka. LOST is explained at its
    definition.
    """
    if code:
        services = context.services
        if services.clients.refusals.has_room(services.clock.host_ns()):
            logger.info(
                "closing connection %d without a response: its Produce failed with %s (acks=0, or unknown outcome)",
                context.connection_id,
                ErrorCode(code).name,
            )
        context.close()
    else:
        context.no_op()
