"""The environment of a transaction coordinator, and its in-memory state of one transactional id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from kproc.broker.config import Config
from kproc.broker.coordinator.memory_limit import MemoryLimit, bytes_of_texts
from kproc.broker.coordinator.rules import Marker, OnCode, Timing
from kproc.broker.transaction.messages import AddRequest
from kproc.broker.transaction.state import PREDECESSORS, PREPARED, PartitionKey, State, Transaction
from kproc.common.errors import KafkaError

OnCodeOf = Callable[[int, int], None]  # (position of a marker among those that were sent, its error code)
SendMarkers = Callable[[Sequence[tuple[PartitionKey, Marker]], OnCodeOf], None]
OnId = Callable[[int], None]
OnFailure = Callable[[KafkaError], None]


# The memory of a transactional id without its name, and of a partition in its transaction.
ID_BYTES: Final = 1 << 10
PARTITION_BYTES: Final = 200


class Environment(NamedTuple):
    """The settings and functions that a Handler passes to its transaction coordinators."""

    config: Config
    timing: Timing
    cluster_version: Callable[[], int]  # The level of the feature transaction.version.
    new_producer_id: Callable[[OnId, OnFailure], None]
    send_markers: SendMarkers
    memory: MemoryLimit  # Of the transactional ids of all coordinators of a Handler.


def bytes_of_id(name: str, transaction: Transaction) -> int:
    """Return the bytes of memory that a transactional id with this transaction takes."""
    return ID_BYTES + bytes_of_texts(name) + PARTITION_BYTES * len(transaction.partitions)


class WaitingAdd(NamedTuple):
    """An AddPartitionsToTxn request that waits until the last transaction of its id is completed."""

    until_ms: int
    request: AddRequest
    on_code: OnCode


class Entry:
    """One transactional id: its state in the log, its pending writes, and the markers that it still has to send.

    The counterpart in Kafka is TransactionMetadata with its pendingState.
    """

    __slots__ = (
        "_pending",
        "_unappended",
        "_unmarked",
        "_unsent",
        "_writes",
        "appended",
        "awaits_sync",
        "name",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.appended: Transaction | None = None  # The state in the log. None before the first record.
        # The new states of queued writes whose records are not in the log yet, in the order of the writes.
        self._unappended: list[Transaction] = []
        self._pending: State | None = None  # The state of the last write, until all writes have ended.
        self._writes = 0
        # True if the decision (Prepare*) is in the log but its sync failed. Markers may be sent only after a successful
        # sync.
        self.awaits_sync = False
        self._unmarked: set[PartitionKey] = set()  # The partitions of Prepare* without a marker.
        # The unmarked partitions without a marker in flight, in the order of sending.
        self._unsent: dict[PartitionKey, None] = {}

    # -- writes ------------------------------------------------------------------------------------------------

    @property
    def latest(self) -> Transaction | None:
        """The state after all pending writes if they succeed. None if the id has neither a record nor a write."""
        return self._unappended[-1] if self._unappended else self.appended

    def start_write(self, target: Transaction) -> None:
        """Count a new write of this transactional id's state `target`. It is queued behind all pending writes."""
        latest = self.latest
        assert latest is None or latest.state in PREDECESSORS[target.state], (
            f"{self.name}: {latest.state.word} to {target.state.word}"
        )
        self._unappended.append(target)
        self._pending = target.state
        self._writes += 1

    def discard_unappended(self, target: Transaction) -> None:
        """Remove a state from the pending ones, because its record is in the log now, or its write failed."""
        self._unappended.remove(target)

    def start_removal(self) -> None:
        """Count the write of the tombstone that removes this transactional id."""
        self._pending = State.DEAD
        self._writes += 1

    def finish_write(self) -> bool:
        """Count a write that has ended. Return True if no other write is pending."""
        self._writes -= 1
        if self._writes:
            return False
        self._pending = None
        return True

    @property
    def has_writes(self) -> bool:
        """True if writes for this transactional id are in progress."""
        return self._writes > 0

    @property
    def is_pending(self) -> bool:
        """True if a change of the state is being written.

        As in Kafka, all operations except AddPartitionsToTxn must wait for it.
        """
        return self._pending is not None

    @property
    def may_grow(self) -> bool:
        """True if partitions may be added: all pending writes, if any, only add partitions."""
        return self._pending in (None, State.ONGOING)

    @property
    def settled(self) -> Transaction | None:
        """The last state in the log, or None while a newer state is being written."""
        return self.appended if self._pending is None else None

    # -- markers -----------------------------------------------------------------------------------------------

    def owe_markers(self) -> None:
        """Record that every partition of the transaction needs a marker, because the decision is in the log."""
        assert self.appended is not None
        self._unmarked = set(self.appended.partitions)
        self._unsent = dict.fromkeys(sorted(self._unmarked))

    @property
    def is_owing(self) -> bool:
        """True if a partition of the decided transaction does not have its marker yet."""
        return bool(self._unmarked)

    @property
    def unmarked(self) -> frozenset[PartitionKey]:
        """The partitions of a decided transaction that do not have its marker yet."""
        return frozenset(self._unmarked)

    @property
    def has_unsent_markers(self) -> bool:
        """True if a partition has neither its marker nor one in flight."""
        return bool(self._unsent)

    def next_markers(self, coordinator_epoch: int, limit: int) -> list[tuple[PartitionKey, Marker]]:
        """Return at most `limit` unsent markers to send now. They count as in flight from now on."""
        prepared = self.appended
        assert prepared is not None
        assert prepared.state in PREPARED
        marker = Marker(
            producer_id=prepared.producer_id,
            epoch=prepared.epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=prepared.state == State.PREPARE_COMMIT,
            transaction_version=prepared.client_version,
        )
        keys = list(islice(self._unsent, limit))
        for key in keys:
            del self._unsent[key]
        return [(key, marker) for key in keys]

    def retry_marker(self, key: PartitionKey) -> None:
        """Make the marker of a partition unsent, because the partition could not append it."""
        # The partition may have got its marker in the meantime, so that it needs no other one.
        if key in self._unmarked:
            self._unsent[key] = None

    def mark(self, key: PartitionKey) -> bool:
        """Record that a partition has its marker. Return True if all partitions have theirs."""
        self._unsent.pop(key, None)
        self._unmarked.discard(key)
        return not self._unmarked
