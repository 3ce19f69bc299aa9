"""OwnedPartition: an open partition of a Handler, with its log, its row, and the requests that wait for a sync."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kproc.broker.cluster.image import PartitionImage
from kproc.broker.ipc.words import RowWriter
from kproc.broker.request.context import PartitionKey
from kproc.broker.role.partition_table import CLOSED, RECOVERING, SYNC_FAILED, PartitionRow, holder_word
from kproc.broker.storage.log import Log
from kproc.common.errors import ErrorCode, FatalError

if TYPE_CHECKING:
    from kproc.broker.role.purgatory import Purgatory


class OwnedPartition:
    """One open partition: its log, its row of the shared table, and the requests that wait for a sync."""

    __slots__ = (
        "_holder_word",
        "_log_state",
        "_purgatory",
        "_quiet_word",
        "_row",
        "_unsynced",
        "_waiting",
        "_watchers",
        "_woken_at",
        "generation",
        "key",
        "log",
        "recovered_end",
        "slot",
    )

    def __init__(
        self,
        key: PartitionKey,
        log: Log,
        row: RowWriter,
        partition: PartitionImage,
        *,
        handler_index: int,
        purgatory: Purgatory,
        unsynced: dict[OwnedPartition, None],
    ) -> None:
        self.key = key
        self.log = log
        self._log_state = log.state
        self.slot = partition.slot
        self.generation = partition.slot_generation
        self._unsynced = unsynced
        self._purgatory, self._watchers = purgatory, purgatory.watchers
        self._holder_word = holder_word(handler_index)
        self._quiet_word = holder_word(handler_index, has_producers=False)
        self._row = row
        # The high watermark at the last wake-up of parked requests. Used while records are hidden.
        self._woken_at = 0
        # The end of the log when it was opened, if the high watermark before a crash is unknown. Otherwise 0.
        self.recovered_end = 0
        self._waiting: deque[tuple[int, Callable[[int], None]]] = deque()

    def hide_from(self, offset: int, *, is_recovery: bool) -> None:
        """Hide the records of a newly opened log from `offset` on until a sync has confirmed them.

        After a crash (`is_recovery`) all readers wait for that sync, because clients could otherwise see the high
        watermark decrease. Until then the row has the flag RECOVERING: if this Handler dies before the sync ends, its
        successor must not trust the row's high watermark.
        """
        self.log.state.hide_from(offset)
        self._unsynced[self] = None
        if is_recovery:
            self.recovered_end = self._log_state.end_offset
            self._holder_word |= RECOVERING
            self._quiet_word |= RECOVERING

    def hide_unconfirmed(self, row: PartitionRow | None) -> None:
        """Hide records that no sync has confirmed and no client can have read, because a power loss could remove them.

        `row` is the partition's row before this Handler opened the log. If the last owner died, it has the high
        watermark. The high watermark is unknown in three cases: the whole broker crashed, the owner died before its
        first sync after such a crash, or the owner died while it wrote the row. Then all readers wait for the next
        sync, because they could otherwise see the high watermark decrease.
        """
        log = self.log
        visible = max(
            log.state.recovery_point, log.state.start_offset, row.high_watermark if row is not None else 0
        )
        if visible < log.state.end_offset:
            # If a transaction marker is among the hidden records, the last stable offset that clients saw is unknown,
            # too. It must not decrease if a power loss removes the marker, so readers wait for the sync.
            is_unknown = (
                row is None
                or row.is_recovering
                or (bool(log.state.producers) and log.reader.has_marker_from(visible))
            )
            self.hide_from(visible, is_recovery=is_unknown)

    def mark_recovered(self) -> None:
        """Clear RECOVERING in the next row if a sync has confirmed the recovered log."""
        if self.recovered_end and not self.is_recovering:
            self.recovered_end = 0
            self._holder_word &= ~RECOVERING
            self._quiet_word &= ~RECOVERING

    @property
    def is_recovering(self) -> bool:
        """True while the high watermark that clients saw before a crash is unknown."""
        unconfirmed = self._log_state.unconfirmed
        return bool(unconfirmed) and unconfirmed[0][0] < self.recovered_end

    def publish(self) -> None:
        """Write the log's start, end and high watermark into the shared table."""
        log = self._log_state
        active = log.active
        self._row.publish(
            (
                # A successor need not look for producers in the log if its row says that there are none.
                self._holder_word if log.producers.by_id else self._quiet_word,
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
        """Mark every row from now on with SYNC_FAILED. After a failed fdatasync no successor may trust the page cache.

        Linux marks the pages as clean when fdatasync fails, so that a second fdatasync would succeed without writing.
        """
        self._holder_word |= SYNC_FAILED
        self._quiet_word |= SYNC_FAILED

    def publish_closed(self) -> None:
        """Publish in the row that the log was synced and closed. The next Handler that opens it need not recover it."""
        self._holder_word |= CLOSED
        self._quiet_word |= CLOSED
        self.publish()

    @property
    def is_waited_for(self) -> bool:
        """True if a request waits for a sync."""
        return bool(self._waiting)

    def after_append(self) -> None:
        """Publish the row and wake parked requests. Hidden records wake readers only after a sync has confirmed them.

        Raises FatalError if the row cannot be published, because a successor would then lose the append.
        """
        try:
            self.publish()
        except Exception as error:
            raise FatalError(
                f"cannot publish the partition table's row of {self.key[0]}-{self.key[1]} after an append, so this "
                f"Handler ends: {error!r}"
            ) from error
        if self._log_state.unconfirmed:
            self._unsynced[self] = None
            self._wake_readers()
        elif self.key in self._watchers:
            self._purgatory.check(self.key)

    def after_start_moved(self) -> None:
        """Publish the row after a DeleteRecords, and wake parked requests: their offset can be below the new start."""
        self.publish()
        self._purgatory.check(self.key)

    def _wake_readers(self) -> None:
        """Wake parked requests if the high watermark has moved since the last call."""
        high_watermark = self._log_state.high_watermark
        if high_watermark != self._woken_at:
            self._woken_at = high_watermark
            self._purgatory.check(self.key)

    def when_synced(self, offset: int, on_done: Callable[[int], None]) -> None:
        # A sync for another request can have covered this offset already. A further fdatasync would only cost
        # time.
        if self._log_state.recovery_point >= offset:
            on_done(0)
            return
        self._waiting.append((offset, on_done))
        self._unsynced[self] = None

    def on_synced(self, failure: OSError | None) -> None:
        """Handle the end of a sync round: call back the requests that it covered, or all with an error if it failed."""
        waiting = self._waiting
        if failure is None and self._log_state.offline_reason is None:
            synced = self._log_state.recovery_point
            while waiting and waiting[0][0] <= synced:
                on_done = waiting.popleft()[1]
                try:
                    on_done(0)
                except Exception as error:  # noqa: BLE001 - contained: the other callbacks must run
                    self._contain(on_done, error)
            if waiting or self._log_state.unconfirmed:
                self._unsynced[self] = None
            else:  # No other round is needed: this one covered also the requests that came while it ran.
                self._unsynced.pop(self, None)
            self._wake_readers()
            return
        # A callback may wait again. The new list makes it wait for the next round. Otherwise this loop would not end.
        self._waiting = deque()
        for _, on_done in waiting:
            try:
                on_done(int(ErrorCode.KAFKA_STORAGE_ERROR))
            except Exception as error:  # noqa: BLE001 - contained, as above
                self._contain(on_done, error)

    def _contain(self, on_done: Callable[[int], None], error: Exception) -> None:
        owner = getattr(on_done, "owner", None)
        self._purgatory.containment.caught("an answer that waited for the disk", error, owner)
