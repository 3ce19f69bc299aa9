"""OrphanedDirectories: moves old directories away before a topic's name is used again.

A partition's directory is named after its topic, and partition.metadata in it has the topic's id. Neither the rename of
a deletion nor that file is synced by itself. A power loss can therefore bring the directory of a deleted topic back,
and a new topic of the same name would use it. So before a topic is created, two things happen. If a topic of the same
name was deleted, the rename of its directories is synced. And every directory with the name of a partition of the new
topic is moved away. From then on a directory of that name belongs to the new topic, whatever partition.metadata says.

A directory is deleted only if the metadata record the deletion of its topic id, and no clean stop since. A clean stop
leaves no such directory. Any other directory is set aside and kept: it can hold records of another broker, or it or the
metadata were restored from an older copy.

No Handler has such a directory open: a name is free only after every Handler has closed it (pending_deletions.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.storage.catalog import describe_topic_id, read_topic_id
from kproc.broker.storage.fs import Fs, StorageFailure, sync_directory
from kproc.broker.storage.set_aside import rename_for_deletion, set_aside

logger = logging.getLogger(__name__)

_NAMES_MAX: Final = 10_000


class OrphanedDirectories:
    """Moves directories of deleted topics away before a topic with the same name is created.

    Keeps the names of deleted topics whose directories a power loss can bring back. The controller has one instance.
    """

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._freed: set[str] = set()
        # True at first, because a restarted controller does not know the names that its predecessor recorded.
        self._is_unsure = True

    def deleted(self, names: Iterable[str]) -> None:
        """Record that topics with these names were deleted.

        A power loss can undo the renames of their directories. `clear` therefore syncs the data directory before a
        topic with one of these names is created.
        """
        self._freed.update(names)
        # Discard the names, because they must not grow without limit. The next creation then syncs the directory, which
        # is always right.
        if len(self._freed) > _NAMES_MAX:
            self._freed.clear()
            self._is_unsure = True

    def clear(self, image: ClusterImage, records: Iterable[r.Record]) -> None:
        """Move away directories with the names of partitions that `records` will create.

        Without this, a new partition would begin with old records. Rename a directory for deletion if the deletion of
        its topic was interrupted, otherwise set it aside. Sync the data directory if one of these renames, or of an
        earlier deletion of a topic with the same name, may not be on the disk. Raises StorageFailure.
        """
        names = {each.topic_id: each.name for each in records if isinstance(each, r.TopicCreated)}
        has_moved = False
        for each in records:
            if isinstance(each, r.PartitionsAdded):
                name = names.get(each.topic_id) or image.topics_by_id[each.topic_id].name
                for index in range(each.first_index, each.first_index + len(each.slots)):
                    has_moved |= self._move(name, index, image)
        # Sync only if a rename may not be durable yet: one by `_move` in the loop before, or that of a deleted topic
        # with the same name.
        if has_moved or (names and (self._is_unsure or not self._freed.isdisjoint(names.values()))):
            sync_directory(self._fs, self._directory)
            self._freed.difference_update(names.values())
            self._is_unsure = False

    def _move(self, name: str, index: int, image: ClusterImage) -> bool:
        path = self._directory / f"{name}-{index}"
        if not self._fs.exists(path):
            return False
        try:
            topic_id = read_topic_id(self._fs, path)
        except StorageFailure as failure:
            # The topic id cannot be read. Keep the directory, because it can have records of another topic.
            return set_aside(self._fs, path, f"a topic of its name was created, and {failure}") is not None
        if topic_id in image.unfinished_deletions:
            logger.info("removing %s: its topic was deleted, but a crash prevented the rename", path)
            return rename_for_deletion(self._fs, path) is not None
        reason = (
            f"a topic of its name was created, and it has {describe_topic_id(topic_id)}, "
            "of which no unfinished deletion is recorded"
        )
        return set_aside(self._fs, path, reason) is not None
