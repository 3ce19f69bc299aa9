"""Checkpoint: recovery points and log start offsets from the cleaner's files, which a Handler reads when it starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from kproc.broker.cluster.image import TopicImage
from kproc.broker.role.partition_table import PartitionRow
from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.log_start import read_start_mark
from kproc.broker.storage.offset_checkpoints import confirms_log_start, read_offset_checkpoint

logger = logging.getLogger(__name__)


class KnownOffsets(NamedTuple):
    """Offsets of a log that are known before it is opened; 0 if unknown."""

    recovery_point: int  # Every record below it was synced.
    log_start: int  # Every record below it was deleted.
    # The largest log start in the checkpoints, also in an entry without a topic id that the partition's files do not
    # confirm. None: no entry. A log that begins above it may have lost its first segments.
    recorded_start: int | None


class Checkpoint:
    """The cleaner's two checkpoint files, as they were when this Handler started."""

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._recovery_points = read_offset_checkpoint(fs, directory, checkpoints.RECOVERY_POINT_FILE)
        self._log_starts = read_offset_checkpoint(fs, directory, checkpoints.LOG_START_FILE)

    def offsets_of(
        self,
        topic: TopicImage,
        index: int,
        directory: Path,
        row: PartitionRow | None = None,
        *,
        is_row_torn: bool = False,
    ) -> KnownOffsets:
        """Return the largest offsets of this topic id in the checkpoints and in the partition's row.

        `is_row_torn`: an owner died while it wrote the row, so that `row` is None. `directory` is the partition's
        directory. It is read only for an entry without a topic id, for a log start without an entry, and for a torn
        row. Raises StorageFailure.
        """
        partition = (topic.topic_id, index)
        recovery_point = self._recovery_points.by_id.get(partition, 0)
        recorded_start = self._log_starts.by_id.get(partition)
        log_start = recorded_start or 0
        if row is not None:
            recovery_point = max(recovery_point, row.recovery_point)
            log_start = max(log_start, row.start_offset)
        # Neither the file with topic ids nor a row has the partition. If the file was lost, the directory's mark has
        # the start. An entry counts alone: it is never older than the mark, unless the data directory was restored.
        # A torn row is another exception: the dead owner can have answered a DeleteRecords after this Handler had read
        # the file.
        elif recorded_start is None or is_row_torn:
            log_start = max(log_start, read_start_mark(self._fs, directory, topic.topic_id))
        named = self._log_starts.by_name.get((topic.name, index), 0)
        if named > log_start:
            recorded_start = named
            log_start = self._confirm_named(directory, topic.topic_id, named, log_start)
        return KnownOffsets(recovery_point, log_start, recorded_start)

    def _confirm_named(self, directory: Path, topic_id: bytes, named: int, log_start: int) -> int:
        """Return `named`, the log start in an entry without a topic id, if the directory's files confirm it.

        If not, log that and return `log_start`. The entry can be that of a former topic of the same name.
        """
        if confirms_log_start(self._fs, directory, topic_id, named):
            return named
        logger.info(
            "log_start=ignored directory=%s offset=%d: the checkpoint's entry has no topic id, and the "
            "directory's files do not confirm the offset; using the log start %d",
            directory,
            named,
            log_start,
        )
        return log_start
