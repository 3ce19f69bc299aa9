"""FetchFastPath: the fast path (fast_path.py) of Fetch requests that differ from the last one only in the offset.

It handles a request for one partition of this Handler, without a fetch session, whose records are in one range of one
file. A read_committed request must also have no aborted transaction in the range. Quotas on bytes and the request log
switch the fast path off.

It replaces the decoding and the look-up of the partition. If there are enough records, the response is encoded without
a request object. Otherwise the request is parked as on the general path (fetch/fetch.py). All other requests and all
errors fall back to the general path.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from kproc.broker.fetch.delayed_fetch import DelayedFetch, FetchPart
from kproc.broker.fetch.fetch import ClientFetch
from kproc.broker.fetch.fetch_read import FoundPartition, PartitionRead, find_partition, read_partition
from kproc.broker.metrics.requests import REQUESTS
from kproc.broker.request.context import Services
from kproc.broker.request.dispatch import after_header_tags
from kproc.broker.request.fast_path import (
    RECORD_START,
    RECORD_START_BYTES,
    REPEATED_BYTES_MAX,
    RequestTemplate,
)
from kproc.broker.request.fetch_session import FetchTarget, targets_of
from kproc.broker.request.request import HandlerRequest
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.transport.envelope import HEAD_BYTES, SEND_PARTS, encode_range_answer
from kproc.common.clock import NS_PER_MS
from kproc.common.reading import READ_COMMITTED
from kproc.wire.header import ApiKey, first_flexible
from kproc.wire.hot import (
    FETCH_VERSIONS,
    FIRST_TEMPLATE,
    NO_SESSION,
    NO_SESSION_EPOCH,
    NO_SESSION_ID,
    FetchRequest,
    fetch_template,
    locate_fetch_offset,
)

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.produce.append_queue import AppendQueue

_FETCH: Final = int(ApiKey.FETCH)
_FLEXIBLE: Final = first_flexible(ApiKey.FETCH)
_OFFSET_BYTES: Final = 8
_START_BYTES: Final = 8  # First fields of a frame: its length, API key, version.


class FetchFastPath:
    """Handles repetitions of a connection's last Fetch by comparing bytes.

    Holds the bytes that must be equal, and the partition that they name.
    """

    __slots__ = (
        "_bytes_max",
        "_bytes_min",
        "_expected",
        "_fetches",
        "_found",
        "_frame",
        "_is_committed",
        "_key",
        "_owned",
        "_record_bytes",
        "_request",
        "_requests",
        "_target",
        "_traffic",
        "_unpack",
        "_version",
        "_wait_ns",
        "_wanted",
        "misses",
    )

    def __init__(
        self,
        fetches: FetchFastPaths,
        request: HandlerRequest,
        record: memoryview,
        decoded: FetchRequest,
        found: FoundPartition,
        owned: OwnedPartition,
        offset_at: int,
    ) -> None:
        """Store the bytes of a Fetch that the general path has handled, to recognize its repetitions.

        record: the ring record of the request. offset_at: the position of the fetch offset in `record`.
        """
        self.misses = 0
        self._fetches = fetches
        self._requests = RequestTemplate(request)
        self._version = request.api_version
        self._found, self._owned = found, owned
        self._traffic = owned.log.state.traffic
        self._request = decoded
        (self._target,) = targets_of(decoded)
        self._wanted = self._target.request  # Its offset is that of the request that is being handled.
        self._bytes_max = min(decoded.max_bytes, fetches.services.config.fetch_max_bytes)
        self._is_committed = decoded.isolation_level == READ_COMMITTED
        self._key = key = self._target.topic_id or (self._target.name or "").encode()
        self._frame = fetch_template(self._version, len(key), self._is_committed).frame
        self._bytes_min = max(1, decoded.min_bytes if decoded.max_wait_ms > 0 else 1)
        # Time in ns that a request may wait. 0: a request without enough records falls back to the general path.
        self._wait_ns = (
            decoded.max_wait_ms * NS_PER_MS if decoded.max_wait_ms > 0 and decoded.min_bytes > 0 else 0
        )
        self._learn_record(record, offset_at)

    def _learn_record(self, record: memoryview, offset_at: int) -> None:
        """Store the bytes of a ring record that a repetition must equal, and the layout of such a record."""
        self._record_bytes = len(record)
        frame_start = bytes(record[HEAD_BYTES : HEAD_BYTES + _START_BYTES])
        start = self._requests.listener_and_flags + frame_start
        before, after = (
            bytes(record[RECORD_START_BYTES:offset_at]),
            bytes(record[offset_at + _OFFSET_BYTES :]),
        )
        # All bytes must be equal but connection id, sequence, correlation id and fetch offset.
        self._expected = start, before, after
        self._unpack = Struct(f"={RECORD_START}{len(before)}s{_OFFSET_BYTES}s{len(after)}s").unpack

    def handle(self, record: memoryview) -> bool:
        """Respond to or park a request that equals the learned one except for its offset.

        Returns False without effect if it differs, or if the general path must handle it.
        """
        if len(record) != self._record_bytes:
            return False
        connection, sequence, start, correlation, before, at, after = self._unpack(record)
        if (start, before, after) != self._expected:
            return False
        fetches, wanted = self._fetches, self._wanted
        if fetches.queue.queued:
            fetches.queue.flush()  # A request sees the records of the Produce requests before it.
        wanted.fetch_offset = int.from_bytes(at, "big", signed=True)
        read = read_partition(
            fetches.partitions,
            self._found,
            wanted,
            self._bytes_max,
            minimum_one=True,
            committed=self._is_committed,
        )
        size, ranges = read.bytes, read.ranges
        if size >= self._bytes_min and len(ranges) == 1 and read.aborted is None:
            traffic = self._traffic
            traffic.bytes_out += size
            traffic.fetches += 1
            head, end = self._frame(
                correlation, NO_SESSION, self._key, wanted.index, read.end, read.stable, read.start, size
            )
            answer = encode_range_answer(connection + sequence, head, ranges[0], end)
            self._requests.peer.outbox.push(SEND_PARTS, answer)
        elif self._wait_ns and not read.error and read.end >= 0 and size < self._bytes_min:
            request = self._requests.make_from_bytes(connection, sequence, correlation)
            self._park(request, correlation, read)
        else:
            return False
        fetches.counts[self._version] += 1
        if self.misses:
            self.misses -= 1
        return True

    def _park(self, request: HandlerRequest, correlation: bytes, read: PartitionRead) -> None:
        """Park a request, whose first read is `read`, until its partition has min.bytes or max.wait.ms is over."""
        services, (topic, _) = self._fetches.services, self._found
        # A copy, because the next request of the connection overwrites the offset in `_wanted`.
        part = FetchPart(topic.name, topic.topic_id, replace(self._wanted))
        delayed = DelayedFetch(
            services,
            (part,),
            partial(self._on_done, request, correlation),
            services.clock.now_ns() + self._wait_ns,
            self._bytes_max,
            self._is_committed,
        )
        delayed.bytes_min = self._bytes_min
        delayed.reads = [read]
        delayed.owner = request
        purgatory = services.owner.purgatory
        purgatory.watch(delayed, (self._owned.key,))
        request.when_gone(partial(purgatory.cancel, delayed))

    def _on_done(self, request: HandlerRequest, correlation: bytes, delayed: DelayedFetch) -> None:
        """Respond to a parked request. Pass errors and results that are rare to the general path (ClientFetch)."""
        (read,) = delayed.reads
        services = self._fetches.services
        if (
            len(read.ranges) == 1
            and read.aborted is None
            and not (delayed.has_moved or services.client_rates.is_on)
        ):
            traffic = self._traffic
            traffic.bytes_out += read.bytes
            traffic.fetches += 1
            head, end = self._frame(
                correlation,
                NO_SESSION,
                self._key,
                self._wanted.index,
                read.end,
                read.stable,
                read.start,
                read.bytes,
            )
            request.send_range(head, read.ranges[0], end)
            return
        target = FetchTarget(self._target.name, self._target.topic_id, delayed.parts[0].wanted)
        target.found_name = self._found[0].name
        fetch = ClientFetch(
            request, self._request, [target], None, is_incremental=False, due_ns=delayed.deadline_ns
        )
        fetch.resume(delayed)

    def handle_frame(
        self, frame: memoryview, connection_id: int, sequence: int, listener: int, flags: int
    ) -> bool:
        """Return False, so that the general path handles the request.

        Called for a frame that shares its ring record with other frames, or that lies in an arena block.
        """
        return False

    def repeats(self, record: memoryview) -> bool:
        """Return True if `record` repeats the learned request. `handle` then returned False for another reason.

        Such a reason is an error, or a result that only the general path can encode.
        """
        return len(record) == self._record_bytes and self._unpack(record)[4::2] == self._expected[1:]


class FetchFastPaths:
    """Learns Fetch fast paths and counts the requests that they handle. One per Handler."""

    __slots__ = ("counts", "partitions", "queue", "services")

    def __init__(self, services: Services, queue: AppendQueue) -> None:
        self.services = services
        self.partitions = services.owner.partitions
        self.queue = queue
        self.counts = [0] * FETCH_VERSIONS.stop  # Requests since the last call of count(), by API version.

    @property
    def fast_path_count(self) -> int:
        """Number of requests that the fast paths have handled since the last `count`."""
        return sum(self.counts)

    def count(self) -> int:
        """Add the handled requests to the metrics. Return their number and start again at 0."""
        total = self.fast_path_count
        for version, count in enumerate(self.counts):
            if count:
                self.services.counts.add(REQUESTS, _FETCH, version, count)
                self.counts[version] = 0
        return total

    def learn(self, request: HandlerRequest, record: memoryview, body_bytes: int) -> FetchFastPath | None:
        """Return a fast path learned from a ring record that the general path has handled, or None.

        The record holds one frame, whose last `body_bytes` bytes are the request's body. None means that the form is
        unusual, or that the fast path may not handle the partition.
        """
        services, version = self.services, request.api_version
        body = record[len(record) - body_bytes :]
        if version >= _FLEXIBLE:
            body = after_header_tags(body)
        located = locate_fetch_offset(version, body) if version >= FIRST_TEMPLATE else None
        if located is None or len(record) > REPEATED_BYTES_MAX:
            return None
        wanted, offset_in_body = located
        (target,) = targets_of(wanted)
        found = find_partition(services.image, target)
        if (
            # KIP-227: a request of a session changes the session's state at each Fetch. Only the general path
            # can do that.
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
            # Learn no topic that the client may not read. A permission holds until the ACLs change, and that change
            # discards all fast paths.
            or not request.is_allowed(Operation.READ, ResourceType.TOPIC, topic.name, is_question=True)
            or partition.owner != services.handler_index
            or target.request.current_leader_epoch not in (-1, partition.leader_epoch)
            or min(wanted.max_bytes, services.config.fetch_max_bytes) <= 0
        ):
            return None
        offset_at = len(record) - len(body) + offset_in_body
        return FetchFastPath(self, request, record, wanted, found, owned, offset_at)
