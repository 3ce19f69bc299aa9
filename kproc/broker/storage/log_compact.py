"""SegmentSwap: the owner's side of compaction: facts for a pass, and the swap of segments. See log.py.

The cleaner reads and writes beside the owner; the owner only does a handful of renames in one step. Between two of
them other processes read the log through open descriptors only. After a crash between two renames, the next opening of
the log completes or undoes the swap (compaction_files.finish_swaps).
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

# The cleaner unlinks what a swap has replaced, since freeing a large file's blocks takes long. The owner does it
# this much later, in case the cleaner has died.
_GRACE_MS: Final = 10_000


class SwapRefused(Exception):
    """The swap was not made: the log has changed since the pass began, or cannot change now."""


class SegmentSwap:
    """The part of a Log that compaction needs."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def segment_identities(self) -> list[SegmentIdentity]:
        """Every segment, oldest first; the last one is the active one. No I/O."""
        return [
            SegmentIdentity(segment.base_offset, segment.size, segment.inode)
            for segment in self._state.segments.all()
        ]

    def newest_batches(self) -> dict[int, tuple[int, int]]:
        """(offset of the newest data batch or -1, epoch) of every producer: their batches must stay."""
        return {
            entry.producer_id: (entry.batches[-1][1] if entry.batches else -1, entry.epoch)
            for entry in self._state.producers.entries()
        }

    def swap_segments(self, old: Sequence[SegmentIdentity], new: SegmentIdentity) -> None:
        """Replace neighbouring segments with one that the cleaner wrote.

        SwapRefused leaves everything as it was. A disk failure in the middle takes the log offline; its next opening
        completes the swap.
        """
        state = self._state
        if state.offline_reason is not None:
            raise SwapRefused(state.offline_reason)
        number = self._find_run(old)
        self._check_cleaned(new)
        self._rename_cleaned(new.base_offset)
        with state.done_or_offline("a swap of segments"):
            self._put_in_place(number, len(old), new.base_offset)
        logger.info(
            "segments=compacted partition=%s-%d base=%d count=%d bytes=%d before=%d",
            state.topic, state.partition, new.base_offset, len(old), new.size, sum(each.size for each in old),
        )  # fmt: skip

    def _find_run(self, old: Sequence[SegmentIdentity]) -> int:
        """The number of the first of these neighbours; the active segment is never among them."""
        sealed = self.segment_identities()[:-1]
        for number, identity in enumerate(sealed):
            if identity == old[0]:
                if sealed[number : number + len(old)] == list(old):
                    return number
                break
        raise SwapRefused("the segments have changed meanwhile")

    def _check_cleaned(self, new: SegmentIdentity) -> None:
        """The cleaner's file is there, the one that it names, with its indexes."""
        state = self._state
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if not state.fs.exists(self._compaction_path(new.base_offset, suffix, CLEANED_SUFFIX)):
                raise SwapRefused(f"the new segment has no {suffix}")
        try:
            descriptor = state.fs.open(self._compaction_path(new.base_offset, LOG_SUFFIX, CLEANED_SUFFIX))
        except StorageFailure as failure:
            raise SwapRefused(str(failure)) from failure
        facts = state.fs.facts(descriptor)
        state.fs.close(descriptor)
        if (facts.st_size, facts.st_ino) != (new.size, new.inode):
            raise SwapRefused("the new segment is another one")

    def _compaction_path(self, base: int, suffix: str, second: str = "") -> Path:
        return self._state.directory / (segment_file_name(base, suffix) + second)

    def _rename_cleaned(self, base: int) -> None:
        """Step 1: .cleaned -> .swap, the data last. A failure leaves no .swap file: the next swap must not find it."""
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
        """Steps 2 and 3, and the log's own view of its segments."""
        state = self._state
        due_ms = state.clock.wall_ms() + state.config.file_delete_delay_ms + _GRACE_MS
        gone = state.segments.retire_for(base, number, count, due_ms=due_ms)
        for suffix in SWAPPED_SUFFIXES:
            swap = self._compaction_path(base, suffix, SWAP_SUFFIX)
            state.fs.rename(swap, self._compaction_path(base, suffix))
        new = LogSegment.open(state.fs, state.directory, base)
        new.close()
        state.segments.replace(number, count, new)
        replaced = {segment.base_offset for segment in gone} - {base}
        state.snapshots.forget(replaced)
        state.unsynced.forget(gone)
        # The next round of sync takes the new names to the disk; the cleaner unlinks what they replace after that.
        state.unsynced.note_directory(state.directory)
