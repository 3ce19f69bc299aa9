"""LogAppender: appending, the hot path of the broker. log.py documents the guarantees of an append."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from kproc.broker.storage import checkpoints
from kproc.broker.storage.format import NO_OFFSET, AbortedTransaction
from kproc.broker.storage.fs import Shortage, StorageFailure
from kproc.broker.storage.index import CLOSED
from kproc.broker.storage.inspection import ROLL_COST, InspectionPaused
from kproc.broker.storage.leader_epochs import LeaderEpochs
from kproc.broker.storage.log_roll import AppendLimits, find_limits
from kproc.broker.storage.log_state import LogState
from kproc.broker.storage.plain_batch import (
    CHECKED,
    LEADS,
    LEADS_END,
    NOT_PLAIN,
    START_BYTES,
    StartFields,
    unpack_start,
)
from kproc.broker.storage.producer_state import PRODUCERS_MAX, ProducerEntry, Verification, first_offset
from kproc.broker.storage.results import AppendResult
from kproc.broker.storage.segment import LogSegment
from kproc.broker.storage.tail_cache import BATCHES_KEPT_MAX
from kproc.broker.storage.validate import CLIENT, COORDINATOR, examine, read_marker
from kproc.common.errors import ErrorCode, FatalError, KafkaError, RecordErrors
from kproc.wire.batch_header import HEADER_BYTES, STAMP
from kproc.wire.checksum import crc32c
from kproc.wire.primitives import INT64_MAX
from kproc.wire.record_batch import CONTROL, TRANSACTIONAL, NotOneBatch, stamp_append_time
from kproc.wire.record_check import check_small
from kproc.wire.transaction_marker import ControlType, encode_end_transaction

# Bytes between producer snapshots. They limit the replay by the successor of a dead owner to about 0.2 s: a scan of the
# headers of one-record batches takes 2.9 s per GiB.
SNAPSHOT_BYTES: Final = 64 << 20
# Batches of idempotent producers between snapshots. A successor reads each of them, in about 5 us, before it opens the
# log. If there are more producers than this, a snapshot follows as many batches as there are producers, because a
# snapshot costs 3 us a producer.
SNAPSHOT_BATCHES: Final = 2000
_SEQUENCE_MAX: Final = 2**31 - 1
# Errors for which Kafka's Produce response does not contain the log's start offset.
_WITHOUT_LOG_START: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
# One result for each batch of an append, in order. Each AppendRun adds the results of its batches.
_Results = list[AppendResult]
# (is abort, coordinator epoch) of a batch that ends a transaction, None for any other batch.
_Marker = tuple[bool, int] | None
_pack_stamp = STAMP.pack_into


class AppendRun(msgspec.Struct, gc=False):
    """The batches of one write. `LogAppender._plan` fills it, `_commit` writes it, `_undo` reverts it.

    A msgspec struct, because there is one per append and its creation runs no Python code.
    """

    first: int  # Index of the first batch of the run in the append.
    tail_count: int  # Number of batches in the tail cache before the run, which adds its own there.
    # Indexes of the batches that are not written, because they were rejected or are duplicates.
    left_out: list[int] = msgspec.field(default_factory=list)
    # Entries of the two indexes.
    pairs: list[tuple[int, int]] = msgspec.field(default_factory=list)
    times: list[tuple[int, int]] = msgspec.field(default_factory=list)
    is_segment_full: bool = False  # The next batch needs a new segment.
    # The state of the log after this run: end offset, size of the segment, and so on.
    end_offset: int = 0
    size: int = 0
    bytes_since_index: int = 0
    max_timestamp: int = 0
    max_timestamp_offset: int = 0
    # Changes that are made before the write, because a later batch of the run may depend on them. `_undo` reverts them:
    # the producers' entries before the run, verifications that markers have ended, rows for the transaction index.
    producers: list[tuple[int, ProducerEntry | None]] = msgspec.field(default_factory=list)
    verifications: list[tuple[int, Verification]] = msgspec.field(default_factory=list)
    aborted: list[AbortedTransaction] = msgspec.field(default_factory=list)


class LogAppender:
    """The part of a Log that appends batches."""

    __slots__ = ("_clock", "_is_epoch_begun", "_producers", "_state")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._producers, self._clock = state.producers, state.clock
        self._is_epoch_begun = False  # True if leader-epoch-checkpoint has the present leader epoch.

    def append(
        self, batches: list[memoryview], origin: str = CLIENT, *, hidden_from: int | None = None
    ) -> list[AppendResult]:
        """Append batches of Produce requests or of the broker itself. Return one result per batch, in order.

        Writes offsets (and with LogAppendTime timestamps) into the views in place, and keeps no view. A batch that must
        be compressed again is replaced in the list. A rejected batch does not stop the others. The batch at index
        `hidden_from` and all later ones stay hidden until a sync has confirmed them. `origin`: one of the constants in
        validate.py, for all batches.

        A failed write gives KAFKA_STORAGE_ERROR. Raises FatalError if the state may not match the file any more, and
        InspectionPaused with the first results if the next batch must wait for a later duty cycle.
        """
        if hidden_from is not None:
            return self._append_hidden(batches, origin, hidden_from)
        state, now_ms = self._state, self._clock.wall_ms()
        results: _Results = []
        reason: str | None = None
        try:
            while state.offline_reason is None:
                run = self._plan(batches, origin, now_ms, results)
                if run.size != state.active.size:
                    self._commit(run, batches, results)
                elif run.is_segment_full:
                    self._roll(origin, now_ms)
                if len(results) == len(batches):
                    return results
        # set_offline_after() leaves the log online after a Shortage, such as a full disk, because a later write can
        # succeed.
        except StorageFailure as failure:
            state.set_offline_after(failure)
            reason = str(failure)
        except FatalError:
            raise
        except InspectionPaused as paused:
            paused.results = results
            raise
        except Exception as error:
            # Raise FatalError, which ends the Handler: producers, indexes and end offset may not match the file any
            # more, and only a successor's recovery repairs that.
            raise FatalError(
                f"unexpected error in an append to {state.topic}-{state.partition}, so its state in memory may not "
                f"match the file: {error!r}"
            ) from error
        refusal = self._refused(ErrorCode.KAFKA_STORAGE_ERROR, reason or state.offline_reason)
        return results + [refusal] * (len(batches) - len(results))

    def _append_hidden(self, batches: list[memoryview], origin: str, hidden_from: int) -> list[AppendResult]:
        """Append, then set the high watermark to the first hidden batch that was stored."""
        state = self._state
        # Hide all new records before the write. Otherwise _commit() would move the high watermark over them.
        state.hide(state.end_offset, INT64_MAX)
        try:
            results = self.append(batches, origin)
        except InspectionPaused as paused:
            self._hide_appended(paused.results[hidden_from:])
            raise
        self._hide_appended(results[hidden_from:])
        return results

    def _hide_appended(self, results: _Results) -> None:
        """Hide the records from the first stored batch of `results` on, and no other records of this append."""
        state = self._state
        state.unconfirmed.pop()
        for result in results:
            # Skip rejected batches and duplicates, which have stored nothing that must be hidden.
            if not result.error_code and not result.is_duplicate:
                state.unconfirmed.append((result.base_offset, state.end_offset))
                break
        state.confirm(state.recovery_point)

    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        *,
        is_commit: bool,
        transaction_version: int,
        is_hidden: bool = False,
    ) -> AppendResult:
        """Append the marker that ends a producer's transaction in this partition.

        A hidden marker becomes visible when a sync has confirmed it. Only then do readers of committed records see the
        transaction's records.
        """
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
        state, first_open = self._state, self._producers.first_open_offset
        (result,) = self.append([memoryview(marker)], COORDINATOR, hidden_from=0 if is_hidden else None)
        # The marker has ended the oldest open transaction but is hidden. Readers of committed records must not pass
        # the old limit until a sync has confirmed the marker.
        if state.unconfirmed and first_open is not None and self._producers.first_open_offset != first_open:
            state.undecided.append((result.last_offset + 1, first_open))
        return result

    def _plan(self, batches: list[memoryview], origin: str, now_ms: int, results: _Results) -> AppendRun:
        """Check the next batches, stamp offsets, add results. Stop before one that needs a new segment or must wait."""
        # This is the hottest loop of the broker. It calls no Python function for a plain batch with one record.
        state = self._state
        segment, start = state.active, len(results)
        limits = state.limits or self._prepare(now_ms)
        plain_bytes, segment_bytes, offset_max, roll_after, after_max_ms, interval, is_append_time = limits
        # The inline checks are those for a client's batch without a transactional id. With this limit of 0 bytes every
        # other batch goes to _examine().
        if origin is not CLIENT:
            plain_bytes = 0
        newest = now_ms + after_max_ms
        if newest > roll_after:
            newest = roll_after
        position, next_offset = segment.size, state.end_offset
        index_after = position - segment.bytes_since_index + interval
        largest, largest_offset = segment.max_timestamp, segment.max_timestamp_offset
        append_ms, leader_epoch, log_start = -1, state.leader_epoch, state.start_offset
        lasts, positions = state.tail.lasts, state.tail.positions
        run = AppendRun(start, len(lasts))
        marker: _Marker = None
        # Append the first batch of a segment alone, because its timestamp determines when the segment rolls.
        views = batches[start:] if position else batches[start : start + 1]
        for view in views:
            total = len(view)
            header = unpack_start(view) if START_BYTES <= total <= plain_bytes else NOT_PLAIN
            (
                base, length, _, magic, crc, attributes, delta, first, timestamp, pid, _, sequence, count, lead
            ) = header  # fmt: skip
            last = next_offset + delta
            end = position + total
            try:
                # Check a plain batch inline. Any other batch goes to _examine(), which accepts it or raises KafkaError.
                if not (
                    not base and length == total - 12 and magic == 2 and timestamp <= newest and first <= newest
                    and end <= segment_bytes and last <= offset_max
                    and (pid < 0 or sequence >= 0) and crc32c(view[CHECKED]) == crc
                    and (
                        # A small batch of one uncompressed record: the record's length field must match the end of
                        # the batch.
                        (count == 1 and not attributes and not delta and total < LEADS_END
                            and lead == LEADS[total])
                        # A batch of several records, a compressed or a larger one: check_small raises KafkaError if
                        # it is malformed.
                        or (attributes in {0, 1, 2, 3, 4} and count == delta + 1 > 0
                            and check_small(attributes, view[HEADER_BYTES:], count))
                    )
                ):  # fmt: skip
                    view, header, marker = self._examine(view, origin, now_ms)
                    batches[len(results)] = view
                    _, length, _, _, _, _, delta, _, timestamp, pid, _, _, _, _ = header
                    last, end = next_offset + delta, position + len(view)
                    has_room = end <= segment_bytes and last <= offset_max and timestamp <= roll_after
                    # The batch needs a new segment. Stop, so that the batches before it are written first. A duplicate
                    # is not written, so it needs none.
                    if not has_room and self._stored(header, origin) is None:
                        run.is_segment_full = True
                        break
                known = self._stored(header, origin) if pid >= 0 else None
            except InspectionPaused:
                if len(results) == start:
                    raise
                break  # Write the batches before this one first. The next run begins with this one and pauses.
            except Exception as error:  # noqa: BLE001 - rejects this batch only; it has changed no state
                known = self._refusal_of(error)
            if known is not None:
                run.left_out.append(len(results))
                results.append(known)
                continue
            _pack_stamp(view, 0, next_offset, length, leader_epoch)
            if is_append_time:
                append_ms = timestamp = now_ms
                stamp_append_time(view, now_ms)
            # Update the producer's state before the write, because a later batch of this run may continue the batch's
            # sequence.
            if pid >= 0:
                self._remember(run, header, marker, last, timestamp, now_ms)
            if timestamp > largest:
                largest, largest_offset = timestamp, last
            if position > index_after:
                run.pairs.append((last, position))
                run.times.append((largest, largest_offset))
                index_after = position + interval
            lasts.append(last)
            positions.append(position)
            results.append(AppendResult(0, next_offset, last, append_ms, log_start))
            next_offset = last + 1
            position = end
        run.end_offset = next_offset
        run.size = position
        run.bytes_since_index = position - index_after + interval
        run.max_timestamp, run.max_timestamp_offset = largest, largest_offset
        return run

    def _roll(self, origin: str, now_ms: int) -> None:
        """Start a new segment. Raises InspectionPaused if the duty cycle has used up its budget."""
        state = self._state
        if state.inspection is not None and origin is not COORDINATOR:
            # A batch whose records are read (`looks_inside`) has passed this check already. If it had to wait here, its
            # records would be read again in the next duty cycle, and could use up the budget of every duty cycle.
            if not state.config.looks_inside:
                state.inspection.check(state)
            state.inspection.spend(ROLL_COST, 0)
        state.roll(state.end_offset, now_ms)

    def _prepare(self, now_ms: int) -> AppendLimits:
        """Return the limits that the next batches must keep.

        At the first append of this owner, first record its leader epoch. After a failed write, first truncate the log.
        """
        if not self._is_epoch_begun:
            self._start_epoch()
        if self._state.is_torn:
            self._cut_back(self._state.active)
        return find_limits(self._state, now_ms)

    def _start_epoch(self) -> None:
        """Record that this leader epoch begins at the log's end, before its first batch is written."""
        state = self._state
        if state.epochs.latest != state.leader_epoch:
            epochs = LeaderEpochs(state.epochs.entries())
            epochs.assign(state.leader_epoch, state.end_offset)
            checkpoints.write_leader_epochs(state.fs, state.directory, epochs.entries(), durable=False)
            # Set the epochs after the file was written, so that the next append tries again if the disk had no space.
            state.epochs = epochs
        self._is_epoch_begun = True

    def _refusal_of(self, error: Exception) -> AppendResult:
        """Return the result of a batch that was rejected. Report an unexpected exception to `on_surprise`."""
        if isinstance(error, KafkaError):
            is_early = isinstance(error, NotOneBatch)
            return self._refused(error.code, error.message, error.record_errors, says_start=not is_early)
        state = self._state
        state.on_surprise(f"checking a batch for {state.topic}-{state.partition}", error)
        return self._refused(ErrorCode.UNKNOWN_SERVER_ERROR, None)

    def _stored(self, header: StartFields, origin: str) -> AppendResult | None:
        """Return the original's result if a batch is a duplicate, else None. Raises KafkaError if out of sequence."""
        _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, sequence, _, _ = header
        if producer_id < 0 or origin is COORDINATOR:
            return None
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
        self, run: AppendRun, header: StartFields, marker: _Marker, last: int, timestamp: int, now_ms: int
    ) -> None:
        """Update the producers' state for a batch of this run, and record the changes in the run for _undo().

        last: the batch's last offset. timestamp: its largest timestamp in ms. marker: None unless the batch has one.
        """
        _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, sequence, _, _ = header
        producers = self._producers
        run.producers.append((producer_id, producers.get(producer_id)))
        if not attributes & CONTROL:
            last_sequence = (sequence + delta) & _SEQUENCE_MAX if sequence >= 0 else -1
            mark = (last_sequence, last, delta, timestamp)
            transactional = attributes & TRANSACTIONAL != 0
            producers.record(producer_id, epoch, mark, transactional=transactional, heard_ms=now_ms)
        elif marker is not None:  # A control batch without a marker ends no transaction.
            if producer_id in producers.verifying:
                run.verifications.append((producer_id, producers.verifying[producer_id]))
            aborted = producers.record_marker(
                producer_id, epoch, marker[1], offset=last, timestamp=now_ms, is_abort=marker[0]
            )
            if aborted is not None:
                run.aborted.append(aborted)

    def _examine(self, view: memoryview, origin: str, now_ms: int) -> tuple[memoryview, StartFields, _Marker]:
        """Validate a batch that is not plain. Return (batch to store, fields of `unpack_start`, marker).

        Raises KafkaError if it is rejected. After a roll this is called again with the batch that the first call
        returned.
        """
        state = self._state
        inspection = state.inspection
        if inspection is not None and origin is not COORDINATOR:
            inspection.check(state, reads_records=state.config.looks_inside)
        view, header = examine(view, state.config, origin=origin, now_ms=now_ms, inspection=inspection)
        marker = read_marker(view, header.attributes)
        if origin is COORDINATOR and header.producer_id >= 0:
            self._producers.check_epoch(
                header.producer_id, header.producer_epoch, None if marker is None else marker[1]
            )
        return view, (*header, 0), marker

    def _commit(self, run: AppendRun, batches: list[memoryview], results: _Results) -> None:
        """Write a run and make it visible. If the write fails, undo the run."""
        # This long function is not divided, because every append would pay for further calls.
        state = self._state
        segment = state.active
        views = batches[run.first : len(results)]
        if run.left_out:
            views = [view for number, view in enumerate(views, run.first) if number not in run.left_out]
        size = run.size
        end_offset = run.end_offset
        try:
            if size > segment.reserve_at:
                segment.reserve(size, state.config.segment_bytes)
            if run.aborted:
                # Write the rows of the transaction index before the markers. If the disk had no space for the row of a
                # stored marker, read_committed consumers would see aborted records.
                self._index_aborted(segment, run.aborted)
            descriptor = segment.fd
            if descriptor == CLOSED:
                descriptor = segment.descriptor()
            state.fs.write(descriptor, views, position=segment.size)
        except StorageFailure as failure:
            self._undo(run, failure, results)
            return
        traffic = state.traffic
        traffic.bytes_in += size - segment.size
        traffic.records_in += end_offset - state.end_offset
        # _plan() appends the first batch of a segment alone, so the run's largest timestamp is that of the first batch.
        if not segment.size:
            segment.first_timestamp = run.max_timestamp
        segment.size = size
        segment.bytes_since_index = run.bytes_since_index
        segment.max_timestamp = run.max_timestamp
        segment.max_timestamp_offset = run.max_timestamp_offset
        state.end_offset = end_offset
        # While records are hidden, only a sync may move the high watermark (LogState.confirm).
        if not state.unconfirmed:
            state.high_watermark = end_offset
        if run.tail_count >= BATCHES_KEPT_MAX:
            state.tail.trim()
        if run.pairs:
            segment.append_index_entries(run.pairs, run.times)
            # The index may be full now, so that the next batch must roll. Discard the limits: find_limits() checks
            # that.
            state.limits = None
        if run.producers:
            snapshots = state.snapshots
            snapshots.batches_since += len(run.producers)
            if snapshots.batches_since >= SNAPSHOT_BATCHES:
                self._producers.trim(PRODUCERS_MAX)
                if snapshots.batches_since >= len(self._producers):
                    state.write_snapshot()
        if size - state.snapshots.taken_at_bytes >= SNAPSHOT_BYTES:
            state.write_snapshot()

    def _undo(self, run: AppendRun, failure: StorageFailure, results: _Results) -> None:
        """Undo the changes that a run made before its failed write, and fail the run's batches.

        Truncates the partial write after a Shortage. Any other failure takes the log offline.
        """
        state = self._state
        state.tail.truncate(run.tail_count)
        for producer_id, entry in reversed(run.producers):
            self._producers.restore(producer_id, entry)
        for producer_id, verification in run.verifications:
            self._producers.verifying[producer_id] = verification
        state.set_offline_after(failure)
        if state.offline_reason is None:
            # Truncate the partial write. Otherwise the next write, if it is shorter, would leave a piece of this one
            # behind it.
            state.is_torn, state.limits = True, None
            # If a Shortage prevents the truncation, `is_torn` makes the next append repeat it first. Any other failure
            # takes the log offline.
            with suppress(StorageFailure):
                self._cut_back(state.active)
        # Clients retry KAFKA_STORAGE_ERROR. The batches before the failure keep their results, because they are in the
        # file.
        refusal = self._refused(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
        # Fail duplicates, too, because the original may be in this run, which was not written. Clients retry them.
        for number in range(run.first, len(results)):
            if results[number].error_code == 0:
                results[number] = refusal

    def _index_aborted(self, segment: LogSegment, aborted: list[AbortedTransaction]) -> None:
        state = self._state
        for entry in aborted:
            segment.txn_index.append(entry)
        state.segments.mark_aborts()
        state.unsynced.add_file(segment.txn_index_path)
        state.unsynced.add_directory(state.directory)

    def _cut_back(self, segment: LogSegment) -> None:
        """Truncate the bytes of a failed write. Raises StorageFailure; the log goes offline unless it is a Shortage."""
        state = self._state
        try:
            segment.truncate(segment.size)
            if segment.txn_index.exists:
                segment.txn_index.truncate_to(state.end_offset)
        except Shortage:
            raise
        except StorageFailure as failure:
            state.set_offline_after(StorageFailure(f"half a write could not be cut off: {failure}"))
            raise
        state.is_torn = False

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
