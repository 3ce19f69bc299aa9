"""OrphanedDirectories: clears old directories out of the way before a topic's name is used again.

A partition's directory has its topic's name, and the file partition.metadata in it says by id which topic it belongs
to. Neither the rename of a deletion nor that file is synced by itself. A power loss may therefore bring the directory
of a deleted topic back, and a new topic of the same name would take it for its own. So before a topic is created, the
rename of its last namesake's directories is synced, and any directory with the name of one of its partitions is moved.
From then on a directory of that name belongs to the new topic, whatever partition.metadata says.

A directory goes only if the metadata log records the deletion of its topic id. Any other one is set aside and kept: it
may hold another broker's records, or this broker's while the metadata were restored from an older copy.

No Handler has such a directory open: a name is free only when every Handler has closed it (freed_names.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from kproc.cluster import records as r
from kproc.cluster.image import ClusterImage, TopicImage
from kproc.storage.catalog import describe_topic_id, read_topic_id
from kproc.storage.fs import Fs, StorageFailure, sync_directory
from kproc.storage.set_aside import rename_for_deletion, set_aside

logger = logging.getLogger(__name__)

_NAMES_MAX: Final = 10_000
# An older deletion is not known any more: its directory, if a crash has left it, is set aside instead of deleted.
_DELETED_IDS_MAX: Final = 10_000


class OrphanedDirectories:
    """Knows recorded deletions, and the names whose old directories a power loss may bring back. One per controller."""

    def __init__(self, fs: Fs, directory: Path, *, deleted_ids: Iterable[bytes] = ()) -> None:
        """`deleted_ids`: the topics whose deletion the metadata log records, the oldest first."""
        self._fs = fs
        self._directory = directory
        self._deleted_ids = dict.fromkeys(deleted_ids)
        self._freed: set[str] = set()
        self._is_unsure = True  # A former controller's knowledge died with it.

    def deleted(self, topics: Iterable[TopicImage]) -> None:
        """Record that these topics were deleted."""
        for topic in topics:
            self._freed.add(topic.name)
            self._deleted_ids[topic.topic_id] = None
        for oldest in list(islice(self._deleted_ids, max(0, len(self._deleted_ids) - _DELETED_IDS_MAX))):
            del self._deleted_ids[oldest]
        if len(self._freed) > _NAMES_MAX:
            self._freed.clear()
            self._is_unsure = True

    def clear(self, image: ClusterImage, records: Iterable[r.Record]) -> None:
        """Move whatever has the name of a partition that these records will create. Raises StorageFailure."""
        names = {each.topic_id: each.name for each in records if isinstance(each, r.TopicCreated)}
        has_moved = False
        for each in records:
            if isinstance(each, r.PartitionsAdded):
                name = names.get(each.topic_id) or image.topics_by_id[each.topic_id].name
                for index in range(each.first_index, each.first_index + len(each.slots)):
                    has_moved |= self._move(name, index)
        if has_moved or (names and (self._is_unsure or not self._freed.isdisjoint(names.values()))):
            sync_directory(self._fs, self._directory)
            self._freed.difference_update(names.values())
            self._is_unsure = False

    def _move(self, name: str, index: int) -> bool:
        path = self._directory / f"{name}-{index}"
        if not self._fs.exists(path):
            return False
        try:
            topic_id = read_topic_id(self._fs, path)
        except StorageFailure as failure:
            return set_aside(self._fs, path, f"a topic of its name was created, and {failure}") is not None
        if topic_id in self._deleted_ids:
            logger.info("removing %s: its topic was deleted, and a crash came before its rename", path)
            return rename_for_deletion(self._fs, path) is not None
        reason = (
            f"a topic of its name was created, and it has {describe_topic_id(topic_id)}, "
            "of which no deletion is recorded"
        )
        return set_aside(self._fs, path, reason) is not None
