"""PartitionDeletions: closes the logs of deleted partitions and renames their directories, a few in each duty cycle.

A partition costs 50 to 100 microseconds, and a topic can have thousands. From the delta on, no request reaches the
partitions, because the metadata lack their topic. The Handler acknowledges the delta after the last rename, so no topic
of the same name is created before (controller/pending_deletions.py). If the Handler dies in between, the cleaner
renames the remaining directories (cleaner/deleted_directories.py).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kproc.broker.storage.fs import StorageFailure

if TYPE_CHECKING:
    from kproc.broker.cluster.image import TopicImage
    from kproc.broker.handler.log_opener import LogOpener
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.role.purgatory import Purgatory

logger = logging.getLogger(__name__)

# Partitions that one duty cycle deletes, which takes about 4 ms.
STEP_PARTITIONS: Final = 50


class PartitionDeletions:
    """The deleted partitions of one Handler whose directories it has not renamed yet."""

    __slots__ = ("_contained", "_on_done", "_opener", "_purgatory", "waiting")

    def __init__(self, opener: LogOpener, purgatory: Purgatory) -> None:
        self._opener = opener
        self._purgatory = purgatory
        self._contained = purgatory.containment.bind_owner
        # (topic, index, open partition or None), in the order of the deletions.
        self.waiting: deque[tuple[TopicImage, int, OwnedPartition | None]] = deque()
        self._on_done: list[Callable[[], None]] = []

    def add(self, topic: TopicImage, index: int, owned: OwnedPartition | None) -> None:
        """Queue a partition of a deleted topic for a later step, and let its log reject appends from now on.

        owned: the open partition, or None if this Handler does not have its log open.
        """
        if owned is not None:
            owned.log.mark_deleted()
        self.waiting.append((topic, index, owned))

    def when_done(self, on_done: Callable[[], None]) -> None:
        """Call `on_done` after the last step, at once if nothing waits."""
        if self.waiting:
            self._on_done.append(self._contained("an operation that waited for deletions", on_done))
        else:
            on_done()

    def step(self) -> int:
        """Delete a few partitions. Return their number."""
        count = min(STEP_PARTITIONS, len(self.waiting))
        for _ in range(count):
            self._delete(*self.waiting.popleft())
        if not self.waiting:
            callbacks, self._on_done = self._on_done, []
            for on_done in callbacks:
                on_done()
        return count

    def finish(self) -> None:
        """Delete all remaining partitions now, because the Handler closes."""
        while self.waiting:
            self.step()

    def _delete(self, topic: TopicImage, index: int, owned: OwnedPartition | None) -> None:
        """Rename the partition's directory. The cleaner removes it after file.delete.delay.ms.

        owned: the open partition, or None if its log is not open.
        """
        if owned is not None:
            owned.on_synced(OSError("the topic was deleted"))
        try:
            if owned is not None:
                owned.log.rename_for_delete()
            else:
                self._opener.delete_closed(topic, index)
        except StorageFailure as failure:
            # Leave the directory. The cleaner removes it when it becomes readable, and reports it until then.
            logger.error(
                "cannot rename the directory of the deleted partition %s-%d, the cleaner tries again: %s",
                topic.name,
                index,
                failure,
            )
        self._purgatory.check((topic.name, index))
