"""LogEndFinder: finds the valid end of a log that is being opened, and truncates a torn tail.

How the last owner of the log ended (last_stop.py) decides which bytes to believe, to verify and to truncate:

- clean     The clean-shutdown marker says that all logs were closed and synced. No checksum is verified. The headers
            behind the last index entry are walked to find the log's end.
- trusted   The owner died, but the host did not. The page cache is intact, and the owner's published row says up to
            which position batches are complete. Batches behind it were never acknowledged. They are verified and kept
            up to the first incomplete one.
- unclean   No clean stop and no trusted row: the host lost power, the whole broker died with its published rows, or a
            sync had failed. All batches from the recovery point on are verified: lengths, order of offsets, CRC-32C.

A bad batch, or a segment that ends before the next one begins, is one of two things:

- Damage, if it is below an offset or position that a sync had confirmed or a dead owner had published. The finder
  raises Corrupt and leaves the files as they are. The recovery point and two kinds of marks in attributes show what was
  synced. The mark of a .log file (Fs.write_synced_mark) may be a second or one sync old. The mark of the directory
  (Fs.write_newest_mark) may be one segment old.
- A torn tail, if it is above them. No such record was acknowledged to acks=all, and a power loss keeps unsynced pages
  in any order. The finder truncates the log there, including good batches behind the bad one.
"""

from __future__ import annotations

import logging
from pathlib import Path

from kproc.broker.storage.batch_scan import (
    BadBatch,
    describe_old_format,
    find_good_batch,
    find_old_format,
    walk_checked,
    walk_headers,
)
from kproc.broker.storage.directory_names import sync_names
from kproc.broker.storage.format import LOG_SUFFIX
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.index_checks import has_right_times, rewind_indexes
from kproc.broker.storage.last_stop import LastStop, TrustedEnd
from kproc.broker.storage.leader_epochs import LeaderEpochs
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.segment import LogSegment
from kproc.broker.storage.segment_rebuild import SegmentRebuild
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import LEADER_EPOCH, last_offset_of
from kproc.wire.primitives import INT64_MAX

logger = logging.getLogger(__name__)


