"""Close the logs of a Handler at a stop: sync, snapshot and close, so that the next start need not recover."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from kproc.broker.handler.syncer import sync_one

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
    """Close the logs of these partitions and publish their rows. Sync them first if `is_clean`.

    Raises the first OSError after all logs are closed.
    """
    errors: list[OSError] = []
    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        for first in range(0, len(partitions), _CLOSED_TOGETHER):
            some = partitions[first : first + _CLOSED_TOGETHER]
            synced = _sync_logs(some, pool, errors) if is_clean else set()
            for owned in some:
                owned.log.close_files()
                # Without a sync, the next start must recover the log. So its row does not say that it was closed.
                if owned.log in synced:
                    owned.publish_closed()
                else:
                    owned.publish()
    if errors:
        raise errors[0]


def _sync_logs(partitions: Sequence[OwnedPartition], pool: Executor, errors: list[OSError]) -> set[Log]:
    """Prepare the logs for a clean close and sync them. Return those that succeeded; append the errors of the others.

    A log that is offline is left out: its files are half changed or its records may not be on the disk.
    """
    points: list[tuple[Log, SyncPoint]] = []
    synced: set[Log] = set()

    def fail(log: Log, error: OSError) -> None:
        logger.error("cannot close the log %s cleanly: %s", log.state.directory.name, error)
        errors.append(error)

    for owned in partitions:
        if not owned.log.state.is_offline:
            try:
                points.append((owned.log, owned.log.prepare_close()))
            except OSError as error:
                fail(owned.log, error)
    for log, point, problem in pool.map(sync_one, *zip(*points, strict=True)) if points else ():
        if problem is None:
            log.durability.mark_synced(point)
            synced.add(log)
        else:
            log.durability.sync_failed(point, str(problem))
            fail(log, problem)
    return synced
