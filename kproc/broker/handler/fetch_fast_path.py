"""FetchFastPath: the fast path (fast_path.py) of Fetch requests. A consumer that catches up changes only the offset.

It handles a request for one partition of this Handler, without a fetch session, whose records are in one range of one
file. A read_committed request must also have no aborted transaction in the range. Quotas on bytes and the request log
switch the fast path off.

If there are enough records, the response needs no object. Otherwise the request is parked, and each append costs it one
read. All other requests and all errors fall back to the general path (fetch/fetch.py), even from a parked request.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kproc.broker.cluster.image import PartitionImage, TopicImage
from kproc.broker.fetch.fetch import DelayedFetch
from kproc.broker.fetch.fetch_read import find_partition
from kproc.broker.handler.fast_path import (
    RECORD_START,
    RECORD_START_BYTES,
    REPEATED_BYTES_MAX,
    RequestTemplate,
)
from kproc.broker.handler.owned_partition import OwnedPartition
from kproc.broker.handler.partitions import Partitions
from kproc.broker.metrics.requests import REQUESTS
from kproc.broker.produce.produce import ProduceBatcher
from kproc.broker.request.context import Services
from kproc.broker.request.dispatch import after_header_tags
from kproc.broker.request.fetch_session import targets_of
from kproc.broker.request.request import HandlerRequest
from kproc.broker.role.purgatory import DelayedOperation
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.transport.envelope import HEAD_BYTES, SEND_PARTS, encode_range_answer
from kproc.common.errors import Corrupt
from kproc.wire.file_range import FileRange
from kproc.wire.header import ApiKey, first_flexible
from kproc.wire.hot import (
    FIRST_KNOWN_FETCH,
    NO_SESSION_EPOCH,
    NO_SESSION_ID,
    READ_COMMITTED,
    FetchRequest,
    KnownFetchAnswer,
    decode_fetch,
    locate_fetch_offset,
)

_FETCH: Final = int(ApiKey.FETCH)
_FLEXIBLE: Final = first_flexible(ApiKey.FETCH)
_OFFSET_BYTES: Final = 8
_START_BYTES: Final = 8  # First fields of a frame: its length, API key, version.
# (bytes of the records, their file range). The range is None without records. None as a whole: use the general path.
Read = tuple[int, FileRange | None] | None


class FetchFastPath:
    """The repeated bytes of one connection's Fetch requests, and the partition that they read."""

    __slots__ = (
        "_after",
        "_answer",
        "_before",
        "_body_at",
        "_bytes_max",
        "_fetches",
        "_is_committed",
        "_partition",
        "_record_bytes",
        "_requests",
        "_start",
        "_topic",
        "_unpack",
        "_version",
        "_wait_ns",
        "bytes_min",
        "misses",
        "owned",
    )

    def __init__(
        self,
        fetches: FetchFastPaths,
        request: HandlerRequest,
        record: memoryview,
        wanted: FetchRequest,
        answer: KnownFetchAnswer,
        found: tuple[TopicImage, PartitionImage, OwnedPartition],
        places: tuple[int, int],
    ) -> None:
        """Learn from a ring record that the general path has handled.

        places: the positions of the request's body and of its fetch offset in the record.
        """
        self.misses = 0
        self._fetches = fetches
        self._requests = RequestTemplate(request)
        self._version = request.api_version
        self._answer = answer
        self._topic, self._partition, self.owned = found
        (target,) = targets_of(wanted)
        fetch_bytes_max = min(wanted.max_bytes, fetches.services.config.fetch_max_bytes)
        self._bytes_max = min(fetch_bytes_max, target.request.max_bytes)
        self._is_committed = wanted.isolation_level == READ_COMMITTED
        self.bytes_min = max(1, wanted.min_bytes if wanted.max_wait_ms > 0 else 1)
        # Time that a request may be parked. 0: the general path decides.
        may_wait = wanted.max_wait_ms > 0 and wanted.min_bytes > 0
        self._wait_ns = wanted.max_wait_ms * 1_000_000 if may_wait else 0
        self._body_at, offset_at = places
        self._record_bytes = len(record)
        frame_start = bytes(record[HEAD_BYTES : HEAD_BYTES + _START_BYTES])
        self._start = self._requests.listener_and_flags + frame_start
        self._before = bytes(record[RECORD_START_BYTES:offset_at])
        self._after = bytes(record[offset_at + _OFFSET_BYTES :])
        self._unpack = Struct(
            f"={RECORD_START}{len(self._before)}s{_OFFSET_BYTES}s{len(self._after)}s"
        ).unpack

    def serve(self, record: memoryview) -> bool:
        """Respond to or park a request that equals the learned one except for its offset.

        Returns False without effect if it differs, or if the general path must handle it.
        """
        if len(record) != self._record_bytes:
            return False
        connection, sequence, start, correlation, before, at, after = self._unpack(record)
        if not (before == self._before and after == self._after and start == self._start):
            return False
        fetches = self._fetches
        fetches.see_appends()
        offset = int.from_bytes(at, "big", signed=True)
        read = self.read(offset)
        if read is None:
            return False
        size, records = read
        if size >= self.bytes_min and records is not None:
            head, end = self.frame_around(correlation, size)
            self._requests.peer.outbox.push(
                SEND_PARTS, *encode_range_answer(connection, sequence, head, records, end)
            )
        elif self._wait_ns:
            request = self._requests.make_from_bytes(connection, sequence, correlation)
            body = bytes(record[self._body_at :])
            ParkedFetch(self, fetches.services, request, correlation, body, offset, self._wait_ns).park()
        else:
            return False
        fetches.services.counts.add(REQUESTS, _FETCH, self._version)
        fetches.answered += 1
        if self.misses:
            self.misses -= 1
        return True

    def serve_frame(
        self, frame: memoryview, connection_id: int, sequence: int, listener: int, flags: int
    ) -> bool:
        """Return False: a frame that shares its ring record or lies in an arena falls back to the general path."""
        return False

    def repeats(self, record: memoryview) -> bool:
        """Return True if a record has the learned form. It then fell back for another reason, such as an error."""
        return len(record) == self._record_bytes and self._unpack(record)[4::2] == (self._before, self._after)

    def frame_around(self, correlation: bytes, records_bytes: int) -> tuple[bytes, bytes]:
        """Return the bytes of a response before and after its records. Count the records as sent."""
        log = self.owned.log.state
        log.traffic.bytes_out += records_bytes
        log.traffic.fetches += 1
        return self._answer.frame(
            correlation, log.high_watermark, log.last_stable_offset, log.start_offset, records_bytes
        )

    def read(self, offset: int) -> Read:
        """Find the records at the offset. Return None if the general path must handle the request."""
        owned = self.owned
        log, state = owned.log, owned.log.state
        if state.offline_reason is not None or self._fetches.partitions.find(owned.key) is not owned:
            return None
        end = state.high_watermark
        if offset == end:
            return 0, None
        if not state.start_offset <= offset < end:
            return None
        try:
            found = log.read(offset, self._bytes_max, committed=self._is_committed)
            if self._is_committed and log.aborted_in(offset, found):
                return None
        except (Corrupt, OSError):
            return None  # The general path meets the same error and reports it.
        if not found.ranges:  # All records there belong to open transactions.
            return 0, None
        return (found.bytes, found.ranges[0]) if len(found.ranges) == 1 else None

    def go_general_way(self, request: HandlerRequest, body: bytes, deadline_ns: int) -> None:
        """Pass a parked request to the general path with its original deadline (ns; 0: it is due)."""
        wanted = decode_fetch(self._version, memoryview(body))
        now_ns = self._fetches.services.clock.now_ns()
        targets = list(targets_of(wanted))
        fetch = DelayedFetch(request, wanted, targets, None, is_incremental=False, now_ns=now_ns)
        fetch.deadline_ns = deadline_ns
        request.when_gone(fetch.cancel)
        fetch.resume(self._topic, self._partition)


