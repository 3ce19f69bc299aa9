"""CleanerOffsets: up to which offset each log is compacted, in memory and in cleaner-offset-checkpoint.

The file and its format are Kafka's: one for the data directory, one line for each log that was ever compacted. It
names partitions by topic, and the topic may have been deleted and created again since. So an entry counts only for a
directory that is older than the file, as in the other checkpoints.
"""

from __future__ import annotations

import logging
from pathlib import Path

from kproc.cluster.image import ClusterImage, TopicImage
from kproc.errors import Corrupt
from kproc.storage import checkpoints
from kproc.storage.fs import Fs, modified_ns

logger = logging.getLogger(__name__)


class CleanerOffsets:
    """Read once, written after each pass. Owned by the cleaner."""

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._offsets: dict[tuple[bytes, int], int] = {}
        self._inherited_ns = modified_ns(fs, directory / checkpoints.CLEANER_OFFSET_FILE)
        try:
            self._inherited = checkpoints.read_cleaner_offsets(fs, directory)
        except Corrupt as problem:
            logger.warning("logs are compacted from their beginning again: %s", problem)
            self._inherited = {}

    def get(self, topic: TopicImage, index: int, directory: Path) -> int | None:
        """Where the last compaction of a log ended, or None."""
        key = (topic.topic_id, index)
        inherited = self._inherited.pop((topic.name, index), None)
        if inherited is not None:
            made_ns = modified_ns(self._fs, directory / checkpoints.PARTITION_METADATA_FILE)
            if 0 < made_ns < self._inherited_ns:
                self._offsets.setdefault(key, inherited)
        return self._offsets.get(key)

    def put(self, image: ClusterImage, topic: TopicImage, index: int, offset: int) -> None:
        """Record durably that a pass over a log ended at `offset`. Entries of deleted logs are dropped."""
        self._offsets[topic.topic_id, index] = offset
        self._offsets = {key: at for key, at in self._offsets.items() if key[0] in image.topics_by_id}
        named = {
            (image.topics_by_id[topic_id].name, number): at
            for (topic_id, number), at in self._offsets.items()
        }
        live = {key: at for key, at in self._inherited.items() if image.partition(*key) is not None}
        checkpoints.write_cleaner_offsets(self._fs, self._directory, {**live, **named})
