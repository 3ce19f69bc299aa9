"""LogRetention: the part of a Log that moves its start, by retention or DeleteRecords. See log.py."""

from __future__ import annotations

import logging
from typing import Final

from kproc.broker.storage.fs import Shortage, StorageFailure
from kproc.broker.storage.log_start import write_start, write_start_mark
from kproc.broker.storage.log_state import LogState
from kproc.broker.storage.retention import SegmentInfo, below_start, victims
from kproc.common.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

# Limit of the segments that one call deletes, because renaming a segment's files takes 0.1 ms, and a producer can roll
# a log with each batch. `delete_rest` deletes the remaining ones, so that clients do not wait for the whole deletion.
DELETED_TOGETHER: Final = 100


class LogRetention:
    """The part of a Log that deletes its oldest segments."""

    __slots__ = ("_marked_start", "_state", "rest_below")

    def __init__(self, state: LogState) -> None:
        self._state = state
        # `delete_rest` must still delete the segments that end at or before this offset. 0: none.
        self.rest_below = 0
        self._marked_start = 0  # The start that `mark_start` wrote last.

    def retention_victims(self, now_ms: int) -> tuple[str, list[SegmentInfo]]:
        """Return (reason, segments to delete, oldest first).

        Of the log's start, retention.ms and retention.bytes, the rule that deletes the most segments decides.
        """
        state = self._state
        segments = state.segment_info()
        reason, count = victims(segments, state.config, now_ms=now_ms, start_offset=state.start_offset)
        return reason, segments[:count]

    def enforce_retention(self, now_ms: int) -> int:
        """Delete the segments that retention_victims() returns, oldest first, and return the number of deleted ones."""
        reason, doomed = self.retention_victims(now_ms)
        return self.delete_segments_before(doomed[-1].next_offset, reason) if doomed else 0

    def delete_segments_before(self, offset: int, reason: str) -> int:
        """Delete the oldest segments that end at or before both `offset` and the high watermark. Return how many.

        If there are more than DELETED_TOGETHER, `delete_rest` deletes the remaining ones. Files are renamed to .deleted
        now. unlink_due() unlinks them after file.delete.delay.ms, so that a Processor that sends from them can finish.
        """
        state = self._state
        now_ms = state.clock.wall_ms()
        limit = min(offset, state.high_watermark)
        count = below_start(state.oldest_segments(DELETED_TOGETHER + 1), start_offset=limit)
        self.rest_below = limit if count > DELETED_TOGETHER else 0
        count = min(count, DELETED_TOGETHER)
        if not count:
            return 0
        with state.done_or_offline("a deletion of segments"):
            if count == len(state.segments):
                try:
                    state.roll(state.end_offset, now_ms)
                except Shortage:
                    # The disk has no space for a new active segment. Keep the present one and delete the others, which
                    # frees space.
                    count -= 1
            # Write the new start before the renames, so that a crash between the two never leaves a log that begins
            # above its recorded start (log_start.py).
            self._move_start(max(state.start_offset, state.segments.bases()[count]))
            gone = state.segments.delete_oldest(count, due_ms=state.deletion_due_ms())
            # Remove deleted segments from the next sync, which would only open their descriptors again.
            state.unsynced.remove_segments(gone)
            state.snapshots.remove_before(state.segments.first_base)
        logger.info(
            "segments=deleted partition=%s-%d count=%d below=%d reason=%s",
            state.topic, state.partition, len(gone), state.segments.first_base, reason,
        )  # fmt: skip
        return len(gone)

    def delete_rest(self) -> None:
        """Delete some of the segments that delete_segments_before() has left. Called once a second."""
        self.delete_segments_before(self.rest_below, "rest of a deletion")

    def unlink_due(self, now_ms: int) -> int:
        """Unlink some of the deleted segments' files that have waited file.delete.delay.ms; return how many.

        `now_ms` is monotonic. Syncs the recorded start of the log first (log_start.py). If that fails, the files stay
        until the next call.
        """
        state = self._state
        due_ms = state.segments.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return 0
        # Sync the recorded start before the files are unlinked. Otherwise a power loss could leave a log that begins
        # above its recorded start, and no .deleted files would show that the segments before it were deleted on
        # purpose.
        if not state.is_start_synced:
            try:
                write_start(state.fs, state.directory, state.epochs, durable=True)
            except StorageFailure as failure:
                logger.warning(
                    "%s keeps its deleted segments, trying again later, because the log's new start cannot be "
                    "synced: %s",
                    state.directory,
                    failure,
                )
                return 0
            state.is_start_synced = True
        return state.segments.unlink_due(now_ms)

    def advance_start(self, offset: int) -> int:
        """Move the log's start to `offset` for DeleteRecords (KIP-107), and delete the segments below it.

        Returns the log's start, which does not move back. Raises OFFSET_OUT_OF_RANGE above the high watermark. The
        caller must have the cleaner write log-start-offset-checkpoint, one file for all logs of a directory.
        """
        state = self._state
        # As in Kafka, DeleteRecords cannot delete records above the high watermark, which no reader may see yet.
        if offset > state.high_watermark or offset < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is negative or above the high watermark {state.high_watermark}",
            )
        if offset > state.start_offset:
            with state.done_or_offline("a move of the log's start"):
                self._move_start(offset)
            self.delete_segments_before(offset, "log start offset")
        return state.start_offset

    def mark_start(self, start: int) -> None:
        """Repeat a start of the log in the directory's attribute (log_start.py).

        `start` must be in log-start-offset-checkpoint already. A mark that is ahead of it would hide records after a
        crash before the checkpoint is written.
        """
        state = self._state
        # A log that was closed, deleted or transferred meanwhile may have another owner, or its directory another name.
        if state.is_offline or start <= self._marked_start:
            return
        try:
            write_start_mark(state.fs, state.directory, state.topic_id, start)
            self._marked_start = start
        except StorageFailure as failure:
            # The checkpoint has the start, so a shortage needs no repetition.
            state.set_offline_after(failure)

    def _move_start(self, offset: int) -> None:
        state = self._state
        state.start_offset = offset
        state.is_start_synced = False
        if state.epochs.truncate_to(offset):
            write_start(state.fs, state.directory, state.epochs)
