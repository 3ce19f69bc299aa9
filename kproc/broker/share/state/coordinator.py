"""ShareCoordinator: the states of share partitions in one partition of `__share_group_state`. No I/O, no clock.

The rules are those of Kafka's ShareCoordinatorShard. Every change is one record: a snapshot with the whole state, or an
update with the changed batches. After share.coordinator.snapshot.update.records.per.snapshot updates, the next change
is a snapshot. The state follows the log: it changes when a record is appended.

A snapshot above the topic's max.message.bytes is postponed: updates continue, and the log grows. With the default every
state fits.

A sweep deletes the records below the oldest snapshot that is needed. Before that it writes snapshots of cold share
partitions, because the old snapshot of one that never changes would keep the whole log.

Differs from Kafka: every snapshot begins a new count of updates. In Kafka, snapshots of cold share partitions and of
initialized ones do not, so that Kafka's next regular snapshot comes earlier.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from kproc.broker.coordinator.memory_limit import CountedMemory, MemoryLimit
from kproc.broker.coordinator.rules import Code, KnownTopics, OnCode, Producer, Timing, Write, write_error
from kproc.broker.coordinator.steps import Steps, Work
from kproc.broker.share.state.batches import combine
from kproc.broker.share.state.messages import (
    NO_COUNT,
    NO_OFFSET,
    DeleteState,
    InitializeState,
    PersistedState,
    ReadState,
    ReadSummary,
    SharePartitionKey,
    WriteState,
    parse_state_key,
    state_key,
)
from kproc.broker.share.state.records import (
    ShareRecordValue,
    Snapshot,
    UnknownRecord,
    Update,
    decode_share_record,
    encode_share_record,
    encode_tombstone,
)
from kproc.broker.share.state.stored_partition import StoredPartition, memory_of_new
from kproc.common.errors import ErrorCode, KafkaError
from kproc.common.printable import printable

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog

logger = logging.getLogger(__name__)

OnState = Callable[[PersistedState | int], None]

# Costs of steps, in units of about 1 us: of checking a share partition; of writing its snapshot or its tombstone.
_CHECK_COST: Final = 1
_WRITE_COST: Final = 60


class ShareEnvironment(NamedTuple):
    """The parts of the broker that the coordinators use."""

    config: Config
    timing: Timing
    # Called with (topic id, index). Returns True if the partition exists.
    has_partition: Callable[[bytes, int], bool]
    memory: MemoryLimit  # Of the states of all coordinators of a Handler.


class ShareCoordinator:
    """The coordinator of the share partitions whose states are in one partition of `__share_group_state`."""

    def __init__(self, environment: ShareEnvironment, log: CoordinatorLog[Any]) -> None:
        self._environment = environment
        self._log = log
        self._memory = CountedMemory(environment.memory)
        self._parts: dict[str, StoredPartition] = {}  # Keyed by `state_key`.
        # The share partitions with a write that is not appended yet.
        self._queued: set[str] = set()
        self._last_offset = 0  # Offset of the last snapshot or tombstone.
        self.pruned_offset = 0  # The start of the log after the last deletion of records.
        self._writes = 0  # Records that were written since the last call of `drain_writes`.
        self._is_sweeping = False
        self._is_over = False
        self.steps = Steps(log.flush)

    # -- loading -----------------------------------------------------------------------------------------------

    def replay(self, key: bytes | None, value: bytes | None, offset: int, producer: Producer | None) -> None:
        """Replay the last snapshot, or an update behind it. Raises Corrupt if it cannot be read."""
        del producer  # This topic has no transactional records.
        try:
            share_key, content = decode_share_record(key, value)
        except UnknownRecord as unknown:
            logger.warning("a record of __share_group_state is skipped: %s", unknown)
            return
        if isinstance(content, Snapshot):
            # Sort and merge the batches, in case that another program has written them.
            content = replace(content, batches=combine((), content.batches, NO_OFFSET))
        self._follow(state_key(*share_key), share_key, content, offset)

    def _follow(
        self, name: str, key: SharePartitionKey, content: ShareRecordValue | None, offset: int
    ) -> None:
        """Apply a record of the log to the state of its share partition, and count the memory of the state.

        If `content` is None, the record is a tombstone.
        """
        part = self._parts.get(name)
        before = 0 if part is None else part.memory_bytes
        if isinstance(content, Update):
            if part is None:
                # As in Kafka, an update without a snapshot begins a state. This happens only if another program has
                # deleted records.
                state = Snapshot(content.snapshot_epoch, 0, content.leader_epoch, NO_OFFSET, NO_COUNT, 0, 0)
                part = self._parts[name] = StoredPartition(key, state, offset)
            part.follow_update(content)
        else:
            self._last_offset = offset
            if content is None:
                self._parts.pop(name, None)
                part = None
            elif part is None:
                part = self._parts[name] = StoredPartition(key, content, offset)
            else:
                part.follow_snapshot(content, offset)
        after = 0 if part is None else part.memory_bytes
        self._memory.add(after - before)

    def finish_loading(self, topics: KnownTopics) -> None:
        """Start to delete the states of topics that were deleted while no coordinator was loaded."""
        self.topics_deleted(topics)

    # -- requests ----------------------------------------------------------------------------------------------

    def initialize(self, name: str, request: InitializeState, on_code: OnCode) -> None:
        """Create a state, or replace one unless the stored state epoch is higher.

        Raises KafkaError if the request is rejected. Then nothing is written.
        """
        part = self._find(name)
        # The owner found no state and requested that the group's coordinator restores it. Meanwhile another call has
        # created the state, so its records must not be delivered from the start again.
        if part is not None and request.keeps_existing:
            self._log.write(Write([], lambda code: on_code(write_error(code))))
            return
        if part is not None and part.state.state_epoch > request.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        key = self._existing_partition(parse_state_key(name))
        if part is None and not self._environment.memory.has_room(memory_of_new(key)):
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        now_ms = self._environment.timing.wall_ms()
        snapshot = Snapshot(
            snapshot_epoch=0 if part is None else part.state.snapshot_epoch + 1,
            state_epoch=request.state_epoch,
            leader_epoch=0,
            start_offset=request.start_offset,
            delivery_complete_count=NO_COUNT if request.start_offset == NO_OFFSET else 0,
            created_ms=now_ms,
            written_ms=now_ms,
        )
        self._append(name, key, snapshot, on_code)

    def write(self, name: str, request: WriteState, on_code: OnCode) -> None:
        """Change the state. A start offset below the present one moves the start offset back only with `replaces`."""
        part = self._get(name, request.leader_epoch)
        if part.state.state_epoch > request.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        key = self._existing_partition(part.key)
        self._append(name, key, self._change(part, request, part.state.leader_epoch), on_code)

    def read(self, name: str, request: ReadState, on_state: OnState) -> None:
        """Record a higher leader epoch, then read the state.

        `on_state` gets the state when it is durable, or an error code.
        """
        part = self._get(name, request.leader_epoch)
        key = self._existing_partition(part.key)
        state = replace(part.persisted, leader_epoch=request.leader_epoch)

        def on_code(code: Code) -> None:
            on_state(code or state)

        # The same owner reads again, after a failed write or because the share partition was idle. Its epoch
        # is recorded already, so no record is needed.
        if part.fence_epoch == request.leader_epoch:
            self._log.write(Write([], lambda code: on_code(write_error(code))))
            return
        current = part.state
        # KIP-932: record the new epoch before the owner gets the state. Otherwise a write of the former owner
        # could be accepted after the read, and the new owner would not know of it.
        fence = WriteState(
            current.state_epoch,
            request.leader_epoch,
            current.start_offset,
            current.delivery_complete_count,
        )
        self._append(name, key, self._change(part, fence, request.leader_epoch), on_code)

    def summarize(self, name: str, request: ReadSummary, on_state: OnState) -> None:
        """Read the state without fencing its owner. An unknown share partition has no start offset.

        Leave out the batches unless `request.has_batches`.
        """
        self._existing_partition(parse_state_key(name))
        part = self._find(name)
        if part is None:
            # ShareCoordinatorShard answers a summary of an unknown share partition without an error, because
            # tools list groups whose states are not initialized yet.
            state = PersistedState(state_epoch=0, leader_epoch=0)
        else:
            state = part.persisted
            if not request.has_batches:
                state = replace(state, batches=())
        self._log.write(Write([], lambda code: on_state(write_error(code) or state)))

    def delete(self, name: str, _request: DeleteState, on_code: OnCode) -> None:
        """Delete the state. An unknown share partition is no error."""
        key = self._existing_partition(parse_state_key(name))
        # Not an error, so that a request whose answer was lost in a crash can be repeated.
        if self._find(name) is None:
            self._log.write(Write([], lambda code: on_code(write_error(code))))
        else:
            self._append(name, key, None, on_code)

    def _find(self, name: str) -> StoredPartition | None:
        """Return a share partition with the effect of all writes so far, or None if it has no state."""
        # A queued write is not in `_parts` yet. Without the flush a second write would be computed from the
        # state before the first one.
        if name in self._queued:
            self._log.flush()
        return self._parts.get(name)

    def _get(self, name: str, leader_epoch: int) -> StoredPartition:
        """Return a share partition for its owner.

        Raises INVALID_REQUEST if it was not initialized, and FENCED_LEADER_EPOCH for a former owner of the topic's
        partition.
        """
        part = self._find(name)
        if part is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        # The partition has a new owner, and this request comes from the former one, for example because it
        # was paused. The locks that it holds for its members do not count any more.
        if part.fence_epoch > leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        return part

    def _existing_partition(self, key: SharePartitionKey) -> SharePartitionKey:
        if not self._environment.has_partition(key.topic_id, key.partition):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return key

    def _change(self, part: StoredPartition, request: WriteState, leader_epoch: int) -> ShareRecordValue:
        """Return the record for a change of the state: an update, or a snapshot if there are enough updates.

        A request that replaces the state is a snapshot, too, because updates never move a start offset back.

        Raises INVALID_REQUEST if the state would have too many batches, and UNKNOWN_SERVER_ERROR if the record
        would be too large.
        """
        update = part.update_for(request, leader_epoch)
        limit = self._environment.config.share_coordinator_snapshot_update_records_per_snapshot
        if request.replaces or part.updates >= limit:
            batches = update.batches if request.replaces else part.batches_after(update)
            if self._fits(part, len(batches)):
                return part.snapshot_after(update, batches, self._environment.timing.wall_ms())
        # The record would exceed max.message.bytes. The owner of the share partition then fails the members'
        # acknowledgements.
        if request.replaces or not self._fits(part, len(update.batches)):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return update

    def _fits(self, part: StoredPartition, count: int) -> bool:
        """Return True if a record with so many batches is allowed by the topic's max.message.bytes.

        If not, log one warning until the next snapshot.
        """
        size = part.record_bytes(count)
        if size <= self._log.record_bytes_max:
            return True
        if not part.has_warned:
            part.has_warned = True
            logger.warning(
                "the state of %s needs a record of %d bytes, and max.message.bytes of __share_group_state allows %d: "
                "increase it",
                printable(state_key(*part.key)),
                size,
                self._log.record_bytes_max,
            )
        return False

    def _append(
        self, name: str, key: SharePartitionKey, content: ShareRecordValue | None, on_code: OnCode
    ) -> None:
        """Write a record, or a tombstone if `content` is None. `on_code` gets NONE when it is durable, or an error."""
        record = encode_tombstone(key) if content is None else encode_share_record(key, content)

        def apply(_number: int, offset: int) -> None:
            self._queued.discard(name)
            self._writes += 1
            self._follow(name, key, content, offset)

        def on_written(code: Code) -> None:
            if code:
                self._queued.discard(name)
            on_code(write_error(code))

        self._queued.add(name)
        self._log.write(Write([record], on_written, apply))

    # -- deleted topics, and the sweep -------------------------------------------------------------------------

    def tick(self, name: str) -> None:
        """Do nothing, because this coordinator sets no deadlines."""

    def topics_deleted(self, topics: KnownTopics) -> None:
        """Start to delete the states of deleted topics. Requests about them are rejected already."""
        self.steps.add(self._delete_states_of(topics.gone.ids))

    def _delete_states_of(self, topic_ids: Container[bytes]) -> Work:
        for name, part in list(self._parts.items()):
            if part.key.topic_id in topic_ids and name in self._parts:
                self._append(name, part.key, None, partial(_log_error, "tombstone"))
                yield _WRITE_COST
            yield _CHECK_COST

    def start_sweep(self) -> None:
        """Start to write snapshots of cold share partitions and to delete records."""
        if not self._is_sweeping:
            self._is_sweeping = True
            self.steps.add(self._sweep())

    def _sweep(self) -> Work:
        yield from self._snapshot_cold()
        self._log.flush()
        oldest = min((part.snapshot_offset for part in self._parts.values()), default=self._last_offset)
        if oldest > self.pruned_offset:
            # The snapshots must be durable before the records that they replace are deleted.
            self._log.when_durable(partial(self._prune, oldest))
        self._is_sweeping = False

    def _snapshot_cold(self) -> Work:
        """Write old snapshots again with a new time, so that older records of the log can be deleted.

        A snapshot is old after share.coordinator.cold.partition.snapshot.interval.ms. Do nothing if the last snapshot
        of every share partition was already written by this function.
        """
        parts = list(self._parts.items())
        if all(part.state.created_ms != part.state.written_ms for _, part in parts):
            return
        now_ms = self._environment.timing.wall_ms()
        interval_ms = self._environment.config.share_coordinator_cold_partition_snapshot_interval_ms
        for name, part in parts:
            yield _CHECK_COST
            if name not in self._parts or name in self._queued:
                continue
            # A negative age means that the host's clock was set back. The interval then counts as over, because the old
            # snapshot keeps all later records of the log from being deleted.
            if 0 <= now_ms - part.state.written_ms < interval_ms:
                continue
            state = part.state
            if not self._fits(part, len(state.batches)):
                continue
            snapshot = replace(state, snapshot_epoch=state.snapshot_epoch + 1, written_ms=now_ms)
            self._append(name, part.key, snapshot, partial(_log_error, "snapshot"))
            yield _WRITE_COST

    def _prune(self, offset: int, code: Code) -> None:
        # After a resignation another Handler owns the log. Deleting from it here would change files that this
        # Handler does not own any more.
        if not code and not self._is_over:
            self.pruned_offset = self._log.delete_before(offset)

    def drain_writes(self) -> int:
        """Return how many records were written since the last call. Kafka counts them as writes."""
        writes, self._writes = self._writes, 0
        return writes

    # -- release -----------------------------------------------------------------------------------------------

    def resign(self) -> None:
        """Start no further work. The coordinator runtime appends the queued writes."""
        self._is_over = True
        self.steps.replace_all(iter(()))
        # Do not wait until the garbage collection finds this object, because the next coordinator can be loaded before.
        self._memory.resize(0)

    def abandon(self) -> None:
        """Resign. The coordinator runtime fails the queued writes."""
        self.resign()


def _log_error(what: str, code: Code) -> None:
    if code:
        # No retry here: the next sweep writes the snapshot, and the next load the tombstone.
        logger.warning(
            "a %s of a share partition's state was not written to __share_group_state, trying again later: "
            "error code %d",
            what,
            code,
        )
