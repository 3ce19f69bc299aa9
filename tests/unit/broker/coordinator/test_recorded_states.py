"""States of groups: look-ups of members, their load from records, the append of records, and the rises of epochs."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.coordinator.recorded_states import RecordedGroups
from kproc.broker.coordinator.rules import Timing
from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.consumer.group import ConsumerGroup
from kproc.broker.group.consumer.records import (
    CONSUMER_RECORDS,
    ConsumerRecord,
    ConsumerRecordType,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    TargetEpoch,
)
from kproc.broker.group.consumer.state import ConsumerGroupState
from kproc.broker.group.records import encode_group_key
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from tests.support.consumer_groups import GroupRig as ConsumerRig
from tests.support.group_coordinator_rig import MemoryLog
from tests.support.group_rig import GroupRig as ClassicRig

EPOCH: ConsumerRecord = RecordKey(ConsumerRecordType.GROUP, "g"), GroupEpoch(3)
CUT_OFF: ConsumerRecord = RecordKey(ConsumerRecordType.MEMBER_STATE, "g", "m"), MemberState(3)
MEMBER_OF_NO_GROUP: ConsumerRecord = RecordKey(ConsumerRecordType.MEMBER_STATE, "h", "m"), MemberState(3)


class Tables:
    """A coordinator's tables and log, with the groups of the consumer protocol."""

    def __init__(self) -> None:
        self.all: dict[str, Any] = {}
        self.unwritten: dict[str, None] = {}
        self.log = MemoryLog()
        environment = ConsumerRig().environment
        self.groups = RecordedGroups(
            CONSUMER_RECORDS,
            GroupEpoch,
            ConsumerGroupState,
            lambda state: ConsumerGroup(state, environment),
            self.all,
            self.unwritten,
            Timing(lambda: 0, lambda: 0, str),
            self.log,
        )

    def add_classic(self) -> ClassicGroup:
        """Add an empty classic group whose record is in the log."""
        group = self.all["g"] = ClassicRig().group
        group.state.generation = 4
        return group


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def state() -> ConsumerGroupState:
    """Return a group with the dynamic member m0 and the static member m1."""
    state = ConsumerGroupState("g")
    for member_id, instance_id in (("m0", None), ("m1", "i")):
        metadata = MemberMetadata(client_id="c", client_host="/h", instance_id=instance_id)
        state.apply(RecordKey(ConsumerRecordType.MEMBER, "g", member_id), metadata)
    return state


def test_member_is_found_by_its_ids(state: ConsumerGroupState) -> None:
    assert state.get_member("m0").member_id == "m0"
    assert state.get_member("m1", "i").member_id == "m1"


@pytest.mark.parametrize(
    ("member_id", "instance_id", "code"),
    [
        ("x", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", "x", ErrorCode.UNKNOWN_MEMBER_ID),
        ("m0", "i", ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_unknown_or_fenced_member_raises(
    state: ConsumerGroupState, member_id: str, instance_id: str | None, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as raised:
        state.get_member(member_id, instance_id)
    assert raised.value.code == code


def test_replay_adds_each_written_group_without_cut_off_members(tables: Tables) -> None:
    for record in (CUT_OFF, MEMBER_OF_NO_GROUP, EPOCH):
        key, value = CONSUMER_RECORDS.encode(*record)
        tables.groups.replay(key, value)
    assert len(list(tables.groups.restore_replayed())) == 1, "one step for each group"
    added = [group.state for group in tables.all.values()]
    assert [(state.group_id, state.epoch.epoch, dict(state.members)) for state in added] == [("g", 3, {})]
    assert not list(tables.groups.restore_replayed())


def test_replay_of_a_damaged_record_raises_corrupt(tables: Tables) -> None:
    key, value = CONSUMER_RECORDS.encode(*EPOCH)
    assert value is not None
    with pytest.raises(Corrupt):
        tables.groups.replay(key, value[:-1])


def test_only_records_of_group_epochs_count_as_rebalances(tables: Tables) -> None:
    target: ConsumerRecord = RecordKey(ConsumerRecordType.TARGET, "g"), TargetEpoch(3)
    tables.groups.append(tables.groups.create("g"), [EPOCH, CUT_OFF, target, EPOCH])
    assert tables.groups.drain_rebalances() == 2
    assert tables.groups.drain_rebalances() == 0


def test_first_record_deletes_the_replaced_classic_group(tables: Tables) -> None:
    tables.add_classic()
    group = tables.groups.create("g")
    assert tables.unwritten == {"g": None}
    tables.groups.append(group, [EPOCH])
    assert tables.log.records == [(encode_group_key("g"), None), CONSUMER_RECORDS.encode(*EPOCH)]
    assert (tables.unwritten, group.state.epoch) == ({}, EPOCH[1])
    tables.groups.append(group, [EPOCH])
    assert len(tables.log.records) == 3, "only the first append deletes the classic group"


def test_replaced_group_returns_if_no_record_was_appended(tables: Tables) -> None:
    classic = tables.add_classic()
    group = tables.groups.create("g")
    tables.log.records_left = 0
    with pytest.raises(KafkaError):
        tables.groups.append(group, [EPOCH])
    tables.groups.restore_replaced("g")
    assert (tables.all, tables.unwritten) == ({"g": classic}, {})


def test_conversion_appended_in_part_is_unexpected(tables: Tables) -> None:
    """The log has no classic group any more, and memory has half of the new one, so the coordinator is loaded again."""
    tables.add_classic()
    group = tables.groups.create("g", [CUT_OFF])
    assert [*group.state.members] == ["m"]
    tables.log.records_left = 2
    with pytest.raises(RuntimeError, match="2 of 3 records"):
        tables.groups.append(group, [EPOCH])