class ParkedFetch(DelayedOperation):
    """A request of a fast path that waits for records. A change of the metadata sends it to the general path."""

    __slots__ = (
        "_body",
        "_correlation",
        "_image_version",
        "_offset",
        "_path",
        "_read",
        "_request",
        "_services",
    )

    def __init__(
        self,
        path: FetchFastPath,
        services: Services,
        request: HandlerRequest,
        correlation: bytes,
        body: bytes,
        offset: int,
        wait_ns: int,
    ) -> None:
        super().__init__(services.clock.now_ns() + wait_ns)
        self._services = services
        self._image_version = services.image.version
        self._path = path
        self._request = request
        self._body = body
        self._correlation = correlation
        self._offset = offset
        self._read: Read = None

    def park(self) -> None:
        """Wait for an append, the deadline, or the client's disconnect."""
        self.owner = self._request
        self._services.purgatory.watch(self, (self._path.owned.key,))
        self._request.when_gone(self._cancel)

    def try_complete(self) -> bool:
        """Read again after an append, or because the partition has another owner. Respond if there is enough."""
        read = self._look()
        if read is None:
            self._go_general_way(self.deadline_ns)
            return True
        if read[0] < self._path.bytes_min:
            return False
        self._read = read
        return self.complete()

    def on_expire(self) -> None:
        """Respond with the available records, even if they are less than min.bytes.

        Called when max.wait.ms is over, or when parked requests must end because the Handler stops or leaves.
        """
        self._read = self._look()
        if self._read is None or self._read[1] is None:
            self._go_general_way(0)
        else:
            self.complete()

    def _look(self) -> Read:
        """Read again. Return None if the metadata has changed: owners, epochs or quotas may differ."""
        if self._services.image.version != self._image_version:
            return None
        return self._path.read(self._offset)

    def on_complete(self) -> None:
        """Send the response."""
        assert self._read is not None
        size, records = self._read
        assert records is not None
        head, end = self._path.frame_around(self._correlation, size)
        self._request.send_range(head, records, end)

    def _cancel(self) -> None:
        self._services.purgatory.cancel(self)

    def _go_general_way(self, deadline_ns: int) -> None:
        self._services.purgatory.cancel(self)
        self._path.go_general_way(self._request, self._body, deadline_ns)


