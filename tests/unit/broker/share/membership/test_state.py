"""The state of a share group: replay of partial records, and the steps of its topics (KIP-932)."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.share.membership.records import (
    NamedPartitions,
    ShareEpoch,
    ShareMemberState,
    ShareRecordType,
    ShareSubscription,
    ShareTarget,
    ShareTargetEpoch,
    ShareTopics,
)
from kproc.broker.share.membership.state import (
    ShareGroupState,
    with_deleting,
    with_initialized,
    with_initializing,
)
from tests.support.share_groups import SAMPLES

T, U = b"t" * 16, b"u" * 16


def key(record_type: ShareRecordType, name: str = "") -> RecordKey:
    return RecordKey(record_type, "g", name)


def named(*partitions: int) -> NamedPartitions:
    return NamedPartitions("t", frozenset(partitions))


@pytest.mark.parametrize("record_type", ShareRecordType)
def test_tombstone_without_its_record_has_no_effect(record_type: ShareRecordType) -> None:
    """Compaction removes a record before its tombstone."""
    state = ShareGroupState("g")
    state.apply(key(record_type, "m"), None)
    assert not state.is_written
    assert (state.members, state.targets, state.topics) == ({}, {}, ShareTopics())
    assert state.target_epoch == ShareTargetEpoch(1)


@pytest.mark.parametrize("sample", SAMPLES, ids=[each[0].name for each in SAMPLES])
def test_any_record_can_be_the_first_one(sample: tuple) -> None:
    record_type, name, value = sample
    state = ShareGroupState("g")
    state.apply(key(record_type, name), value)
    state.drop_incomplete_members()
    assert state.is_written == (record_type in (ShareRecordType.GROUP, ShareRecordType.TOPICS))
    # Without a subscription it is no member.
    assert list(state.members) == (["m"] if record_type is ShareRecordType.MEMBER else [])


def test_tombstones_of_a_member_in_any_order_remove_it() -> None:
    kinds = (ShareRecordType.MEMBER, ShareRecordType.MEMBER_TARGET, ShareRecordType.MEMBER_STATE)
    state = ShareGroupState("g")
    state.apply(key(ShareRecordType.MEMBER, "m"), ShareSubscription(topic_names=("t",)))
    state.apply(key(ShareRecordType.MEMBER_TARGET, "m"), ShareTarget({T: frozenset({0})}))
    state.apply(key(ShareRecordType.MEMBER_STATE, "m"), ShareMemberState(3, 2, {T: frozenset({0})}))
    assert state.subscribed_names() == {"t"}
    for kind in kinds:
        state.apply(key(kind, "m"), None)
    assert (state.members, state.targets, state.subscribed_names()) == ({}, {}, frozenset())


def test_tombstone_of_the_target_resets_its_epoch_and_time() -> None:
    state = ShareGroupState("g")
    state.apply(key(ShareRecordType.GROUP), ShareEpoch(10))
    state.apply(key(ShareRecordType.TARGET), ShareTargetEpoch(10, 12345))
    state.apply(key(ShareRecordType.TARGET), None)
    assert state.target_epoch == ShareTargetEpoch(1)


def test_initializing_topic_is_not_being_deleted_any_more() -> None:
    topics = with_initializing(ShareTopics({}, {}, {T: "t", U: "u"}), {T: named(0, 1)})
    assert topics == ShareTopics({T: named(0, 1)}, {}, {U: "u"})


def test_partitions_are_initialized_one_after_the_other() -> None:
    topics = with_initialized(ShareTopics({T: named(0, 1, 2)}), {T: named(0, 2)})
    assert topics == ShareTopics({T: named(1)}, {T: named(0, 2)})
    assert with_initialized(topics, {T: named(1)}) == ShareTopics({}, {T: named(0, 1, 2)})
    assert with_initialized(topics, {}) == topics


def test_deleted_offsets_take_partitions_that_initialize() -> None:
    topics = with_deleting(ShareTopics({T: named(2)}, {T: named(0, 1)}), {T: "t"})
    assert topics == ShareTopics({}, {}, {T: "t"})
