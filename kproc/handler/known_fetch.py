"""Fetch requests whose shape is known: a consumer that catches up repeats all of its request but the fetch offset.

As for Produce (known_produce.py): a Handler remembers the bytes around the offset with where they led; a frame that has
the same bytes needs no decoding and no lookup. Only this goes so: one partition of ours, no session, what is there
in one range of one file, nobody counting bytes or logging. Records enough are answered without any object; else the
request is parked, and what it watches for is one read. Anything else, each error among it, takes the general way
(api/fetch.py) as if this one had not been tried, also from where it is parked.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kproc.api.context import OwnedPartition, Services
from kproc.api.fetch import DelayedFetch
from kproc.api.fetch_read import find_partition
from kproc.api.fetch_session import targets_of
from kproc.api.produce import ProduceBatcher
from kproc.cluster.image import PartitionImage, TopicImage
from kproc.errors import Corrupt
from kproc.handler.known_produce import ONE_BYTES
from kproc.handler.partitions import Partitions
from kproc.metrics.requests import REQUESTS
from kproc.purgatory.purgatory import DelayedOperation
from kproc.role.dispatch import after_header_tags
from kproc.role.request import ClientPeer, HandlerRequest
from kproc.transport.envelope import HEAD, HEAD_BYTES, SEND_PARTS, encode_range_answer
from kproc.wire.file_range import FileRange
from kproc.wire.header import ApiKey, first_flexible
from kproc.wire.hot import (
    FIRST_KNOWN_FETCH,
    NO_SESSION_EPOCH,
    NO_SESSION_ID,
    KnownFetchAnswer,
    decode_fetch,
    locate_fetch_offset,
)

_FETCH: Final = int(ApiKey.FETCH)
_FLEXIBLE: Final = first_flexible(ApiKey.FETCH)
_OFFSET: Final = Struct(">q")
_CORRELATION: Final = Struct(">i")
_CLIENT_ID_BYTES: Final = Struct(">h")
_START_BYTES: Final = 8  # Frame length, API key, version.
# Bytes and where they lie; no place without bytes; None: the general way says.
Read = tuple[int, FileRange | None] | None


class FetchShape:
    """What the frames of one connection have in common, and where they lead. Void when the metadata changes."""

    __slots__ = (
        "_after",
        "_before",
        "answer",
        "body_at",
        "bytes_max",
        "bytes_min",
        "client_id",
        "misses",
        "offset_at",
        "owned",
        "partition",
        "record_bytes",
        "start",
        "topic",
        "version",
        "wait_ns",
    )

    def __init__(self) -> None:
        self.misses = 0  # Frames of another shape, less those that were answered by this one.
        self.start = b""  # Of no frame: nothing was learned.
        self.record_bytes = self.offset_at = self.bytes_max = self.bytes_min = self.version = 0
        self.body_at = self.wait_ns = 0  # Nanoseconds for which it may be parked; 0: not this way.
        self.client_id: bytes | None = None
        self._before = self._after = b""
        self.owned: OwnedPartition
        self.topic: TopicImage
        self.partition: PartitionImage
        self.answer: KnownFetchAnswer

    def is_of(self, record: memoryview) -> bool:
        """Whether a REQUEST record, or what has as much in front of its one frame, repeats what was learned."""
        at = self.offset_at
        return (
            len(record) == self.record_bytes
            and record[HEAD_BYTES : HEAD_BYTES + _START_BYTES] == self.start
            and record[ONE_BYTES:at].tobytes() == self._before
            and record[at + _OFFSET.size :].tobytes() == self._after
        )

    def frame(self, correlation: bytes, records_bytes: int) -> tuple[bytes, bytes]:
        """What stands before the records of an answer now, and what stands behind them."""
        log = self.owned.log
        return self.answer.frame(correlation, log.end_offset, log.start_offset, records_bytes)

    def learn(self, record: memoryview, offset_at: int) -> None:
        """Take in the bytes; the caller has filled in where they lead."""
        self.record_bytes = len(record)
        self.offset_at = offset_at
        self.start = bytes(record[HEAD_BYTES : HEAD_BYTES + _START_BYTES])
        self._before = bytes(record[ONE_BYTES:offset_at])
        self._after = bytes(record[offset_at + _OFFSET.size :])


class ParkedFetch(DelayedOperation):
    """A request of known shape that waits for records, by the metadata that there was when it came."""

    __slots__ = (
        "_body",
        "_correlation",
        "_fetches",
        "_image_version",
        "_offset",
        "_read",
        "_request",
        "_shape",
    )

    def __init__(
        self,
        fetches: KnownFetches,
        shape: FetchShape,
        request: HandlerRequest,
        correlation: bytes,
        body: bytes,
        offset: int,
    ) -> None:
        super().__init__(fetches.services.clock.now_ns() + shape.wait_ns)
        self._fetches = fetches
        self._image_version = fetches.services.image.version
        self._shape = shape
        self._request = request
        self._body = body
        self._correlation = correlation
        self._offset = offset
        self._read: Read = None

    def park(self) -> None:
        """Wait for an append, the deadline, or the client's end."""
        self.owner = self._request
        self._fetches.services.purgatory.watch(self, (self._shape.owned.key,))
        self._request.when_gone(self._cancel)

    def try_complete(self) -> bool:
        """Something was appended, or the partition is ours no more."""
        read = self._look()
        if read is None:
            self._go_general_way(self.deadline_ns)
            return True
        if read[0] < self._shape.bytes_min:
            return False
        self._read = read
        return self.complete()

    def on_expire(self) -> None:
        """max.wait.ms is over, or nobody may wait any more: what is there, if it is less than was asked for."""
        self._read = self._look()
        if self._read is None or self._read[1] is None:
            self._go_general_way(0)
        else:
            self.complete()

    def _look(self) -> Read:
        """With other metadata (owners, epochs, quotas, what is counted) shapes are void, and so is this."""
        if self._fetches.services.image.version != self._image_version:
            return None
        return self._fetches.read(self._shape, self._offset)

    def on_complete(self) -> None:
        """Answer."""
        assert self._read is not None
        size, records = self._read
        assert records is not None
        head, end = self._shape.frame(self._correlation, size)
        _count(self._shape, size)
        self._request.send_range(head, records, end)

    def _cancel(self) -> None:
        self._fetches.services.purgatory.cancel(self)

    def _go_general_way(self, deadline_ns: int) -> None:
        """Wait on, or be answered, as one that has waited so from the beginning."""
        services = self._fetches.services
        services.purgatory.cancel(self)
        wanted = decode_fetch(self._shape.version, memoryview(self._body))
        targets = list(targets_of(wanted))
        now_ns = services.clock.now_ns()
        fetch = DelayedFetch(self._request, wanted, targets, None, is_incremental=False, now_ns=now_ns)
        fetch.deadline_ns = deadline_ns
        self._request.when_gone(fetch.cancel)
        fetch.resume(self._shape.topic, self._shape.partition)


