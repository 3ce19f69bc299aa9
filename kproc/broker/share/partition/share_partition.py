"""SharePartition: one partition of a topic in one share group, at the owner of the partition's log. No I/O, no clock.

Changes of its records are queued until its table (share_partitions.py) writes them to the share coordinator. One write
is in flight at a time, and all changes that start during a write are in the next one. The callers of a change are
called back when it is persisted or has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kproc.broker.share.partition.in_flight import Change, DeadLetters, InFlightRecords
from kproc.broker.share.partition.locks import lock_deadline_ms
from kproc.broker.share.state.messages import (
    NO_OFFSET,
    PersistedState,
    SharePartitionKey,
    StateBatch,
    WriteState,
    state_key,
)
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.share.partition.group_settings import ShareSettings
    from kproc.broker.share.partition.messages import AcknowledgeBatch, ShareHolder

OnPersisted = Callable[[KafkaError | None], None]


def watch_keys(key: SharePartitionKey, topic: str) -> tuple[tuple[str, SharePartitionKey], tuple[str, int]]:
    """Return the keys by which watches wait for a share partition and for the partition's log."""
    return ("share", key), (topic, key.partition)


class _Pending(NamedTuple):
    """A change that is not persisted yet, and the callback that is called when it is persisted or has failed."""

    change: Change
    on_done: OnPersisted = lambda _error: None


