"""OwnedPartition: an open partition of a Handler: its log, its published row, the requests that wait for the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from kproc.api.context import PartitionKey
from kproc.cluster.image import PartitionImage
from kproc.containment import Containment
from kproc.errors import ErrorCode, FatalError
from kproc.ipc.words import RowWriter
from kproc.purgatory.purgatory import Purgatory
from kproc.role.partition_table import CLOSED, SYNC_FAILED, holder_word
from kproc.storage.log import Log


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
        "generation",
        "key",
        "log",
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
        self._waiting: deque[tuple[int, Callable[[int], None]]] = deque()

    def publish(self) -> None:
        """Write into the shared table where the log starts and ends."""
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
        try:
            self.publish()
        except Exception as error:
            raise FatalError(f"what was appended to {self.key} could not be published: {error!r}") from error
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
            if waiting:
                self._owner.unsynced[self] = None
            return
        while waiting:
            on_done = waiting.popleft()[1]
            try:
                on_done(int(ErrorCode.KAFKA_STORAGE_ERROR))
            except Exception as error:  # noqa: BLE001 - contained, as above
                self._contain(on_done, error)

    def _contain(self, on_done: Callable[[int], None], error: Exception) -> None:
        owner = getattr(on_done, "owner", None)
        self._owner.containment.caught("an answer that waited for the disk", error, owner)
