"""Responses to Produce requests: collect the results of the partitions and send the response after the last one.

A `Pending` waits for the results: a client's request (OneProduce, PendingProduce), or another Handler's call
(produce_order.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol

from kproc.broker.peers.owners import Join
from kproc.broker.request.context import RequestContext
from kproc.broker.storage.results import AppendResult
from kproc.common.errors import ErrorCode
from kproc.wire.hot import ProduceRequest, encode_produce_response, encode_produce_response_one

logger = logging.getLogger(__name__)

# One partition's result on the wire: index, error, base offset, append time, log start, message, record errors.
Result = tuple[int, int, int, int, int, str | None, Sequence[tuple[int, str]]]
# The result of a partition whose owner died before it replied. The connection is closed, as it is when its own Handler
# dies. An error code would fail only this request. The log would reject the requests behind it with
# OUT_OF_ORDER_SEQUENCE_NUMBER, and librdkafka would then send everything again under a new epoch: duplicates.
LOST: Final = int(ErrorCode.NETWORK_EXCEPTION)


def failed(index: int, code: int, message: str | None = None) -> Result:
    """Return the result of a partition whose records were not stored."""
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


class PendingProduce(Join[Result | None]):
    """One Produce request whose partitions are not all decided yet."""

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

    decide = Join.take

    def fail(self) -> None:
        """Mark every undecided partition as failed."""
        for at, result in enumerate(self.answers):
            if result is None:
                self.decide(at, failed(-1, LOST))


class OneProduce:
    """A Produce request of one partition. Nearly all requests are of this form, so one object does everything."""

    __slots__ = ("_context", "_name", "_topic_id", "acks", "transactional_id")

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
        self._context = context
        self._name = name
        self._topic_id = topic_id

    def decide(self, at: int, result: Result) -> None:
        """Send the response, or close the connection if `result` demands it."""
        del at  # The request has one partition.
        context = self._context
        if result[1]:
            context.count_error(result[1])
        if self.acks == 0 or result[1] == LOST:
            finish_unanswered(context, result[1])
        else:
            version, correlation_id = context.api_version, context.correlation_id
            name, topic_id = self._name, self._topic_id
            if context.meter is not None:
                context.settle()
            if context.throttle_ms:
                topics = [(name, topic_id, [result])]
                context.send(encode_produce_response(version, correlation_id, topics, context.throttle_ms))
            else:
                context.send(answer_one(version, correlation_id, name, topic_id, result))

    def fail(self) -> None:
        """Fail the request: close the connection, unless the response was sent."""
        self._context.fail()


def answer_one(
    version: int, correlation_id: int, name: str | None, topic_id: bytes | None, result: Result
) -> bytes:
    """Return the whole response frame of a one-partition request."""
    index, code, base_offset, append_time_ms, log_start, message, _ = result
    if message is None:
        return encode_produce_response_one(
            version, correlation_id, name, topic_id, index, code, base_offset, append_time_ms, log_start
        )
    return encode_produce_response(version, correlation_id, [(name, topic_id, [result])])


class Pending(Protocol):
    """A request that waits for its partitions' results."""

    acks: int

    @property
    def transactional_id(self) -> str | None:
        """The request's transactional id. None if its batches cannot belong to transactions."""

    def decide(self, at: int, result: Result) -> None: ...

    def fail(self) -> None:
        """Fail the request after an unexpected exception. This may close its connection."""


class DecideWhenSynced:
    """Delivers the result of an acks=all batch after the group commit. A failed sync turns it into an error."""

    __slots__ = ("_answer", "_at", "owner")

    def __init__(self, pending: Pending, at: int, answer: Result) -> None:
        self.owner = pending
        self._at = at
        self._answer = answer

    def __call__(self, error: int) -> None:
        answer = self._answer
        if error:
            answer = failed(answer[0], error, "the log could not be synced to disk")
        self.owner.decide(self._at, answer)


class ManyAnswer:
    """Sends the response to a request of any shape when all its partitions have results."""

    __slots__ = ("_acks", "_context", "_request")

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        self._context = context
        self._acks = request.acks
        # Keep only names and counts, because the views of the records are valid only in this duty cycle.
        self._request = [(topic.name, topic.topic_id, len(topic.partitions)) for topic in request.topics]

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
            for name, topic_id, count in self._request
        ]
        version, correlation_id = context.api_version, context.correlation_id
        context.settle()
        context.send(encode_produce_response(version, correlation_id, topics, context.throttle_ms))


def pending_of(context: RequestContext, request: ProduceRequest, count: int) -> Pending:
    """Return the object that waits for the results of a request with `count` partitions (1 or more)."""
    if count == 1 == len(request.topics):
        topic = request.topics[0]
        return OneProduce(context, request.acks, topic.name, topic.topic_id, request.transactional_id)
    return PendingProduce(request.acks, request.transactional_id, count, ManyAnswer(context, request))


def finish_unanswered(context: RequestContext, code: int) -> None:
    """Finish a request without a response. With an error `code`, close its connection.

    For acks=0 the closed connection tells the client to refresh its metadata, as in Kafka. For LOST see there.
    """
    if code:
        services = context.services
        if services.refusals.has_room(services.clock.now_ns()):
            logger.info("closing a connection: a Produce failed with %s", ErrorCode(code).name)
        context.close()
    else:
        context.no_op()
