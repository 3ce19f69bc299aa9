"""LogAppender: appending, the hot path of the broker. See log.py for what an append promises."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from kproc.errors import ErrorCode, FatalError, KafkaError, RecordErrors
from kproc.storage import checkpoints
from kproc.storage.format import INT32_MAX, AbortedTransaction
from kproc.storage.fs import StorageFailure
from kproc.storage.leader_epochs import LeaderEpochs
from kproc.storage.log_config import INT64_MAX
from kproc.storage.log_state import LogState
from kproc.storage.producer_state import ProducerEntry, first_offset
from kproc.storage.results import NO_OFFSET, AppendResult
from kproc.storage.segment import LogSegment
from kproc.storage.validate import CLIENT, COORDINATOR, examine, read_marker
from kproc.wire.batch_header import HEADER, HEADER_BYTES, STAMP, Header
from kproc.wire.checksum import crc32c
from kproc.wire.record_batch import (
    CONTROL,
    TRANSACTIONAL,
    ControlType,
    NotOneBatch,
    encode_end_transaction,
    stamp_append_time,
)

# A producer snapshot is written after this many bytes. It limits the replay by a dead owner's successor to about 0.2 s
# (a header scan of one-record batches takes 2.9 s/GiB).
SNAPSHOT_BYTES: Final = 64 << 20
# And after this many batches of idempotent producers: a successor reads each of them, some 5 us, before it serves the
# log.
SNAPSHOT_BATCHES: Final = 2000
_SEQUENCE_MAX: Final = 2**31 - 1
# No record has a smaller timestamp than -1, so a roll time below it means: roll before the next batch.
_ROLL_NOW: Final = -2

# Placeholder for a header that was not read; its length matches no batch.
_NOT_PLAIN: Final = (0, -1, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0)
# Errors with which Kafka does not report the log's start offset.
_WITHOUT_LOG_START: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
# For a batch that ends a transaction: (is abort, coordinator epoch).
_Marker = tuple[bool, int] | None
_unpack_header = HEADER.unpack_from
_pack_stamp = STAMP.pack_into


class _Run:
    """Batches that are written with one system call, and what to change if that succeeds or fails."""

    __slots__ = (
        "aborted", "bytes_since_index", "end_offset", "lasts", "max_timestamp", "max_timestamp_offset",
        "pairs", "positions", "size", "times", "undo", "views",
    )  # fmt: skip

    # What the log has after the run; set when all of its batches are known.
    end_offset: int
    size: int
    bytes_since_index: int
    max_timestamp: int
    max_timestamp_offset: int

    def __init__(self) -> None:
        self.views: list[memoryview] = []
        self.lasts: list[int] = []
        self.positions: list[int] = []
        self.pairs: list[tuple[int, int]] = []
        self.times: list[tuple[int, int]] = []
        self.undo: list[tuple[int, ProducerEntry | None]] = []
        self.aborted: list[AbortedTransaction] = []


class LogAppender:
    """The part of a Log that writes records."""

    __slots__ = ("_clock", "_is_epoch_begun", "_producers", "_snapshots", "_state")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._producers, self._snapshots, self._clock = state.producers, state.snapshots, state.clock
        self._is_epoch_begun = False  # The leader epoch is known to have its entry.

    def append(self, batches: list[memoryview], origin: str = CLIENT) -> list[AppendResult]:
        """Append batches, each the records of one partition of one Produce; one result per batch, in order.

        The views are numbered (and with LogAppendTime dated) in place; none is kept. One that had to be
        compressed again is replaced in the list. A batch that is refused does not hold back the others.
        """
        state = self._state
        if state.offline_reason is not None:
            return [self._refused(ErrorCode.KAFKA_STORAGE_ERROR, state.offline_reason)] * len(batches)
        now_ms = self._clock.wall_ms()
        results: list[AppendResult] = []
        reason: str | None = None
        try:
            if not self._is_epoch_begun:
                self._begin_epoch()
            done = 0
            while done < len(batches) and state.offline_reason is None:
                done = self._append_run(batches, done, origin, now_ms, results)
        except StorageFailure as failure:
            state.note_failure(failure)
            reason = str(failure)
        except FatalError:
            raise
        except Exception as error:
            # The state of producers, indexes and ends may not match the file any more: only a recovery can repair
            # that.
            raise FatalError(
                f"an append to {state.topic}-{state.partition} ended half way: {error!r}"
            ) from error
        if len(results) < len(batches):
            refusal = self._refused(ErrorCode.KAFKA_STORAGE_ERROR, reason or state.offline_reason)
            results.extend([refusal] * (len(batches) - len(results)))
        return results

    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        *,
        is_commit: bool,
        transaction_version: int,
    ) -> AppendResult:
        """End a producer's transaction in this partition, as its coordinator has decided."""
        try:
            self._producers.check_epoch(
                producer_id, epoch, coordinator_epoch, transaction_version=transaction_version
            )
        except KafkaError as error:
            return self._refused(error.code, error.message)
        marker = encode_end_transaction(
            ControlType.COMMIT if is_commit else ControlType.ABORT,
            timestamp_ms=self._clock.wall_ms(),
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
        )
        return self.append([memoryview(marker)], COORDINATOR)[0]

    def _append_run(
        self, batches: list[memoryview], start: int, origin: str, now_ms: int, results: list[AppendResult]
    ) -> int:
        """Append from batch `start` on up to where the segment must roll; returns the next batch's number."""
        # The broker's hot loop: a plain batch passes with one unpack, one CRC and no call of a Python function.
        state = self._state
        segment, config, is_append_time = state.active, state.config, state.config.is_append_time
        run = _Run()
        views, lasts, positions = run.views, run.lasts, run.positions
        position, next_offset, since = segment.size, state.end_offset, segment.bytes_since_index
        largest, largest_offset = segment.max_timestamp, segment.max_timestamp_offset
        interval, segment_bytes = config.index_interval_bytes, config.segment_bytes
        roll_after, offset_max = self._roll_after(segment, now_ms), segment.base_offset + INT32_MAX
        plain_bytes = config.plain_bytes if origin is CLIENT else 0
        latest = INT64_MAX if is_append_time else now_ms + config.timestamp_after_max_ms
        append_ms, leader_epoch = now_ms if is_append_time else -1, state.leader_epoch
        log_start, first_result, marker, done = state.start_offset, len(results), None, len(batches)
        for number in range(start, len(batches)):
            view = batches[number]
            total = len(view)
            header = _unpack_header(view) if HEADER_BYTES <= total <= plain_bytes else _NOT_PLAIN
            base, length, _, magic, crc, attributes, delta, first, timestamp, pid, _, sequence, count = header
            try:
                if not (
                    length == total - 12 and magic == 2 and 0 <= attributes <= 4 and base == 0
                    and count == delta + 1 > 0 and timestamp <= latest and first <= latest
                    and (pid < 0 or sequence >= 0) and crc32c(view[21:]) == crc
                ):  # fmt: skip
                    view, total, header, marker = self._examine(batches, number, origin, now_ms)
                    _, length, _, _, _, _, delta, _, timestamp, pid, _, _, _ = header
                if pid >= 0 and origin is not COORDINATOR and (known := self._stored(header)) is not None:
                    results.append(known)
                    continue
            except Exception as error:  # noqa: BLE001 - refused or contained: nothing of it was stored or noted
                results.append(self._refusal_of(error))
                continue
            last = next_offset + delta
            if is_append_time:
                timestamp = now_ms
            if position + total > segment_bytes or timestamp > roll_after or last > offset_max:
                done = number
                break
            _pack_stamp(view, 0, next_offset, length, leader_epoch)
            if is_append_time:
                stamp_append_time(view, now_ms)
            if pid >= 0:
                self._remember(run, header, marker, last, timestamp, now_ms)
            if not position:
                segment.first_timestamp = timestamp
                roll_after = self._roll_after(segment, now_ms)
            if timestamp > largest:
                largest, largest_offset = timestamp, last
            if since > interval:
                run.pairs.append((last, position))
                run.times.append((largest, largest_offset))
                since = 0
            since += total
            views.append(view)
            lasts.append(last)
            positions.append(position)
            results.append(AppendResult(0, next_offset, last, append_ms, log_start))
            next_offset = last + 1
            position += total
        run.end_offset, run.size, run.bytes_since_index = next_offset, position, since
        run.max_timestamp, run.max_timestamp_offset = largest, largest_offset
        self._finish_run(run, results, first_result)
        if not views and done < len(batches):
            state.roll(next_offset, now_ms)
        return done

    def _begin_epoch(self) -> None:
        """Record that this leader epoch begins here, before its first batch is written."""
        state = self._state
        if state.epochs.latest != state.leader_epoch:
            epochs = LeaderEpochs(state.epochs.entries())
            epochs.assign(state.leader_epoch, state.end_offset)
            checkpoints.write_leader_epochs(state.fs, state.directory, epochs.entries(), durable=False)
            state.epochs = epochs  # Only now: if there was no room for the file, the next append tries again.
        self._is_epoch_begun = True

    def _roll_after(self, segment: LogSegment, now_ms: int) -> int:
        """The timestamp beyond which a batch needs a new segment, as in Kafka.

        segment.ms counts from the first batch's timestamp to the new batch's; by the clock only where
        records have no timestamps.
        """
        first = segment.first_timestamp
        if first is None and (first := segment.load_first_timestamp()) is None:
            return INT64_MAX
        config = self._state.config
        wait_ms = config.roll_ms - self._jitter_ms(segment) if config.segment_jitter_ms else config.roll_ms
        if segment.is_index_full(config.segment_index_bytes):
            return _ROLL_NOW
        if first >= 0:
            return first + wait_ms
        return _ROLL_NOW if now_ms - segment.created_ms > wait_ms else INT64_MAX

    def _jitter_ms(self, segment: LogSegment) -> int:
        """How much earlier this segment rolls: random, so that logs created together do not all roll at once.

        The random number is a hash of the segment's identity, so that it is the same after a restart.
        """
        state = self._state
        most = max(1, min(state.config.segment_jitter_ms, state.config.roll_ms))
        return crc32(b"%b/%d/%d" % (state.topic_id, state.partition, segment.base_offset)) % most

    def _refusal_of(self, error: Exception) -> AppendResult:
        """The result of a batch that was refused."""
        if isinstance(error, KafkaError):
            is_early = isinstance(error, NotOneBatch)
            return self._refused(error.code, error.message, error.record_errors, says_start=not is_early)
        state = self._state
        state.on_surprise(f"checking a batch for {state.topic}-{state.partition}", error)
        return self._refused(ErrorCode.UNKNOWN_SERVER_ERROR, None)

    def _stored(self, header: Header) -> AppendResult | None:
        """The result for a batch that is in the log already; KafkaError if it is out of sequence."""
        _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, sequence, _ = header
        last_sequence = (sequence + delta) & _SEQUENCE_MAX
        if attributes & TRANSACTIONAL:
            known = self._producers.admit_in_transaction(
                producer_id,
                epoch,
                sequence,
                last_sequence,
                must_be_confirmed=self._state.config.verifies_transactions,
            )
        else:
            known = self._producers.admit(producer_id, epoch, sequence, last_sequence, transactional=False)
        if known is None:
            return None
        return AppendResult(0, first_offset(known), known[1], known[3], self._state.start_offset, None, True)

    def _remember(
        self, run: _Run, header: Header, marker: _Marker, last: int, timestamp: int, now_ms: int
    ) -> None:
        """Update the producers' state for a batch of this run; note how to undo it."""
        _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, sequence, _ = header
        producers = self._producers
        run.undo.append((producer_id, producers.get(producer_id)))
        if not attributes & CONTROL:
            last_sequence = (sequence + delta) & _SEQUENCE_MAX if sequence >= 0 else -1
            mark = (last_sequence, last, delta, timestamp)
            transactional = attributes & TRANSACTIONAL != 0
            producers.record(producer_id, epoch, mark, transactional=transactional, heard_ms=now_ms)
        elif marker is not None:  # Other control batches end no transaction.
            aborted = producers.record_marker(
                producer_id, epoch, marker[1], offset=last, timestamp=now_ms, is_abort=marker[0]
            )
            if aborted is not None:
                run.aborted.append(aborted)

    def _examine(
        self, batches: list[memoryview], number: int, origin: str, now_ms: int
    ) -> tuple[memoryview, int, Header, _Marker]:
        """Check a batch that is not plain: (the batch as it is stored, its size, its header, its marker).

        KafkaError if it is refused. The batch to store replaces the one in the list, because after a roll this is
        called again.
        """
        view, header = examine(batches[number], self._state.config, origin=origin, now_ms=now_ms)
        batches[number] = view
        marker = read_marker(view, header.attributes)
        if origin is COORDINATOR and header.producer_id >= 0:
            self._producers.check_epoch(
                header.producer_id, header.producer_epoch, None if marker is None else marker[1]
            )
        return view, len(view), header, marker

    def _finish_run(self, run: _Run, results: list[AppendResult], first_result: int) -> None:
        """Write a run and make it visible; if the write fails, undo everything and refuse its batches."""
        if not run.views:
            return
        state = self._state
        segment = state.active
        try:
            if run.size > segment.reserve_at:
                segment.reserve(run.size, state.config.segment_bytes)
            if run.aborted:  # First: a marker whose row had no room would show what it has aborted.
                self._index_aborted(segment, run.aborted)
            state.fs.write(segment.descriptor(), run.views, position=segment.size)
        except StorageFailure as failure:
            for producer_id, entry in reversed(run.undo):
                self._producers.restore(producer_id, entry)
            if not segment.size:
                segment.first_timestamp = None
            state.note_failure(failure)
            if state.offline_reason is None:
                self._cut_back(segment, indexes_too=bool(run.aborted))
            refusal = self._refused(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            # Duplicates are refused, too, since the original may be in this very run; clients retry them.
            for number in range(first_result, len(results)):
                if results[number].error_code == 0:
                    results[number] = refusal
            return
        grown_bytes = run.size - segment.size
        snapshots, traffic = self._snapshots, state.traffic
        snapshots.bytes_since += grown_bytes
        snapshots.batches_since += len(run.views)
        traffic.bytes_in += grown_bytes
        traffic.records_in += run.end_offset - state.end_offset
        segment.size = run.size
        segment.bytes_since_index = run.bytes_since_index
        segment.max_timestamp, segment.max_timestamp_offset = run.max_timestamp, run.max_timestamp_offset
        state.end_offset = self._producers.end_offset = run.end_offset
        state.tail.extend(run.lasts, run.positions)
        if run.pairs:
            segment.note_indexed(run.pairs, run.times)
        if snapshots.bytes_since >= SNAPSHOT_BYTES or (
            snapshots.batches_since >= SNAPSHOT_BATCHES and self._producers
        ):
            state.take_snapshot()

    def _index_aborted(self, segment: LogSegment, aborted: list[AbortedTransaction]) -> None:
        state = self._state
        for entry in aborted:
            segment.txn_index.append(entry)
        state.segments.note_aborts()
        state.unsynced.note_file(segment.txn_index_path)
        state.unsynced.note_directory(state.directory)

    def _cut_back(self, segment: LogSegment, *, indexes_too: bool) -> None:
        """Cut off what a failed write left behind; if that fails, the log goes offline.

        The next write may be shorter, and a piece of this one would stand behind it.
        """
        state = self._state
        try:
            segment.truncate(segment.size)
            if indexes_too:
                segment.txn_index.truncate_to(state.end_offset)
        except StorageFailure as failure:
            state.note_failure(StorageFailure(f"half a write could not be cut off: {failure}"))

    def _refused(
        self,
        code: ErrorCode,
        message: str | None,
        record_errors: RecordErrors = (),
        *,
        says_start: bool = True,
    ) -> AppendResult:
        start = self._state.start_offset if says_start and code not in _WITHOUT_LOG_START else NO_OFFSET
        return AppendResult(int(code), NO_OFFSET, NO_OFFSET, -1, start, message, False, record_errors)
