"""CompactionSurvey: finds the log to compact next, and remembers the logs that must not be compacted now.

A survey reads rows of the partition table, names and sizes of files, and perhaps the first batch header of segments. It
yields between some partitions, because a survey of many partitions takes longer than a slice of the cleaner's work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final, NamedTuple

from kproc.broker.cleaner.cleaner_offsets import CleanerOffsets
from kproc.broker.cluster.dynamic_settings import current_value, log_overrides
from kproc.broker.cluster.image import ClusterImage, PartitionImage, TopicImage
from kproc.broker.config import Config
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.observe.log_dir_usage import log_bytes
from kproc.broker.observe.uncleanable_partitions import Uncleanable
from kproc.broker.role.partition_table import PartitionTable
from kproc.broker.storage.compaction_policy import CompactionLimits, DirtySection, assess
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.segment_files import first_timestamp, info_from_files, segment_bases
from kproc.common.clock import NS_PER_MS, Clock

_PARTITIONS_PER_STEP: Final = 16

# Steps of a generator: each yields the number of bytes that it read or wrote, or None if it waits.
Steps = Generator[int | None, None, Any]


class Candidate(NamedTuple):
    """The log with the highest dirty ratio among those that are due for compaction."""

    topic: TopicImage
    partition: PartitionImage
    ratio: float


class CompactionSurvey:
    """The logs of a broker by their need of compaction. Owned by the Compactor."""

    def __init__(
        self,
        *,
        config: Config,
        clock: Clock,
        fs: Fs,
        table: PartitionTable,
        image: Callable[[], ClusterImage],
        metrics: MetricsRow,
    ) -> None:
        self._config = config
        self._clock = clock
        self._fs = fs
        self._table = table
        self._image = image
        self._values = metrics.values
        self._directory = Path(config.log_dirs)
        self.offsets = CleanerOffsets(fs, self._directory)  # Up to which offset each log is clean.
        # Damaged logs, by topic id and index. They are not compacted before the next start, as in Kafka.
        self._uncleanable: dict[tuple[bytes, int], Uncleanable] = {}
        self._postponed_ns: dict[tuple[bytes, int], int] = {}

    def find_dirtiest(self) -> Steps:
        """Find the log with the highest dirty ratio that is due for compaction. Return None if no log is due.

        Reads rows of the partition table, names and sizes of files, and the first timestamps of segments.
        """
        self._remove_deleted_topics()
        best: Candidate | None = None
        largest = 0.0
        looked_at = 0
        # Copy the topics, because a delta can change the dictionary while this generator waits.
        for topic in list(self._image().topics_by_name.values()):
            config = self.config_of(topic)
            if not config.is_compacting:
                continue
            for partition in topic.partitions:
                looked_at += 1
                if looked_at % _PARTITIONS_PER_STEP == 0:
                    yield 0
                section = self._assess(topic, partition, config)
                if section is None:
                    continue
                largest = max(largest, section.ratio)
                if section.is_due(config) and (best is None or section.ratio > best.ratio):
                    best = Candidate(topic, partition, section.ratio)
        self._values[SLOT["compaction_dirty_percent_max"]] = int(100 * largest)
        return best

    def _remove_deleted_topics(self) -> None:
        """Remove topics that no longer exist from the damaged and the postponed logs."""
        topics = self._image().topics_by_id
        for known in (self._uncleanable, self._postponed_ns):
            for key in [key for key in known if key[0] not in topics]:
                del known[key]
        self._count_uncleanable()

    def _assess(self, topic: TopicImage, partition: PartitionImage, config: LogConfig) -> DirtySection | None:
        """Return the dirty section of a log, by its files and its row in the table.

        Return None if nothing can be compacted. None also means that the log is damaged, that its next attempt is
        postponed, or that its files cannot be read.
        """
        key = (topic.topic_id, partition.index)
        if key in self._uncleanable or self._postponed_ns.get(key, 0) > self._clock.now_ns():
            return None
        self._postponed_ns.pop(key, None)
        directory = self._directory / f"{topic.name}-{partition.index}"
        row = self._table.read(partition)
        checkpoint = self.offsets.get(topic, partition.index)
        # Everything before the active segment is compacted already, so the directory need not be read.
        if row is not None and checkpoint is not None and checkpoint >= row.segment_base:
            return None
        try:
            bases = segment_bases(self._fs, directory)
            if row is not None:
                # Ignore newer segments. The owner may have rolled after it published this row, and the row's end offset
                # belongs to the segment that was active then.
                bases = [base for base in bases if base <= row.segment_base]
            # The active segment is never compacted, so a log with one segment has nothing to compact.
            if len(bases) < 2:
                return None
            # If no Handler has the log open, the active segment's end is unknown. Its base is enough, because only the
            # segments before it are compacted.
            end_offset = bases[-1] if row is None else row.end_offset
            start_offset = bases[0] if row is None else max(row.start_offset, bases[0])
            return assess(
                info_from_files(self._fs, directory, bases, end_offset),
                config,
                CompactionLimits(start_offset, end_offset, end_offset if row is None else row.recovery_point),
                checkpoint=checkpoint,
                now_ms=self._clock.wall_ms(),
                first_timestamp=lambda base: first_timestamp(self._fs, directory, base),
            )
        except StorageFailure:
            # The log was never written to, or its topic was deleted just now.
            return None

    def mark_uncleanable(self, topic: TopicImage, index: int, problem: Exception) -> None:
        """Skip a damaged log until the cleaner starts again, and count it."""
        size_bytes = log_bytes(self._directory / f"{topic.name}-{index}")
        reason = str(problem) or type(problem).__name__
        self._uncleanable[topic.topic_id, index] = Uncleanable(reason, size_bytes)
        self._count_uncleanable()

    def _count_uncleanable(self) -> None:
        found = self._uncleanable.values()
        self._values[SLOT["compaction_uncleanable_partitions"]] = len(found)
        self._values[SLOT["compaction_uncleanable_bytes"]] = sum(each.size_bytes for each in found)

    def uncleanable(self) -> dict[tuple[str, int], Uncleanable]:
        """Return the damaged logs, which are not compacted, by (topic name, partition index)."""
        found = {}
        topics = self._image().topics_by_id
        for (topic_id, index), each in self._uncleanable.items():
            if topic_id in topics:
                found[topics[topic_id].name, index] = each
        return found

    def postpone(self, topic: TopicImage, index: int) -> None:
        """Skip this log for log.cleaner.backoff.ms (at least 1 s), because its compaction failed or was impossible."""
        backoff_ms = max(1000, int(self.setting("log.cleaner.backoff.ms")))
        self._postponed_ns[topic.topic_id, index] = self._clock.now_ns() + backoff_ms * NS_PER_MS

    def follow_time(self) -> None:
        """Consider the postponed logs again, because the broker's time was moved."""
        self._postponed_ns.clear()

    def setting(self, name: str) -> str:
        """Return the present value of a dynamic setting of the broker."""
        value = current_value(self._image(), self._config, name)
        assert value is not None, name
        return value

    def config_of(self, topic: TopicImage) -> LogConfig:
        """Return the present settings of a topic. If the topic was deleted meanwhile, return its last known ones."""
        live = self._image().topic_by_id(topic.topic_id) or topic
        return LogConfig.of(self._config, log_overrides(self._image(), live, self._config.node_id))
