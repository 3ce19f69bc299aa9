"""Shard: one coordinator and its log: the log is replayed into the coordinator, which then writes to it.

The replay runs in chunks, one in each duty cycle. Writes are gathered until the end of a drain: the commits of many
consumers become one batch, one pwritev and one fdatasync.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kproc.api.context import OwnedPartition
from kproc.clock import Clock
from kproc.config import Config
from kproc.coordinator.deadlines import Deadlines
from kproc.coordinator.rules import Coordinator, CoordinatorLog, DueOf, TopicIdOf, Write
from kproc.errors import Corrupt, ErrorCode, KafkaError
from kproc.storage.validate import COORDINATOR
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.record_batch import crc_of, decode_records, encode_batch, parse_header
from kproc.wire.records import Record

logger = logging.getLogger(__name__)

# One chunk of the replay: a few hundred records, a few ms.
LOAD_CHUNK_BYTES: Final = 64 << 10
# What a record takes in its batch besides key and value, at most: lengths, deltas, attributes, header count.
_RECORD_OVERHEAD_BYTES: Final = 32
_BATCH_OVERHEAD_BYTES: Final = 128

C = TypeVar("C", bound=Coordinator)


class CoordinatorKind(NamedTuple, Generic[C]):
    """What distinguishes the coordinators of one internal topic."""

    topic: str
    make: Callable[[CoordinatorLog, Deadlines[DueOf]], C]  # One for each partition.
    codec: int  # Of its records.
    sweep_interval_ms: int


class Shard(Generic[C]):
    """One partition of an internal topic, owned by this Handler."""

    def __init__(
        self,
        kind: CoordinatorKind[C],
        owned: OwnedPartition,
        config: Config,
        clock: Clock,
        deadlines: Deadlines[DueOf],
        dirty: dict[Shard[Any], None],
    ) -> None:
        self.owned = owned
        self.coordinator = kind.make(self, deadlines)
        self.is_loaded = False
        self.is_damaged = False
        self._codec = kind.codec
        self._clock = clock
        self._waits_for_sync = config.kproc_flush == "group"
        self._dirty = dirty
        self._writes: list[Write] = []
        self._next_offset = owned.log.start_offset

    # -- loading -----------------------------------------------------------------------------------------------

    def load_some(self, topic_id_of: TopicIdOf) -> None:
        """Replay a chunk of the log; with the last one the coordinator can be asked."""
        log = self.owned.log
        try:
            if self._next_offset < log.end_offset:
                self._replay(log.read_bytes(self._next_offset, LOAD_CHUNK_BYTES))
        except (Corrupt, KafkaError, OSError, ValueError) as error:
            # As in Kafka, such a partition is not coordinated: to lose a part of its state would be worse.
            self.is_damaged = True
            logger.error("the coordinator of %s-%d cannot be loaded: %s", *self.owned.key, error)
            return
        if self._next_offset >= log.end_offset:
            self.is_loaded = True
            self.coordinator.finish_loading(topic_id_of)

    def _replay(self, data: bytes) -> None:
        """The whole batches of `data`; the last may be cut short."""
        view = memoryview(data)
        position = 0
        while position + HEADER_BYTES <= len(data):
            header = parse_header(view, position)
            end = position + header.total_bytes
            if end > len(data):
                break
            batch = view[position:end]
            if crc_of(batch) != header.crc:
                raise Corrupt(f"the batch at offset {header.base_offset} is damaged")
            if not header.is_control:
                for record in decode_records(batch):
                    self.coordinator.replay(record.key, record.value)
            self._next_offset = header.last_offset + 1
            position = end
        if not position:
            raise Corrupt(f"no batch at offset {self._next_offset}")

    # -- writing -----------------------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        """Append in the order of the calls, at the end of the duty cycle at the latest."""
        self._writes.append(write)
        self._dirty[self] = None

    def abandon(self) -> None:
        """Drop the gathered writes: nothing more is written."""
        writes, self._writes = self._writes, []
        for write in writes:
            write.on_done(ErrorCode.UNKNOWN_SERVER_ERROR)

    def flush(self) -> None:
        """Append the gathered writes now."""
        if not self._writes:
            return
        writes, self._writes = self._writes, []
        batches, spans = self._pack(writes)
        codes: list[int] = []
        if batches:
            results = self.owned.log.append([memoryview(batch) for batch in batches], COORDINATOR)
            codes = [result.error_code for result in results]
            self.owned.after_append()
        appended: list[Write] = []
        for write, (first, last) in zip(writes, spans, strict=True):
            code = next(filter(None, codes[first:last]), 0)
            if code:
                write.on_done(code)
                continue
            if write.on_appended is not None:
                write.on_appended()
            appended.append(write)
        self._when_durable(appended)

    def _pack(self, writes: Sequence[Write]) -> tuple[list[bytearray], list[tuple[int, int]]]:
        """The batches of all records in order, and for each write which of them (first, last + 1) hold its own."""
        size_max = self.owned.log.config.max_message_bytes
        now_ms = self._clock.wall_ms()
        batches: list[bytearray] = []
        records: list[Record] = []
        spans: list[tuple[int, int]] = []
        size = _BATCH_OVERHEAD_BYTES
        for write in writes:
            first = len(batches)
            for key, value in write.records:
                length = len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES
                if records and size + length > size_max:
                    batches.append(encode_batch(records, codec=self._codec))
                    records, size = [], _BATCH_OVERHEAD_BYTES
                records.append(Record(key, value, now_ms))
                size += length
            spans.append((first, len(batches) + bool(records and write.records)))
        if records:
            batches.append(encode_batch(records, codec=self._codec))
        return batches, spans

    def _when_durable(self, writes: Sequence[Write]) -> None:
        """Call back when everything that the log holds now is as durable as acks=all promises."""

        def on_synced(code: int) -> None:
            for write in writes:
                write.on_done(code)

        if not writes:
            return
        if self._waits_for_sync:
            self.owned.when_synced(self.owned.log.end_offset, on_synced)
        else:
            on_synced(ErrorCode.NONE)
