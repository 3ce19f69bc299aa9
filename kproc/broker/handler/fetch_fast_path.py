"""FetchFastPath: the fast path (fast_path.py) of Fetch requests: a consumer that catches up changes only the offset.

It serves requests for one partition of ours, without a session, whose records are in one range of one file, while no
quota counts bytes and the request log is off; a read_committed one if no transaction in the range was aborted. If there
are enough records, the answer needs no object; otherwise the request is parked, and each append costs it one read.
Everything else, errors included, falls back to the general path (fetch/fetch.py) as if this one had not been tried,
even for a parked request.
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
from kproc.broker.handler.partitions import Partitions
from kproc.broker.metrics.requests import REQUESTS
from kproc.broker.produce.produce import ProduceBatcher
from kproc.broker.request.context import OwnedPartition, Services
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
_START_BYTES: Final = 8  # Of a frame: its length, API key, version.
# (bytes, their place), the place None if there are no bytes; None: use the general path.
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
        """From a record that the general path served, with the positions of the body and the offset in it."""
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
        # How long a request may be parked; 0: parking is left to the general path.
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
        """Answer or park a request that equals the learned one except for its offset."""
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
        """Always False: a frame among several, or in a block, falls back to the general path."""
        return False

    def repeats(self, record: memoryview) -> bool:
        """Whether a record has the learned form, so that it fell back for another reason."""
        return len(record) == self._record_bytes and self._unpack(record)[4::2] == (self._before, self._after)

    def frame_around(self, correlation: bytes, records_bytes: int) -> tuple[bytes, bytes]:
        """The bytes of an answer before and behind its records; the records are counted as sent."""
        log = self.owned.log.state
        log.traffic.bytes_out += records_bytes
        log.traffic.fetches += 1
        return self._answer.frame(
            correlation, log.high_watermark, log.last_stable_offset, log.start_offset, records_bytes
        )

    def read(self, offset: int) -> Read:
        """Find the records at the offset; None if the general path must answer."""
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
        if not found.ranges:  # Only of open transactions.
            return 0, None
        return (found.bytes, found.ranges[0]) if len(found.ranges) == 1 else None

    def go_general_way(self, request: HandlerRequest, body: bytes, deadline_ns: int) -> None:
        """Pass a parked request to the general path, as if it had waited there from the beginning."""
        wanted = decode_fetch(self._version, memoryview(body))
        now_ns = self._fetches.services.clock.now_ns()
        targets = list(targets_of(wanted))
        fetch = DelayedFetch(request, wanted, targets, None, is_incremental=False, now_ns=now_ns)
        fetch.deadline_ns = deadline_ns
        request.when_gone(fetch.cancel)
        fetch.resume(self._topic, self._partition)


class ParkedFetch(DelayedOperation):
    """A request that waits for records. It is valid for the metadata at the time of its arrival."""

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
        """Wait for an append, the deadline, or the client's end."""
        self.owner = self._request
        self._services.purgatory.watch(self, (self._path.owned.key,))
        self._request.when_gone(self._cancel)

    def try_complete(self) -> bool:
        """Try to answer: records were appended, or the partition has another owner."""
        read = self._look()
        if read is None:
            self._go_general_way(self.deadline_ns)
            return True
        if read[0] < self._path.bytes_min:
            return False
        self._read = read
        return self.complete()

    def on_expire(self) -> None:
        """Answer with what is there, even if it is less than asked for: max.wait.ms is over, or waiting must end."""
        self._read = self._look()
        if self._read is None or self._read[1] is None:
            self._go_general_way(0)
        else:
            self.complete()

    def _look(self) -> Read:
        """Read again; with new metadata (owners, epochs, quotas) the request falls back, as all fast paths
        are invalid.
        """
        if self._services.image.version != self._image_version:
            return None
        return self._path.read(self._offset)

    def on_complete(self) -> None:
        """Answer."""
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
    """Learns fast paths and counts the requests that they answer. One per Handler."""

    __slots__ = ("_produce", "answered", "partitions", "services")

    def __init__(self, services: Services, partitions: Partitions, produce: ProduceBatcher) -> None:
        self.services = services
        self.partitions = partitions
        self._produce = produce
        self.answered = 0

    def count(self) -> int:
        """How many requests they answered since the last time."""
        answered, self.answered = self.answered, 0
        return answered

    def see_appends(self) -> None:
        """A request sees what the Produce requests before it appended."""
        if self._produce.gathered:
            self._produce.flush()

    def learn(self, request: HandlerRequest, record: memoryview, body_bytes: int) -> FetchFastPath | None:
        """Learn from a record whose one frame the general path served; None if it is not of the usual form."""
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
            # It was refused; and paths are dropped with each change of the ACLs, as with any of the metadata.
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
