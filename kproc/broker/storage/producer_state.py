"""ProducerTable: the idempotent and transactional producers of a partition (KIP-98). No I/O, no clock.

The rules are Kafka's (ProducerAppendInfo and ProducerStateManager, 4.x):

- The first batch of an unknown producer may have any sequence, because the producer's state may have expired.
- Within an epoch each sequence follows the last one and wraps from 2^31 - 1 to 0. A gap is
  OUT_OF_ORDER_SEQUENCE_NUMBER.
- A batch with the epoch, first and last sequence of one of the last five batches is a duplicate. It is not appended,
  and the response has the offsets of the original. A client may have five requests in flight.
- A new epoch starts at sequence 0. An older epoch is INVALID_PRODUCER_EPOCH.
- A producer that was idle for producer.id.expiration.ms is removed, unless it has an open transaction.
- The first batch of a transaction is accepted after the transaction's coordinator has confirmed that the partition is
  part of it (KIP-890). Until then the producer has a Verification in this table. The Verification ends with that
  batch, with a marker, or when it is as old as a removed producer. A confirmation that arrives after the marker
  therefore begins no new transaction.

Entries are immutable and replaced as a whole, so an append that fails on the disk puts the old ones back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from kproc.broker.storage.format import NO_EPOCH, NO_OFFSET, AbortedTransaction
from kproc.common.conversion import converter
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.record_batch import NO_SEQUENCE

# Limit of producers in a partition, because a client can invent producer ids. Above the limit, the producers that were
# idle for longest are removed. If a removed producer returns and retries a batch, the batch is stored twice.
PRODUCERS_MAX: Final = 10_000
BATCHES_KEPT: Final = 5
SEQUENCE_MAX: Final = 2**31 - 1
# Ids from here on are computed by the broker for its own batches (share/partition/letter_log.py). The controller never
# gets so far. They do not expire, because a share group can be unused for longer than producer.id.expiration.ms.
OWN_PRODUCER_IDS: Final = 1 << 62
EPOCH_MAX: Final = 2**15 - 1

# From this transaction.version on, each transaction has an epoch of its own (KIP-890).
_EPOCH_PER_TRANSACTION: Final = 2

# The mark of one appended batch: (last sequence, last offset, last offset - first offset, largest timestamp).
BatchMark = tuple[int, int, int, int]


class ProducerEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The state of one producer in one partition. `batches`: BatchMarks of its last five batches, newest last."""

    producer_id: int
    epoch: int
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    open_txn_offset: int = NO_OFFSET
    batches: tuple[BatchMark, ...] = ()


_entries_of: Final = converter(list[ProducerEntry])


def first_offset(mark: BatchMark) -> int:
    """Return the offset of the first record of a batch by its BatchMark."""
    return mark[1] - mark[2]