class FetchFastPaths:
    """Learns Fetch fast paths and counts the requests that they handle. One per Handler."""

    __slots__ = ("_produce", "answered", "partitions", "services")

    def __init__(self, services: Services, partitions: Partitions, produce: ProduceBatcher) -> None:
        self.services = services
        self.partitions = partitions
        self._produce = produce
        self.answered = 0

    def count(self) -> int:
        """Return the number of requests that the fast paths have handled since the last call."""
        answered, self.answered = self.answered, 0
        return answered

    def see_appends(self) -> None:
        """Append queued Produce batches, because a request sees the records of Produce requests before it."""
        if self._produce.gathered:
            self._produce.flush()

    def learn(self, request: HandlerRequest, record: memoryview, body_bytes: int) -> FetchFastPath | None:
        """Return a fast path learned from a ring record that the general path has handled, or None.

        The record holds one frame, whose last `body_bytes` bytes are the request's body. None means that the form is
        unusual, or that the fast path may not handle the partition.
        """
        services, version = self.services, request.api_version
        body = record[len(record) - body_bytes :]
        if version >= _FLEXIBLE:
            body = after_header_tags(body)
        located = locate_fetch_offset(version, body) if version >= FIRST_KNOWN_FETCH else None
        if located is None or len(record) > REPEATED_BYTES_MAX:
            return None
        wanted, offset_in_body = located
        (target,) = targets_of(wanted)
        found = find_partition(services, target)
        if (
            wanted.session_id != NO_SESSION_ID
            or wanted.session_epoch != NO_SESSION_EPOCH
            or isinstance(found, int)
        ):
            return None
        topic, partition = found
        owned = self.partitions.find((topic.name, partition.index))
        if (
            owned is None
            or owned.is_recovering
            # The client may not read the topic. The result holds until the ACLs change, which drops all fast paths.
            or not request.is_allowed(Operation.READ, ResourceType.TOPIC, topic.name, is_question=True)
            or partition.owner != services.handler_index
            or target.request.current_leader_epoch not in (-1, partition.leader_epoch)
            or min(wanted.max_bytes, services.config.fetch_max_bytes) <= 0
        ):
            return None
        answer = KnownFetchAnswer.of(
            version, target.name, target.topic_id, target.index, wanted.isolation_level
        )
        if answer is None:
            return None
        body_at = len(record) - len(body)
        places = body_at, body_at + offset_in_body
        return FetchFastPath(self, request, record, wanted, answer, (topic, partition, owned), places)
