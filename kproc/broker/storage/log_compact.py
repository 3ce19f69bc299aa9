"""SegmentSwap: the owner's side of compaction. It describes the log for a pass, and swaps segments. See log.py.

The cleaner reads and writes segments in its own process. The owner makes only a few renames, in one step of its loop.
After a crash between two renames, the next opening of the log completes or undoes the swap
(compaction_files.finish_swaps).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kproc.broker.storage.compaction_files import SWAPPED_SUFFIXES, SegmentIdentity
from kproc.broker.storage.format import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_file_name,
)
from kproc.broker.storage.fs import StorageFailure
from kproc.broker.storage.log_state import LogState
from kproc.broker.storage.segment import LogSegment

logger = logging.getLogger(__name__)

# The cleaner unlinks replaced files, because freeing the blocks of a large file takes long. The owner unlinks them this
# much later (ms) in case that the cleaner has died.
_GRACE_MS: Final = 10_000


class SwapRefused(Exception):
    """The swap was rejected and changed nothing: the log has changed since the pass began, or it is offline."""


class SegmentSwap:
    """The part of a Log that replaces segments with the one that the cleaner has compacted."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def segment_identities(self) -> list[SegmentIdentity]:
        """Return all segments, oldest first. The last one is the active segment. Does no I/O."""
        return [
            SegmentIdentity(segment.base_offset, segment.size, segment.inode)
            for segment in self._state.segments.all()
        ]

    def newest_batches(self) -> dict[int, tuple[int, int]]:
        """Return (offset of the newest data batch or -1, epoch) by producer id. Compaction must keep these batches."""
        return {
            entry.producer_id: (entry.batches[-1][1] if entry.batches else -1, entry.epoch)
            for entry in self._state.producers.entries()
        }

    def swap_segments(self, old: Sequence[SegmentIdentity], new: SegmentIdentity) -> None:
        """Replace adjacent segments with one that the cleaner wrote.

        If it raises SwapRefused, nothing has changed. A disk failure in the middle takes the log offline, and its next
        opening completes the swap.
        """
        state = self._state
        if state.offline_reason is not None:
            raise SwapRefused(state.offline_reason)
        # Retention or DeleteRecords may have removed segments since the pass began, or the log was transferred. So find
        # the segments by their identity.
        number = self._find_run(old)
        self._check_cleaned(new)
        self._rename_cleaned(new.base_offset)
        with state.done_or_offline("a swap of segments"):
            self._put_in_place(number, len(old), new.base_offset)
        logger.info(
            "segments=compacted partition=%s-%d base=%d count=%d bytes=%d bytes_before=%d",
            state.topic, state.partition, new.base_offset, len(old), new.size, sum(each.size for each in old),
        )  # fmt: skip

    def _find_run(self, old: Sequence[SegmentIdentity]) -> int:
        """Return the position of the first of these segments in the log's list of segments.

        Raises SwapRefused if they are not adjacent sealed segments any more.
        """
        sealed = self.segment_identities()[:-1]
        for number, identity in enumerate(sealed):
            if identity == old[0]:
                if sealed[number : number + len(old)] == list(old):
                    return number
                break
        raise SwapRefused("the log's segments have changed since the pass began")

    def _check_cleaned(self, new: SegmentIdentity) -> None:
        """Raise SwapRefused unless the cleaner's files exist and the .log file has the size and inode of `new`."""
        state = self._state
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if not state.fs.exists(self._compaction_path(new.base_offset, suffix, CLEANED_SUFFIX)):
                raise SwapRefused(f"the compacted segment has no {suffix} file")
        try:
            descriptor = state.fs.open(self._compaction_path(new.base_offset, LOG_SUFFIX, CLEANED_SUFFIX))
        # The cleaner died after its call, and its successor has unlinked the files to begin the pass again.
        except StorageFailure as failure:
            raise SwapRefused(str(failure)) from failure
        facts = state.fs.facts(descriptor)
        state.fs.close(descriptor)
        # Compare the inode, too, because a restarted cleaner writes files with the same names.
        if (facts.st_size, facts.st_ino) != (new.size, new.inode):
            raise SwapRefused("the compacted segment has another size or inode than the cleaner named")

    def _compaction_path(self, base: int, suffix: str, second: str = "") -> Path:
        return self._state.directory / (segment_file_name(base, suffix) + second)

    def _rename_cleaned(self, base: int) -> None:
        """Take step 1 of compaction_files.py: rename .cleaned to .swap, the .log file last.

        After a failure remove all .swap files and raise SwapRefused. A complete .swap segment would otherwise become
        part of the log at the next opening.
        """
        state = self._state
        try:
            for suffix in SWAPPED_SUFFIXES:
                cleaned = self._compaction_path(base, suffix, CLEANED_SUFFIX)
                state.fs.rename(cleaned, self._compaction_path(base, suffix, SWAP_SUFFIX))
        except StorageFailure as failure:
            for suffix in SWAPPED_SUFFIXES:
                state.fs.unlink(self._compaction_path(base, suffix, SWAP_SUFFIX))
            raise SwapRefused(str(failure)) from failure

    def _put_in_place(self, number: int, count: int, base: int) -> None:
        """Rename the old segments to .deleted and the .swap files to their final names. Update the list of segments.

        These are steps 2 and 3 of compaction_files.py. number, count: `count` segments are replaced, from position
        `number` of the list on. base: the base offset of the new segment.
        """
        state = self._state
        due_ms = state.deletion_due_ms() + _GRACE_MS
        gone = state.segments.retire_for(base, number, count, due_ms=due_ms)
        for suffix in SWAPPED_SUFFIXES:
            swap = self._compaction_path(base, suffix, SWAP_SUFFIX)
            state.fs.rename(swap, self._compaction_path(base, suffix))
        new = LogSegment.open(state.fs, state.directory, base)
        new.close()
        state.segments.replace(number, count, new)
        # Keep the producer snapshot at `base`, because the new segment begins there, too.
        replaced = {segment.base_offset for segment in gone} - {base}
        state.snapshots.remove(replaced)
        state.unsynced.remove_segments(gone)
        # Let the next sync point cover the new names. The cleaner, too, syncs the directory before it unlinks old
        # files.
        state.unsynced.add_directory(state.directory)
