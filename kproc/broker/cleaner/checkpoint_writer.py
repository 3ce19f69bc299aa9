"""CheckpointWriter: writes the recovery points and the log starts of all partitions. Owned by the cleaner.

The offsets come from the rows of the partition table. For partitions that no Handler has opened in this run they come
from the files of the last run. They are stored by topic id (storage/offset_checkpoints.py), so that a topic never
inherits the offsets of a deleted topic with the same name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kproc.broker.cluster.image import ClusterImage
from kproc.broker.role.partition_table import PartitionTable
from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.offset_checkpoints import (
    PartitionId,
    confirms_log_start,
    read_offset_checkpoint,
    write_offset_checkpoint,
)

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """The only writer of recovery-point-offset-checkpoint and log-start-offset-checkpoint."""

    def __init__(self, fs: Fs, directory: Path, table: PartitionTable) -> None:
        self._fs = fs
        self._directory = directory
        self._table = table
        self._recovery_points = read_offset_checkpoint(fs, directory, checkpoints.RECOVERY_POINT_FILE).by_id
        log_starts = read_offset_checkpoint(fs, directory, checkpoints.LOG_START_FILE)
        self._log_starts = log_starts.by_id
        # Log starts without a topic id, from an older kproc. Each is checked at the first write after the metadata have
        # arrived, and again at every later write as long as its partition's files cannot be read.
        self._named_starts = log_starts.by_name

    def write(self, image: ClusterImage) -> None:
        """Replace the files of both checkpoints. `image` holds the current metadata. Raises StorageFailure.

        Does nothing before the controller has sent the metadata, because the existing partitions are unknown until
        then.
        """
        if not image.version:
            return
        self._update(image)
        self._replace(checkpoints.RECOVERY_POINT_FILE, self._recovery_points, image)
        self._replace(checkpoints.LOG_START_FILE, self._log_starts, image, self._named_starts)

    def write_log_starts(self, image: ClusterImage) -> None:
        """Replace only the files of the log starts, for a DeleteRecords that waits. Raises StorageFailure."""
        self._update(image)
        self._replace(checkpoints.LOG_START_FILE, self._log_starts, image, self._named_starts)

    def _update(self, image: ClusterImage) -> None:
        """Update the offsets from the partition table's rows, and drop those of partitions that no longer exist."""
        # Drop the offsets of deleted topics. A recreated topic has another id, but Kafka's checkpoint file has only the
        # name.
        existing = {
            (topic.topic_id, each.index) for topic in image.topics_by_id.values() for each in topic.partitions
        }
        self._recovery_points = {key: at for key, at in self._recovery_points.items() if key in existing}
        self._log_starts = {key: at for key, at in self._log_starts.items() if key in existing}
        if self._named_starts:
            self._adopt_named_starts(image)
        for topic in image.topics_by_id.values():
            for partition in topic.partitions:
                row = self._table.read(partition)
                # A log that no Handler has open has no row. It keeps its last entry, because its offsets cannot have
                # changed.
                if row is not None:
                    key = (topic.topic_id, partition.index)
                    self._recovery_points[key] = row.recovery_point
                    self._log_starts[key] = row.start_offset

    def _adopt_named_starts(self, image: ClusterImage) -> None:
        """Add the log starts that an older kproc stored by topic name, if the partitions' files confirm them.

        Discard the others, except entries of partitions whose files cannot be read. These stay for the next write,
        because without its log start a partition would show deleted records again.
        """
        unread: dict[tuple[str, int], int] = {}
        problem: StorageFailure | None = None
        for (name, index), offset in self._named_starts.items():
            topic = image.topics_by_name.get(name)
            # The topic was deleted since an older kproc wrote the file, so its log start must not pass to a
            # new topic.
            if topic is None or image.partition(name, index) is None:
                continue
            key = (topic.topic_id, index)
            directory = self._directory / f"{name}-{index}"
            # Skip an offset that is not above the one stored by topic id. That one is newer, because only an older
            # kproc stored offsets by name.
            if offset <= self._log_starts.get(key, 0):
                continue
            try:
                if confirms_log_start(self._fs, directory, topic.topic_id, offset):
                    self._log_starts[key] = offset
            except StorageFailure as failure:
                unread[name, index] = offset
                problem = failure
        if problem is not None:
            logger.warning(
                "log_start=unconfirmed partitions=%d: cannot compare the log starts of an older kproc with the "
                "partitions' files, trying again at the next checkpoint: %s",
                len(unread),
                problem,
            )
        self._named_starts = unread

    def _replace(
        self,
        file_name: str,
        offsets: dict[PartitionId, int],
        image: ClusterImage,
        unconfirmed: Mapping[tuple[str, int], int] = MappingProxyType({}),
    ) -> None:
        names = {topic_id: image.topics_by_id[topic_id].name for topic_id, _ in offsets}
        write_offset_checkpoint(self._fs, self._directory, file_name, offsets, names, unconfirmed)
