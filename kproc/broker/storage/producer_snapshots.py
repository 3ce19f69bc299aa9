"""ProducerSnapshots: writes and removes the .snapshot files of a log's producers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

from kproc.broker.storage.format import SNAPSHOT_SUFFIX, segment_file_name
from kproc.broker.storage.fs import Fs, StorageFailure, replace_file
from kproc.broker.storage.producer_snapshot_codec import encode_snapshot
from kproc.broker.storage.producer_state import ProducerTable
from kproc.broker.storage.segments import SegmentList

logger = logging.getLogger(__name__)


class ProducerSnapshots:
    """The snapshots of one log. The appender decides when the next one is due."""

    __slots__ = ("batches_since", "offsets", "taken_at_bytes")

    def __init__(self, offsets: Iterable[int], taken_at_bytes: int) -> None:
        self.offsets = list(offsets)  # The offsets of the existing .snapshot files.
        # Size of the active segment in bytes at the last snapshot. A roll takes a snapshot, so this is never the size
        # of an earlier segment.
        self.taken_at_bytes = taken_at_bytes
        self.batches_since = 0  # Batches of idempotent producers since the last snapshot.

    def write(self, fs: Fs, directory: Path, producers: ProducerTable, segments: SegmentList) -> None:
        """Write a snapshot of the producers at the log's end. A failure is only logged: recovery replays the log."""
        offset = producers.end_offset
        self.taken_at_bytes, self.batches_since = segments.active.size, 0
        # A snapshot at this offset exists, for example if the log rolls right after a snapshot that was due.
        if offset in self.offsets:
            return
        path = directory / segment_file_name(offset, SNAPSHOT_SUFFIX)
        try:
            # Do not sync: recovery replays the batches if the file is missing or damaged after a power loss.
            replace_file(fs, path, encode_snapshot(producers.entries()), durable=False)
        except StorageFailure as failure:
            logger.warning("snapshot=not_written path=%s reason=%s", path, failure)
            return
        self.offsets.append(offset)
        # A snapshot at the base of a segment is deleted with the segment. Of all other snapshots only the newest is
        # needed.
        keep = {*segments.bases(), offset}
        for stale in [held for held in self.offsets if held not in keep]:
            try:
                fs.unlink(directory / segment_file_name(stale, SNAPSHOT_SUFFIX))
            except StorageFailure as failure:  # The next snapshot retries the unlink.
                logger.warning(
                    "snapshot=not_deleted directory=%s offset=%d reason=%s", directory, stale, failure
                )
                continue
            self.offsets.remove(stale)

    def remove_before(self, offset: int) -> None:
        """Remove the snapshots below an offset from the list, because they were deleted with their segments."""
        self.offsets = [held for held in self.offsets if held >= offset]

    def remove(self, offsets: Collection[int]) -> None:
        """Remove snapshots from the list, because they were deleted with their segments."""
        self.offsets = [held for held in self.offsets if held not in offsets]
