"""InFlightRecords: the records of one partition that a share group has begun to deliver (KIP-932). No I/O, no clock.

The window reaches from the start offset, below which every record is finished, to the end offset, from which no record
was delivered yet.

            acquire                  accept
AVAILABLE ----------> ACQUIRED ----------------> ACKNOWLEDGED
    ^                  |    |       reject, or released for the last time
    +------------------+    +------------------> ARCHIVED, after ARCHIVING if the record becomes a dead letter
      release, end of the lock

A change of an acquired record takes effect when it is persisted. Until then another change of the record is rejected
with INVALID_RECORD_STATE. The caller sends the result of `to_persist`, and then commits the changes or rolls them back.
Only one write may be in flight: changes that start during the write belong to the next one.

wanted_records.py decides which records a member acquires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from kproc.broker.share.partition.locks import Locks
from kproc.broker.share.partition.messages import AcknowledgeBatch, AcknowledgeType, ShareHolder
from kproc.broker.share.partition.runs import FOREVER, Run, Runs
from kproc.broker.share.state.batches import add_batch
from kproc.broker.share.state.messages import RecordState, StateBatch
from kproc.common.errors import ErrorCode, KafkaError

AVAILABLE: Final = RecordState.AVAILABLE
ACQUIRED: Final = RecordState.ACQUIRED
ACKNOWLEDGED: Final = RecordState.ACKNOWLEDGED
ARCHIVING: Final = RecordState.ARCHIVING
ARCHIVED: Final = RecordState.ARCHIVED
_FINISHED: Final = (ACKNOWLEDGED, ARCHIVED)

# Limit of the offsets in a window. Each of them can have a state batch of its own, and one record of
# __share_group_state has all of them. So the limit is below BATCHES_MAX of state/batches.py, the share coordinator's
# limit.
WINDOW_MAX: Final = 40_000

# A change that waits for its persistence: the first and last offsets of its ranges.
Change = list[tuple[int, int]]


class Rules(NamedTuple):
    """The configs of a group that determine how its records are delivered."""

    delivery_count_max: int
    size_max: int  # Limit of records in flight. The last batch may exceed it, up to WINDOW_MAX.
    has_dead_letters: bool = False
    can_renew: bool = True


class ToPersist(NamedTuple):
    """The fields of a WriteState: the start offset and the number of finished records above it, after the changes."""

    start_offset: int
    finished_count: int
    batches: tuple[StateBatch, ...]


class DeadLetters(NamedTuple):
    """Records that become dead letters, and why: a member has rejected them, or their deliveries are used up."""

    first: int
    last: int
    delivery_count: int
    is_rejected: bool


class InFlightRecords:
    """The window of one partition in one share group: the records that the group has begun to deliver."""

    __slots__ = ("_available", "_finished_count", "_locks", "_runs", "rules", "start_offset")

    def __init__(self, start_offset: int, rules: Rules, batches: Iterable[StateBatch] = ()) -> None:
        """Load a window from the persisted states, `batches`.

        Offsets between them are available: they were acquired, but no change of theirs was persisted.
        """
        self.start_offset = start_offset
        self.rules = rules
        self._runs = Runs()
        self._locks = Locks()
        self._finished_count = 0
        # A heap with the first offset of each available run. It can also have offsets that are not available any more.
        self._available: list[int] = []
        for each in sorted(batches, key=lambda batch: batch.first):
            if each.last >= self.end_offset:
                self._append(AVAILABLE, each.first - 1, 0)
                # No session holds a lock after a load, so records that were acquired can be delivered again.
                state = RecordState(each.state)
                self._append(AVAILABLE if state is ACQUIRED else state, each.last, each.delivery_count)
        self._advance()

    # -- the window --------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The first offset that was never delivered."""
        last = self._runs.last
        return self.start_offset if last is None else last.last + 1

    @property
    def size(self) -> int:
        """The number of offsets in the window."""
        return self.end_offset - self.start_offset

    @property
    def run_count(self) -> int:
        """The number of runs. The memory of the window and the cost of its operations grow with it."""
        return len(self._runs)

    @property
    def is_idle(self) -> bool:
        """True if no session holds a record, and no change waits for its persistence or for a dead letter."""
        return all(
            run.next_state is None and run.state is not ACQUIRED and run.state is not ARCHIVING
            for run in self._runs
        )

    def next_fetch_offset(self) -> int | None:
        """Return the offset from which a member can acquire records, if the log has any.

        None: too many are in flight.
        """
        run = self.first_available()
        if run is not None:
            return run.first
        return self.end_offset if self.size < self.rules.size_max else None

    def states(self) -> list[StateBatch]:
        """Return the states of the whole window, without changes that are not persisted."""
        return [StateBatch(run.first, run.last, run.state, run.delivery_count) for run in self._runs]

    def to_replace(self) -> ToPersist:
        """Return the fields of a write that replaces the stored state, without changes that are not persisted."""
        # Offsets that were never delivered need no batch, as in `__init__`.
        batches = tuple(each for each in self.states() if each.state != AVAILABLE or each.delivery_count)
        return ToPersist(self.start_offset, self._finished_count, batches)

    def dead_letters(self) -> list[DeadLetters]:
        """Return all records that shall be written as dead letters."""
        return [_dead_letters(run) for run in self._runs if run.state is ARCHIVING and run.next_state is None]

    def discard_below(self, log_start: int) -> None:
        """Discard the records that retention or a DeleteRecords has removed from the log.

        Members may still acknowledge them, without effect.
        """
        if log_start > self.start_offset:
            rest = self._runs.cut(log_start, self.end_offset - 1)
            self._remove_first(self.run_count - len(rest))
            self.start_offset = log_start
            if rest and rest[0].state is AVAILABLE:
                heappush(self._available, log_start)
            self._advance()

    def _append(self, state: RecordState, last: int, delivery_count: int) -> None:
        """Extend the window with offsets of one state, up to `last`.

        Do nothing if the window reaches that far already.
        """
        first = self.end_offset
        if last >= first:
            run = Run(first, last, state, delivery_count, last - first + 1)
            # The reason for the dead letter is not persisted. A record below the delivery limit was rejected.
            run.is_rejected = state is ARCHIVING and delivery_count < self.rules.delivery_count_max
            self._runs.append(run)
            if state is AVAILABLE:
                heappush(self._available, first)
            elif state in _FINISHED:
                self._finished_count += last - first + 1

    def _advance(self) -> None:
        """Move the start offset above the finished records at the start of the window."""
        count = 0
        for run in self._runs:
            if run.state not in _FINISHED:
                break
            count += 1
            self.start_offset = run.last + 1
        self._remove_first(count)

    def _remove_first(self, count: int) -> None:
        for run in self._runs.remove_first(count):
            if run.state in _FINISHED:
                self._finished_count -= run.size

    # -- acquire -----------------------------------------------------------------------------------------------

    def first_available(self) -> Run | None:
        """Return the first run of the window that can be acquired again, or None."""
        heap = self._available
        while heap:
            run = self._runs.find(heap[0])
            if run is not None and run.state is AVAILABLE:
                return run
            heappop(heap)
        return None

    def acquire_again(self, run: Run, last: int, holder: ShareHolder, deadline_ms: int) -> Run:
        """Acquire the offsets of an available run up to `last`. Return the run of the acquired offsets."""
        if last < run.last:
            heappush(self._available, last + 1)
            run = self._runs.cut(run.first, last)[0]
        run.state, run.holder, run.deadline_ms = ACQUIRED, holder, deadline_ms
        run.delivery_count += 1
        self._locks.add(deadline_ms, run.first, run.last)
        return run

    def acquire_next(self, last: int, holder: ShareHolder, deadline_ms: int) -> Run:
        """Acquire all offsets from the end of the window to `last`, for their first delivery."""
        first = self.end_offset
        run = Run(first, last, ACQUIRED, 1, last - first + 1, holder, deadline_ms)
        self._runs.append(run)
        self._locks.add(deadline_ms, first, last)
        return run

    def skip_to(self, offset: int) -> None:
        """Move the end of the window to an offset, because the log has no records before it."""
        self._append(ARCHIVED, offset - 1, 0)
        self._advance()

    def archive(self, first: int, last: int, state: RecordState) -> None:
        """Archive those records of a range that are in the state `state`. This is not persisted.

        The log has no such records any more, or they belong to an aborted transaction. After a load of the share
        partition, the same is found again.
        """
        if last < first:
            return
        for run in self._runs.cut(max(first, self.start_offset), last):
            if run.state is state and run.next_state is None:
                run.state, run.holder, run.deadline_ms = ARCHIVED, None, FOREVER
                self._finished_count += run.size
        following = self._runs.find(last + 1)
        if following is not None and following.state is AVAILABLE:
            heappush(self._available, following.first)
        self.join(first, last)
        self._advance()

    def join(self, first: int, last: int) -> None:
        """Join neighbouring runs with equal state after changes of a range."""
        self._runs.join(first, last)

    # -- acknowledge -------------------------------------------------------------------------------------------

    def acknowledge(
        self, holder: ShareHolder, batches: Sequence[AcknowledgeBatch], *, renewed_until_ms: int
    ) -> Change:
        """Start to acknowledge records that a session has acquired. Offsets below the window are ignored, as in Kafka.

        The session's home has validated each batch (acknowledge.py). Renewed locks need no persistence. Raises
        KafkaError and changes nothing if the session has not acquired an offset, or if batches overlap.
        """
        last = -1
        for batch in batches:
            if batch.first <= last:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid acknowledgement batches.")
            last = batch.last
            self._check(holder, batch)
        change: Change = []
        for batch in batches:
            first, types = max(batch.first, self.start_offset), batch.types
            # Fast path: clients often send one type for each offset although all types are equal.
            if types.count(types[0]) == len(types):
                for run in self._runs.cut(first, batch.last):
                    self._acknowledge(change, run, types[0], renewed_until_ms)
                continue
            skipped = first - batch.first
            begins = [batch.first + at for at in range(skipped + 1, len(types)) if types[at] != types[at - 1]]
            for run in self._runs.cut(first, batch.last, begins):
                self._acknowledge(change, run, types[run.first - batch.first], renewed_until_ms)
        return change

    def _check(self, holder: ShareHolder, batch: AcknowledgeBatch) -> None:
        """Raise KafkaError unless a session holds every offset of a batch, and no other change of them is in flight."""
        if batch.last < self.start_offset:
            return
        if not self.run_count:
            raise _invalid_state(
                "Batch record not found. The request batch offsets are not found in the cache."
            )
        if batch.last >= self.end_offset:
            which = "first" if batch.first >= self.end_offset else "last"
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Batch record not found. The {which} offset in request is past acquired records.",
            )
        if AcknowledgeType.RENEW in batch.types and not self.rules.can_renew:
            raise _invalid_state("Renewing acquisition locks is not enabled for the group.")
        for run in self._runs.overlapping(max(batch.first, self.start_offset), batch.last):
            if _is_gap(run):
                continue
            if run.state is not ACQUIRED:
                raise _invalid_state("The offset cannot be acknowledged. The offset is not acquired.")
            if run.next_state is not None:
                raise _invalid_state(
                    "The record state is invalid. The acknowledgement of delivery could not be completed."
                )
            if run.holder != holder:
                raise _invalid_state("Member is not the owner of offset")

    def _acknowledge(self, change: Change, run: Run, kind: int, renewed_until_ms: int) -> None:
        if _is_gap(run):
            return
        if kind == AcknowledgeType.ACCEPT:
            _start_change(change, run, ACKNOWLEDGED)
        elif kind == AcknowledgeType.RELEASE:
            self._release(change, run)
        elif kind == AcknowledgeType.RENEW:
            run.deadline_ms = renewed_until_ms
            self._locks.add(renewed_until_ms, run.first, run.last)
        else:
            run.is_rejected = kind == AcknowledgeType.REJECT and self.rules.has_dead_letters
            _start_change(change, run, ARCHIVING if run.is_rejected else ARCHIVED)

    # -- release -----------------------------------------------------------------------------------------------

    def release_holders(self, is_closed: Callable[[ShareHolder], bool]) -> Change:
        """Start to release the records of closed sessions. As in Kafka 4.4, their delivery still counts.

        Otherwise a record that crashes its consumers would never reach the delivery count limit.
        """
        change: Change = []
        for run in self._runs:
            if run.holder is not None and run.next_state is None and is_closed(run.holder):
                self._release(change, run)
        return change

    def expire(self, now_ms: int) -> Change:
        """Start to release the records whose lock has ended."""
        change: Change = []
        for first, last in self._locks.pop_due(now_ms):
            for run in self._runs.overlapping(max(first, self.start_offset), last):
                if run.state is ACQUIRED and run.deadline_ms <= now_ms and run.next_state is None:
                    self._release(change, run)
        return change

    def next_deadline_ms(self) -> int | None:
        """Return the time (monotonic ms) at which the next lock ends, or None if no record is locked."""
        return self._locks.next_ms(self.start_offset)

    def _release(self, change: Change, run: Run) -> None:
        if run.delivery_count < self.rules.delivery_count_max:
            _start_change(change, run, AVAILABLE)
        else:
            # The delivery count limit is reached. Archive the record, because its consumers would get it again for
            # ever.
            _start_change(change, run, ARCHIVING if self.rules.has_dead_letters else ARCHIVED)

    def finish_dead_letters(self, first: int, last: int) -> Change:
        """Start to archive records that were written as dead letters, or that cannot be written."""
        change: Change = []
        for run in self._runs.cut(max(first, self.start_offset), last):
            if run.state is ARCHIVING and run.next_state is None:
                _start_change(change, run, ARCHIVED)
        return change

    # -- persistence -------------------------------------------------------------------------------------------

    def to_persist(self, changes: Sequence[Change]) -> ToPersist:
        """Return the fields of the write for `changes`, which must be all changes that were started.

        Records below the new start offset need no state of their own.
        """
        pending = _joined([each for change in changes for each in change])
        start, finished = self.start_offset, self._finished_count
        for first, last in pending:
            for run in self._runs.overlapping(first, last):
                if run.next_state in _FINISHED:
                    finished += min(run.last, last) - max(run.first, first) + 1
        for run in self._runs:
            if (run.state if run.next_state is None else run.next_state) not in _FINISHED:
                break
            start = run.last + 1
            finished -= run.size
        batches: list[StateBatch] = []
        for first, last in pending:
            first = max(first, start)
            for run in self._runs.overlapping(first, last) if first <= last else ():
                if run.next_state is not None:
                    begin, end = max(run.first, first), min(run.last, last)
                    add_batch(batches, begin, end, run.next_state, run.delivery_count)
        return ToPersist(start, finished, tuple(batches))

    def commit(self, change: Change) -> list[DeadLetters]:
        """Finish a change that was persisted, and advance the start offset. Return the new dead letters."""
        letters: list[DeadLetters] = []
        for first, last in change:
            for run in self._runs.cut(max(first, self.start_offset), last):
                assert run.next_state is not None
                run.state, run.next_state, run.holder, run.deadline_ms = run.next_state, None, None, FOREVER
                if run.state is AVAILABLE:
                    heappush(self._available, run.first)
                elif run.state is ARCHIVING:
                    letters.append(_dead_letters(run))
                else:
                    run.is_rejected = False
                    self._finished_count += run.size
            self._runs.join(first, last)
        self._advance()
        return letters

    def roll_back(self, change: Change) -> None:
        """Undo a change that could not be persisted. The records are acquired or archiving, as before the change."""
        for first, last in change:
            for run in self._runs.cut(max(first, self.start_offset), last):
                run.next_state = None
                if run.state is ACQUIRED:
                    run.is_rejected = False
                    # The lock may have ended while the write was in flight, and `expire` skipped the record. So add its
                    # deadline again.
                    self._locks.add(run.deadline_ms, run.first, run.last)
            self._runs.join(first, last)


def _is_gap(run: Run) -> bool:
    """Return True for offsets that have no records. As in Kafka, an acknowledgement of such offsets has no effect."""
    return run.state is ARCHIVED and not run.delivery_count


def _start_change(change: Change, run: Run, state: RecordState) -> None:
    run.next_state = state
    if change and change[-1][1] + 1 == run.first:
        change[-1] = change[-1][0], run.last
    else:
        change.append((run.first, run.last))


def _dead_letters(run: Run) -> DeadLetters:
    return DeadLetters(run.first, run.last, run.delivery_count, run.is_rejected)


def _invalid_state(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD_STATE, message)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in ascending order, with adjacent ones joined."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined
