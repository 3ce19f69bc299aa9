"""Close the logs of a Handler at a stop: sync, snapshot and close, so that the next start need not recover."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from kproc.broker.handler.syncer import Outcome, sync_one

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.storage.log import Log, SyncPoint

logger = logging.getLogger(__name__)

# Threads for the syncs. They run in parallel, because the file system's journal commits once for all of them: one
# fdatasync after another took 10 s for 2,000 partitions.
_SYNC_THREADS: Final = 32
# Logs that are closed together. The number is limited, because each has some descriptors open while it is synced.
_CLOSED_TOGETHER: Final = 128


def close_logs(partitions: Sequence[OwnedPartition], *, is_clean: bool) -> None:
    """Close the logs of these partitions and publish their rows in the shared partition table.

    Sync them first if `is_clean`. Raises the first OSError after all logs are closed.
    """
    errors: list[OSError] = []
    for first in range(0, len(partitions), _CLOSED_TOGETHER):
        some = partitions[first : first + _CLOSED_TOGETHER]
        synced = _sync_logs(some, errors) if is_clean else set()
        for owned in some:
            owned.log.close_files()
            # Without a sync, the next start must recover the log. So its row does not say that it was closed.
            if owned.log in synced:
                owned.publish_closed()
            else:
                owned.publish()
    if errors:
        raise errors[0]


def _sync_logs(partitions: Sequence[OwnedPartition], errors: list[OSError]) -> set[Log]:
    """Prepare the logs for a clean close and sync them. Return those that succeeded; append the errors of the others.

    A log that is offline is left out: its files are half changed or its records may not be on the disk.
    """
    points: list[tuple[Log, SyncPoint]] = []
    synced: set[Log] = set()

    def fail(log: Log, error: OSError) -> None:
        logger.error(
            "cannot close the log %s cleanly, so the next start recovers all logs: %s",
            log.state.directory.name,
            error,
        )
        errors.append(error)

    for owned in partitions:
        if not owned.log.state.is_offline:
            try:
                points.append((owned.log, owned.log.prepare_close()))
            except OSError as error:
                fail(owned.log, error)
    for log, point, problem in _sync_in_parallel(points):
        if problem is None:
            log.durability.mark_synced(point)
            # `mark_synced` has found that the active segment's file was removed: its records are lost at the close.
            if log.state.offline_reason is not None:
                problem = OSError(log.state.offline_reason)
        else:
            log.durability.sync_failed(point, str(problem))
        if problem is None:
            synced.add(log)
        else:
            fail(log, problem)
    return synced


def _sync_in_parallel(points: Sequence[tuple[Log, SyncPoint]]) -> list[Outcome]:
    """Sync each point once and return the outcomes.

    If no more threads can start, the calling thread syncs the other points.
    """
    outcomes: list[Outcome] = []

    def sync(log: Log, point: SyncPoint) -> None:
        outcomes.append(sync_one(log, point))

    if points:
        try:
            with ThreadPoolExecutor(_SYNC_THREADS) as pool:
                list(pool.map(sync, *zip(*points, strict=True)))
        except RuntimeError as error:
            # A thread cannot start. The threads before it have synced their points when the pool is closed.
            logger.warning(
                "syncing logs for the stop with fewer threads, because no more can start: %s", error
            )
    done = {log for log, _, _ in outcomes}
    return outcomes + [sync_one(*each) for each in points if each[0] not in done]
