"""The owner's half of the calls for share sessions: acquire, watch, acknowledge and release records.

The home of a session calls these functions directly for its own partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from kproc.broker.calls.calls import OnResult, Reply
from kproc.broker.fetch.fetch_owners import WATCH
from kproc.broker.peers.registered_calls import handles
from kproc.broker.request.context import PartitionMoving
from kproc.broker.role.purgatory import DelayedOperation
from kproc.broker.share.partition.locks import lock_deadline_ms
from kproc.broker.share.partition.log_batches import read_batches
from kproc.broker.share.partition.messages import (
    OPENS_LATER,
    SHARE_ACKNOWLEDGE,
    SHARE_ACQUIRE,
    SHARE_RELEASE,
    SHARE_WATCH,
    AcknowledgedPart,
    AcknowledgePart,
    AcknowledgeParts,
    AcquiredPart,
    AcquireParts,
    PartsAcknowledged,
    PartsAcquired,
    ReleaseHolder,
    ShareKey,
    WatchParts,
)
from kproc.broker.share.partition.share_partition import watch_keys
from kproc.broker.share.partition.share_partitions import SLOW_PARTS
from kproc.broker.share.partition.wanted_records import WantedRecords
from kproc.broker.share.state.messages import SharePartitionKey
from kproc.common.errors import Corrupt, ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.request.context import Services
    from kproc.broker.share.partition.share_partition import SharePartition
    from kproc.broker.share.partition.share_partitions import SharePartitions

logger = logging.getLogger(__name__)

_FAILURES: Final = (KafkaError, Corrupt, OSError)


def _error_of(error: Exception, key: SharePartitionKey) -> tuple[int, str | None]:
    """Return the error code and message of a partition that `error` stands for."""
    # The former owner has not closed the log yet. The home retries, and the client sees no error.
    if isinstance(error, PartitionMoving):
        return OPENS_LATER, None
    if isinstance(error, KafkaError):
        return int(error.code), error.message
    logger.error(
        "cannot read the log of share partition %s, answering with KAFKA_STORAGE_ERROR: %s", key, error
    )
    return int(ErrorCode.KAFKA_STORAGE_ERROR), None


# -- acknowledge -----------------------------------------------------------------------------------------------


class _Acknowledging:
    """The acknowledgements of one call, until all of them are persisted or have failed."""

    def __init__(
        self, services: Services, body: AcknowledgeParts, on_reply: OnResult[PartsAcknowledged]
    ) -> None:
        self._services = services
        self._holder = body.holder
        self._on_reply = on_reply
        self._results = [AcknowledgedPart() for _ in body.parts]
        # Count one more than the parts, so that the call is not replied to before all parts have started.
        self._left = len(body.parts) + 1

    def start(self, parts: Sequence[AcknowledgePart]) -> None:
        """Start to acknowledge. The call is answered when all results are known, perhaps at once."""
        for at, part in enumerate(parts):
            self._start_part(at, part)
        self._finish_one()

    def _start_part(self, at: int, part: AcknowledgePart) -> None:
        shares, key = self._services.owner.shares, SharePartitionKey(self._holder.group_id, *part.key)
        try:
            partition, _ = shares.get(key, adds=False)
            partition.acknowledge(
                self._holder, part.acknowledgements, shares.now_ms(), partial(self._on_persisted, at)
            )
            shares.counters.add_acknowledgements(part.acknowledgements)
            shares.changed(partition)
        except _FAILURES as error:
            code, message = _error_of(error, key)
            # No session can hold records of a log that is not open yet.
            code = int(ErrorCode.INVALID_RECORD_STATE) if code == OPENS_LATER else code
            self._results[at] = AcknowledgedPart(code, message)
            self._finish_one()

    def _on_persisted(self, at: int, error: KafkaError | None) -> None:
        if error is not None:
            self._results[at] = AcknowledgedPart(int(error.code), error.message)
        self._finish_one()

    def _finish_one(self) -> None:
        self._left -= 1
        if not self._left:
            services = self._services
            lock_ms = services.owner.shares.settings.of_group(self._holder.group_id).lock_ms
            self._on_reply(PartsAcknowledged(self._results, lock_ms, services.image.version))


@handles(SHARE_ACKNOWLEDGE)
def acknowledge_for_home(
    services: Services, body: AcknowledgeParts, on_reply: OnResult[PartsAcknowledged]
) -> None:
    """Acknowledge records that a session holds. Reply when this is persisted or has failed."""
    _Acknowledging(services, body, on_reply).start(body.parts)


# -- acquire ---------------------------------------------------------------------------------------------------


class _Acquiring:
    """Acquires records for one call, within the call's limits of records and bytes."""

    def __init__(self, services: Services, body: AcquireParts) -> None:
        self._shares = services.owner.shares
        self._body = body
        self._records_left = body.records_max
        self._bytes_left = body.bytes_max
        self._can_exceed = body.can_exceed

    def acquire(self, part: ShareKey) -> AcquiredPart:
        """Acquire records of a partition. If none can be acquired now, the result has no records and no error."""
        shares, key = self._shares, SharePartitionKey(self._body.holder.group_id, *part)
        try:
            partition, owned = shares.get(key)
            shares.uses.add(self._body.holder, key)
            if partition.error is not None:
                raise partition.error
            offset = fetch_offset(shares, partition, owned)
            if offset == OPENS_LATER:
                return AcquiredPart(OPENS_LATER)
            # No record of this partition can be acquired, or earlier partitions of the call have used up the
            # limit of records. Neither is an error: the next request begins with another partition.
            if offset < 0 or self._records_left <= 0:
                return AcquiredPart()
            return self._read(partition, owned, offset)
        except _FAILURES as error:
            return AcquiredPart(*_error_of(error, key))

    def _read(self, partition: SharePartition, owned: OwnedPartition, offset: int) -> AcquiredPart:
        body, settings, shares = self._body, partition.settings, self._shares
        batches = read_batches(
            owned.log,
            offset,
            # More records than this could not be acquired, and reading each batch header costs time.
            min(self._records_left, settings.rules.size_max),
            max(0, self._bytes_left),
            minimum_one=self._can_exceed,
            is_committed=settings.is_committed,
        )
        if not len(batches):
            return AcquiredPart()
        wanted = WantedRecords(
            body.holder,
            self._records_left,
            body.batch_size,
            lock_deadline_ms(shares.now_ms(), settings.lock_ms),
            body.is_exact,
        )
        assert partition.records is not None
        acquired = wanted.acquire(partition.records, offset, batches.offsets(), batches.aborted)
        shares.changed(partition)
        # None of the records read could be acquired: they were aborted, or the limit of locks is reached. Their
        # bytes are not sent, so they do not count.
        if not acquired:
            return AcquiredPart()
        ranges = batches.ranges(acquired[0].first, acquired[-1].last)
        part = AcquiredPart(ranges=ranges, bytes=sum(each.length for each in ranges), acquired=acquired)
        self._records_left -= part.record_count
        self._bytes_left -= part.bytes
        # As in Fetch (KIP-74), only the first batch of a response may exceed the limit of bytes, so that a
        # large batch cannot block its partition for ever.
        self._can_exceed = False
        return part


