"""LogOpener: opens the logs of one Handler's partitions, from their files or with the state of a former owner.

A log is opened at its first use, so that the time of a start does not depend on the number of partitions. After a clean
stop opening is cheap. After a crash it includes the recovery of the log (storage/recovery.py).

A directory that does not belong to its partition is set aside, never changed: recovery removes no records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kproc.broker.cluster.dynamic_settings import log_overrides
from kproc.broker.storage.catalog import describe_topic_id, read_topic_id
from kproc.broker.storage.fs import Fs, sync_directory
from kproc.broker.storage.log import EndsBelowStart, LastStop, Log, LogIdentity, OtherTopic, TrustedEnd
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.segment_files import holds_records
from kproc.broker.storage.set_aside import rename_for_deletion, set_aside

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage, PartitionImage, TopicImage
    from kproc.broker.config import Config
    from kproc.broker.handler.checkpoint import Checkpoint
    from kproc.broker.role.partition_table import PartitionRow, PartitionTable
    from kproc.common.clock import Clock

logger = logging.getLogger(__name__)


class LogOpener:
    """Opens logs below log.dirs. One per Handler, which opens only logs of partitions that it owns."""

    def __init__(
        self,
        directory: Path,
        *,
        config: Config,
        image: Callable[[], ClusterImage],
        clock: Clock,
        table: PartitionTable,
        checkpoint: Checkpoint,
        is_clean: bool,
        fs: Fs,
    ) -> None:
        """Create the opener. `is_clean`: the broker's last stop was clean, and this Handler was started with it."""
        self._directory = directory
        self._config = config
        self._image = image
        self._clock = clock
        self._table = table
        self._checkpoint = checkpoint
        self._is_clean = is_clean
        self._fs = fs
        self._last_config: tuple[dict[str, str], LogConfig] = {}, LogConfig.of(config)

    def open(self, topic: TopicImage, partition: PartitionImage, row: PartitionRow | None) -> Log:
        """Open a partition's log, which can include its recovery. `row` is what its last owner has published.

        A directory of another topic id, or one that ends below the log's start, is set aside or renamed for deletion
        first.
        Raises Shortage if descriptors or memory are short, and else Corrupt or OSError if the log cannot be opened.
        """
        directory = self._directory_of(topic, partition.index)
        try:
            return self._load(directory, topic, partition, row)
        except EndsBelowStart as problem:
            # The log ends below its start: a power loss took records that no sync had confirmed and that a
            # DeleteRecords had deleted. Keep the directory under another name, because recovery never removes records.
            # Sync the rename, because another power loss would bring the old directory back.
            set_aside(self._fs, directory, str(problem))
            sync_directory(self._fs, self._directory)
        except OtherTopic as problem:
            # The directory has another topic id: its files come from another broker, or the files or the metadata were
            # restored from an older copy.
            # A crash prevented the rename that deletes this directory, or a power loss undid it. Its records
            # are to be deleted.
            if problem.topic_id in self._image().unfinished_deletions:
                logger.warning("removing %s, which a crash has left: its topic was deleted", directory)
                rename_for_deletion(self._fs, directory)
            else:
                set_aside(self._fs, directory, str(problem))
        return self._load(directory, topic, partition, row)

    def _load(
        self, directory: Path, topic: TopicImage, partition: PartitionImage, row: PartitionRow | None
    ) -> Log:
        is_row_torn = row is None and not self._table.is_untouched(partition)
        known = self._checkpoint.offsets_of(topic, partition.index, directory, row, is_row_torn=is_row_torn)
        trusted = None
        # The row is what the former owner published after its last append. Its writes are in the page cache
        # even if it has died, so that the recovery need not look for the end of the log.
        if row is not None:
            trusted = TrustedEnd(
                row.end_offset, row.segment_base, row.position, row.start_offset, row.has_producers
            )
        last = LastStop(
            recovery_point=known.recovery_point,
            start_offset=known.log_start,
            recorded_start=known.recorded_start,
            clean=self.is_untouched(partition),
            trusted=trusted,
        )
        return Log.open(
            LogIdentity(directory, topic.name, topic.topic_id, partition.index),
            self.config_of(topic),
            leader_epoch=partition.leader_epoch,
            clock=self._clock,
            fs=self._fs,
            last=last,
        )

    def import_state(self, topic: TopicImage, partition: PartitionImage, state: dict[str, Any]) -> Log:
        """Open a log with its former owner's state, without reading it: same offsets, producers and leader epoch."""
        directory = self._directory_of(topic, partition.index)
        return Log.import_state(
            LogIdentity(directory, topic.name, topic.topic_id, partition.index),
            self.config_of(topic),
            state,
            clock=self._clock,
            fs=self._fs,
        )

    def is_untouched(self, partition: PartitionImage) -> bool:
        """Return True if the log is as a clean stop of the broker has left it.

        If the row was written since the start, some Handler had the log open. Its last records may not be synced, even
        if the stop before that was clean.
        """
        return self._is_clean and self._table.is_untouched(partition)

    def delete_closed(self, topic: TopicImage, index: int) -> None:
        """Rename the directory of a deleted partition that is not open, so that the cleaner removes it.

        Set it aside if it has another topic id, or records and no topic id. Do nothing if it does not exist.
        """
        directory = self._directory_of(topic, index)
        # No Handler has used the partition yet, or a Handler died after the rename and before its
        # acknowledgement.
        if not self._fs.exists(directory):
            return
        # Read the id from the files, because a directory of another topic can have this name after a power
        # loss or a restored copy.
        topic_id = read_topic_id(self._fs, directory)
        if topic_id == topic.topic_id or (topic_id is None and not holds_records(self._fs, directory)):
            rename_for_deletion(self._fs, directory)
        else:
            found = describe_topic_id(topic_id)
            set_aside(
                self._fs,
                directory,
                f"topic {topic.name} was deleted, but the directory has {found}, not the topic's",
            )

    def config_of(self, topic: TopicImage) -> LogConfig:
        """Return the topic's settings, with the broker's present settings as defaults.

        The last result is cached, because the partitions of a topic are opened one after another, and most topics have
        no settings of their own.
        """
        overrides = log_overrides(self._image(), topic, self._config.node_id)
        if overrides != self._last_config[0]:
            self._last_config = overrides, LogConfig.of(self._config, overrides)
        return self._last_config[1]

    def _directory_of(self, topic: TopicImage, index: int) -> Path:
        return self._directory / f"{topic.name}-{index}"
