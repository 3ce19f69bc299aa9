"""Leftovers: what deleted topics leave under a name that is to be used again.

A partition's directory is called after its topic's name, and partition.metadata in it says whose it is. Neither the
rename of a deletion nor that file is synced by itself: a power loss may bring the directory of a deleted topic back,
without the file's content but with records. Its namesake would take it for its own. So before a topic is made, the
deletion of its last namesake is durable in names, too, and whatever has the name of one of its partitions is set
aside. From then on a directory of that name is the new topic's, whatever has become of partition.metadata.

Nobody has such a directory open: a name is free when every Handler has let go of it (freed_names.py).
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
    """The controller's note of names whose last directories may come back with a power loss."""

    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._freed: set[str] = set()
        self._is_unsure = True  # Whoever was the controller before did not leave us its note.

    def deleted(self, names: Iterable[str]) -> None:
        """Topics of these names were deleted."""
        self._freed.update(names)
        if len(self._freed) > _NAMES_MAX:
            self._freed.clear()
            self._is_unsure = True

    def clear(self, image: ClusterImage, records: Iterable[r.Record]) -> None:
        """Make room for the partitions that these records are going to make; raises StorageFailure."""
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
        # It may be all that there is of records that somebody wants back, if nobody knows whose it was.
        kind = DELETE_DIRECTORY_SUFFIX if is_known else STRAY_DIRECTORY_SUFFIX
        aside = path.with_name(set_aside_directory_name(name, index, uuid.uuid4().hex, kind))
        logger.warning("%s is left over from a deleted topic; it is set aside as %s", path, aside.name)
        return self._fs.rename(path, aside)
