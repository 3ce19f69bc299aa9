"""CoordinatorLog: one coordinator and its log. It loads the coordinator from the log, and appends its writes.

The load runs in steps, one per duty cycle: first it reads the log, then it replays the last record of each key
(coordinator_replay.py), then the coordinator prepares for requests (steps.py). Writes are queued until the end of the
duty cycle, so that the commits of many consumers become one batch, one pwritev and one fdatasync. A batch belongs to
one transaction or to none, so a write of another producer begins another batch. A marker is appended behind all earlier
writes and takes effect at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from kproc.broker.coordinator.coordinator_replay import CoordinatorReplay
from kproc.broker.coordinator.rules import (
    Code,
    Coordinator,
    DueOf,
    KnownTopics,
    Marker,
    OnCode,
    Producer,
    Write,
)
from kproc.broker.coordinator.steps import Steps, Work
from kproc.broker.storage.fs import Shortage
from kproc.broker.storage.results import AppendResult
from kproc.broker.storage.validate import COORDINATOR
from kproc.common.clock import Clock
from kproc.common.containment import Containment
from kproc.common.deadlines import Deadlines
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from kproc.wire.record_batch import TRANSACTIONAL, encode_batch
from kproc.wire.records import Record

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.handler.owned_partition import OwnedPartition

logger = logging.getLogger(__name__)

# Bytes of the log that are read at once.
LOAD_CHUNK_BYTES: Final = 128 << 10
# Costs of a replay, in units of about 1 us: of each record, and the bytes of its value that cost one unit.
_REPLAY_COST: Final = 7
_VALUE_BYTES: Final = 10
# The cost of replayed records after which a step may end.
_PART_COST: Final = 200
# Upper limit of a record's bytes besides key and value: lengths, deltas, attributes, header count.
_RECORD_OVERHEAD_BYTES: Final = 32
_BATCH_OVERHEAD_BYTES: Final = 128

C = TypeVar("C", bound=Coordinator)


class CoordinatorKind(NamedTuple, Generic[C]):
    """One kind of coordinator: the internal topic, the constructor, and the settings for the runtime."""

    topic: str
    # Creates the coordinator of a partition. The int is its epoch.
    make: Callable[[CoordinatorLog[C], Deadlines[DueOf], int], C]
    codec: int  # The compression codec of its records.
    sweep_interval_ms: int
    # An eager coordinator is loaded as soon as this Handler owns its partition, with an epoch (coordinator_epochs.py),
    # because it has work without any request, such as unsent markers. Others are loaded at their first request, with
    # epoch 0.
    is_eager: bool = False
    # (coordinator, producer id, is commit): called when a marker was appended. None: the coordinator's records are
    # never part of transactions.
    end_transaction: Callable[[C, int, bool], None] | None = None
    # Returns for the key of an update the key of the record that it changes, its base, and None for any other key. A
    # replay keeps all updates behind the last record of their base (coordinator_replay.py). None instead of a function:
    # the kind has no updates, and a replay keeps only the last record of each key.
    base_key_of: Callable[[bytes], bytes | None] | None = None


class Guard(NamedTuple):
    """Runs code that changes a coordinator. After an unexpected exception it discards the coordinator, for a reload."""

    containment: Containment
    discard: Callable[[Coordinator], None]

    def run(self, coordinator: Coordinator, what: str, work: Callable[..., object], *arguments: Any) -> bool:
        """Run `work` with `arguments`. Return False if it raised.

        `what` names the work in the log line of the exception.
        """
        if self.containment.run(what, None, work, *arguments):
            return True
        self.discard(coordinator)
        return False


class _Span(NamedTuple):
    """Consecutive records of one coordinator's write that were encoded into the same batch."""

    batch: int  # The number of the batch.
    at: int  # The number of the first record within the batch.
    length: int


