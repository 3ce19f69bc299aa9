"""OwnedPartition: an open partition of a Handler: its log, its published row, the requests that wait for the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from kproc.broker.cluster.image import PartitionImage
from kproc.broker.ipc.words import RowWriter
from kproc.broker.request.context import PartitionKey
from kproc.broker.role.partition_table import CLOSED, RECOVERING, SYNC_FAILED, holder_word
from kproc.broker.role.purgatory import Purgatory
from kproc.broker.storage.log import Log
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode, FatalError


class Owner(Protocol):
    """What an open partition needs of the Handler's Partitions."""

    handler_index: int
    purgatory: Purgatory
    containment: Containment
    # Partitions that a request waits for, and that are in no sync round yet.
    unsynced: dict[OwnedPartition, None]


class OwnedPartition:
    """One open partition: its log, its row of the shared table, and the requests that wait for the disk."""

    __slots__ = (
        "_holder_word",
        "_log_state",
        "_owner",
        "_quiet_word",
        "_row",
        "_waiting",
        "_woken_at",
        "generation",
        "key",
        "log",
        "recovered_end",
        "slot",
    )

    def __init__(
        self, owner: Owner, key: PartitionKey, log: Log, row: RowWriter, partition: PartitionImage
    ) -> None:
        self.key = key
        self.log = log
        self._log_state = log.state
        self.slot = partition.slot
        self.generation = partition.slot_generation
        self._owner = owner
        self._holder_word = holder_word(owner.handler_index)
        self._quiet_word = holder_word(owner.handler_index, has_producers=False)
        self._row = row
        # The high watermark at which parked requests were last woken while records were hidden.
        self._woken_at = 0
        # The end of the log at its opening, if the high watermark before a crash is unknown; else 0.
        self.recovered_end = 0
        self._waiting: deque[tuple[int, Callable[[int], None]]] = deque()

    def hide_from(self, offset: int, *, is_recovery: bool) -> None:
        """Hide the last records of a log that was just opened until a sync has confirmed them.

        After a crash (`is_recovery`) readers wait for that sync, or the high watermark would seem to decrease. The row
        says so until then: the owner may die before the sync ends, and its successor must not trust the row.
        """
        self.log.hide_from(offset)
        self._owner.unsynced[self] = None
        if is_recovery:
            self.recovered_end = self._log_state.end_offset
            self._holder_word |= RECOVERING
            self._quiet_word |= RECOVERING

    def end_recovery(self) -> None:
        """Trust the high watermark again if a sync has confirmed the recovered log. The next row says so."""
        if self.recovered_end and not self.is_recovering:
            self.recovered_end = 0
            self._holder_word &= ~RECOVERING
            self._quiet_word &= ~RECOVERING

    @property
    def is_recovering(self) -> bool:
        """True as long as the high watermark that clients saw before a crash is unknown."""
        unconfirmed = self._log_state.unconfirmed
        return bool(unconfirmed) and unconfirmed[0][0] < self.recovered_end

    def publish(self) -> None:
        """Write the log's start, end and high watermark into the shared table."""
        log = self._log_state
        active = log.active
        self._row.publish(
            (
                self._holder_word if log.producers else self._quiet_word,
                self.generation,
                log.start_offset,
                log.end_offset,
                active.base_offset,
                active.size,
                log.recovery_point,
                log.high_watermark,
            )
        )

    def distrust(self) -> None:
        """A sync failed: every row from now on says so, because no successor may believe the page cache."""
        self._holder_word |= SYNC_FAILED
        self._quiet_word |= SYNC_FAILED

    def publish_closed(self) -> None:
        """The log was closed in order: the next start need not recover it."""
        self._holder_word |= CLOSED
        self._quiet_word |= CLOSED
        self.publish()

    @property
    def is_waited_for(self) -> bool:
        """Whether a request waits for the disk."""
        return bool(self._waiting)

    def after_append(self) -> None:
        """Publish the row and wake parked requests. Hidden records wake them only when a sync has confirmed them."""
        try:
            self.publish()
        except Exception as error:
            raise FatalError(f"cannot publish an append to {self.key}: {error!r}") from error
        if self._log_state.unconfirmed:
            self._owner.unsynced[self] = None
            self._wake_readers()
        else:
            self._owner.purgatory.check(self.key)

    def after_start_moved(self) -> None:
        """Publish the row after a DeleteRecords, and wake parked fetches below the log's new start."""
        self.publish()
        self._owner.purgatory.check(self.key)

    def _wake_readers(self) -> None:
        """Wake parked requests if the high watermark has moved since the last call."""
        high_watermark = self._log_state.high_watermark
        if high_watermark != self._woken_at:
            self._woken_at = high_watermark
            self._owner.purgatory.check(self.key)

    def when_synced(self, offset: int, on_done: Callable[[int], None]) -> None:
        if self._log_state.recovery_point >= offset:
            on_done(0)
            return
        self._waiting.append((offset, on_done))
        self._owner.unsynced[self] = None

    def on_synced(self, failure: OSError | None) -> None:
        """A sync round has ended: answer the requests that it covered, or all of them if it failed."""
        waiting = self._waiting
        if failure is None and self._log_state.offline_reason is None:
            synced = self._log_state.recovery_point
            while waiting and waiting[0][0] <= synced:
                on_done = waiting.popleft()[1]
                try:
                    on_done(0)
                except Exception as error:  # noqa: BLE001 - contained: the others are answered all the same
                    self._contain(on_done, error)
            if waiting or self._log_state.unconfirmed:
                self._owner.unsynced[self] = None
            else:  # A request that came while the round ran was covered by it.
                self._owner.unsynced.pop(self, None)
            self._wake_readers()
            return
        # A callback may wait again. It then waits for the next round, or this loop would not end.
        self._waiting = deque()
        for _, on_done in waiting:
            try:
                on_done(int(ErrorCode.KAFKA_STORAGE_ERROR))
            except Exception as error:  # noqa: BLE001 - contained, as above
                self._contain(on_done, error)

    def _contain(self, on_done: Callable[[int], None], error: Exception) -> None:
        owner = getattr(on_done, "owner", None)
        self._owner.containment.caught("an answer that waited for the disk", error, owner)
