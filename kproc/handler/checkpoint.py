"""Checkpoint: recovery points and log starts from the cleaner's files, as read when a Handler starts."""

from __future__ import annotations

from pathlib import Path

from kproc.api.context import PartitionKey
from kproc.role.partition_table import PartitionRow
from kproc.storage import checkpoints
from kproc.storage.fs import Fs, modified_ns


class Checkpoint:
    """What the cleaner's two files say of the partitions, as read at this Handler's start.

    The files name partitions by topic, and a topic may have been deleted and made anew since they were written.
    Then they speak of other records, and believing them would cost the new ones: a log that ends below its start
    is discarded. So an entry counts only for a directory that is older than the files.
    """

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        # First the times: files that are replaced meanwhile are then believed less, not more.
        files = (checkpoints.RECOVERY_POINT_FILE, checkpoints.LOG_START_FILE)
        self._written_ns = min(modified_ns(fs, directory / name) for name in files)
        self._recovery_points = checkpoints.read_recovery_points(fs, directory)
        self._start_offsets = checkpoints.read_log_starts(fs, directory)

    def of(self, key: PartitionKey, directory: Path, row: PartitionRow | None = None) -> tuple[int, int]:
        """(recovery point, log start) of the partition in `directory`, or what its row says where that is more; zeros
        when they are not known."""
        known = (row.recovery_point, row.start_offset) if row is not None else (0, 0)
        noted = self._recovery_points.get(key, 0), self._start_offsets.get(key, 0)
        if noted[0] <= known[0] and noted[1] <= known[1]:
            return known
        made_ns = modified_ns(self._fs, directory / checkpoints.PARTITION_METADATA_FILE)
        if not 0 < made_ns < self._written_ns:
            return known
        return max(known[0], noted[0]), max(known[1], noted[1])