class LogEndFinder:
    """The search for the end of one log. `find_end` changes `segments` and `epochs`, and fills the other fields."""

    def __init__(
        self,
        fs: Fs,
        directory: Path,
        config: LogConfig,
        segments: list[LogSegment],
        epochs: LeaderEpochs,
        *,
        whole_below: int,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._config = config
        self._segments = segments
        self._epochs = epochs
        self._whole_below = whole_below  # Segments below this base offset were synced as a whole.
        self.truncated_bytes = 0
        # Segments below the believed end whose indexes were rebuilt. The new indexes are not synced yet.
        self.rebuilt: list[LogSegment] = []
        # The first offset of a transactional batch that was scanned. ProducerReplay rebuilds transaction indexes from
        # there on.
        self.first_transactional: int | None = None
        self.without_aborts: list[LogSegment] = []  # Segments whose whole transaction index must be rebuilt.

    def find_end(self, last: LastStop) -> int:
        """Verify the segments as far as the last stop requires, truncate a torn tail, and complete the indexes.

        Returns the log's end offset. Raises Corrupt for damage.
        """
        # A clean stop has synced all batches, so believe all. Otherwise believe batches below the recovery point, or
        # below the end that a dead owner has published.
        believed_end = INT64_MAX if last.clean else last.recovery_point
        if last.trusted is not None:
            self._check_published(last.trusted)
            believed_end = last.trusted.end_offset
        end_offset = self._segments[0].base_offset
        ends: list[int] = []
        for number, segment in enumerate(self._segments):
            # Segments overlap, so a file was copied into the directory. No crash causes that, because the removal of a
            # segment is synced before new records get its offsets.
            if segment.base_offset < end_offset:
                raise Corrupt(
                    f"{segment.path(LOG_SUFFIX)} begins below offset {end_offset}, where the segment before it ends"
                )
            end_offset = self._find_segment_end(number, believed_end, last)
            ends.append(end_offset)
        return self._drop_empty_end(ends, believed_end)

    def _find_segment_end(self, number: int, believed_end: int, last: LastStop) -> int:
        """Return the offset where a segment ends. Scan the segment unless it is sealed and below the believed end."""
        segment, is_only_owner_dead = self._segments[number], last.trusted is not None
        if number < len(self._segments) - 1:
            following = self._segments[number + 1].base_offset
            # After a power loss, scan a segment that ends exactly at the recovery point, and rebuild its indexes. It
            # may have been synced while it was active, and that sync does not include the indexes.
            if following < believed_end or (following == believed_end and is_only_owner_dead):
                self._believe_sealed(segment, following, is_checked=not is_only_owner_dead)
                return following
        # Check the transaction index of the active segment only after a clean close, because only that records the
        # checksum.
        if last.clean:
            self._check_aborts(segment)
        # If the stop was clean or only the owner died, all pages of the indexes exist, so continue the indexes. After a
        # power loss any page of an unsynced index may be missing, so rebuild the indexes from the first batch on.
        has_whole_indexes = last.clean or is_only_owner_dead
        walk_from = rewind_indexes(self._fs, segment, believed_end) if has_whole_indexes else 0
        if not walk_from:
            segment.reset_indexes()
        end_offset = self._scan(number, walk_from, believed_end)
        segment.close_indexes()
        return end_offset

    def _drop_empty_end(self, ends: list[int], believed_end: int) -> int:
        """Remove empty segments behind a gap, and return the log's end.

        A power loss after a roll causes such a gap: the name of the new, empty segment is on the disk, but the last
        batches before it are not. Compaction may leave a gap, too, but always with records behind it.
        """
        segments = self._segments
        while not (lost := segments[-1]).size and believed_end < lost.base_offset:
            if len(segments) == 1 or ends[len(segments) - 2] == lost.base_offset:
                break
            # A sync had confirmed this segment's name and all batches before it, so no power loss has caused the gap.
            # Kafka's cleaner has.
            if lost.base_offset <= self._whole_below:
                break
            logger.warning(
                "log=truncated end_offset=%d segment=%s: removing this empty segment, because the batches "
                "before it are lost",
                ends[len(segments) - 2],
                lost.path(LOG_SUFFIX),
            )
            self._remove_from(len(segments) - 1)
        return ends[len(segments) - 1]

    def _check_published(self, trusted: TrustedEnd) -> None:
        """Raise Corrupt unless the segment that the dead owner published exists and is as long as published.

        A missing segment is no error if retention has deleted it.
        """
        for segment in self._segments:
            if segment.base_offset == trusted.segment_base:
                # The owner published its row after the write had returned, so the death of a role cannot make the file
                # shorter.
                if trusted.position > segment.size:
                    size = f"{segment.path(LOG_SUFFIX)} has {segment.size} bytes"
                    raise Corrupt(f"{size}, but the log's last owner had published {trusted.position} bytes")
                return
        if self._segments[0].base_offset == trusted.end_offset:
            # Retention deleted the published segment, and the owner died before it published the new one.
            return
        raise Corrupt(
            f"{self._directory} has no segment with the base offset {trusted.segment_base}, but the log's last owner "
            "had published it"
        )

    def _check_gap(self, number: int, end_offset: int) -> None:
        """Raise BadBatch if a segment ends before the next one begins, unless compaction may have left the gap.

        A power loss can keep the next segment and lose the last pages of this one.
        """
        if number == len(self._segments) - 1:
            return
        segment, following = self._segments[number], self._segments[number + 1].base_offset
        if end_offset >= following or not self._ends_are_joined(segment):
            return
        raise BadBatch(segment.size, f"the next segment begins at offset {following}, not at {end_offset}")

    def _check_sealed_end(self, segment: LogSegment, following: int) -> None:
        """Raise Corrupt if a believed segment does not end where the next one begins.

        No crash causes this below the believed end: a file was truncated or removed outside the broker. Reads only the
        headers behind the last index entry, in one small read per segment.
        """
        if not self._ends_are_joined(segment):
            return
        last = segment.index.last()
        end_offset = segment.base_offset
        try:
            for _, header in walk_headers(
                self._fs, segment.descriptor(), last[1] if last is not None else 0, segment.size
            ):
                end_offset = last_offset_of(header) + 1
        except BadBatch as problem:
            raise Corrupt(f"{segment.path(LOG_SUFFIX)}: {problem}") from problem
        if end_offset != following:
            raise Corrupt(
                f"{segment.path(LOG_SUFFIX)} ends at offset {end_offset}, but the next segment begins at {following}: "
                "a file is missing or truncated"
            )

    def _ends_are_joined(self, segment: LogSegment) -> bool:
        """Return True unless compaction may have removed records from a segment's end.

        A file that Kafka's cleaner has written has no mark of synced bytes. A compacted file is never empty: kproc's
        cleaner keeps the last batch without its records, and `import-log` adds one where Kafka's cleaner kept none.
        """
        is_deleting_only = "compact" not in self._config.cleanup_policy
        return is_deleting_only or not segment.size or bool(segment.read_synced_mark())

    def _believe_sealed(self, segment: LogSegment, following: int, *, is_checked: bool) -> None:
        """Close a sealed segment below the believed end, after completing its indexes. Its batches are not verified.

        With `is_checked`, check that the segment ends where the next one begins.
        """
        self._complete_sealed(segment, is_checked=is_checked)
        # Skip the check if only the owner died, because the owner checked the ends when it opened the log.
        if is_checked:
            self._check_sealed_end(segment, following)
        segment.close()

    def _complete_sealed(self, segment: LogSegment, *, is_checked: bool) -> None:
        """Complete the indexes of a segment below the believed end, without verifying its batches.

        With `is_checked` the transaction index and the time index are checked first, because the host may have lost
        power.
        """
        if is_checked:
            self._check_aborts(segment)
        # A power loss can take the last entries of the time index. Then the segment would seem older than it is, and
        # retention would delete it too early.
        if is_checked and not segment.needs_index and not has_right_times(self._fs, segment):
            segment.reset_indexes()
            segment.needs_index = True
        if segment.needs_index:
            logger.info("index=rebuild segment=%s", segment.path(LOG_SUFFIX))
            rebuild = SegmentRebuild(segment, self._config.index_interval_bytes)
            try:
                rebuild.run(walk_headers(self._fs, segment.descriptor(), 0, segment.size))
            # No crash damages a batch below the believed end, so the file was damaged outside the broker.
            except BadBatch as problem:
                raise Corrupt(f"{segment.path(LOG_SUFFIX)}: {problem}") from problem
            segment.seal()
            segment.needs_index = False
            self.rebuilt.append(segment)

    def _check_aborts(self, segment: LogSegment) -> None:
        """Empty a transaction index that does not match the checksum in its segment's mark.

        The index was damaged or removed outside the broker. ProducerReplay fills it from the log. Without its rows,
        read_committed consumers would see aborted records.
        """
        if segment.has_right_aborts():
            return
        logger.warning("transaction_index=rebuild segment=%s", segment.path(LOG_SUFFIX))
        segment.txn_index.truncate_to(segment.base_offset)
        self.without_aborts.append(segment)
        if self.first_transactional is None:
            self.first_transactional = segment.base_offset

    def _scan(self, number: int, walk_from: int, believed_end: int) -> int:
        """Walk a segment's batches from `walk_from` on, verify those behind `believed_end`, and truncate a torn tail.

        Returns the offset where the segment ends.
        """
        segment = self._segments[number]
        if believed_end != INT64_MAX:
            # Remove the rows of the transaction index that ProducerReplay will add again for the markers of this scan.
            # A segment before the last keeps its rows below the believed end, because compaction may have removed the
            # records that these rows name.
            finds_all = not walk_from and segment is self._segments[-1]
            segment.txn_index.truncate_to(segment.base_offset if finds_all else believed_end)
        rebuild = SegmentRebuild(segment, self._config.index_interval_bytes)
        rebuild.end_position = walk_from
        try:
            rebuild.run(
                walk_checked(
                    self._fs, segment.descriptor(), walk_from, segment.size, believed_end=believed_end
                )
            )
            self._check_gap(number, rebuild.next_offset)
        except BadBatch as problem:
            self._cut_tail(number, problem, rebuild, believed_end)
        if self.first_transactional is None:
            self.first_transactional = rebuild.first_transactional
        for epoch, first_offset in rebuild.epoch_starts:
            # Add epochs that the checkpoint lacks. It is not synced when an epoch begins, so a power loss can lose the
            # newest ones.
            self._epochs.assign_newer(epoch, first_offset)
        if number < len(self._segments) - 1:
            segment.is_joined = rebuild.next_offset == self._segments[number + 1].base_offset
            segment.seal()
            segment.close()
        segment.needs_index = False
        return rebuild.next_offset

    def _cut_tail(self, number: int, problem: BadBatch, rebuild: SegmentRebuild, believed_end: int) -> None:
        """Truncate the log at a bad batch if it is a torn tail. Raise Corrupt and change nothing if it is damage.

        A torn tail comes from a power loss before a sync, or from an owner that was killed in the middle of a write.
        """
        segment = self._segments[number]
        # Messages of Kafka before 0.11 look like a bad batch. Truncating them would destroy a log that
        # `kproc convert-log` can still save.
        refuse_old_format(self._fs, segment, problem.position)
        where = f"{segment.path(LOG_SUFFIX)}: {problem}"
        # Damage: a sync had confirmed these bytes, or an owner had published them and the host has not crashed since.
        if rebuild.next_offset < believed_end:
            raise Corrupt(
                f"{where}; a whole batch at this position had been synced, or published by the log's last owner"
            ) from problem
        # The mark in the .log file's attribute is newer than the recovery point, which a checkpoint stores once a
        # minute by default. So the mark shows damage that the recovery point does not.
        if problem.position < (synced := segment.read_synced_mark()):
            raise Corrupt(f"{where}; {synced} bytes of the file had been synced") from problem
        # The directory's mark names a later segment. The round that set it had synced this whole segment before.
        if segment.base_offset < self._whole_below:
            raise Corrupt(f"{where}; the whole segment had been synced") from problem
        # The log will end at the bad batch, so later segments are removed, too. If a later one was synced, this segment
        # was synced before it, because a sync point covers all segments before its last one. Then it is damage.
        behind = self._segments[number + 1 :]
        for later in behind:
            if later.read_synced_mark():
                raise Corrupt(f"{where}; a later segment was synced") from problem
            later.close()
        cut = segment.size - problem.position + sum(later.size for later in behind)
        logger.warning(
            "log=truncated bytes=%d end_offset=%d followed_by=%s %s",
            cut, rebuild.next_offset, self._what_follows(number, problem, rebuild), where,
        )  # fmt: skip
        segment.truncate(problem.position)
        self.truncated_bytes += cut
        self._remove_from(number + 1)

    def _remove_from(self, number: int) -> None:
        """Remove the segments from position `number` of the list on. New records will get the offsets of their records.

        Rename the files, sync the directory, then unlink them. If this process dies before the sync, the .deleted
        files show its successor that the directory must be synced (finish_interrupted).
        """
        doomed: list[Path] = []
        for segment in self._segments[number:]:
            segment.close()
            doomed += segment.mark_deleted()
        if doomed:
            sync_names(self._fs, self._directory)
        for path in doomed:
            self._fs.unlink(path)
        del self._segments[number:]

    def _what_follows(self, number: int, problem: BadBatch, rebuild: SegmentRebuild) -> str:
        """Return a text for the log message that says if good batches are truncated together with the torn one."""
        segment = self._segments[number]
        if any(later.size for later in self._segments[number + 1 :]):
            return "segments"
        epochs = {epoch for epoch, _ in self._epochs.entries()}
        epochs |= self._epochs_before(segment, rebuild.end_position)
        good = find_good_batch(
            self._fs, segment.descriptor(), problem.position + 1, segment.size,
            next_offset=rebuild.next_offset, epochs=tuple(sorted(epochs)),
        )  # fmt: skip
        return "nothing" if good is None else f"batch_at_byte_{good}"

    def _epochs_before(self, segment: LogSegment, end_position: int) -> set[int]:
        """Return the epochs of the batches before a position, because leader-epoch-checkpoint may be missing."""
        headers = walk_headers(self._fs, segment.descriptor(), 0, end_position)
        return {header[LEADER_EPOCH] for _, header in headers}


def refuse_old_format(fs: Fs, segment: LogSegment, position: int) -> None:
    """Raise Corrupt if a message of format 0 or 1 (Kafka before 0.11) is at a position of a segment.

    Without this check, the first start after a crash would take such a log for a torn tail and truncate it.
    """
    magic = find_old_format(fs, segment.descriptor(), position, segment.size)
    if magic is not None:
        raise Corrupt(describe_old_format(segment.path(LOG_SUFFIX), magic))