class CoordinatorLog(Generic[C]):
    """A coordinator with its log: one partition of an internal topic that this Handler owns."""

    def __init__(
        self,
        kind: CoordinatorKind[C],
        owned: OwnedPartition,
        config: Config,
        clock: Clock,
        deadlines: Deadlines[DueOf],
        dirty: dict[CoordinatorLog[Any], None],
        epoch: int,
        guard: Guard,
    ) -> None:
        self.owned = owned
        self._guard = guard
        self.coordinator = kind.make(self, deadlines, epoch)
        self.began_ns = clock.now_ns()
        self.is_replayed = False  # True when the coordinator has all records and prepares for requests.
        self.is_loaded = False
        self.is_damaged = False
        # True if a Shortage ended the load. The load starts again later, with another CoordinatorLog.
        self.is_starved = False
        # True if a Shortage interrupted a change of the log, which then rejects writes until it is opened again.
        self.is_interrupted = False
        self._codec = kind.codec
        self._end_transaction = kind.end_transaction
        self._clock = clock
        self._waits_for_sync = config.kproc_flush == "group"
        self._dirty = dirty
        self._writes: list[Write] = []
        self._is_released = False
        self._steps = Steps()  # Of the replay.
        self._steps.add(self._replay_all(kind))

    # -- loading -----------------------------------------------------------------------------------------------

    def load_some(self, topics: KnownTopics) -> None:
        """Run one step of the load: read a chunk of the log, replay some of its records, or prepare for requests."""
        if not self.is_replayed:
            if not self._replay_some():
                return
            self.is_replayed = True
            self.coordinator.finish_loading(topics)
        self.coordinator.steps.run()
        self.is_loaded = not self.coordinator.steps

    def _replay_some(self) -> bool:
        """Run one step of the replay. Return True if all records are replayed."""
        try:
            self._steps.run()
            return not self._steps
        except Shortage as error:
            # Load again later, when descriptors, memory or disk space are free again.
            self.is_starved = True
            logger.warning(
                "cannot load the coordinator of %s-%d now, trying again later: %s", *self.owned.key, error
            )
        except (Corrupt, KafkaError, OSError, ValueError) as error:
            # As in Kafka, a partition whose log is damaged gets no coordinator. One with only a part of its state could
            # lose committed offsets or decide transactions wrongly.
            self.is_damaged = True
            logger.error(
                "the coordinator of %s-%d cannot be loaded, so requests to it fail: %s",
                *self.owned.key,
                error,
            )
        return False

    def _replay_all(self, kind: CoordinatorKind[C]) -> Work:
        """Read the log in chunks, then replay the last record of each key."""
        log = self.owned.log
        replay = CoordinatorReplay(
            log.state.start_offset,
            has_transactions=kind.end_transaction is not None,
            base_key_of=kind.base_key_of,
        )
        while replay.next_offset < log.state.end_offset:
            yield from replay.add(log.reader.read_bytes(replay.next_offset, LOAD_CHUNK_BYTES))
        cost = 0
        for record in replay.survivors():
            self.coordinator.replay(*record)
            cost += _REPLAY_COST + len(record.value or b"") // _VALUE_BYTES
            if cost > _PART_COST:
                yield cost
                cost = 0

    # -- writing -----------------------------------------------------------------------------------------------

    @property
    def record_bytes_max(self) -> int:
        """The largest size in bytes of a record's key and value together.

        It follows changes of the topic's `max.message.bytes`.
        """
        size_max: int = self.owned.log.state.config.max_message_bytes
        return size_max - _BATCH_OVERHEAD_BYTES - _RECORD_OVERHEAD_BYTES

    def write(self, write: Write) -> None:
        """Queue a write. It is appended at the end of the duty cycle at the latest, in the order of the calls."""
        self._writes.append(write)
        self._dirty[self] = None

    def guarded(self, callback: Callable[..., object]) -> Callable[..., None]:
        """Return a function that calls `callback`, a method of the coordinator, by `Guard.run`."""

        def later(*arguments: Any) -> None:
            self._guard.run(self.coordinator, "the callback of a coordinator", callback, *arguments)

        return later

    def release(self) -> None:
        """Append the queued writes. Later writes fail, because the log is about to be closed.

        A callback of the coordinator can still write, for example when another coordinator responds. A closed log is
        not synced any more, so without the failure such a write would wait for ever.
        """
        self.flush()
        self._is_released = True
        # Fail the writes that callbacks of the flushed writes have queued.
        while self._writes:
            self.flush()

    def abandon(self) -> None:
        """Answer the queued writes with an error, because their coordinator was discarded. Later ones fail, too."""
        self._is_released = True
        self._fail_writes(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _fail_writes(self, error: ErrorCode) -> None:
        writes, self._writes = self._writes, []
        for write in writes:
            write.on_done(error)

    def flush(self) -> None:
        """Append the queued writes now, and apply them to the coordinator."""
        if not self._writes:
            return
        # The partition is being transferred, or the coordinator was discarded. NOT_LEADER_OR_FOLLOWER makes
        # clients retry at the next coordinator.
        if self._is_released:
            self._fail_writes(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        writes, self._writes = self._writes, []
        batches, spans = self._pack(writes)
        results: list[AppendResult] = []
        if batches:
            is_hidden = self._waits_for_sync and any(write.is_awaited for write in writes)
            views = [memoryview(batch) for batch in batches]
            results = self.owned.log.append(views, COORDINATOR, hidden_from=0 if is_hidden else None)
            # Publish the partition's row only if something was appended. If the log rejected everything, another
            # Handler or another Log may own the row by now.
            for result in results:
                if not result.error_code:
                    self.owned.after_append()
                    break
            else:
                self.is_interrupted = self.owned.log.state.can_reopen
        # Apply all writes before the first callback, because a callback may read the state or write more.
        codes = [self._apply(write, each, results) for write, each in zip(writes, spans, strict=True)]
        appended: list[OnCode] = []
        for write, code in zip(writes, codes, strict=True):
            # A failed write is answered at once. So is one that nobody waits for, because its loss in a crash
            # does no harm.
            if code or not write.is_awaited:
                write.on_done(code)
            else:
                appended.append(write.on_done)
        if appended:
            self._when_durable(appended)

    @staticmethod
    def _apply(write: Write, spans: Sequence[_Span], results: Sequence[AppendResult]) -> Code:
        """Apply the records of a write that are in the log. Return the error of the other records, or NONE."""
        # `_pack` has put no record of this write into a batch, because one is too large.
        if write.records and not spans:
            return ErrorCode.MESSAGE_TOO_LARGE
        code = number = 0
        for batch, at, length in spans:
            result = results[batch]
            # The log rejected the batch, for example on a full disk. The coordinator's state must not change
            # by records that no successor will read.
            if result.error_code:
                code = code or result.error_code
            elif write.apply is not None:
                first = result.base_offset + at
                for each in range(length):
                    write.apply(number + each, first + each)
            number += length
        return code

    def _pack(self, writes: Sequence[Write]) -> tuple[list[bytearray], list[list[_Span]]]:
        """Encode the records of all writes in order.

        Return the batches, and for each write the places of its records in them. The records of a write are in one
        batch if they fit into one. They are in no batch if one of them is too large for any batch.
        """
        size_max = self.owned.log.state.config.max_message_bytes
        now_ms = self._clock.wall_ms()
        batches: list[bytearray] = []
        records: list[Record] = []
        spans: list[list[_Span]] = []
        size, producer = _BATCH_OVERHEAD_BYTES, None
        for write in writes:
            mine: list[_Span] = []
            spans.append(mine)
            if not write.records:
                continue
            lengths = [len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES for key, value in write.records]
            total = sum(lengths)
            # Discard a write with a record that the log would reject. Otherwise the log would get its other records,
            # such as the next epoch of a group, without the member that caused it.
            if _BATCH_OVERHEAD_BYTES + total > size_max and self._has_record_above(size_max, write):
                continue
            # A batch has one producer (KIP-98). A write is divided only if it is too large for a batch of its own.
            if records and (write.producer != producer or size + total > size_max):
                batches.append(self._encode(records, producer))
                records, size = [], _BATCH_OVERHEAD_BYTES
            producer, at = write.producer, len(records)
            for (key, value), length in zip(write.records, lengths, strict=True):
                if records and size + length > size_max:
                    if len(records) > at:
                        mine.append(_Span(len(batches), at, len(records) - at))
                    batches.append(self._encode(records, producer))
                    records, size, at = [], _BATCH_OVERHEAD_BYTES, 0
                records.append(Record(key, value, now_ms))
                size += length
            mine.append(_Span(len(batches), at, len(records) - at))
        if records:
            batches.append(self._encode(records, producer))
        return batches, spans

    def _has_record_above(self, size_max: int, write: Write) -> bool:
        """Return True if a batch with one of the write's records alone has more than `size_max` bytes."""
        # Encode the records that can be too large, because `_RECORD_OVERHEAD_BYTES` is an upper bound and compression
        # shrinks the batch.
        return any(
            len(self._encode([Record(key, value, 0)], write.producer)) > size_max
            for key, value in write.records
            if len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES + _BATCH_OVERHEAD_BYTES > size_max
        )

    def _encode(self, records: Sequence[Record], producer: Producer | None) -> bytearray:
        if producer is None:
            return encode_batch(records, codec=self._codec)
        return encode_batch(
            records,
            codec=self._codec,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            flags=TRANSACTIONAL,
        )

    def append_marker(self, marker: Marker) -> Code:
        """Append a marker behind all queued writes and end the transaction in the coordinator.

        Returns the error code, or NONE.
        """
        self.flush()
        result = self.owned.log.appender.append_marker(
            marker.producer_id,
            marker.epoch,
            marker.coordinator_epoch,
            is_commit=marker.is_commit,
            transaction_version=marker.transaction_version,
            is_hidden=self._waits_for_sync,
        )
        if not result.error_code:
            self.owned.after_append()
            if self._end_transaction is not None:
                self._end_transaction(self.coordinator, marker.producer_id, marker.is_commit)
        return result.error_code

    def delete_before(self, offset: int) -> int:
        """Delete the records below `offset`, which no replay needs any more. Return the start of the log.

        The cleaner's next checkpoint makes the new start durable. A crash before it only makes the next replay longer.
        If the disk fails, the log is offline, and the next write shows it.
        """
        try:
            start = self.owned.log.retention.advance_start(offset)
        except (KafkaError, OSError) as error:
            logger.warning(
                "cannot delete records of %s-%d below offset %d, which no load needs; they stay for now: %s",
                *self.owned.key,
                offset,
                error,
            )
            return self.owned.log.state.start_offset
        self.owned.after_start_moved()
        return start

    def when_durable(self, on_code: OnCode) -> None:
        """Call `on_code` with NONE when all present records are durable, or with the error of their sync."""
        self._when_durable([on_code])

    def _when_durable(self, callbacks: Sequence[OnCode]) -> None:
        def on_synced(code: int) -> None:
            for on_code in callbacks:
                self._guard.run(self.coordinator, "a coordinator's write", on_code, code)

        # Wait for everything that is in the log now, not just for the own records: the answer may depend on
        # earlier ones.
        if self._waits_for_sync:
            self.owned.when_synced(self.owned.log.state.end_offset, on_synced)
        else:
            on_synced(ErrorCode.NONE)
