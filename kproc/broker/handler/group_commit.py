"""GroupCommit: starts and finishes the rounds of fdatasync for the logs of one Handler.

One round serves every request that came before its start, whatever its partition. Requests that come while it runs wait
for the next round. syncer.py runs a round, usually in a thread; this module chooses its logs and handles its outcome in
the Handler's own thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kproc.broker.storage.fs import Shortage

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.handler.syncer import Syncer
    from kproc.broker.request.context import PartitionKey
    from kproc.broker.role.purgatory import Purgatory
    from kproc.broker.storage.log import Log, SyncPoint

logger = logging.getLogger(__name__)

# Limit of descriptors that one round opens, for sealed segments and new directories. The other logs wait for the next
# round.
_ROUND_DESCRIPTORS_MAX: Final = 400


class GroupCommit:
    """The partitions that wait for a sync, and those of the running round. One per Handler."""

    __slots__ = ("_find", "_purgatory", "_short", "_syncer", "rounds", "syncing", "unsynced")

    def __init__(
        self,
        syncer: Syncer,
        purgatory: Purgatory,
        find: Callable[[PartitionKey], OwnedPartition | None],
    ) -> None:
        self._syncer = syncer
        self._purgatory = purgatory
        self._find = find
        # Partitions for the next round. Every OwnedPartition adds itself to this dict, so it is never replaced.
        self.unsynced: dict[OwnedPartition, None] = {}
        self.syncing: dict[Log, OwnedPartition] = {}  # The logs of the running round; empty if none runs.
        # Logs whose last sync could not start because of a Shortage, with the reason.
        self._short: dict[PartitionKey, str] = {}
        self.rounds = 0  # Rounds that were started since the last tick of the Handler, which resets it.

    def start_round(self) -> None:
        """Start a round of fdatasync for the partitions in `unsynced`, unless a round is running.

        Partitions above the limit of descriptors stay in `unsynced` for the next round.
        """
        if self.syncing or not self.unsynced:
            return
        points: list[tuple[Log, SyncPoint]] = []
        waiting = list(self.unsynced)
        self.unsynced.clear()
        descriptors = 0  # Descriptors that are open for this round only.
        for owned in waiting:
            if descriptors >= _ROUND_DESCRIPTORS_MAX:
                self.unsynced[owned] = None  # Left for the next round.
                continue
            try:
                points.append((owned.log, owned.log.durability.sync_point()))
            except Shortage as error:
                # Fail only the waiting requests. tick() and the next request try to sync the records again.
                self._fail_waiting(owned, error)
                continue
            # A segment of this log cannot be opened, so the log cannot be synced and goes offline. The other logs of
            # the round are synced.
            except OSError as error:
                owned.log.state.set_offline(str(error))
                owned.on_synced(error)
                continue
            self.syncing[owned.log] = owned
            descriptors += len(points[-1][1].fds) - 1
        if points:
            self.rounds += 1
            self._syncer.submit(points)

    def _fail_waiting(self, owned: OwnedPartition, error: Shortage) -> None:
        """Fail the requests that wait for a sync that could not start. The log stays open."""
        if owned.key not in self._short:
            logger.warning("cannot sync %s-%d now, so requests that wait for it fail: %s", *owned.key, error)
        self._short[owned.key] = str(error)
        owned.on_synced(error)

    def finish_round(self) -> int:
        """Handle the results of the sync thread. Return the number of logs."""
        outcomes = self._syncer.collect()
        for log, point, error in outcomes:
            owned = self.syncing.pop(log)
            if error is None:
                log.durability.mark_synced(point)
                owned.mark_recovered()
                if self._short:
                    self._short.pop(owned.key, None)
            else:
                log.durability.sync_failed(point, str(error))
                owned.distrust()
            if self._find(owned.key) is owned:  # Otherwise the topic was deleted while the round ran.
                owned.publish()
                owned.on_synced(error)
                if error is not None:
                    self._purgatory.check(owned.key)  # Parked readers that wait for the sync get the error.
        return len(outcomes)
