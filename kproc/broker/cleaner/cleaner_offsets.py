"""CleanerOffsets: up to which offset each log is compacted, in memory and in cleaner-offset-checkpoint.

Offsets are stored by topic id (storage/offset_checkpoints.py). An entry without an id, from an older kproc or from
Kafka, is ignored: that log is compacted from its beginning once.
"""

from __future__ import annotations

from pathlib import Path

from kproc.broker.cluster.image import ClusterImage, TopicImage
from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.offset_checkpoints import read_offset_checkpoint, write_offset_checkpoint


class CleanerOffsets:
    """The offset up to which each log is compacted.

    Read from cleaner-offset-checkpoint at the start, written after each pass. Owned by the cleaner.
    """

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._offsets = read_offset_checkpoint(fs, directory, checkpoints.CLEANER_OFFSET_FILE).by_id

    def get(self, topic: TopicImage, index: int) -> int | None:
        """Return the offset at which the last compaction of a log ended, or None if none is recorded."""
        return self._offsets.get((topic.topic_id, index))

    def put(self, image: ClusterImage, topic: TopicImage, index: int, offset: int) -> None:
        """Record durably that a pass over a log ended at `offset`.

        `image` holds the current metadata. Entries of topics that it lacks are dropped, because a topic can be deleted
        while the pass runs.
        """
        self._offsets[topic.topic_id, index] = offset
        # Drop the entries of deleted topics, because the file would grow with each of them.
        self._offsets = {key: at for key, at in self._offsets.items() if key[0] in image.topics_by_id}
        names = {topic_id: image.topics_by_id[topic_id].name for topic_id, _ in self._offsets}
        write_offset_checkpoint(
            self._fs, self._directory, checkpoints.CLEANER_OFFSET_FILE, self._offsets, names
        )
