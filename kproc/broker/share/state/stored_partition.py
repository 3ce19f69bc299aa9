"""StoredPartition: one share partition's state as its records in the log describe it, and its next record.

It has no I/O. The coordinator writes a record and then calls `follow_snapshot` or `follow_update`.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from kproc.broker.coordinator.memory_limit import bytes_of_texts
from kproc.broker.share.state.batches import combine, has_too_many
from kproc.broker.share.state.messages import (
    NO_OFFSET,
    PersistedState,
    SharePartitionKey,
    StateBatch,
    WriteState,
)
from kproc.broker.share.state.records import Snapshot, Update
from kproc.common.errors import ErrorCode, KafkaError

# The memory in bytes of a state without its key, and of one of its batches.
_STATE_MEMORY: Final = 1 << 10
_BATCH_MEMORY: Final = 150
# Upper limits of a record's size in bytes: of all but its batches and the group's id, and of each batch.
_STATE_BYTES: Final = 100
_BATCH_BYTES: Final = 20


class StoredPartition:
    """A share partition with the state that results from its records."""

    __slots__ = ("fence_epoch", "has_warned", "key", "snapshot_offset", "state", "updates")

    def __init__(self, key: SharePartitionKey, state: Snapshot, snapshot_offset: int) -> None:
        self.key = key
        self.state = state
        # Writes of an older leader epoch are rejected. As in Kafka, initializing sets the epoch in the state to 0, but
        # `fence_epoch` does not decrease before the next load. After a load a former owner still cannot write, because
        # initializing has raised the state epoch.
        self.fence_epoch = state.leader_epoch
        self.snapshot_offset = snapshot_offset
        self.updates = 0  # Number of updates since the last snapshot.
        self.has_warned = False  # True after a warning that its snapshot exceeds max.message.bytes.

    @property
    def memory_bytes(self) -> int:
        """The memory of the key and the state."""
        return memory_of_new(self.key) + _BATCH_MEMORY * len(self.state.batches)

    @property
    def persisted(self) -> PersistedState:
        """The state as its readers get it."""
        state = self.state
        return PersistedState(
            state.state_epoch,
            state.leader_epoch,
            state.start_offset,
            state.delivery_complete_count,
            state.batches,
        )

    def follow_snapshot(self, snapshot: Snapshot, offset: int) -> None:
        """Set the state to that of a snapshot in the log at `offset`."""
        self.state, self.snapshot_offset, self.updates, self.has_warned = snapshot, offset, 0, False
        self.fence_epoch = max(self.fence_epoch, snapshot.leader_epoch)

    def follow_update(self, update: Update) -> None:
        """Change the state by an update in the log."""
        state = self.state
        start_offset = state.start_offset if update.start_offset == NO_OFFSET else update.start_offset
        self.state = replace(
            state,
            leader_epoch=update.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=update.delivery_complete_count,
            batches=combine(state.batches, update.batches, start_offset),
        )
        self.updates += 1
        self.fence_epoch = max(self.fence_epoch, update.leader_epoch)

    def update_for(self, request: WriteState, leader_epoch: int) -> Update:
        """Return the update for a request. If the request replaces the state, its values are those of the new state.

        Unless the request replaces the state, a start offset below the present one does not move the start offset back.
        Raises INVALID_REQUEST if the state would have too many batches.
        """
        state = self.state
        start_offset = request.start_offset
        complete_count = request.delivery_complete_count
        if start_offset <= state.start_offset and not request.replaces:
            # A count for an earlier start offset says nothing about the present one.
            is_earlier = start_offset < state.start_offset
            known = state.delivery_complete_count
            complete_count = known if is_earlier else max(complete_count, known)
            start_offset = state.start_offset
        batches = combine((), request.batches, start_offset)
        if has_too_many(() if request.replaces else state.batches, batches):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return Update(state.snapshot_epoch, leader_epoch, start_offset, complete_count, batches)

    def batches_after(self, update: Update) -> tuple[StateBatch, ...]:
        """Return the batches of the state after an update that `update_for` has made."""
        return combine(self.state.batches, update.batches, update.start_offset)

    def snapshot_after(self, update: Update, batches: tuple[StateBatch, ...], now_ms: int) -> Snapshot:
        """Return the snapshot to write instead of an update. `batches` are those of the whole state."""
        return replace(
            self.state,
            snapshot_epoch=self.state.snapshot_epoch + 1,
            leader_epoch=update.leader_epoch,
            start_offset=update.start_offset,
            delivery_complete_count=update.delivery_complete_count,
            created_ms=now_ms,
            written_ms=now_ms,
            batches=batches,
        )

    def record_bytes(self, batch_count: int) -> int:
        """Return an upper limit of the bytes of a record with so many batches."""
        return _STATE_BYTES + len(self.key.group_id.encode()) + batch_count * _BATCH_BYTES


def memory_of_new(key: SharePartitionKey) -> int:
    """Return the memory in bytes of a share partition without batches."""
    return _STATE_MEMORY + bytes_of_texts(key.group_id)
