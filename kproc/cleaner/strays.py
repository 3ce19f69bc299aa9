"""Strays: sets aside the directories of partitions that the metadata does not know, as Kafka does.

A crash between a topic's deletion and the rename of its directories leaves them behind. They are renamed to
`<topic>-<partition>.<hex>-stray` and kept, because it may be the metadata that was lost.

A topic that is being created has directories, too, and the cleaner may hear of it later than the Handler that creates
them. So a directory is set aside only if it was a stray at two looks, file.delete.delay.ms and at least a minute
apart: a delta arrives within milliseconds, or its link ends and a snapshot comes. And it is set aside only when every
Handler knows the metadata that do not name it: a Handler that is late may have it open.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from kproc.cluster.image import ClusterImage
from kproc.errors import Corrupt
from kproc.storage import checkpoints
from kproc.storage.catalog import list_partitions
from kproc.storage.format import STRAY_DIRECTORY_SUFFIX, set_aside_directory_name
from kproc.storage.fs import Fs, StorageFailure

logger = logging.getLogger(__name__)

_MS: Final = 1_000_000
_WAIT_MS_MIN: Final = 60_000


class Strays:
    """Looks for strays now and then. Owned by the cleaner."""

    def __init__(
        self,
        fs: Fs,
        directory: Path,
        *,
        delay_ms: int,
        interval_ms: int,
        when_let_go: Callable[[Callable[[], None]], None],
    ) -> None:
        self._fs = fs
        self._when_let_go = when_let_go
        self._directory = directory
        self._wait_ns = max(delay_ms, _WAIT_MS_MIN) * _MS
        self._interval_ns = interval_ms * _MS
        self._suspects: dict[tuple[Path, bytes], int] = {}  # (directory, topic id) -> since when
        self._next_ns = 0

    def look(self, image: ClusterImage, now_ns: int) -> None:
        """Set aside directories that have been strays for long enough. Raises StorageFailure and Corrupt."""
        if not image.version or now_ns < self._next_ns:
            return
        self._next_ns = now_ns + self._interval_ns
        found = self._find(image)
        self._suspects = {key: self._suspects.get(key, now_ns) for key in found}
        for key, since_ns in list(self._suspects.items()):
            if now_ns - since_ns >= self._wait_ns:
                del self._suspects[key]
                self._when_let_go(partial(self._set_aside, *key))
        if self._suspects:
            self._next_ns = min(self._next_ns, min(self._suspects.values()) + self._wait_ns)

    def _find(self, image: ClusterImage) -> list[tuple[Path, bytes]]:
        """Directories with an id that no topic has. A directory that has an existing topic's name is left
        to its owner.
        """
        return [
            (each.path, each.topic_id)
            for each in list_partitions(
                self._fs, self._directory, skip=lambda name, index: image.partition(name, index) is not None
            )
            if each.topic_id is not None and each.topic_id not in image.topics_by_id
        ]

    def _set_aside(self, path: Path, topic_id: bytes) -> None:
        name, _, index = path.name.rpartition("-")
        aside = path.with_name(
            set_aside_directory_name(name, int(index), uuid.uuid4().hex, STRAY_DIRECTORY_SUFFIX)
        )
        try:
            if checkpoints.read_partition_metadata(self._fs, path) != topic_id:
                return
            logger.warning("%s belongs to no topic; it is kept as %s", path, aside.name)
            is_renamed = self._fs.rename(path, aside)
            if is_renamed and checkpoints.read_partition_metadata(self._fs, aside) != topic_id:
                # A topic of this name was just created; its owner has set the stray aside and made its own directory.
                logger.warning("%s is a new topic's: it is given back", path)
                self._fs.rename(aside, path)
        except (StorageFailure, Corrupt) as error:  # The next look will find it again.
            logger.warning("%s belongs to no topic, and cannot be set aside: %s", path, error)