class KnownFetches:
    """Learns shapes and answers by them. One per Handler."""

    __slots__ = ("_partitions", "_produce", "answered", "services")

    def __init__(self, services: Services, partitions: Partitions, produce: ProduceBatcher) -> None:
        self.services = services
        self._partitions = partitions
        self._produce = produce
        self.answered = 0

    def take(
        self, shape: FetchShape, peer: ClientPeer, record: memoryview, ids: tuple[bytes, bytes, bytes]
    ) -> bool:
        """Answer or park a request of that shape, by connection, sequence and correlation id.

        False: nothing was done.
        """
        if self._produce.gathered:  # A request sees what the Produce requests before it appended.
            self._produce.flush()
        (offset,) = _OFFSET.unpack_from(record, shape.offset_at)
        read = self.read(shape, offset)
        if read is None:
            return False
        size, records = read
        connection, sequence, correlation = ids
        if size >= shape.bytes_min and records is not None:
            head, end = shape.frame(correlation, size)
            _count(shape, size)
            peer.outbox.push(SEND_PARTS, *encode_range_answer(connection, sequence, head, records, end))
        elif shape.wait_ns:
            (correlation_id,) = _CORRELATION.unpack(correlation)
            connection_id, sequence_number, listener, flags = HEAD.unpack_from(record)
            request = HandlerRequest(
                self.services, peer, connection_id, sequence_number, listener, flags,
                _FETCH, shape.version, correlation_id, shape.client_id,
            )  # fmt: skip
            body = bytes(record[shape.body_at :])
            ParkedFetch(self, shape, request, correlation, body, offset).park()
        else:
            return False
        self.services.counts.add(REQUESTS, _FETCH, shape.version)
        self.answered += 1
        if shape.misses:
            shape.misses -= 1
        return True

    def read(self, shape: FetchShape, offset: int) -> Read:
        """What a request of that shape finds now; None for whatever the general way must say."""
        owned = shape.owned
        log = owned.log
        if log.offline_reason is not None or self._partitions.find(owned.key) is not owned:
            return None
        if offset == log.end_offset:
            return 0, None
        if not log.start_offset <= offset < log.end_offset:
            return None
        try:
            found = log.read(offset, shape.bytes_max)
        except (Corrupt, OSError):
            return None  # The general way meets it again, and tells.
        return (found.bytes, found.ranges[0]) if len(found.ranges) == 1 else None

    def notice(
        self, shapes: dict[bytes, FetchShape], version: int, record: memoryview, body_bytes: int
    ) -> None:
        """Consider a record whose one Fetch has been served the general way; its body ends it.

        Another shape than the known one is tried at the first miss, the second, the fourth and so on: shapes that take
        turns, and what can have none, cost nothing to speak of.
        """
        connection = bytes(record[:_START_BYTES])
        shape = shapes.get(connection)
        if shape is None:
            shape = shapes[connection] = FetchShape()
        if shape.is_of(record):
            return
        shape.misses += 1
        if not shape.misses & (shape.misses - 1):
            learned = self._learn(version, record, body_bytes)
            # In its place, not over it: a request that is parked goes on by the old one.
            if learned is not None:
                learned.misses = shape.misses
                shapes[connection] = learned

    def _learn(self, version: int, record: memoryview, body_bytes: int) -> FetchShape | None:
        services = self.services
        body = record[len(record) - body_bytes :]
        if version >= _FLEXIBLE:
            body = after_header_tags(body)
        located = locate_fetch_offset(version, body) if version >= FIRST_KNOWN_FETCH else None
        if located is None or services.traffic is not None:
            return None
        request, offset_at = located
        (target,) = targets_of(request)
        found = find_partition(services, target)
        if (
            request.session_id != NO_SESSION_ID
            or request.session_epoch != NO_SESSION_EPOCH
            or isinstance(found, int)
        ):
            return None
        topic, partition = found
        owned = self._partitions.find((topic.name, partition.index))
        bytes_max = min(request.max_bytes, services.config.fetch_max_bytes, target.request.max_bytes)
        if (
            owned is None
            or partition.owner != services.handler_index
            or target.request.current_leader_epoch not in (-1, partition.leader_epoch)
            or min(request.max_bytes, services.config.fetch_max_bytes) <= 0
        ):
            return None
        answer = KnownFetchAnswer.of(
            version, target.name, target.topic_id, target.index, request.isolation_level
        )
        if answer is None:
            return None
        shape = FetchShape()
        shape.answer, shape.owned, shape.version, shape.bytes_max = answer, owned, version, bytes_max
        shape.topic, shape.partition = topic, partition
        shape.bytes_min = max(1, request.min_bytes if request.max_wait_ms > 0 else 1)
        shape.wait_ns = (
            request.max_wait_ms * 1_000_000 if request.max_wait_ms > 0 and request.min_bytes > 0 else 0
        )
        shape.body_at = len(record) - len(body)
        (id_bytes,) = _CLIENT_ID_BYTES.unpack_from(record, ONE_BYTES)
        id_at = ONE_BYTES + _CLIENT_ID_BYTES.size
        shape.client_id = bytes(record[id_at : id_at + id_bytes]) if id_bytes >= 0 else None
        shape.learn(record, shape.body_at + offset_at)
        return shape


def _count(shape: FetchShape, size: int) -> None:
    """Records left in an answer."""
    traffic = shape.owned.log.traffic
    traffic.bytes_out += size
    traffic.fetches += 1
