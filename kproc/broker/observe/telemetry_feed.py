"""Feed: buffers a role's lines of telemetry and sends them to the owner of `__kproc_telemetry` (handler_telemetry.py).

A role adds lines; ten times a second it checks whether a batch is due, at most one a second. A Handler that owns the
partition appends the batch to its own log, any other role sends it to the owner by a CALL. Nothing waits for
telemetry: a line that does not fit into the buffer is dropped and counted, and one batch is under way at a time. A
batch whose owner died is sent again, so lines may be stored twice; (role, index, started_ms, number) identifies them.

    line: {"kind", "time_ms", "broker", "role", "index", "started_ms", "number", ... what the kind has}
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from kproc.broker.calls.calls import Call, FromImage, Lost
from kproc.broker.calls.cleaner_calls import Done
from kproc.broker.calls.controller_calls import Change, Changed, OnChanged
from kproc.broker.cluster.image import ClusterImage, PartitionImage
from kproc.broker.cluster.internal_topics import TELEMETRY_TOPIC
from kproc.broker.cluster.values_in_force import current_value
from kproc.broker.config import Config
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import NS_PER_S, Clock
from kproc.wire.compression import Compression
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record

logger = logging.getLogger(__name__)

OFF, METRICS, REQUESTS, ALL = "off", "metrics", "requests", "all"
BYTES_MAX: Final = 1 << 20  # Most bytes of waiting lines in one role.
BATCH_BYTES_MAX: Final = 128 << 10
_GAP_NS: Final = NS_PER_S


class BatchSent(FromImage):
    """A batch, which is the payload, for a partition of the topic."""

    partition: int


TELEMETRY: Final[Call[BatchSent, Done]] = Call("telemetry", BatchSent, Done)
# Gets Lost, or None, when the owner could not be asked.
OnSent = Callable[[Done | Lost | None], None]
Ask = Callable[[int, BatchSent, OnSent, bytes], None]
Create = Callable[[OnChanged], None]
TOPIC_WANTED: Final = Change("auto_create_topics", {"names": [TELEMETRY_TOPIC]})


class Wanted:
    """The settings of telemetry that are in force."""

    __slots__ = ("interval_ns", "metrics", "per_second", "requests")

    def __init__(self, image: ClusterImage, config: Config) -> None:
        def number(name: str) -> int:
            return int(current_value(image, config, name) or 0)

        what = current_value(image, config, "kproc.telemetry")
        self.metrics = what in (METRICS, ALL)
        self.requests = what in (REQUESTS, ALL)
        self.interval_ns = number("kproc.telemetry.interval.ms") * 1_000_000
        self.per_second = number("kproc.telemetry.requests.per.second")

    @property
    def is_on(self) -> bool:
        return self.metrics or self.requests


class Feed:
    """One per role that produces lines. `ask` sends a batch to a Handler, `create` has the topic created."""

    def __init__(
        self,
        agent: AgentId,
        *,
        clock: Clock,
        config: Config,
        image: Callable[[], ClusterImage],
        ask: Ask,
        create: Create,
    ) -> None:
        self._agent = agent
        self._clock = clock
        self._image = image
        self._ask = ask
        self._create = create
        self._head: dict[str, Any] = {
            "broker": config.node_id,
            "role": agent.role,
            "index": agent.index,
            "started_ms": clock.wall_ms(),
        }
        self._lines: deque[tuple[str, bytes, int]] = deque()  # Kind, text, time.
        self._bytes = 0
        self._number = 0
        self._dropped = 0
        # The batch that is under way or to be sent again, and how many lines are lost if it is refused.
        self._unsent: tuple[bytes, int] | None = None
        self._is_asking = False
        self._next_ns = 0
        self._complaint = ""

    def add(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Add a line; if there is no room it is dropped and counted."""
        now_ms = self._clock.wall_ms()
        line = self._line(kind, now_ms, fields)
        if self._bytes + len(line) > BYTES_MAX:
            self._dropped += 1
            return
        self._lines.append((kind, line, now_ms))
        self._bytes += len(line)

    def _line(self, kind: str, now_ms: int, fields: Mapping[str, Any]) -> bytes:
        self._number += 1
        return orjson.dumps({"kind": kind, "time_ms": now_ms, **self._head, "number": self._number, **fields})

    def forget(self) -> None:
        """Drop everything: telemetry was switched off."""
        self._lines.clear()
        self._bytes = self._dropped = 0
        self._unsent = None

    def tick(self) -> None:
        """Send the waiting lines if a batch is due."""
        now_ns = self._clock.now_ns()
        if self._is_asking or now_ns < self._next_ns or not (self._lines or self._unsent):
            return
        self._next_ns = now_ns + _GAP_NS
        topic = self._image().topic(TELEMETRY_TOPIC)
        self._is_asking = True
        if topic is None:
            self._create(self._on_created)
            return
        if self._unsent is None:
            self._unsent = self._pack()
        partition = topic.partitions[self._agent.index % len(topic.partitions)]
        self._send(partition, self._unsent)

    def _send(self, partition: PartitionImage, unsent: tuple[bytes, int]) -> None:
        def on_reply(reply: Done | Lost | None) -> None:
            self._is_asking = False
            if not isinstance(reply, Done):  # The owner is being restarted.
                return
            if (error := reply.error) is not None:
                self._dropped += unsent[1]
                if error != self._complaint:
                    logger.warning("telemetry is lost: %s", error)
            self._complaint = error or ""
            if self._unsent is unsent:
                self._unsent = None

        body = BatchSent(self._image().version, partition.index)
        self._ask(partition.owner, body, on_reply, unsent[0])

    def _on_created(self, reply: Changed | Lost) -> None:
        self._is_asking = False
        for row in reply.fields.get("topics", ()) if isinstance(reply, Changed) else ():
            if row["error_code"] and row["error_message"] != self._complaint:
                self._complaint = row["error_message"]
                logger.warning("the topic %s cannot be made: %s", TELEMETRY_TOPIC, self._complaint)

    def _pack(self) -> tuple[bytes, int]:
        """The oldest lines as one batch, and how many are lost if it is refused."""
        records: list[Record] = []
        size = 0
        while self._lines and (not records or size + len(self._lines[0][1]) <= BATCH_BYTES_MAX):
            kind, line, time_ms = self._lines.popleft()
            size += len(line)
            records.append(Record(kind.encode(), line, time_ms))
        self._bytes -= size
        lost = len(records) + self._dropped
        if self._dropped:  # Added to the batch directly: the buffer may have no room even for this line.
            now_ms = self._clock.wall_ms()
            records.append(
                Record(b"dropped", self._line("dropped", now_ms, {"lines": self._dropped}), now_ms)
            )
            self._dropped = 0
        return bytes(encode_batch(records, codec=Compression.GZIP)), lost
