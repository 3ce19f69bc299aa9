"""KnownEnds: starts and ends of logs that no Handler has opened, from the checkpoint files, for the metrics."""

from __future__ import annotations

import logging
from pathlib import Path

from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.offset_checkpoints import PartitionId, by_id_path, read_offset_checkpoint

logger = logging.getLogger(__name__)


class KnownEnds:
    """Starts and recovery points of logs that no Handler has opened, from the checkpoint files, for the metrics.

    One per role that answers scrapes.
    """

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._files: tuple[tuple[int, int], ...] = ()  # Inodes and times of the files that were read.
        self._log_starts: dict[PartitionId, int] = {}
        self._recovery_points: dict[PartitionId, int] = {}

    def refresh(self) -> None:
        """Read the checkpoint files again if the cleaner has replaced them."""
        names = (checkpoints.LOG_START_FILE, checkpoints.RECOVERY_POINT_FILE)
        try:
            files = tuple(self._identity(name) for name in names)
            if files != self._files:
                starts, points = (read_offset_checkpoint(self._fs, self._directory, name) for name in names)
                self._log_starts, self._recovery_points = starts.by_id, points.by_id
                self._files = files
        except StorageFailure as problem:
            # Keep the offsets that were read before, so that a damaged checkpoint does not fail the scrape.
            logger.warning(
                "cannot read the log-start and recovery-point checkpoints, so the metrics show the previous ones: %s",
                problem,
            )

    def _identity(self, name: str) -> tuple[int, int]:
        # The cleaner replaces a checkpoint by a rename, so a new one has another inode. Compare the time,
        # too, because the file system can use a freed inode number again at once.
        facts = self._fs.facts_at(by_id_path(self._directory / name))
        return (0, 0) if facts is None else (facts.st_ino, facts.st_mtime_ns)

    def get(self, topic_id: bytes, partition: int) -> tuple[int, int]:
        """Return (log start, recovery point) of a partition by the checkpoint files; 0 for an unknown one."""
        key = (topic_id, partition)
        return self._log_starts.get(key, 0), self._recovery_points.get(key, 0)
