"""ProduceFastPath: the fast path (fast_path.py) of Produce requests for one partition.

Between the correlation id and the records a producer repeats all bytes: client id, acks, timeout, topic, partition. A
frame with the same bytes is appended to the same partition (`serve_frame`).

If the frame is alone in its ring record and as long as the last ones, its records are at the same position, too
(`serve`). Then one unpack compares the frame, the response needs no object but a tuple (`Target`), and FastAnswers
sends the responses of a duty cycle as one ring record.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from kproc.broker.handler.fast_path import (
    RECORD_START,
    RECORD_START_BYTES,
    REPEATED_BYTES_MAX,
    RequestTemplate,
)
from kproc.broker.metrics.requests import REQUESTS
from kproc.broker.produce.produce import Placed, ProduceBatcher
from kproc.broker.produce.produce_answers import OneProduce, row_of
from kproc.broker.request.context import Services
from kproc.broker.request.request import HandlerRequest
from kproc.broker.storage.results import AppendResult
from kproc.broker.transport.envelope import SEND, SENDS
from kproc.wire.header import ApiKey, first_flexible
from kproc.wire.hot import encode_produce_response

if TYPE_CHECKING:
    from kproc.broker.handler.migrating_connections import KeptAnswers
    from kproc.broker.transport.outbox import Outbox

# From this version on every codec is allowed (KIP-110), so the fast path need not check the codec of the records.
FIRST_VERSION: Final = 7
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FLEXIBLE: Final = first_flexible(ApiKey.PRODUCE)
_START: Final = Struct(">hhi")  # First fields of a frame behind its length: API key, version, correlation id.
_SIZE: Final = Struct(">i")
_NO_TAGS: Final = bytes(3)  # Empty tagged fields of partition, topic and request. They follow the records.
_TEMPLATES_KEPT: Final = 1024
_ANSWERS_MAX: Final = 256  # Responses in one SENDS record, which must fit into the smallest ring.
# A request until its response: fast path, connection id, sequence and correlation id, as the bytes that came.
Target = tuple["ProduceFastPath", bytes, bytes, bytes]


class AnswerTemplate:
    """A SEND record with a response without an error. Only the ids of the request and three numbers are filled in.

    `pack(connection, sequence, frame length, correlation id, before, base offset, append time, log start, after)`
    returns the record. Fast paths to the same partition share a template, see `answer_template`.
    """

    __slots__ = ("after", "before", "bytes", "length", "pack")

    def __init__(self, version: int, name: str | None, topic_id: bytes | None, index: int) -> None:
        # Encode a response with three marker numbers by the general encoder, and cut the frame around them.
        base, append_time, log_start = marks = (0x0102030405060708, 0x1112131415161718, 0x2122232425262728)
        row = (index, 0, base, append_time, log_start, None, ())
        frame = encode_produce_response(version, 0, [(name, topic_id, [row])])
        numbers = Struct(">qqq").pack(*marks)
        at = frame.index(numbers)
        self.length, self.before, self.after = frame[:4], frame[8:at], frame[at + len(numbers) :]
        prepared = Struct(f">8s4s4x4s4s{len(self.before)}sqqq{len(self.after)}s")
        self.pack, self.bytes = prepared.pack, prepared.size


answer_template: Final = lru_cache(_TEMPLATES_KEPT)(AnswerTemplate)


class ProduceFastPath:
    """The repeated bytes of one connection's Produce requests, and the partition that they append to."""

    __slots__ = (
        "_acks",
        "_batcher",
        "_counts",
        "_expected",
        "_log_state",
        "_name",
        "_odd_bytes",
        "_owned",
        "_prefix",
        "_record_bytes",
        "_records_from",
        "_records_to",
        "_requests",
        "_topic_id",
        "_unpack",
        "_version",
        "misses",
        "template",
    )

    def __init__(
        self,
        request: HandlerRequest,
        placed: Placed,
        prefix: bytes,
        batcher: ProduceBatcher,
        counts: list[int],
    ) -> None:
        assert placed.owned is not None
        self.misses = 0
        self._requests = RequestTemplate(request)
        self._batcher = batcher
        self._counts = counts
        self._version = version = request.api_version
        self._acks = placed.acks
        self._owned, self._log_state = placed.owned, placed.owned.log.state
        self._name, self._topic_id = placed.name, placed.topic_id
        self._prefix = prefix
        self.template: AnswerTemplate | None = None
        # Other requests need an object of their own: they wait for a sync, or get no response (acks=0).
        if placed.acks == 1 or (placed.acks == -1 and not request.services.waits_for_sync):
            self.template = answer_template(version, placed.name, placed.topic_id, placed.owned.key[1])
        # The learned length of a ring record, and the length of the last frame that did not match it. -1: none yet.
        self._record_bytes = self._odd_bytes = -1
        self._records_from = self._records_to = 0
        # The parts of a ring record of the learned length that must be equal: everything but ids and records.
        self._expected: tuple[bytes, ...] = ()
        self._unpack = Struct("").unpack

    @property
    def outbox(self) -> Outbox | KeptAnswers:
        """The outbox of the connection's Processor."""
        return self._requests.peer.outbox

    # -- learning ----------------------------------------------------------------------------------------------

    @classmethod
    def learn(
        cls,
        request: HandlerRequest,
        frame: memoryview,
        placed: Placed,
        batcher: ProduceBatcher,
        counts: list[int],
        *,
        is_in_ring: bool,
    ) -> ProduceFastPath | None:
        """Return a fast path learned from a frame that the general path has handled, or None if its form is unusual.

        `frame` is without its length. `is_in_ring` is False for a frame in an arena, whose length is not learned.
        """
        version = request.api_version
        if version < FIRST_VERSION or placed.owned is None:
            return None
        size = placed.records_bytes
        if version >= _FLEXIBLE:
            at = len(frame) - len(_NO_TAGS) - size - _varint_bytes(size + 1)
        else:
            at = len(frame) - size - _SIZE.size
        if not _START.size < at <= REPEATED_BYTES_MAX:
            return None
        path = cls(request, placed, bytes(frame[_START.size : at]), batcher, counts)
        if path._records_of(frame, at) is None:
            return None
        if is_in_ring:
            path._learn_length(frame, size)
        return path

    def _learn_length(self, frame: memoryview, size: int) -> None:
        """Learn the length of a frame, because the next requests are likely to have the same.

        The records end the frame, or stand before its empty tagged fields.
        """
        if self.template is None:
            return
        end = len(frame) - (len(_NO_TAGS) if self._version >= _FLEXIBLE else 0)
        at = end - size
        start = self._requests.listener_and_flags + _SIZE.pack(len(frame)) + bytes(frame[:4])
        same, tail = bytes(frame[_START.size : at]), bytes(frame[end:])
        self._expected = start, same, tail
        record = Struct(f"={RECORD_START}{len(same)}s{size}x{len(tail)}s")
        self._unpack, self._record_bytes = record.unpack, record.size
        self._records_from = RECORD_START_BYTES + len(same)
        self._records_to = self._records_from + size

    # -- handling ----------------------------------------------------------------------------------------------

    def serve(self, record: memoryview) -> bool:
        """Queue a ring record that has the learned length and the same bytes around its Kafka records.

        Returns False without effect if it differs, or if the log is offline.
        """
        if len(record) != self._record_bytes:
            return False
        connection, sequence, start, correlation, same, tail = self._unpack(record)
        if (start, same, tail) != self._expected:
            return False
        if self._log_state.offline_reason is not None:
            return False
        records = record[self._records_from : self._records_to]
        if not self._batcher.take_known(self._owned, records, (self, connection, sequence, correlation)):
            return False
        self._counts[self._version] += 1
        if self.misses:
            self.misses -= 1
        return True

    def serve_frame(
        self, frame: memoryview, connection_id: int, sequence: int, listener: int, flags: int
    ) -> bool:
        """Queue a frame of any length that has the same bytes before its records. Return False if it differs."""
        at = _START.size + len(self._prefix)
        if len(frame) <= at:
            return False
        api_key, version, correlation_id = _START.unpack_from(frame)
        if not (
            version == self._version
            and api_key == _PRODUCE
            and frame[_START.size : at].tobytes() == self._prefix
            and self._requests.is_from(listener, flags)
            and self._log_state.offline_reason is None
        ):
            return False
        records = self._records_of(frame, at)
        if records is None:
            return False
        pending = self._pending(self._requests.make(connection_id, sequence, correlation_id))
        self._batcher.add_known(pending, self._owned, records)
        self._counts[version] += 1
        if self.misses:
            self.misses -= 1
        # Learn a new length at the second frame in a row that has it, so that one odd request replaces nothing.
        if len(frame) == self._odd_bytes:
            self._learn_length(frame, len(records))
        self._odd_bytes = len(frame)
        return True

    def pending(self, connection: bytes, sequence: bytes, correlation: bytes) -> OneProduce:
        """Create the request object of a Target, so that the request can wait or fail."""
        return self._pending(self._requests.make_from_bytes(connection, sequence, correlation))

    def _pending(self, request: HandlerRequest) -> OneProduce:
        return OneProduce(request, self._acks, self._name, self._topic_id)

    def _records_of(self, frame: memoryview, at: int) -> memoryview | None:
        """Return the records whose length is at `at`, or None if they do not fill the frame up to its tagged fields."""
        end = len(frame)
        if self._version >= _FLEXIBLE:
            size = shift = 0
            while True:
                if at >= end or shift > 28:
                    return None
                byte = frame[at]
                at += 1
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            size -= 1
            end -= len(_NO_TAGS)
            if at >= end or frame[end:] != _NO_TAGS:
                return None
        else:
            if at + _SIZE.size > end:
                return None
            (size,) = _SIZE.unpack_from(frame, at)
            at += _SIZE.size
        return frame[at:end] if size > 0 and at + size == end else None


