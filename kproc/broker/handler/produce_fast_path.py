"""ProduceFastPath: the fast path (fast_path.py) of Produce requests for one partition.

Between the correlation id and the records there are only bytes that a producer repeats: client id, acks, timeout,
topic, partition. A frame with the same bytes is appended to the same partition. If it comes alone and is as long as
the last ones, its records are at the same position, too: then one unpack compares it, its answer needs only a tuple of
bytes of the request, and the answers of a pass are sent as one record.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

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
from kproc.broker.request.request import Answers, HandlerRequest
from kproc.broker.storage.results import AppendResult
from kproc.broker.transport.envelope import SEND, SENDS
from kproc.wire.header import ApiKey, first_flexible
from kproc.wire.hot import encode_produce_response

# From this version on every codec is allowed, so the records need not be checked for it.
FIRST_VERSION: Final = 7
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FLEXIBLE: Final = first_flexible(ApiKey.PRODUCE)
_START: Final = Struct(">hhi")  # Of a frame without its length: API key, version, correlation id.
_SIZE: Final = Struct(">i")
_NO_TAGS: Final = bytes(3)  # Behind the records: no tagged fields in partition, topic and request.
_TEMPLATES_KEPT: Final = 1024
_ANSWERS_MAX: Final = 256  # In one record, which must fit into the smallest ring.
# What is kept of a request until its answer: its path, and connection id, sequence and correlation id as they came.
Target = tuple["ProduceFastPath", bytes, bytes, bytes]


class AnswerTemplate:
    """The SEND record of an answer without an error: all but whom it is for and three numbers of the result. Fast paths
    to the same partition share one: `answer_template`.

    `pack(connection, sequence, frame length, correlation id, before, base offset, append time, log start, after)`
    """

    __slots__ = ("after", "before", "bytes", "length", "pack")

    def __init__(self, version: int, name: str | None, topic_id: bytes | None, index: int) -> None:
        # The general encoder's frame around numbers that are found again.
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
        # A request that waits for a sync, or that gets no answer (acks=0), needs an object of its own.
        if placed.acks == 1 or (placed.acks == -1 and not request.services.waits_for_sync):
            self.template = answer_template(version, placed.name, placed.topic_id, placed.owned.key[1])
        self._record_bytes = self._odd_bytes = -1  # -1: no length is known yet, only the prefix.
        self._records_from = self._records_to = 0
        # What a record of that length has, apart from its ids and its records.
        self._expected: tuple[bytes, ...] = ()
        self._unpack = Struct("").unpack

    @property
    def outbox(self) -> Answers:
        """Where answers go."""
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
        """Learn from a frame, without its length, that the general path served; None if it is not of the
        usual form.
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
        """The next requests are likely to be as long as this one, whose records end it or stand before its tags."""
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

    # -- serving -----------------------------------------------------------------------------------------------

    def serve(self, record: memoryview) -> bool:
        """Gather a record that has the learned length and the same bytes around its records."""
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
        """Gather a frame of any length that has the same bytes before its records."""
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
        if len(frame) == self._odd_bytes:  # Two frames of this length in a row: learn it.
            self._learn_length(frame, len(records))
        self._odd_bytes = len(frame)
        return True

    def pending(self, connection: bytes, sequence: bytes, correlation: bytes) -> OneProduce:
        """Make an object of a request that was gathered as a Target, so that it can wait or fail."""
        return self._pending(self._requests.make_from_bytes(connection, sequence, correlation))

    def _pending(self, request: HandlerRequest) -> OneProduce:
        return OneProduce(request, self._acks, self._name, self._topic_id)

    def _records_of(self, frame: memoryview, at: int) -> memoryview | None:
        """The records behind their length at `at`, if they fill the frame exactly, tags left out."""
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
    """Answers what was gathered as Targets: the `known_answers` of a ProduceBatcher."""

    def pending(self, target: Target) -> OneProduce:
        """A request that must wait after all, as an object."""
        path, *ids = target
        return path.pending(*ids)

    def answer(self, targets: Sequence[Target], results: Sequence[AppendResult], index: int) -> None:
        """Answer requests of one partition, all of one Processor, that wait for nothing any more."""
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
                is_even = is_even and size in (0, template.bytes)  # Else they are of several versions.
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
    """Learns fast paths and counts the requests that they serve. One per Handler."""

    __slots__ = ("_batcher", "_counts", "_services")

    def __init__(self, services: Services, batcher: ProduceBatcher, versions: range) -> None:
        self._services = services
        self._batcher = batcher
        self._counts = [0] * versions.stop  # Requests since they were last asked for, by version.

    @property
    def known_count(self) -> int:
        """How many requests the fast paths served since `count`."""
        return sum(self._counts)

    def learn(
        self, request: HandlerRequest, frame: memoryview, placed: Placed, *, is_in_ring: bool
    ) -> ProduceFastPath | None:
        """See ProduceFastPath.learn."""
        return ProduceFastPath.learn(
            request, frame, placed, self._batcher, self._counts, is_in_ring=is_in_ring
        )

    def count(self) -> int:
        """Add the served requests to the counts of requests; return how many they were."""
        total = 0
        for version, count in enumerate(self._counts):
            if count:
                self._services.counts.add(REQUESTS, _PRODUCE, version, count)
                total += count
                self._counts[version] = 0
        return total


def _varint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