def fetch_offset(shares: SharePartitions, partition: SharePartition, owned: OwnedPartition) -> int:
    """Return the first offset that can be acquired now.

    Return -1 if none can be acquired, and OPENS_LATER if the share partition or its log is not ready.
    """
    records, log = partition.records, owned.log.state
    if records is None or partition.is_start_new or (log.unconfirmed and owned.is_recovering):
        return OPENS_LATER
    # Retention and DeleteRecords move the log's start without telling the share partition, so compare the
    # offsets before each acquire.
    records.discard_below(log.start_offset)
    offset = records.next_fetch_offset()
    # If the Handler's limit of records in flight is reached, released records may still be acquired: they
    # take no further memory. Otherwise their number could never fall below the limit.
    if offset is None or (offset == records.end_offset and not shares.has_room):
        return -1
    # share.isolation.level of the group decides (KIP-932), not the member: members share the records, so they
    # must see the same ones.
    bound = log.last_stable_offset if partition.settings.is_committed else log.high_watermark
    return offset if offset < bound else -1


@handles(SHARE_ACQUIRE)
def acquire_for_home(services: Services, body: AcquireParts, on_reply: OnResult[PartsAcquired]) -> None:
    """Acquire records, and reply at once, even if no record can be acquired."""
    acquiring = _Acquiring(services, body)
    parts = [acquiring.acquire(part) for part in body.parts]
    lock_ms = services.owner.shares.settings.of_group(body.holder.group_id).lock_ms
    on_reply(PartsAcquired(parts, lock_ms, services.image.version))


