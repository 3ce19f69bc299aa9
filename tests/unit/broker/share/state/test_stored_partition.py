"""StoredPartition: the state after records, and the record that a request makes of it."""

from __future__ import annotations

import pytest

from kproc.broker.share.state.batches import BATCHES_MAX
from kproc.broker.share.state.messages import SharePartitionKey, StateBatch, WriteState
from kproc.broker.share.state.records import Snapshot
from kproc.broker.share.state.stored_partition import StoredPartition, memory_of_new
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.logs import TOPIC_ID


@pytest.fixture
def part() -> StoredPartition:
    """Return a share partition at snapshot epoch 3, state epoch 5 and leader epoch 2, whose start offset is 10."""
    state = Snapshot(3, 5, 2, 10, 4, 0, 0, (StateBatch(10, 19, 2, 1),))
    return StoredPartition(SharePartitionKey("g", TOPIC_ID, 0), state, 77)


@pytest.mark.parametrize(("start_offset", "count", "expected"), [(10, 3, (10, 4)), (5, 9, (10, 4)), (12, 1, (12, 1))])
def test_start_offset_does_not_move_back(
    part: StoredPartition, start_offset: int, count: int, expected: tuple[int, int]
) -> None:
    update = part.update_for(WriteState(5, 2, start_offset, count), 2)
    assert (update.start_offset, update.delivery_complete_count) == expected


def test_update_and_its_snapshot_lead_to_one_state(part: StoredPartition) -> None:
    update = part.update_for(WriteState(5, 4, 12, 1, (StateBatch(15, 29, 4, 2),)), 4)
    snapshot = part.snapshot_after(update, part.batches_after(update), 1_000)
    assert (snapshot.snapshot_epoch, snapshot.created_ms, snapshot.written_ms) == (4, 1_000, 1_000)
    part.follow_update(update)
    by_update = part.persisted
    assert (part.updates, part.fence_epoch, part.snapshot_offset) == (1, 4, 77)
    part.follow_snapshot(snapshot, 99)
    assert part.persisted == by_update
    assert [(each.first, each.last) for each in by_update.batches] == [(12, 14), (15, 29)]
    assert (part.updates, part.fence_epoch, part.snapshot_offset) == (0, 4, 99)


def test_fence_epoch_does_not_fall_when_it_is_initialized(part: StoredPartition) -> None:
    part.follow_snapshot(Snapshot(4, 6, 0, 0, 0, 0, 0), 99)
    assert (part.state.leader_epoch, part.fence_epoch) == (0, 2)


def test_state_with_too_many_batches_is_rejected(part: StoredPartition) -> None:
    batches = tuple(StateBatch(2 * each, 2 * each, 2, 1) for each in range(10, 11 + BATCHES_MAX))
    with pytest.raises(KafkaError, check=lambda error: error.code == ErrorCode.INVALID_REQUEST):
        part.update_for(WriteState(5, 2, 10, 4, batches), 2)


def test_memory_and_record_grow_with_the_batches(part: StoredPartition) -> None:
    assert part.memory_bytes > memory_of_new(part.key)
    assert part.record_bytes(2) > part.record_bytes(1) > part.record_bytes(0)
