"""Fetch requests whose shape is known: a consumer that catches up repeats all of its request but the fetch offset.

As for Produce (known_produce.py): a Handler remembers the bytes around the offset with where they led; a frame that has
the same bytes needs no decoding, no lookup and no object that could wait. Only what is answered at once goes this way:
one partition of ours, no session, records enough, in one range of one file, nobody counting bytes or logging. Anything
else, each error among it, takes the general way (api/fetch.py) as if this one had not been tried.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kproc.api.context import OwnedPartition, Services
from kproc.api.fetch import find_partition
from kproc.api.fetch_session import targets_of
from kproc.api.produce import ProduceBatcher
from kproc.errors import Corrupt
from kproc.metrics.requests import REQUESTS
from kproc.server.dispatch import after_header_tags
from kproc.server.known_produce import ONE_BYTES
from kproc.server.partitions import Partitions
from kproc.transport.envelope import HEAD_BYTES, SEND_PARTS, encode_range_answer
from kproc.transport.outbox import Outbox
from kproc.wire.header import ApiKey, first_flexible
from kproc.wire.hot import (
    FIRST_KNOWN_FETCH,
    NO_SESSION_EPOCH,
    NO_SESSION_ID,
    KnownFetchAnswer,
    locate_fetch_offset,
)

_FETCH: Final = int(ApiKey.FETCH)
_FLEXIBLE: Final = first_flexible(ApiKey.FETCH)
_OFFSET: Final = Struct(">q")
_START_BYTES: Final = 8  # Frame length, API key, version.


class FetchShape:
    """What the frames of one connection have in common, and where they lead. Void when the metadata changes."""

    __slots__ = (
        "_after",
        "_before",
        "answer",
        "bytes_max",
        "bytes_min",
        "misses",
        "offset_at",
        "owned",
        "record_bytes",
        "start",
        "version",
    )

    def __init__(self) -> None:
        self.misses = 0  # Frames of another shape, less those that were answered by this one.
        self.start = b""  # Of no frame: nothing was learned.
        self.record_bytes = self.offset_at = self.bytes_max = self.bytes_min = self.version = 0
        self._before = self._after = b""
        self.owned: OwnedPartition
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

    def learn(self, record: memoryview, offset_at: int) -> None:
        """Take in the bytes; the caller has filled in where they lead."""
        self.record_bytes = len(record)
        self.offset_at = offset_at
        self.start = bytes(record[HEAD_BYTES : HEAD_BYTES + _START_BYTES])
        self._before = bytes(record[ONE_BYTES:offset_at])
        self._after = bytes(record[offset_at + _OFFSET.size :])


class KnownFetches:
    """Learns shapes and answers by them. One per Handler."""

    __slots__ = ("_partitions", "_produce", "_services", "answered")

    def __init__(self, services: Services, partitions: Partitions, produce: ProduceBatcher) -> None:
        self._services = services
        self._partitions = partitions
        self._produce = produce
        self.answered = 0

    def answer(
        self, shape: FetchShape, outbox: Outbox, record: memoryview, ids: tuple[bytes, bytes, bytes]
    ) -> bool:
        """Answer a request of that shape, by connection, sequence and correlation id. False: nothing was done."""
        owned = shape.owned
        log = owned.log
        if log.offline_reason is not None or self._partitions.find(owned.key) is not owned:
            return False
        if self._produce.gathered:  # A request sees what the Produce requests before it appended.
            self._produce.flush()
        (offset,) = _OFFSET.unpack_from(record, shape.offset_at)
        if not log.start_offset <= offset < log.end_offset:
            return False
        try:
            found = log.read(offset, shape.bytes_max)
        except (Corrupt, OSError):
            return False  # The general way meets it again, and tells.
        if len(found.ranges) != 1 or found.bytes < shape.bytes_min:
            return False
        connection, sequence, correlation = ids
        head, end = shape.answer.frame(correlation, log.end_offset, log.start_offset, found.bytes)
        outbox.push(SEND_PARTS, *encode_range_answer(connection, sequence, head, found.ranges[0], end))
        self._services.counts.add(REQUESTS, _FETCH, shape.version)
        self.answered += 1
        if shape.misses:
            shape.misses -= 1
        return True

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
            self._learn(shape, version, record, body_bytes)

    def _learn(self, shape: FetchShape, version: int, record: memoryview, body_bytes: int) -> None:
        services = self._services
        body = record[len(record) - body_bytes :]
        if version >= _FLEXIBLE:
            body = after_header_tags(body)
        located = locate_fetch_offset(version, body) if version >= FIRST_KNOWN_FETCH else None
        if located is None or services.traffic is not None:
            return
        request, offset_at = located
        (target,) = targets_of(request)
        found = find_partition(services, target)
        if (
            request.session_id != NO_SESSION_ID
            or request.session_epoch != NO_SESSION_EPOCH
            or isinstance(found, int)
        ):
            return
        name, partition = found
        owned = self._partitions.find((name, partition.index))
        bytes_max = min(request.max_bytes, services.config.fetch_max_bytes, target.request.max_bytes)
        if (
            owned is None
            or partition.owner != services.handler_index
            or target.request.current_leader_epoch not in (-1, partition.leader_epoch)
            or min(request.max_bytes, services.config.fetch_max_bytes) <= 0
        ):
            return
        answer = KnownFetchAnswer.of(
            version, target.name, target.topic_id, target.index, request.isolation_level
        )
        if answer is None:
            return
        shape.answer, shape.owned, shape.version, shape.bytes_max = answer, owned, version, bytes_max
        shape.bytes_min = max(1, request.min_bytes if request.max_wait_ms > 0 else 1)
        shape.learn(record, len(record) - len(body) + offset_at)
