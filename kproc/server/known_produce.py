"""Produce requests whose shape is known: what most producers send again and again on one connection.

Between the correlation id and the records of a one-partition Produce stand only bytes that a producer repeats:
client id, acks, timeout, topic, partition. A Handler remembers them with where they led; a frame that has
the same bytes in the same place needs no decoding and no lookup. Anything else takes the general way.
Measured in the Handler per request, 16 together, network calls left out: 8.1 us the general way, 5.8 us this one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from kproc.api.context import OwnedPartition
from kproc.api.produce import LOST, Placed, Result, answer_one
from kproc.clock import Clock
from kproc.server.request import ClientPeer
from kproc.transport.envelope import CLOSE, HEAD, NO_OP, SEND, TIMES, TIMES_BODY
from kproc.wire.header import ApiKey
from kproc.wire.hot import KnownAnswer

AFTER_CORRELATION_ID: Final = 12  # frame length, API key, version, correlation id
FIRST_VERSION: Final = 7  # From here on every codec is allowed, so that the records need no look.
_FLEXIBLE: Final = 9
_PRODUCE: Final = int(ApiKey.PRODUCE)
_SIZE: Final = struct.Struct(">i")
_TAG_BYTES: Final = 3  # Three zeros: no tagged fields in partition, topic and request.


class ProduceShape:
    """What the frames of one connection have in common, and where it leads. Void when the metadata changes."""

    __slots__ = (
        "acks",
        "answer",
        "is_flexible",
        "on_error",
        "owned",
        "placed",
        "prefix",
        "records_at",
        "version",
    )

    def __init__(
        self,
        version: int,
        prefix: bytes,
        owned: OwnedPartition,
        placed: Placed,
        on_error: Callable[[int], None],
    ) -> None:
        self.version = version
        self.acks = placed.acks
        self.answer = KnownAnswer.of(version, placed.name, placed.topic_id)
        self.is_flexible = version >= _FLEXIBLE
        self.prefix = prefix
        self.records_at = AFTER_CORRELATION_ID + len(prefix)
        self.owned = owned
        self.placed = placed
        self.on_error = on_error

    @classmethod
    def of(
        cls, version: int, frame: memoryview, placed: Placed, on_error: Callable[[int], None]
    ) -> ProduceShape | None:
        """The shape of a frame that the general way has just placed, or None if it is not of the usual kind.

        `on_error` is told of every error code that is answered.
        """
        if version < FIRST_VERSION or placed.owned is None:
            return None
        end = len(frame)
        at = end - placed.records_bytes - _SIZE.size
        if version >= _FLEXIBLE:
            at = end - _TAG_BYTES - placed.records_bytes - _varint_bytes(placed.records_bytes + 1)
        if at <= AFTER_CORRELATION_ID:
            return None
        shape = cls(version, bytes(frame[AFTER_CORRELATION_ID:at]), placed.owned, placed, on_error)
        return shape if shape.records(frame, at, end) is not None else None

    def records(self, view: memoryview, at: int, end: int) -> memoryview | None:
        """The records behind the length at `at`, if they fill the frame up to `end` exactly."""
        if self.is_flexible:
            size = shift = 0
            while True:
                if at >= end or shift > 28:
                    return None
                byte = view[at]
                at += 1
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            size -= 1
            end -= _TAG_BYTES
            if at >= end or view[end] or view[end + 1] or view[end + 2]:
                return None
        else:
            if at + _SIZE.size > end:
                return None
            (size,) = _SIZE.unpack_from(view, at)
            at += _SIZE.size
        return view[at:end] if size > 0 and at + size == end else None


class KnownProduce:
    """One request of a known shape until its answer: a `Pending` of api/produce.py."""

    __slots__ = ("_connection_id", "_correlation_id", "_peer", "_sequence", "_shape", "acks")

    def __init__(
        self, shape: ProduceShape, peer: ClientPeer, connection_id: int, sequence: int, correlation_id: int
    ) -> None:
        self.acks = shape.acks
        self._shape = shape
        self._peer = peer
        self._connection_id = connection_id
        self._sequence = sequence
        self._correlation_id = correlation_id

    def decide(self, at: int, result: Result) -> None:
        """Answer."""
        del at  # There is only one.
        if result[1]:
            self._shape.on_error(result[1])
        head = HEAD.pack(self._connection_id, self._sequence, 0, 0)
        outbox = self._peer.outbox
        if self.acks == 0 or result[1] == LOST:
            outbox.push(CLOSE if result[1] else NO_OP, head)
            return
        shape = self._shape
        answer = shape.answer
        index, code, base_offset, append_time_ms, log_start, message = result
        if answer is not None and message is None:
            frame = answer.pack(
                answer.length, self._correlation_id, answer.before, answer.key, answer.count,
                index, code, base_offset, append_time_ms, log_start, answer.after,
            )  # fmt: skip
        else:
            placed = shape.placed
            frame = answer_one(shape.version, self._correlation_id, placed.name, placed.topic_id, result)
        outbox.push(SEND, head + frame)


class TimedProduce(KnownProduce):
    """The one of many that its Processor wants timed."""

    __slots__ = ("_clock", "_taken_ns", "done_ns")

    def __init__(
        self,
        shape: ProduceShape,
        peer: ClientPeer,
        connection_id: int,
        sequence: int,
        correlation_id: int,
        clock: Clock,
    ) -> None:
        super().__init__(shape, peer, connection_id, sequence, correlation_id)
        self._clock = clock
        self._taken_ns = clock.now_ns()
        self.done_ns = 0

    def decide(self, at: int, result: Result) -> None:
        """Answer, with the times before it."""
        now_ns = self._clock.now_ns()
        body = TIMES_BODY.pack(_PRODUCE, 0, self._taken_ns, self.done_ns or now_ns, now_ns)
        self._peer.outbox.push(TIMES, HEAD.pack(self._connection_id, self._sequence, 0, 0), body)
        super().decide(at, result)


def _varint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
