"""ProduceFastPath: the cached parse (fast_path.py) of a connection's Produce requests for one partition.

Between the correlation id and the records a producer repeats all bytes: client id, acks, timeout, topic, partition. A
frame with the same bytes goes to the same partition. The length of a frame alone says where its records are, because
everything else in it has a known length. So one unpack compares a whole request, and the request object is one struct
(RepeatedProduce), which goes through the append queue as every other request.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from kproc.broker.metrics.requests import REQUESTS
from kproc.broker.produce.reply import OneProduce, ProduceTemplate, RepeatedProduce, produce_template
from kproc.broker.request.fast_path import (
    RECORD_START_BYTES,
    REPEATED_BYTES_MAX,
    RequestTemplate,
)
from kproc.broker.transport.envelope import HEAD_BYTES
from kproc.wire.header import ApiKey, first_flexible
from kproc.wire.primitives import encode_unsigned_varint

if TYPE_CHECKING:
    from kproc.broker.handler.migrating_connections import KeptAnswers
    from kproc.broker.produce.append_queue import AppendQueue
    from kproc.broker.produce.produce import Destination
    from kproc.broker.request.context import Services
    from kproc.broker.request.request import HandlerRequest
    from kproc.broker.transport.outbox import Outbox

# From this version on every codec is allowed (KIP-110), so the fast path need not check the codec of the records.
FIRST_VERSION: Final = 7
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FLEXIBLE: Final = first_flexible(ApiKey.PRODUCE)
_START_BYTES: Final = 8  # First fields of a frame behind its length: API key, version, correlation id.
_SIZE: Final = Struct(">i")
_IDS: Final = Struct("=QI")  # Connection id and sequence.
_FRAME_AT: Final = HEAD_BYTES + _SIZE.size  # Position of a frame in its ring record, behind its length.
_NO_TAGS: Final = bytes(3)  # Empty tagged fields of partition, topic and request. They follow the records.
# Layouts of a ring record. There is one for each length of the repeated bytes and of the records.
_record_layout: Final = lru_cache(1024)(Struct)


class RequestCount:
    """The number of requests of one API version that fast paths have handled since the last ProduceFastPaths.count."""

    __slots__ = ("requests",)

    def __init__(self) -> None:
        self.requests = 0


class ProduceFastPath:
    """Handles repetitions of a connection's last Produce by comparing bytes.

    Holds the bytes that must be equal, and the partition that the records are appended to.
    """

    __slots__ = (
        "_count",
        "_expected",
        "_log_state",
        "_name",
        "_owned",
        "_prefix",
        "_queue",
        "_record_bytes",
        "_records_from",
        "_records_to",
        "_requests",
        "_shared_template",
        "_topic_id",
        "_unpack",
        "_version",
        "acks",
        "misses",
        "template",
    )

    def __init__(
        self,
        request: HandlerRequest,
        destination: Destination,
        prefix: bytes,
        queue: AppendQueue,
        count: RequestCount,
    ) -> None:
        owned, target = destination.owned, destination.target
        assert owned is not None
        self.misses = 0
        self._requests = RequestTemplate(request)
        self._queue = queue
        self._count = count
        self._version = version = request.api_version
        self.acks = acks = target.acks
        self._owned, self._log_state = owned, owned.log.state
        self._name, self._topic_id = target.name, target.topic_id
        self._prefix = prefix
        # The response without an error. None with acks=0.
        self.template: ProduceTemplate | None = None
        if acks:
            self.template = produce_template(version, target.name, target.topic_id, owned.key[1])
        # Responses that wait for a sync share no SENDS record, because the sync delivers them one by one.
        waits = acks == -1 and request.services.config.waits_for_sync
        self._shared_template = None if waits else self.template
        # The length of ring records for which `_fit` has computed the fields below. -1: none yet.
        self._record_bytes = -1
        self._records_from = self._records_to = 0
        # The bytes of a ring record that must equal the learned ones: listener, flags, length and first fields of the
        # frame; the bytes before the records; the bytes after the records.
        self._expected = b"", b"", b""
        self._unpack = Struct("").unpack

    @classmethod
    def learn(
        cls,
        request: HandlerRequest,
        frame: memoryview,
        destination: Destination,
        queue: AppendQueue,
        count: RequestCount,
    ) -> ProduceFastPath | None:
        """Return a fast path learned from a frame that was parsed, or None if its form is unusual.

        `frame` is without its length.
        """
        version = request.api_version
        if version < FIRST_VERSION or destination.owned is None:
            return None
        size = destination.records_bytes
        if version >= _FLEXIBLE:
            at = len(frame) - len(_NO_TAGS) - size - _varint_bytes(size + 1)
        else:
            at = len(frame) - size - _SIZE.size
        if not _START_BYTES < at <= REPEATED_BYTES_MAX:
            return None
        path = cls(request, destination, bytes(frame[_START_BYTES:at]), queue, count)
        return path if path._matches(frame) else None

    @property
    def outbox(self) -> Outbox | KeptAnswers:
        """The outbox to the Processor of this fast path's connection."""
        return self._requests.peer.outbox

    def handle(self, record: memoryview) -> bool:
        """Queue the request of a ring record with one frame. Return False without effect if it does not repeat."""
        if len(record) != self._record_bytes and not self._fit(len(record)):
            return False
        ids, start, correlation, same, tail = self._unpack(record)
        if (start, same, tail) != self._expected or self._log_state.offline_reason is not None:
            return False
        self._queue.enqueue(
            self._owned,
            record[self._records_from : self._records_to],
            RepeatedProduce(self, ids, correlation, self._shared_template),
        )
        self._count.requests += 1
        if self.misses:
            self.misses -= 1
        return True

    def handle_frame(
        self, frame: memoryview, connection_id: int, sequence: int, listener: int, flags: int
    ) -> bool:
        """Queue the request of one of several frames of a record, or of a frame in an arena.

        Return False without effect if it does not repeat the learned request.
        """
        if not (
            self._matches(frame)
            and self._requests.is_from(listener, flags)
            and self._log_state.offline_reason is None
        ):
            return False
        records = frame[self._records_from - _FRAME_AT : self._records_to - _FRAME_AT]
        ids, correlation = _IDS.pack(connection_id, sequence), bytes(frame[4:_START_BYTES])
        self._queue.enqueue(self._owned, records, RepeatedProduce(self, ids, correlation))
        self._count.requests += 1
        if self.misses:
            self.misses -= 1
        return True

    def parsed(self, repeated: RepeatedProduce) -> OneProduce:
        """Return an ordinary request object for a repeated request that fails."""
        ids = repeated.ids
        request = self._requests.make_from_bytes(ids[:8], ids[8:], repeated.correlation)
        return OneProduce(request, self.acks, self._name, self._topic_id)

    def _matches(self, frame: memoryview) -> bool:
        """Return True if a frame without its length repeats the learned bytes."""
        if len(frame) + _FRAME_AT != self._record_bytes and not self._fit(len(frame) + _FRAME_AT):
            return False
        start, same, tail = self._expected
        return (
            frame[:4] == start[-4:]
            and frame[_START_BYTES : self._records_from - _FRAME_AT] == same
            and frame[self._records_to - _FRAME_AT :] == tail
        )

    def _fit(self, record_bytes: int) -> bool:
        """Compute the layout of a ring record of this length that holds one repeated request.

        Return False if no records have a length that fills such a record.
        """
        frame_bytes = record_bytes - _FRAME_AT
        room = frame_bytes - _START_BYTES - len(self._prefix)  # For the records and their length.
        tail = b""
        if self._version >= _FLEXIBLE:
            tail = _NO_TAGS
            room -= len(tail)
            # The length field is a varint of the records' length + 1. It takes a part of `room`, too.
            width = _varint_bytes(room - _varint_bytes(room) + 1)
            size = room - width
            encoded = encode_unsigned_varint(max(size, 0) + 1)
        else:
            size = room - _SIZE.size
            encoded = _SIZE.pack(size)
        if size <= 0 or len(encoded) + size != room:
            return False
        same = self._prefix + encoded
        key_and_version = _PRODUCE.to_bytes(2, "big") + self._version.to_bytes(2, "big")
        start = self._requests.listener_and_flags + _SIZE.pack(frame_bytes) + key_and_version
        self._expected = start, same, tail
        self._unpack = _record_layout(f"=12s12s4s{len(same)}s{size}x{len(tail)}s").unpack
        self._record_bytes = record_bytes
        self._records_from = RECORD_START_BYTES + len(same)
        self._records_to = self._records_from + size
        return True


class ProduceFastPaths:
    """Learns Produce fast paths and counts the requests that they handle. One per Handler."""

    __slots__ = ("_counts", "_queue", "_services")

    def __init__(self, services: Services, queue: AppendQueue, versions: range) -> None:
        self._services = services
        self._queue = queue
        self._counts = [RequestCount() for _ in range(versions.stop)]  # By API version.

    @property
    def fast_path_count(self) -> int:
        """Number of requests that the fast paths have handled since the last `count`."""
        return sum(each.requests for each in self._counts)

    def learn(
        self, request: HandlerRequest, frame: memoryview, destination: Destination
    ) -> ProduceFastPath | None:
        """Return a fast path learned from a frame that the general path has parsed, or None if its form is unusual.

        `frame` is without its length.
        """
        count = self._counts[request.api_version]
        return ProduceFastPath.learn(request, frame, destination, self._queue, count)

    def count(self) -> int:
        """Add the handled requests to the metrics. Return their number and start again at 0."""
        total = 0
        for version, count in enumerate(self._counts):
            if count.requests:
                self._services.counts.add(REQUESTS, _PRODUCE, version, count.requests)
                total += count.requests
                count.requests = 0
        return total


def _varint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
