"""LogDurability: the part of a Log that syncs it and records how much of it is on the disk. See log.py.

The owner creates a SyncPoint, a sync thread runs its fdatasync calls, and the owner receives the result. An error takes
the log offline, and a note file keeps its next owner from trusting the page cache (failed_sync.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from kproc.broker.storage import checkpoints, failed_sync
from kproc.broker.storage.format import LOG_SUFFIX
from kproc.broker.storage.fs import StorageFailure
from kproc.broker.storage.log_state import LogState
from kproc.broker.storage.results import SyncPoint
from kproc.broker.storage.segment import LogSegment

logger = logging.getLogger(__name__)

# Limit of sealed segments in one sync point. Each segment holds three descriptors until the sync has ended, and
# meanwhile producers can roll thousands of segments.
SEALED_TOGETHER_MAX: Final = 32


class LogDurability:
    """The part of a Log that syncs its files and records which records are on the disk."""

    __slots__ = ("_checked_end", "_has_failed", "_state", "flushed_ms")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._has_failed = False
        self._checked_end = 0  # The log's end at the last `check_removed`.
        self.flushed_ms = state.clock.wall_ms()  # Wall time at the end of the last sync.

    def trust(self, offset: int) -> None:
        """Set the recovery point of a log that was just opened. Records from `offset` on count as not synced."""
        self._state.recovery_point = offset
        self._state.unsynced.add_sealed(self._state.segments.all(), offset)

    def sync_point(self, *, closes: bool = False) -> SyncPoint:
        """Return the descriptors to sync for all records appended so far: none if all is synced, unless it `closes`.

        If more than SEALED_TOGETHER_MAX sealed segments wait, the point covers the first of them and ends there:
        another point must follow.

        New files need a sync of their directory, too, or a power loss removes their names. Sealed segments are synced
        with their indexes, because recovery believes indexes below the recovery point. With `closes` the active
        segment's indexes are synced as well. The caller must pass the point to mark_synced() or sync_failed().
        """
        state = self._state
        unsynced = state.unsynced
        # A sync is due for unconfirmed records, and also for new file names and sealed segments.
        is_due = bool(state.recovery_point < state.end_offset or unsynced.directories or unsynced.segments)
        sealed_count = min(len(unsynced.segments), SEALED_TOGETHER_MAX)
        segments, end_offset = self._segments_to_sync(sealed_count, is_due=is_due, closes=closes)
        fds: list[int] = []
        pinned = 0
        try:
            for segment in segments:
                fds += segment.pin(indexes=closes or segment is not state.active)
                pinned += 1
            directory_fd, extra = unsynced.open_names(state.fs) if is_due else (None, ())
        # A file could not be opened, for example because the host has no free descriptor. Release the segments that
        # were pinned. Nothing else was changed.
        except StorageFailure:
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
            extra,
            directory_fd,
            closes,
        )

    def _segments_to_sync(
        self, sealed_count: int, *, is_due: bool, closes: bool
    ) -> tuple[list[LogSegment], int]:
        """Return the segments of a sync point and the offset at which the point ends.

        sealed_count: number of sealed segments in the point. is_due: records, file names or sealed segments are not
        synced yet. closes: the log is being closed cleanly, so the active segment is synced even without new records,
        for its indexes.
        """
        state = self._state
        sealed = state.unsynced.segments
        # Too many segments are sealed. The point ends where the first segment that it omits begins.
        if sealed_count < len(sealed):
            return sealed[:sealed_count], sealed[sealed_count].base_offset
        if is_due:
            return [*sealed, state.active], state.end_offset
        # Nothing is new. Sync the active segment only at a clean stop, because of its indexes.
        return [state.active] if closes else [], state.end_offset

    def mark_synced(self, point: SyncPoint) -> None:
        """Record that all descriptors of the point were synced without an error.

        The segment that was active at the point may have been sealed since. Such a segment is synced again with its
        indexes. After a failed sync this method confirms nothing: the kernel has dropped the failed pages, so that the
        next fdatasync succeeds without them.
        """
        state = self._state
        if point.sealed_count and state.offline_reason is None:
            self._mark_sealed(point.segments[: point.sealed_count])
        if point.directory_fd is not None and state.offline_reason is None:
            self._mark_newest(point.directory_fd, point.segments[-1].base_offset)
        # Confirm nothing in a file without a name: its records are durable only as long as it is open.
        if point.segments and point.segments[-1] is state.active:
            self.check_removed()
        self.release(point)
        if self._has_failed:
            return
        state.recovery_point = max(state.recovery_point, point.end_offset)
        state.confirm(state.recovery_point)
        # Use the file sizes at the creation of the sync point, because bytes that were appended later may be in the
        # page cache only.
        for segment, size in zip(point.segments, point.sizes, strict=True):
            segment.synced_bytes = size
        state.unsynced.remove_segments(point.segments[: point.sealed_count])
        self.flushed_ms = state.clock.wall_ms()
        if point.closes:
            self.mark_active()

    def mark_active(self) -> None:
        """Record in the active segment's attribute how many bytes the last round has synced, to the byte.

        Called when the log is closed, and once a second while no round uses the log. run_sync() records only what the
        round before it has synced, and only if that is at least a page more. So without this call the end of an idle
        log would stay unmarked. A log that is offline gets no mark, for the reason in _mark_newest().
        """
        state = self._state
        active = state.active
        if active.synced_bytes <= active.marked_bytes or state.offline_reason is not None:
            return
        try:
            active.write_whole_mark()
        except StorageFailure as failure:
            state.set_offline_after(failure)

    def check_removed(self) -> None:
        """Take the log offline if another program has removed the file of the active segment.

        Appends to it would succeed until the next roll, and all of their records would be lost.
        """
        state = self._state
        self._checked_end = state.end_offset
        if state.offline_reason is None and state.active.is_removed():
            self._has_failed = True
            state.set_offline(
                f"{state.active.path(LOG_SUFFIX)} was removed while the broker had it open; stop the broker, restore "
                "the file and start the broker again"
            )

    def check_grown(self) -> None:
        """Call check_removed() if records were appended since the last check. Without acks=all few syncs call it."""
        if self._checked_end != self._state.end_offset:
            self.check_removed()

    def _mark_sealed(self, segments: Sequence[LogSegment]) -> None:
        """Record in the attributes of these sealed segments that a round has synced their whole files.

        A segment that is filled and sealed within one round is in no later round, so run_sync() never marks it. In a
        compacted log recovery expects a segment to end where the next one begins only if it has a mark. A log that is
        offline gets no mark, for the reason in _mark_newest().
        """
        try:
            for segment in segments:
                segment.write_sealed_mark()
        except StorageFailure as failure:
            self._state.set_offline_after(failure)

    def _mark_newest(self, directory_fd: int, base_offset: int) -> None:
        """Record in the directory's attribute that a segment's name, and all segments below it, are on the disk.

        The checkpoint of the recovery points can be lost together with the newest segment. The mark shows that loss. A
        log that is offline gets no mark, also not at a Handler to which it was transferred. The reason: a sync after a
        failed sync succeeds, although the kernel has dropped pages of the file.
        """
        try:
            self._state.fs.write_newest_mark(directory_fd, base_offset)
        except StorageFailure as failure:
            self._state.set_offline_after(failure)

    def sync_failed(self, point: SyncPoint, reason: str) -> None:
        """Take the log offline after a failed sync, because the kernel may have dropped the dirty pages."""
        self.release(point)
        self._has_failed = True
        self._state.set_offline_after(StorageFailure(reason))

    def run_sync(self, point: SyncPoint) -> None:
        """Run the fdatasync calls of a point in a sync thread. Changes no state of the log. Raises StorageFailure."""
        state = self._state
        # Write the marks before the syncs, which then make them durable at no extra cost. A mark names the size that an
        # earlier sync confirmed, so it is never ahead of the disk.
        for segment in point.segments:
            segment.write_synced_mark()
        try:
            for descriptor in point.fds:
                state.fs.sync(descriptor)
        except StorageFailure:
            # Write the note in this sync thread, before the owner hears of the failure. If the owner dies before that,
            # its successor must not believe the page cache.
            failed_sync.write_note(state.fs, state.directory)
            raise

    def release(self, point: SyncPoint) -> None:
        """Unpin the point's segments and close the descriptors that were opened for it."""
        state = self._state
        for segment in point.segments:
            segment.unpin()
            # The sync may have opened the descriptors. Count the segment as open again, so that the limit of open
            # segments closes it.
            state.segments.warm(segment)
        for descriptor in point.extra_fds:
            state.fs.close(descriptor)

    def sync(self) -> None:
        """Sync all files now, and block until that is done.

        After a failure take the log offline and raise StorageFailure.
        """
        self.sync_most()
        self.sync_now(self.sync_point())

    def sync_most(self) -> None:
        """Sync sealed segments in several sync points, until one further sync point covers the rest. Blocks.

        Raises StorageFailure.
        """
        while len(self._state.unsynced.segments) > SEALED_TOGETHER_MAX:
            self.sync_now(self.sync_point())

    def sync_now(self, point: SyncPoint) -> None:
        """Run the sync of a point. Blocks. If it fails, takes the log offline and raises StorageFailure."""
        try:
            self.run_sync(point)
        except StorageFailure as failure:
            self.sync_failed(point, str(failure))
            raise
        self.mark_synced(point)

    def is_flush_due(self, now_ms: int) -> bool:
        """Return True if flush.messages, flush.ms or a sealed segment requires a sync of records that have none yet."""
        state = self._state
        # Without unsynced records no setting requires a sync, however long ago the last one was.
        unsynced = state.end_offset - state.recovery_point
        if not unsynced:
            return False
        # Take the absolute value, because the host's clock may have been set back since the last sync.
        return (
            unsynced >= state.config.flush_messages
            or abs(now_ms - self.flushed_ms) >= state.config.flush_ms
            or bool(state.unsynced.segments)
        )

    def write_again(self) -> None:
        """Write all batches behind the recovery point again and sync them.

        Called after a failed sync, because the kernel may have dropped the pages. Raises StorageFailure.
        """
        state = self._state
        segments = [*state.unsynced.segments, state.active]
        written = failed_sync.write_again(state.fs, segments, state.recovery_point)
        # Write partition.metadata, too, as a new file that replaces the old one: a log without the file belongs to no
        # topic.
        checkpoints.rewrite_partition_metadata(state.fs, state.directory, state.topic_id)
        # Sync the names, too, because the failed call may have been the sync of a directory.
        state.unsynced.directories = [state.directory, state.directory.parent]
        state.unsynced.files = [segment.txn_index_path for segment in segments]
        self.sync()
        failed_sync.remove_note(state.fs, state.directory)
        logger.warning(
            "log=written_again partition=%s-%d bytes=%d: written and synced again after a failed sync",
            state.topic, state.partition, written,
        )  # fmt: skip
