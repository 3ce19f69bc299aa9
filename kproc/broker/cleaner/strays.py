"""StrayDirectories: sets aside the directories of partitions that are not in the metadata, as Kafka does.

Such directories come from another broker, or they or the metadata were restored from an older copy. They are renamed
to `<topic>-<partition>.<hex>-stray` and kept. A crash between a topic's deletion and the rename of its directories
leaves such directories, too. These are deleted: the metadata record the deletion of their topic id, and no clean stop
after it.

A Handler may create the directories of a new topic before the cleaner receives the metadata with the topic. A directory
is therefore renamed only if two scans have found it, which are file.delete.delay.ms and at least a minute apart. The
cleaner has received the topic by then, because the controller sends it within milliseconds. A directory is renamed only
after every Handler has the metadata that lack its topic, because a Handler with older metadata may have it open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from kproc.broker.cluster.image import ClusterImage
from kproc.broker.storage.catalog import PartitionDirectory, describe_topic_id, list_partitions
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.set_aside import (
    record_reason,
    rename_aside,
    rename_checked,
    rename_for_deletion,
)
from kproc.common.clock import NS_PER_MS

logger = logging.getLogger(__name__)

_WAIT_MS_MIN: Final = 60_000


class StrayDirectories:
    """Scans for stray directories at intervals. Owned by the cleaner."""

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
        self._wait_ns = max(delay_ms, _WAIT_MS_MIN) * NS_PER_MS
        self._interval_ns = interval_ms * NS_PER_MS
        self._suspects: dict[PartitionDirectory, int] = {}  # Time in ns of the first scan that found it.
        self._unreadable: set[Path] = set()
        self._next_ns = 0

    def scan(self, image: ClusterImage, now_ns: int) -> None:
        """Set aside the directories that have been strays for long enough. Raises StorageFailure.

        A directory is renamed for deletion instead if the metadata record an unfinished deletion of its topic id. Does
        nothing if the metadata have not arrived or the next scan is not due.
        """
        # Wait for the metadata, because without them every directory would look like a stray.
        if not image.version or now_ns < self._next_ns:
            return
        self._next_ns = now_ns + self._interval_ns
        # Skip by name, whatever the topic id: a directory can also have the id of a topic with another name or with
        # fewer partitions.
        found = list_partitions(
            self._fs, self._directory, skip=lambda name, index: image.partition(name, index) is not None
        )
        self._log_unreadable(found)
        self._suspects = {each: self._suspects.get(each, now_ns) for each in found if each.problem is None}
        for suspect, since_ns in list(self._suspects.items()):
            # Set a directory aside only if two scans, at least `_wait_ns` apart, have found it: a Handler can create
            # the directory of a new topic before this cleaner receives the metadata with the topic.
            if now_ns - since_ns >= self._wait_ns:
                del self._suspects[suspect]
                self._when_let_go(
                    partial(self._move, suspect, suspect.topic_id in image.unfinished_deletions)
                )
        if self._suspects:
            self._next_ns = min(self._next_ns, min(self._suspects.values()) + self._wait_ns)

    def _log_unreadable(self, found: list[PartitionDirectory]) -> None:
        """Log each unreadable directory once. It stays where it is."""
        unreadable = {each.path: each.problem for each in found if each.problem is not None}
        for path in unreadable.keys() - self._unreadable:
            logger.warning(
                "cannot read the topic id of %s, which belongs to no topic, so it stays: %s",
                path,
                unreadable[path],
            )
        self._unreadable = set(unreadable)

    def _move(self, suspect: PartitionDirectory, is_deleted: bool) -> None:
        try:
            rename = rename_for_deletion if is_deleted else rename_aside
            aside = rename_checked(self._fs, suspect.path, rename, partial(self._is_at, suspect))
            # Since the scan the directory was renamed, or a new topic's directory has taken its place.
            if aside is None:
                return
            if is_deleted:
                logger.info("will remove %s: its topic was deleted", aside)
                return
            record_reason(
                self._fs, aside, f"no topic has this partition; it has {describe_topic_id(suspect.topic_id)}"
            )
        except StorageFailure as error:  # The next scan will find it again.
            logger.warning(
                "cannot rename %s, which belongs to no topic, trying again later: %s", suspect.path, error
            )

    def _is_at(self, suspect: PartitionDirectory, path: Path) -> bool:
        # Compare the inode, because a new topic's directory can have the same name by now.
        facts = self._fs.facts_at(path)
        return facts is not None and facts.st_ino == suspect.inode
