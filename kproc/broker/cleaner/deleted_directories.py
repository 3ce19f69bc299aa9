"""DeletedDirectories: removes the directories of deleted topics, some time after their owners renamed them.

An owner renames the directories of a deleted topic. It does not remove them, because unlinking large files stalls a
process. If an owner dies before it has renamed all of them, the cleaner renames the others after every Handler has the
metadata without the topic.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from kproc.broker.cluster.image import ClusterImage, TopicImage
from kproc.broker.storage.catalog import read_topic_id
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.set_aside import list_deleted, rename_checked, rename_for_deletion
from kproc.common.clock import NS_PER_MS, Clock

logger = logging.getLogger(__name__)


class DeletedDirectories:
    """The directories of deleted topics that are not removed yet. Owned by the cleaner.

    `image` returns the cleaner's present metadata. `when_let_go` calls its argument when every Handler has received
    these metadata and has closed the directories of the topics that they lack.
    """

    def __init__(
        self,
        fs: Fs,
        directory: Path,
        *,
        delay_ms: int,
        clock: Clock,
        image: Callable[[], ClusterImage],
        when_let_go: Callable[[Callable[[], None]], None],
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._delay_ms = delay_ms
        self._clock = clock
        self._image = image
        self._when_let_go = when_let_go
        self._topics: deque[tuple[int, TopicImage]] = deque()  # (time of removal in ns, topic)
        self.next_ns: int | None = None  # Time of the next `remove_due`. None: nothing waits.

    def add(self, topics: Iterable[TopicImage]) -> None:
        """Schedule the removal of these deleted topics' directories, file.delete.delay.ms (at least 1 s) from now."""
        due_ns = self._delayed_ns()
        for topic in topics:
            self._topics.append((due_ns, topic))
            if self.next_ns is None:
                self.next_ns = due_ns

    def _delayed_ns(self) -> int:
        # Wait at least 1 s, because each removal lists the whole data directory.
        return self._clock.now_ns() + max(1000, self._delay_ms) * NS_PER_MS

    def remove_due(self) -> None:
        """Remove the directories whose delay has passed. Schedule the next call if others still wait."""
        self.next_ns = self._delayed_ns()
        if not self.remove():
            self.next_ns = None

    def remove(self, *, at_once: bool = False) -> bool:
        """Remove the directories of deleted topics. Return True if some still wait.

        A directory is removed file.delete.delay.ms after its rename, because Processors may open and send its files
        until then. `at_once` removes all of them at a stop, when all files are closed.
        """
        # Visit each topic once, because a topic whose directories cannot be renamed is added again.
        for _ in range(len(self._topics)):
            if not at_once and self._topics[0][0] > self._clock.now_ns():
                break
            self._rename_forgotten(self._topics.popleft()[1], at_once=at_once)
        if not self._image().version:
            # Keep the directories until the metadata arrive. Metadata that were restored from an older copy can contain
            # a deleted topic again.
            return True
        waits = bool(self._topics)
        try:
            paths = list_deleted(self._fs, self._directory)
        except StorageFailure as error:
            logger.warning("cannot list the directories of deleted topics, trying again later: %s", error)
            return True
        for path in paths:
            # A directory that cannot be removed must not keep the others from being removed.
            waits |= not self._remove_renamed(path, at_once=at_once)
        return waits

    def _remove_renamed(self, path: Path, *, at_once: bool) -> bool:
        """Remove a directory that was renamed for deletion, if its delay has passed. Return True if it is removed."""
        now_ms = self._clock.wall_ms()
        try:
            facts = self._fs.facts_at(path)
            # On ext4 and XFS a rename sets the directory's ctime, so that is the time of the deletion. A negative age
            # means that the host's clock was set back. The delay then counts as over, because otherwise the files
            # would fill the disk until the clock has caught up.
            if (
                facts is not None
                and not at_once
                and 0 <= now_ms - facts.st_ctime_ns // NS_PER_MS < self._delay_ms
            ):
                return False
            if read_topic_id(self._fs, path) in self._image().topics_by_id:
                # The metadata were restored from a copy older than the deletion, or the cleaner has not received the
                # deletion yet.
                return False
            self._fs.remove_tree(path)
        except StorageFailure as error:
            logger.warning("cannot remove %s of a deleted topic, trying again later: %s", path, error)
            return False
        return True

    def _rename_forgotten(self, topic: TopicImage, *, at_once: bool) -> None:
        """Rename a deleted topic's directories that no owner has renamed, so that the next call of `remove` finds them.

        An owner dies before it has renamed them, and its successor starts with metadata that lack the topic. Wait until
        every Handler has applied the deletion, because an owner may only be late. Without the rename, the removal could
        reach the directory of a new topic with the same name, because it can take seconds.
        """

        def rename() -> None:
            is_left = False
            for path in self._left_of(topic):
                logger.info("removing %s: its topic was deleted while the partition's owner was down", path)
                try:
                    rename_checked(self._fs, path, rename_for_deletion, partial(self._is_left_of, topic))
                except StorageFailure as error:
                    logger.warning("cannot rename %s of a deleted topic, trying again later: %s", path, error)
                    is_left = True
            if is_left:
                self.add([topic])
            self.next_ns = self.next_ns or self._delayed_ns()

        # Do not wait at a stop, because the Handlers have closed all files already.
        if at_once:
            rename()
        elif self._left_of(topic):
            self._when_let_go(rename)

    def _left_of(self, topic: TopicImage) -> list[Path]:
        paths = [self._directory / f"{topic.name}-{partition.index}" for partition in topic.partitions]
        return [path for path in paths if self._is_left_of(topic, path)]

    def _is_left_of(self, topic: TopicImage, path: Path) -> bool:
        try:
            return read_topic_id(self._fs, path) == topic.topic_id
        except StorageFailure as error:
            # The directory's topic id cannot be read, so it may belong to another topic. Leave it: it is reported as a
            # stray directory.
            logger.warning(
                "not removing %s, which has a deleted topic's name, because its topic id cannot be read: %s",
                path,
                error,
            )
            return False