class FastAnswers:
    """Sends the responses to requests that were queued as Targets: the `known_answers` of a ProduceBatcher."""

    def pending(self, target: Target) -> OneProduce:
        """Create the object of a request that must wait after all."""
        path, *ids = target
        return path.pending(*ids)

    def answer(self, targets: Sequence[Target], results: Sequence[AppendResult], index: int) -> None:
        """Send the responses to requests for the partition `index`, in the order of `results`.

        All requests are of one Processor, because the ProduceBatcher flushes before the next Processor's ring is read.
        An error goes the general way.
        """
        answers: list[bytes] = []
        template: AnswerTemplate | None = None
        size, is_even = 0, True
        for (path, connection, sequence, correlation), result in zip(targets, results, strict=True):
            if result.error_code:
                path.pending(connection, sequence, correlation).decide(0, row_of(index, result))
                continue
            if path.template is not template:
                template = path.template
                assert template is not None, "those without one are gathered as objects"
                # A SENDS record needs responses of one length. They differ if the requests have different versions.
                is_even = is_even and size in (0, template.bytes)
                size, pack = template.bytes, template.pack
                length, before, after = template.length, template.before, template.after
            answers.append(
                pack(
                    connection, sequence, length, correlation, before,
                    result.base_offset, result.append_time_ms, result.log_start_offset, after,
                )
            )  # fmt: skip
        push = targets[0][0].outbox.push
        if len(answers) > 1 and is_even:
            for first in range(0, len(answers), _ANSWERS_MAX):
                push(SENDS, b"".join(answers[first : first + _ANSWERS_MAX]))
        else:
            for answer in answers:
                push(SEND, answer)


class ProduceFastPaths:
    """Learns Produce fast paths and counts the requests that they handle. One per Handler."""

    __slots__ = ("_batcher", "_counts", "_services")

    def __init__(self, services: Services, batcher: ProduceBatcher, versions: range) -> None:
        self._services = services
        self._batcher = batcher
        self._counts = [0] * versions.stop  # Requests since the last `count`, by version.

    @property
    def known_count(self) -> int:
        """Number of requests that the fast paths have handled since the last `count`."""
        return sum(self._counts)

    def learn(
        self, request: HandlerRequest, frame: memoryview, placed: Placed, *, is_in_ring: bool
    ) -> ProduceFastPath | None:
        """See ProduceFastPath.learn."""
        return ProduceFastPath.learn(
            request, frame, placed, self._batcher, self._counts, is_in_ring=is_in_ring
        )

    def count(self) -> int:
        """Add the handled requests to the metrics. Return their number and start again at 0."""
        total = 0
        for version, count in enumerate(self._counts):
            if count:
                self._services.counts.add(REQUESTS, _PRODUCE, version, count)
                total += count
                self._counts[version] = 0
        return total


def _varint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
