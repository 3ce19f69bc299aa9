"""Leftovers: clears the directories of deleted topics out of the way before a name is used again.

A partition's directory has its topic's name, and the file partition.metadata in it tells which topic it belongs to.
Neither the rename of a deletion nor that file is synced by itself. A power loss may therefore bring the directory of a
deleted topic back, with its records but without the file's content, and a new topic of the same name would take it for
its own. So before a topic is created, the rename of its last namesake's directories is synced, and any directory with
the name of one of its partitions is set aside. From then on a directory of that name belongs to the new topic,
whatever partition.metadata says.

No Handler has such a directory open: a name is free only when every Handler has closed it (freed_names.py).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kproc.cluster import records as r
from kproc.cluster.image import ClusterImage
from kproc.errors import Corrupt
from kproc.storage import checkpoints
from kproc.storage.format import DELETE_DIRECTORY_SUFFIX, STRAY_DIRECTORY_SUFFIX, set_aside_directory_name
from kproc.storage.fs import Fs, sync_directory

logger = logging.getLogger(__name__)

_NAMES_MAX: Final = 10_000


class Leftovers:
    """Knows the names whose old directories a power loss may bring back. One per controller."""

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._freed: set[str] = set()
        self._is_unsure = True  # A former controller's knowledge died with it.

    def deleted(self, names: Iterable[str]) -> None:
        """Note that topics of these names were deleted."""
        self._freed.update(names)
        if len(self._freed) > _NAMES_MAX:
            self._freed.clear()
            self._is_unsure = True

    def clear(self, image: ClusterImage, records: Iterable[r.Record]) -> None:
        """Set aside whatever has the name of a partition that these records will create. Raises StorageFailure."""
        names = {each.topic_id: each.name for each in records if isinstance(each, r.TopicCreated)}
        has_moved = False
        for each in records:
            if isinstance(each, r.PartitionsAdded):
                name = names.get(each.topic_id) or image.topics_by_id[each.topic_id].name
                for index in range(each.first_index, each.first_index + len(each.slots)):
                    has_moved |= self._set_aside(name, index)
        if has_moved or (names and (self._is_unsure or not self._freed.isdisjoint(names.values()))):
            sync_directory(self._fs, self._directory)
            self._freed.difference_update(names.values())
            self._is_unsure = False

    def _set_aside(self, name: str, index: int) -> bool:
        path = self._directory / f"{name}-{index}"
        if not self._fs.exists(path):
            return False
        try:
            is_known = checkpoints.read_partition_metadata(self._fs, path) is not None
        except Corrupt:
            is_known = False
        # Kept, not deleted: if its topic is unknown, it may be the only copy of records that somebody wants back.
        kind = DELETE_DIRECTORY_SUFFIX if is_known else STRAY_DIRECTORY_SUFFIX
        aside = path.with_name(set_aside_directory_name(name, index, uuid.uuid4().hex, kind))
        logger.warning("%s is left over from a deleted topic; it is set aside as %s", path, aside.name)
        return self._fs.rename(path, aside)
