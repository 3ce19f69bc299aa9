"""The groups of one protocol: their load from records, and the count of the rises of their epochs."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.member_memory import MemberMemory
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.coordinator.recorded_states import RecordedGroups
from kproc.broker.group.consumer.records import (
    CONSUMER_RECORDS,
    ConsumerRecord,
    ConsumerRecordType,
    GroupEpoch,
    MemberState,
    TargetEpoch,
)
from kproc.broker.group.consumer.state import ConsumerGroupState
from kproc.common.errors import Corrupt

EPOCH: ConsumerRecord = RecordKey(ConsumerRecordType.GROUP, "g"), GroupEpoch(3)
CUT_OFF: ConsumerRecord = RecordKey(ConsumerRecordType.MEMBER_STATE, "g", "m"), MemberState(3)
MEMBER_OF_NO_GROUP: ConsumerRecord = RecordKey(ConsumerRecordType.MEMBER_STATE, "h", "m"), MemberState(3)


@pytest.fixture
def added() -> list[ConsumerGroupState]:
    return []


@pytest.fixture
def groups(added: list[ConsumerGroupState]) -> RecordedGroups[ConsumerGroupState]:
    memory = MemberMemory()
    return RecordedGroups(
        CONSUMER_RECORDS, GroupEpoch, lambda group_id: ConsumerGroupState(group_id, memory), added.append
    )


def test_replay_adds_each_written_group_without_cut_off_members(
    groups: RecordedGroups[ConsumerGroupState], added: list[ConsumerGroupState]
) -> None:
    for record in (CUT_OFF, MEMBER_OF_NO_GROUP, EPOCH):
        key, value = CONSUMER_RECORDS.encode(*record)
        groups.replay(key, value)
    assert len(list(groups.restore_replayed())) == 1, "one step for each group"
    assert [(state.group_id, state.epoch.epoch, dict(state.members)) for state in added] == [("g", 3, {})]
    assert not list(groups.restore_replayed())


def test_replay_of_a_damaged_record_raises_corrupt(groups: RecordedGroups[ConsumerGroupState]) -> None:
    key, value = CONSUMER_RECORDS.encode(*EPOCH)
    assert value is not None
    with pytest.raises(Corrupt):
        groups.replay(key, value[:-1])


def test_only_records_of_group_epochs_count_as_rebalances(groups: RecordedGroups[ConsumerGroupState]) -> None:
    groups.count_rebalances([EPOCH, CUT_OFF, (RecordKey(ConsumerRecordType.TARGET, "g"), TargetEpoch(3)), EPOCH])
    assert groups.drain_rebalances() == 2
    assert groups.drain_rebalances() == 0