class SharePartition:
    """The state of one share partition. `records` is None until its state has been read."""

    __slots__ = (
        "_in_flight",
        "_queued",
        "_replaces_state",
        "error",
        "is_dropped",
        "is_start_new",
        "key",
        "leader_epoch",
        "log_end",
        "name",
        "records",
        "settings",
        "state_epoch",
        "topic",
        "used_ms",
        "watch_keys",
    )

    def __init__(
        self,
        key: SharePartitionKey,
        topic: str,
        leader_epoch: int,
        settings: ShareSettings,
        log_end: int,
        now_ms: int,
    ) -> None:
        self.key = key
        # Watches of all ShareFetches share these keys, because each can have thousands of them.
        self.watch_keys = watch_keys(key, topic)
        self.topic = topic
        self.name = state_key(*key)
        self.leader_epoch = leader_epoch
        self.settings = settings
        # The end of the log before the state is read. While the read waits for the share coordinator, new records can
        # get the offsets of lost ones, so that the loss does not show any more.
        self.log_end = log_end
        self.state_epoch = 0
        self.records: InFlightRecords | None = None
        self.error: KafkaError | None = None  # The error of a failed read of its state.
        self.is_dropped = False
        # True until the start offset that this owner has chosen is persisted. Until then no record may be acquired,
        # because a successor could choose a later start offset and skip records.
        self.is_start_new = False
        # True if the first write replaces the stored state, because the log has lost records that the state knows.
        self._replaces_state = False
        self.used_ms = now_ms
        self._queued: list[_Pending] = []
        self._in_flight: list[_Pending] = []

    def load(
        self, state: PersistedState, first_offset: int, log_start: int, log_end: int
    ) -> list[DeadLetters]:
        """Start with the persisted state. Return the records that were about to be written as dead letters.

        first_offset: the start offset by share.auto.offset.reset, if the state has none.
        log_end: after a power loss the log can end before the stored states do. New records will get the lost offsets,
        so the states of these offsets are discarded, also those at the share coordinator.
        """
        self.state_epoch = state.state_epoch
        has_start = state.start_offset != NO_OFFSET
        start = min(state.start_offset if has_start else first_offset, log_end)
        self._replaces_state = state.start_offset > log_end or any(
            each.last >= log_end for each in state.batches
        )
        self.is_start_new = not has_start or self._replaces_state
        batches = [
            each
            if each.last < log_end
            else StateBatch(each.first, log_end - 1, each.state, each.delivery_count)
            for each in state.batches
            if each.first < log_end
        ]
        self.records = InFlightRecords(start, self.settings.rules, batches)
        self.records.discard_below(log_start)
        return self.records.dead_letters()

    def apply_settings(self, settings: ShareSettings) -> None:
        """Use settings of the group that have changed, from the next acquire, acknowledgement or release on."""
        if self.settings is settings:
            return
        self.settings = settings
        if self.records is not None:
            self.records.rules = settings.rules

    # -- the members' requests -----------------------------------------------------------------------------------

    def acknowledge(
        self, holder: ShareHolder, batches: Sequence[AcknowledgeBatch], now_ms: int, on_done: OnPersisted
    ) -> None:
        """Acknowledge records that a session holds. `on_done` gets None when this is persisted, or else the error.

        Raises KafkaError and changes nothing if the session does not hold all of the records.
        """
        if self.records is None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        renewed_until_ms = lock_deadline_ms(now_ms, self.settings.lock_ms)
        change = self.records.acknowledge(holder, batches, renewed_until_ms=renewed_until_ms)
        self._queue(_Pending(change, on_done))

    def release_holders(self, is_closed: Callable[[ShareHolder], bool]) -> None:
        """Start to release the records of closed sessions."""
        if self.records is not None:
            self._queue(_Pending(self.records.release_holders(is_closed)))

    def expire(self, now_ms: int) -> int:
        """Start to release the records whose lock has ended. Return their number."""
        if self.records is None:
            return 0
        change = self.records.expire(now_ms)
        self._queue(_Pending(change))
        return sum(last - first + 1 for first, last in change)

    def finish_dead_letters(self, first: int, last: int, on_done: OnPersisted) -> None:
        """Archive records whose dead letters were written or cannot be. `on_done` gets None when this is persisted.

        It is called at once if the range has no such records any more, because the start of the log has moved.
        """
        change = [] if self.records is None else self.records.finish_dead_letters(first, last)
        self._queue(_Pending(change, on_done))

    def _queue(self, pending: _Pending) -> None:
        """Queue a change for the next write. Finish it at once if it changes no record."""
        if pending.change:
            self._queued.append(pending)
        else:
            pending.on_done(None)

    # -- persistence -------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True if the share partition can be removed from memory, because no record is acquired and no change waits."""
        has_work = self._queued or self._in_flight or self._replaces_state
        return not has_work and (self.records is None or self.records.is_idle)

    @property
    def has_write(self) -> bool:
        """True if there is something to write and no write is in flight."""
        return bool(self._queued or self.is_start_new) and not self._in_flight and self.records is not None

    def start_write(self) -> WriteState:
        """Return a write of all queued changes. From now on they are in flight."""
        assert self.records is not None
        if self._replaces_state:
            # Otherwise the share coordinator would keep the start offset and the states of lost records. After a later
            # load, the new records at these offsets would have these states, and would not be delivered.
            self._in_flight = [_Pending([])]
            return WriteState(self.state_epoch, self.leader_epoch, *self.records.to_replace(), replaces=True)
        # A new start offset is written even if no record has changed. The empty change represents it.
        self._in_flight, self._queued = self._queued or [_Pending([])], []
        start, finished, batches = self.records.to_persist([each.change for each in self._in_flight])
        return WriteState(self.state_epoch, self.leader_epoch, start, finished, batches)

    def finish_write(self) -> list[DeadLetters]:
        """Commit the changes of the write in flight, which is persisted.

        Return the records that become dead letters.
        """
        assert self.records is not None
        done, self._in_flight = self._in_flight, []
        self.is_start_new = self._replaces_state = False
        letters = [each for pending in done for each in self.records.commit(pending.change)]
        for pending in done:
            pending.on_done(None)
        return letters

    def fail_write(self, error: KafkaError) -> None:
        """Roll back the changes of the write in flight, although they may have been persisted."""
        assert self.records is not None
        failed, self._in_flight = self._in_flight, []
        for pending in failed:
            self.records.roll_back(pending.change)
        for pending in failed:
            pending.on_done(error)

    def drop(self) -> None:
        """Fail all changes that are not persisted, because the share partition was removed from the table."""
        # Set this first: the callbacks below can call this object again, and must find that it was removed.
        self.is_dropped = True
        self.records = None
        waiting, self._in_flight, self._queued = [*self._in_flight, *self._queued], [], []
        for pending in waiting:
            # A write may be in flight, and its outcome is unknown now. The client repeats the acknowledgement
            # at the new owner, which accepts it only if the record is still acquired.
            pending.on_done(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