# -- watch and release -----------------------------------------------------------------------------------------


class _Watch(DelayedOperation):
    """A parked watch, of another Handler or of a session of this Handler."""

    __slots__ = ("_body", "_on_reply", "_services")

    def __init__(self, services: Services, body: WatchParts, on_reply: OnResult[Reply]) -> None:
        super().__init__(body.deadline_ns)
        # Each event at a partition checks all partitions of the watch, and the first request of a session has many
        # events: each opening of a log and each load of a state is one.
        self.is_slow = len(body.parts) > SLOW_PARTS
        self._services = services
        self._body = body
        self._on_reply = on_reply

    def wait(self) -> None:
        """Reply now if `try_complete` succeeds. Otherwise park until an event at one of the partitions."""
        purgatory = self._services.owner.purgatory
        if self.try_complete():
            purgatory.finished(self)
            return
        topics, shares = self._services.image.topics_by_id, self._services.owner.shares
        keys: list[Hashable] = [(WATCH, *self._body.watch)]
        for part in self._body.parts:
            key = SharePartitionKey(self._body.group_id, *part)
            partition = shares.find(key)
            if partition is not None:
                keys += partition.watch_keys
            else:
                keys += watch_keys(key, topics[key.topic_id].name)
        purgatory.watch(self, keys)

    def try_complete(self) -> bool:
        """Complete if `bytes_min` bytes can be read behind the first free record, or if an acquire would fail."""
        found = 0
        for part in self._body.parts:
            count = self._readable_bytes(part)
            found += count
            if count < 0 or found >= self._body.bytes_min:
                return self.complete()
        return False

    def _readable_bytes(self, part: ShareKey) -> int:
        """Return the bytes readable from the first record that can be acquired, about bytes_min at most.

        The bytes can include records that others have acquired. 0: no record can be acquired. -1: an error.
        """
        shares = self._services.owner.shares
        try:
            partition, owned = shares.get(SharePartitionKey(self._body.group_id, *part))
            offset = fetch_offset(shares, partition, owned)
            if partition.error is not None:
                return -1
            if offset < 0 or self._body.bytes_min <= 1:
                return int(offset >= 0)
            committed = partition.settings.is_committed
            return owned.log.read(offset, self._body.bytes_min, committed=committed).bytes
        # The log is not open yet. This is no error, so the watch continues.
        except PartitionMoving:
            return 0
        except _FAILURES:
            return -1

    def on_complete(self) -> None:
        self._on_reply(Reply())


@handles(SHARE_WATCH)
def watch_for_home(services: Services, body: WatchParts, on_reply: OnResult[Reply]) -> None:
    """Reply when `bytes_min` bytes of the partitions can be acquired, at an error, or at the deadline."""
    _Watch(services, body, on_reply).wait()


@handles(SHARE_RELEASE)
def release_for_home(services: Services, body: ReleaseHolder, on_reply: OnResult[Reply]) -> None:
    """Release all records of this owner that a session holds. The reply does not wait until this is persisted."""
    services.owner.shares.release_holder(body.holder)
    on_reply(Reply())
