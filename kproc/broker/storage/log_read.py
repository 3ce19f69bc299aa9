"""LogReader: the part of a Log that finds file ranges by offset, timestamp and epoch. See log.py.

A Fetch reads no records: a Processor sends the ranges from the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from kproc.broker.storage.format import AbortedTransaction
from kproc.broker.storage.log_state import LogState
from kproc.broker.storage.results import ReadResult, RecordPosition
from kproc.broker.storage.segment import LogSegment
from kproc.broker.storage.segment_lookup import find_timestamp, headers_from, locate, max_timestamp_from
from kproc.broker.storage.timestamp_search import SearchPaused, TimestampSearch
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from kproc.wire.batch_header import ATTRIBUTES
from kproc.wire.file_range import FileRange
from kproc.wire.record_batch import CONTROL, NO_TIMESTAMP

# Limit of file ranges in one read. A read continues in the next segment, because otherwise small segments would limit
# fetches. 16 calls of sendfile cost little beside the bytes that they send.
READ_RANGES_MAX: Final = 16


def _to_the_end(look: Callable[[TimestampSearch], RecordPosition | None]) -> RecordPosition | None:
    search = TimestampSearch()
    while True:
        with suppress(SearchPaused):
            return look(search)


class LogReader:
    """The part of a Log that finds and reads records."""

    __slots__ = ("_segments", "_state", "_tail")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._segments, self._tail = state.segments, state.tail

    def read(
        self, offset: int, max_bytes: int, *, minimum_one: bool = True, committed: bool = False
    ) -> ReadResult:
        """Return up to `max_bytes` from an offset on, as file ranges. Raise OFFSET_OUT_OF_RANGE outside the log.

        The ranges end at the high watermark, or with `committed` at the last stable offset. With `minimum_one` the
        first batch is whole even if it is larger than `max_bytes`.
        """
        state = self._state
        stable, high_watermark = state.last_stable_offset, state.high_watermark
        bound = stable if committed else high_watermark
        ranges, size = self._read_ranges(offset, max_bytes, minimum_one, bound)
        return ReadResult(ranges, size, high_watermark, stable, state.start_offset)

    def read_bytes(self, offset: int, max_bytes: int) -> bytes:
        """Read up to `max_bytes` from the batch that contains `offset` on, for the owner itself.

        Includes records that no sync has confirmed. The last batch may be incomplete.
        """
        fs, end_offset = self._state.fs, self._state.end_offset
        ranges, _ = self._read_ranges(offset, max_bytes, minimum_one=True, bound=end_offset)
        parts: list[bytes] = []
        for part in ranges:
            descriptor = fs.open(Path(os.fsdecode(part.path)), writable=False)
            try:
                parts.append(fs.read(descriptor, part.length, position=part.position))
            finally:
                fs.close(descriptor)
        return b"".join(parts)

    def _read_ranges(
        self, offset: int, max_bytes: int, minimum_one: bool, bound: int
    ) -> tuple[list[FileRange], int]:
        """Return (file ranges, number of bytes) from an offset on. They end before the batch with the offset `bound`.

        max_bytes: limit of the bytes, which the first batch may exceed with `minimum_one`.
        """
        # This long function is not divided, because every partition of a Fetch that has records would pay for further
        # calls.
        state = self._state
        if not state.start_offset <= offset <= state.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in {state.start_offset}..{state.end_offset}",
            )
        # The client has read all visible records. That is no error: its Fetch waits for new ones.
        if offset >= bound:
            return [], 0
        active = state.active
        # Look in the tail cache first, because a consumer that keeps up finds its batch there, and the index would cost
        # a system call.
        if offset >= self._tail.floor_offset:
            segment, number = active, len(self._segments) - 1
            position, first_bytes = self._tail.locate(offset, segment.size)
        else:
            number, segment, position, first_bytes = self._locate(offset)
            # Another program may have removed or cut the file of a sealed segment. Find it out here and fail only this
            # partition. The Processor finds it out after the answer was made, and can only close the connection.
            if segment is not active and not segment.is_in_place():
                raise Corrupt(
                    f"another program has removed, replaced or truncated {os.fsdecode(segment.path_bytes)}"
                )
        # KIP-74: the first batch of a response is sent whole even if it exceeds the limit. Otherwise a consumer whose
        # limit is smaller than one batch would never get past it.
        if first_bytes > max_bytes:
            # Only the first partition of a response may exceed the limit. The others wait for the next Fetch.
            if not minimum_one:
                return [], 0
            max_bytes = first_bytes
        # A read ends before the log's end only if records are hidden or, for committed reads, a transaction is open.
        stop = None if bound >= state.end_offset else self._locate_bound(bound)
        ranges: list[FileRange] = []
        taken = 0
        while len(ranges) < READ_RANGES_MAX:
            end = segment.size if stop is None or stop[0] != number else stop[1]
            length = min(end - position, max_bytes - taken)
            if length > 0:
                ranges.append(segment.range(position, length))
                taken += length
            # Stop at the active segment, at the size limit, or at the segment that holds the bound.
            if segment is active or taken >= max_bytes or (stop is not None and number >= stop[0]):
                break
            number += 1
            following = self._segments.get(number)
            assert following is not None, number
            if following is not active and not following.is_in_place():
                break  # The next read begins there and reports it.
            segment, position = following, 0
        return ranges, taken

    def _locate_bound(self, offset: int) -> tuple[int, int]:
        """Return (segment number, position) of the batch with an offset, where a read ends."""
        if offset >= self._tail.floor_offset:
            return len(self._segments) - 1, self._tail.locate(offset, self._state.active.size)[0]
        number, _, position, _ = self._locate(offset)
        return number, position

    def _locate(self, offset: int) -> tuple[int, LogSegment, int, int]:
        """Return (segment number, segment, position, size in bytes) of the first batch that ends at or after an offset.

        Raises Corrupt if no segment has it.
        """
        number = self._segments.number_of(offset)
        while (segment := self._segments.get(number)) is not None:
            found = locate(self._segments.warm(segment), offset)
            if found is not None:
                return number, segment, *found
            number += 1
        raise Corrupt(f"{self._state.directory}: offset {offset} is in no segment")

    def has_marker_from(self, offset: int) -> bool:
        """Return True if there is a control batch, which ends a transaction, at an offset or behind it.

        Reads every header from there on.
        """
        number, segment, position, _ = self._locate(offset)
        while True:
            headers = headers_from(self._segments.warm(segment), position)
            if any(header[ATTRIBUTES] & CONTROL for header in headers):
                return True
            number += 1
            following = self._segments.get(number)
            if following is None:
                return False
            segment, position = following, 0

    def offset_for_timestamp(
        self, timestamp: int, search: TimestampSearch | None = None
    ) -> RecordPosition | None:
        """Return the first record whose timestamp is at least `timestamp` (in ms), or None.

        At the limit of the search, return the offset that it has reached. With a `search` it may raise SearchPaused:
        call it again later with the same `search`. Without one it blocks.
        """
        if search is None:
            return _to_the_end(lambda each: self.offset_for_timestamp(timestamp, each))
        search.start_slice(self._state.config.max_decompressed_message_bytes)
        for segment in self._segments.all():
            # Skip segments with only older records. Their largest timestamp is in memory, so nothing is read.
            if segment.max_timestamp >= timestamp:
                found = find_timestamp(
                    self._segments.warm(segment),
                    timestamp,
                    from_offset=self._state.start_offset,
                    search=search,
                )
                if found is not None:
                    return RecordPosition(*found)
        return None

    def max_timestamp(self, search: TimestampSearch | None = None) -> RecordPosition | None:
        """Return the first record with the largest timestamp (ListOffsets -3, KIP-734); None if there is no record.

        If no record has a timestamp, this is the first record, as in Kafka.

        `search` has the same meaning as in offset_for_timestamp.
        """
        if search is None:
            return _to_the_end(self.max_timestamp)
        search.start_slice(self._state.config.max_decompressed_message_bytes)
        start = self._state.start_offset
        best: tuple[int, LogSegment] | None = None
        for segment in self._segments.all():
            timestamp = segment.max_timestamp
            # Read the batches of the first segment, because DeleteRecords may have deleted the record with its largest
            # timestamp.
            if segment.base_offset < start:
                timestamp = max_timestamp_from(self._segments.warm(segment), start, search)
            if timestamp >= 0 and (best is None or timestamp > best[0]):
                best = timestamp, segment
        if best is None:
            return self._first_record(search)
        found = find_timestamp(self._segments.warm(best[1]), best[0], from_offset=start, search=search)
        return None if found is None else RecordPosition(*found)

    def _first_record(self, search: TimestampSearch) -> RecordPosition | None:
        for segment in self._segments.all():
            if segment.size:
                found = find_timestamp(
                    self._segments.warm(segment),
                    NO_TIMESTAMP,
                    from_offset=self._state.start_offset,
                    search=search,
                )
                if found is not None:
                    return RecordPosition(*found)
        return None

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) for OffsetsForLeaderEpoch (KIP-279).

        Return (-1, -1) for -1 and for an epoch above the present one.
        """
        state = self._state
        # The present epoch ends at the log's end. It has no entry before its first batch is appended.
        if epoch == state.leader_epoch:
            # Clients compare the end offset with their position to detect truncated records (KIP-320).
            return epoch, state.end_offset
        # An epoch between the last one with records and the present one has written nothing. So the last one with
        # records ends at the log's end.
        if state.epochs.latest < epoch < state.leader_epoch:
            return (state.epochs.latest if state.epochs.latest >= 0 else epoch), state.end_offset
        return state.epochs.find_end_offset(epoch, log_end=state.end_offset)

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch that wrote the record at `offset`, or -1 if it is before the first known epoch.

        From the log's end on, return the present epoch.
        """
        state = self._state
        return state.leader_epoch if offset >= state.end_offset else state.epochs.epoch_of(offset)

    def aborted_in(self, offset: int, found: ReadResult) -> list[AbortedTransaction]:
        """Return the aborted transactions in the ranges that a committed `read` at `offset` found.

        Every read_committed Fetch calls this. A consumer that keeps up usually gets an empty list without a look-up.
        """
        aborting = self._segments.with_aborts(offset) if found.ranges else []
        # Usually a consumer that keeps up is behind the last abort marker. Then return without a search in the
        # transaction index.
        if not aborting or aborting[-1].txn_index.last_marker < offset:
            return []
        return self.aborted_transactions(offset, min(self._bound_of(offset, found), found.last_stable_offset))

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that the response to a read_committed Fetch of this range must list."""
        found: list[AbortedTransaction] = []
        for segment in self._segments.with_aborts(fetch_offset):
            overlapping, is_all = segment.txn_index.overlapping(fetch_offset, upper_bound)
            found += overlapping
            if is_all:
                break
        return found

    def _bound_of(self, offset: int, found: ReadResult) -> int:
        """Return an offset behind all batches that were read.

        As in Kafka (LogSegment.fetchUpperBoundOffset) this is the next offset in the index, because the exact offset
        would need a read of the log.
        """
        last = found.ranges[-1]
        number = self._segments.number_of(offset)
        while (segment := self._segments.get(number)) is not None and segment.path_bytes != last.path:
            number += 1
        assert segment is not None, last
        bound = self._segments.warm(segment).index.offset_at(last.position + last.length)
        if bound is not None:
            return bound
        following = self._segments.get(number + 1)
        return self._state.end_offset if following is None else following.base_offset
