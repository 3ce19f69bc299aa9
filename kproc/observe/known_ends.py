"""KnownEnds: for the metrics, starts and ends of logs that no Handler has opened, from the checkpoint files."""

from __future__ import annotations

import logging
from pathlib import Path

from kproc.errors import Corrupt
from kproc.storage import checkpoints
from kproc.storage.fs import Fs, StorageFailure

logger = logging.getLogger(__name__)


class KnownEnds:
    """Reads the files again when they were replaced. One per role that answers scrapes."""

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._read_at: tuple[int, int] | None = None
        self._log_starts: dict[tuple[str, int], int] = {}
        self._recovery_points: dict[tuple[str, int], int] = {}

    def refresh(self) -> None:
        """Read the files if they have changed."""
        try:
            at = (
                self._modified_ns(checkpoints.LOG_START_FILE),
                self._modified_ns(checkpoints.RECOVERY_POINT_FILE),
            )
            if at != self._read_at:
                self._log_starts = checkpoints.read_log_starts(self._fs, self._directory)
                self._recovery_points = checkpoints.read_recovery_points(self._fs, self._directory)
                self._read_at = at
        except (StorageFailure, Corrupt) as problem:
            logger.warning("the ends of logs that are not open are unknown: %s", problem)

    def _modified_ns(self, name: str) -> int:
        facts = self._fs.facts_at(self._directory / name)
        return 0 if facts is None else facts.st_mtime_ns

    def get(self, topic: str, partition: int) -> tuple[int, int]:
        """Return log start and recovery point; zeros if there are none."""
        key = (topic, partition)
        return self._log_starts.get(key, 0), self._recovery_points.get(key, 0)