class Verification:
    """A request to the coordinator to confirm a transaction's partition, as Kafka's VerificationStateEntry.

    Retries of the same transaction share the Verification and its lowest sequence. If a batch fails and is sent again,
    a later batch must not get into the log before it.
    """

    __slots__ = ("epoch", "is_confirmed", "lowest_sequence", "owns_epoch", "since_ms")

    def __init__(self, epoch: int, sequence: int, *, owns_epoch: bool, now_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        # True if each transaction of this producer has an epoch of its own (KIP-890). Each then begins with sequence 0.
        self.owns_epoch = owns_epoch
        self.since_ms = now_ms
        self.is_confirmed = False  # True only while the batches that waited for the answer are appended.

    def is_ended_by(self, epoch: int) -> bool:
        """Return True if a marker with this epoch may belong to the transaction that waits.

        If each transaction has an epoch of its own (KIP-890), its marker has a higher epoch than its batches. A marker
        with the epoch of the waiting batch then belongs to the previous transaction. The coordinator confirms the
        partition only after that marker.
        """
        return epoch > self.epoch or not self.owns_epoch

    def tried_again(self, epoch: int, sequence: int, *, owns_epoch: bool) -> None:
        """Record another batch of this producer that waits for the coordinator's answer.

        Keep the newest epoch, and in it the lowest first sequence. owns_epoch: each transaction of the producer has its
        own epoch (KIP-890).
        """
        if epoch > self.epoch or (epoch == self.epoch and sequence < self.lowest_sequence):
            self.epoch, self.lowest_sequence, self.owns_epoch = epoch, sequence, owns_epoch


class ProducerTable:
    """All idempotent and transactional producers of one partition. Owned by one Log."""

    __slots__ = ("_open", "by_id", "end_offset", "first_open_offset", "verifying")

    def __init__(self, end_offset: int = 0) -> None:
        self.by_id: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}  # producer id -> first offset of its open transaction
        self.verifying: dict[int, Verification] = {}  # By producer id. Not in snapshots and exports.
        # The smallest first offset of an open transaction, or None. It limits the last stable offset.
        self.first_open_offset: int | None = None
        # The entries are the state after all batches before this offset.
        self.end_offset = end_offset

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return a producer's entry, or None if the partition has no state of this producer."""
        return self.by_id.get(producer_id)

    def entries(self) -> list[ProducerEntry]:
        """Return all entries, in the order in which the producers appeared."""
        return list(self.by_id.values())

    def admit(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int, *, transactional: bool
    ) -> BatchMark | None:
        """Check a client's batch before it is appended.

        Returns None if it may be appended, or the BatchMark of the original if it is a duplicate. Raises KafkaError.
        """
        entry = self.by_id.get(producer_id)
        if entry is None:
            return None
        if epoch == entry.epoch:
            last = entry.batches[-1][0] if entry.batches else NO_SEQUENCE
            # A retry repeats an earlier sequence. Search for the original batch before the sequence counts as a gap.
            if first_sequence != (last + 1) & SEQUENCE_MAX:
                mark = _duplicate(entry, first_sequence, last_sequence)
                # As in Kafka, a producer without an epoch may use any sequence.
                if mark is not None or epoch == NO_EPOCH:
                    return mark
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} sent sequence {first_sequence}, the last one was {last}",
                )
        # Fence a zombie (KIP-98): a newer instance of this producer has written to the partition.
        elif epoch < entry.epoch:
            raise _too_old(entry, epoch)
        # As in ProducerAppendInfo.checkSequence, an epoch begins with sequence 0. Otherwise an earlier batch of the
        # epoch is missing.
        elif first_sequence != 0 and entry.epoch != NO_EPOCH:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} starts epoch {epoch} at sequence {first_sequence}, not 0",
            )
        # Reject a plain batch during a transaction, because readers of committed records would take it for a part of
        # the transaction.
        if entry.open_txn_offset >= 0 and not transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} sent a non-transactional batch while its transaction is open",
            )
        return None

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return True if a producer has a transaction of this epoch open in the partition."""
        return producer_id in self._open and self.by_id[producer_id].epoch == epoch

    def admit_in_transaction(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        last_sequence: int,
        *,
        must_be_confirmed: bool,
    ) -> BatchMark | None:
        """Check a transactional batch before it is appended, as `admit` does.

        If the producer has no open transaction in the partition, the batch begins one. With `must_be_confirmed` it may
        do that only after the coordinator has confirmed that the partition is part of the transaction (KIP-890).
        """
        if not self.in_transaction(producer_id, epoch):
            entry = self.by_id.get(producer_id)
            if entry is not None and epoch == entry.epoch:
                mark = _duplicate(entry, first_sequence, last_sequence)
                if mark is not None:
                    return mark
            # Check the epoch first: INVALID_TXN_STATE would be fatal for a producer that must only get a new epoch.
            if entry is not None and epoch < entry.epoch:
                raise _too_old(entry, epoch)
            # KIP-890: without this check, a late batch of a transaction that was decided already would begin a new one,
            # which no coordinator ever ends. That open transaction would stop all readers of committed records.
            verification = self.verifying.get(producer_id)
            if must_be_confirmed and (verification is None or not verification.is_confirmed):
                raise KafkaError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"the coordinator has not confirmed a transaction of producer {producer_id} in this partition",
                )
            if verification is not None:
                _check_first(entry, verification, first_sequence)
        return self.admit(producer_id, epoch, first_sequence, last_sequence, transactional=True)

    def late_transactions(self, heard_before_ms: int) -> list[ProducerEntry]:
        """Return the producers with an open transaction whose last batch came before `heard_before_ms`."""
        entries = map(self.by_id.__getitem__, self._open)
        return [entry for entry in entries if entry.last_timestamp < heard_before_ms]

    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, *, owns_epoch: bool, now_ms: int
    ) -> Verification:
        """Record that a batch with this first sequence waits for its transaction's coordinator.

        Return the verification. owns_epoch: each transaction of the producer has its own epoch (KIP-890).
        """
        found = self.verifying.get(producer_id)
        if found is None:
            # Discard the oldest verification, because clients can invent producer ids without limit.
            if len(self.verifying) >= PRODUCERS_MAX:
                del self.verifying[next(iter(self.verifying))]
            found = Verification(epoch, sequence, owns_epoch=owns_epoch, now_ms=now_ms)
            self.verifying[producer_id] = found
        else:
            found.tried_again(epoch, sequence, owns_epoch=owns_epoch)
        return found

    def is_verifying(self, producer_id: int, verification: Verification) -> bool:
        """Return True if the transaction has neither begun nor ended in the partition since `verification` was made."""
        return self.verifying.get(producer_id) is verification

    def finish_verification(self, producer_id: int) -> None:
        """Remove a producer's verification: its transaction has begun in the partition, or no producer has this id."""
        self.verifying.pop(producer_id, None)

    def record(
        self, producer_id: int, epoch: int, mark: BatchMark, *, transactional: bool, heard_ms: int
    ) -> None:
        """Record a batch that is appended or replayed. The batch is not checked again.

        `heard_ms` is the time of its arrival in ms. Kafka counts idle time from the records' timestamps, and so removes
        an active producer that sends old records.
        """
        entry = self.by_id.get(producer_id)
        if entry is None:
            entry = ProducerEntry(producer_id, epoch)
        # A new epoch replaces the marks of the older one, because no client retries a batch of an older epoch.
        batches = (*entry.batches[1 - BATCHES_KEPT :], mark) if epoch == entry.epoch else (mark,)
        open_offset = entry.open_txn_offset
        if transactional and open_offset < 0:
            open_offset = mark[1] - mark[2]
            self._open[producer_id] = open_offset
            self._find_first_open()
        self.by_id[producer_id] = ProducerEntry(
            producer_id, epoch, entry.coordinator_epoch, heard_ms, open_offset, batches
        )

    def check_epoch(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int | None = None,
        *,
        transaction_version: int = 0,
    ) -> None:
        """Raise KafkaError if the broker's own batch is of an older producer epoch or an older coordinator.

        `coordinator_epoch` is None unless the batch is a marker. From transaction version 2 on each marker raises the
        producer's epoch, unless that is EPOCH_MAX. A marker with the epoch of the open transaction then belongs to the
        transaction before it and is rejected (KIP-1228). If no transaction is open, the marker is only a retry.
        """
        entry = self.by_id.get(producer_id)
        if entry is None:
            return
        is_late = (
            transaction_version >= _EPOCH_PER_TRANSACTION
            and epoch == entry.epoch != EPOCH_MAX
            and producer_id in self._open
        )
        if is_late or epoch < entry.epoch:
            raise _too_old(entry, epoch)
        # Fence a former coordinator: a newer one has written a marker to this partition.
        if coordinator_epoch is not None and coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker has the coordinator epoch {coordinator_epoch}, but producer {producer_id}'s last marker had "
                f"{entry.coordinator_epoch}",
            )

    def record_marker(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        *,
        offset: int,
        timestamp: int,
        is_abort: bool,
    ) -> AbortedTransaction | None:
        """End a producer's transaction with the marker at `offset`. Return the row for the .txnindex after an abort."""
        entry = self.by_id.get(producer_id) or ProducerEntry(producer_id, epoch)
        started = entry.open_txn_offset
        verification = self.verifying.get(producer_id)
        # The coordinator's confirmation may arrive after this marker. It must not begin a new transaction then.
        if verification is not None and verification.is_ended_by(epoch):
            del self.verifying[producer_id]
        batches = entry.batches if epoch == entry.epoch else ()
        self.by_id[producer_id] = ProducerEntry(
            producer_id, epoch, coordinator_epoch, timestamp, NO_OFFSET, batches
        )
        if self._open.pop(producer_id, None) is None:
            return None
        self._find_first_open()
        if not is_abort:
            return None
        # As in Kafka, the row has the last stable offset behind this marker. A Fetch can stop its search at the first
        # row whose value reaches its upper bound (TxnIndex.overlapping).
        stable = offset + 1 if self.first_open_offset is None else self.first_open_offset
        return AbortedTransaction(producer_id, started, offset, stable)

    def restore(self, producer_id: int, entry: ProducerEntry | None) -> None:
        """Restore a producer's earlier entry after a failed append. `entry` is None if the producer was unknown."""
        # The failed append may have begun a transaction. Remove it before the earlier entry is restored.
        self._open.pop(producer_id, None)
        if entry is None:
            self.by_id.pop(producer_id, None)
        else:
            self._put(entry)
        self._find_first_open()

    def expire(self, now_ms: int, idle_ms: int) -> int:
        """Remove producers that were idle for `idle_ms`, and return their number. Remove old verifications, too.

        Producers with an open transaction and the broker's own (OWN_PRODUCER_IDS) stay.
        """
        idle = [entry for entry in self.by_id.values() if _is_expired(entry, now_ms, idle_ms)]
        for entry in idle:
            del self.by_id[entry.producer_id]
        # Remove old verifications, too, because a coordinator may never answer.
        for producer_id, verification in list(self.verifying.items()):
            if now_ms - verification.since_ms >= idle_ms:
                del self.verifying[producer_id]
        return len(idle)

    def trim(self, count_max: int) -> None:
        """Remove the producers that were idle for longest, if there are more than `count_max`.

        Three quarters of `count_max` remain, and every producer with an open transaction.
        """
        if len(self.by_id) <= count_max:
            return
        idle = [entry for entry in self.by_id.values() if entry.open_txn_offset < 0]
        idle.sort(key=lambda entry: entry.last_timestamp)
        # Remove a quarter at once, because sorting all entries again for every new producer would take too long.
        for entry in idle[: len(self.by_id) - count_max * 3 // 4]:
            del self.by_id[entry.producer_id]

    def load(self, entries: Iterable[ProducerEntry]) -> None:
        """Add the entries of a snapshot or of the partition's former owner."""
        for entry in entries:
            self._put(entry)
        self._find_first_open()

    def _put(self, entry: ProducerEntry) -> None:
        self.by_id[entry.producer_id] = entry
        if entry.open_txn_offset >= 0:
            self._open[entry.producer_id] = entry.open_txn_offset

    def _find_first_open(self) -> None:
        self.first_open_offset = min(self._open.values()) if self._open else None

    def export(self) -> list[Any]:
        """Return all entries, with all five batches of each producer, as plain lists for a partition's transfer."""
        exported: list[Any] = msgspec.to_builtins(self.entries())
        return exported

    @staticmethod
    def from_export(exported: list[Any], end_offset: int) -> ProducerTable:
        """Return the table of a partition whose former owner has exported its producers by `export`."""
        table = ProducerTable(end_offset)
        table.load(_entries_of(exported))
        return table


def _duplicate(entry: ProducerEntry, first_sequence: int, last_sequence: int) -> BatchMark | None:
    """Return the BatchMark of a remembered batch with exactly these sequences, or None if there is no such batch."""
    # KIP-98: sequences wrap from 2^31 - 1 to 0, so the difference is taken modulo 2^31.
    delta = (last_sequence - first_sequence) & SEQUENCE_MAX
    for mark in entry.batches:
        if mark[0] == last_sequence and mark[2] == delta:
            return mark
    return None


def _too_old(entry: ProducerEntry, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {entry.producer_id} has epoch {epoch}, the last seen is {entry.epoch}",
    )


def _check_first(entry: ProducerEntry | None, verification: Verification, sequence: int) -> None:
    """Raise OUT_OF_ORDER_SEQUENCE_NUMBER if a transaction must not begin with this sequence.

    entry: the producer's state in the partition, None if it has none. verification: of the batches that waited for the
    coordinator; the transaction must begin with the lowest of their sequences, or with 0.
    """
    is_unknown = entry is None or not entry.batches
    if sequence > verification.lowest_sequence or (sequence and verification.owns_epoch and is_unknown):
        expected = 0 if verification.owns_epoch and is_unknown else verification.lowest_sequence
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"the first batch of a transaction has sequence {sequence}, not {expected}",
        )


def _is_expired(entry: ProducerEntry, now_ms: int, idle_ms: int) -> bool:
    # Keep a producer with an open transaction however old it is. Without its entry the last stable offset would pass
    # the transaction, and readers of committed records would see the transaction's records before its end.
    return (
        entry.open_txn_offset < 0
        and now_ms - entry.last_timestamp >= idle_ms
        and entry.producer_id < OWN_PRODUCER_IDS
    )
