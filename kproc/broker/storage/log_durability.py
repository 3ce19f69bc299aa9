"""LogDurability: what is on the disk of a log for certain, and how more of it comes to be. See log.py.

The owner takes a sync point, a sync thread runs its fdatasync calls, and the owner is told how they ended. An error of
one takes the log offline, and a note keeps whoever opens it next from believing the page cache (failed_sync.py).
"""

from __future__ import annotations

import logging
from typing import Final

from kproc.broker.storage import checkpoints, failed_sync
from kproc.broker.storage.fs import StorageFailure
from kproc.broker.storage.log_state import LogState
from kproc.broker.storage.results import SyncPoint
from kproc.broker.storage.segment import LogSegment

logger = logging.getLogger(__name__)

# Limit of sealed segments in one sync point. Each holds three descriptors until the sync has ended, and producers can
# roll thousands of segments in that time.
SEALED_TOGETHER_MAX: Final = 32


class LogDurability:
    """The part of a Log that syncs it."""

    __slots__ = ("_has_failed", "_state", "flushed_ms")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._has_failed = False
        self.flushed_ms = state.clock.wall_ms()  # When the last sync ended.

    def trust(self, offset: int) -> None:
        """Make an offset the recovery point of a log that was opened: nothing behind it is known to be on the disk."""
        self._state.recovery_point = offset
        self._state.unsynced.note_sealed(self._state.segments.all(), offset)

    def sync_point(self, *, closes: bool = False) -> SyncPoint:
        """Return the descriptors to sync for everything appended so far; none if nothing is new.

        If more than SEALED_TOGETHER_MAX sealed segments wait, the point covers the first of them and ends there:
        another point must follow.

        New files need a sync of their directory, too, or a power loss removes their names. Sealed segments are synced
        with their indexes, because recovery believes indexes below the recovery point. With `closes` the active
        segment's indexes are synced as well. The caller must pass the point to mark_synced() or sync_failed().
        """
        state = self._state
        segments: list[LogSegment] = []
        unsynced = state.unsynced
        is_due = bool(state.recovery_point < state.end_offset or unsynced.directories or unsynced.segments)
        end_offset, sealed_count = state.end_offset, min(len(unsynced.segments), SEALED_TOGETHER_MAX)
        if sealed_count < len(unsynced.segments):
            segments = unsynced.segments[:sealed_count]
            end_offset = unsynced.segments[sealed_count].base_offset
        elif is_due:
            segments = [*unsynced.segments, state.active]
        elif closes:
            segments = [state.active]
        fds: list[int] = []
        pinned = 0
        try:
            for segment in segments:
                fds += segment.pin(indexes=closes or segment is not state.active)
                pinned += 1
            extra = unsynced.open_names(state.fs) if is_due else []
        except StorageFailure:  # Nothing has changed.
            for segment in segments[:pinned]:
                segment.unpin()
                state.segments.warm(segment)
            raise
        return SyncPoint(
            (*fds, *extra),
            end_offset,
            tuple(segments),
            sealed_count,
            tuple([segment.size for segment in segments]),
            tuple(extra),
        )

    def mark_synced(self, point: SyncPoint) -> None:
        """All descriptors of the point were synced without an error.

        The segment that was active at the point may have grown since, and been sealed: it stays to be synced, now
        with its indexes. Behind a sync that failed nothing is confirmed: the next one succeeds without the pages
        that were lost.
        """
        state = self._state
        self.give_back(point)
        if self._has_failed:
            return
        state.recovery_point = max(state.recovery_point, point.end_offset)
        state.confirm(state.recovery_point)
        for segment, size in zip(point.segments, point.sizes, strict=True):
            segment.synced_bytes = size
        state.unsynced.forget(point.segments[: point.sealed_count])
        self.flushed_ms = state.clock.wall_ms()

    def sync_failed(self, point: SyncPoint, reason: str) -> None:
        """A sync failed: the log goes offline, for the kernel may have dropped what it could not write."""
        self.give_back(point)
        self._has_failed = True
        self._state.note_failure(StorageFailure(reason))

    def run_sync(self, point: SyncPoint) -> None:
        """The fdatasync calls of a point; raises StorageFailure. For a sync thread: no state of the log changes."""
        state = self._state
        for segment in point.segments:
            segment.note_synced()
        try:
            for descriptor in point.fds:
                state.fs.sync(descriptor)
        except StorageFailure:
            failed_sync.leave_note(state.fs, state.directory)
            raise

    def give_back(self, point: SyncPoint) -> None:
        """Close what was open for the point only."""
        state = self._state
        for segment in point.segments:
            segment.unpin()
            state.segments.warm(segment)  # Its descriptor may have been opened for the sync only.
        for descriptor in point.extra_fds:
            state.fs.close(descriptor)

    def sync(self) -> None:
        """Sync everything now, blocking; raises StorageFailure (and the log is offline) when that fails."""
        self.sync_most()
        self.sync_now(self.sync_point())

    def sync_most(self) -> None:
        """Sync, blocking, until one more sync point covers the rest. Raises as `sync` does."""
        while len(self._state.unsynced.segments) > SEALED_TOGETHER_MAX:
            self.sync_now(self.sync_point())

    def sync_now(self, point: SyncPoint) -> None:
        """Run a point's sync, blocking; like sync()."""
        try:
            self.run_sync(point)
        except StorageFailure as failure:
            self.sync_failed(point, str(failure))
            raise
        self.mark_synced(point)

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether flush.messages, flush.ms or a sealed segment asks for a sync, without acks=all."""
        state = self._state
        unsynced = state.end_offset - state.recovery_point
        if not unsynced:
            return False
        return (
            unsynced >= state.config.flush_messages
            or now_ms - self.flushed_ms >= state.config.flush_ms
            or bool(state.unsynced.segments)
        )

    def write_again(self) -> None:
        """After a failed sync: write again what no sync has confirmed, or raise StorageFailure."""
        state = self._state
        segments = [*state.unsynced.segments, state.active]
        written = failed_sync.write_again(state.fs, segments, state.recovery_point)
        # Written completely before it replaces the old one: without the file the log would belong to no topic.
        checkpoints.rewrite_partition_metadata(state.fs, state.directory, state.topic_id)
        state.unsynced.directories = [state.directory, state.directory.parent]
        state.unsynced.files = [segment.txn_index_path for segment in segments]
        self.sync()
        failed_sync.forget(state.fs, state.directory)
        logger.warning(
            "log=written_again partition=%s-%d bytes=%d: a sync of it had failed",
            state.topic, state.partition, written,
        )  # fmt: skip
