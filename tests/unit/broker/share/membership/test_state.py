"""The state of a share group: replay of partial records, and the steps of its topics (KIP-932)."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.share.membership.records import (
    NamedPartitions,
    ShareMemberState,
    ShareRecordType,
    ShareSubscription,
    ShareTarget,
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


@pytest.mark.parametrize("sample", SAMPLES, ids=[each[0].name for each in SAMPLES])
def test_any_record_can_be_the_first_one(sample: tuple) -> None:
    record_type, name, value = sample
    state = ShareGroupState("g")
    state.apply(key(record_type, name), value)
    state.drop_incomplete_members()
    assert state.is_written == (record_type in (ShareRecordType.GROUP, ShareRecordType.TOPICS))
    # Without a subscription it is no member.
    assert list(state.members) == (["m"] if record_type is ShareRecordType.MEMBER else [])


def test_tombstones_of_a_member_remove_it() -> None:
    kinds = (ShareRecordType.MEMBER_STATE, ShareRecordType.MEMBER_TARGET, ShareRecordType.MEMBER)
    state = ShareGroupState("g")
    state.apply(key(ShareRecordType.MEMBER, "m"), ShareSubscription(topic_names=("t",)))
    state.apply(key(ShareRecordType.MEMBER_TARGET, "m"), ShareTarget({T: frozenset({0})}))
    state.apply(key(ShareRecordType.MEMBER_STATE, "m"), ShareMemberState(3, 2, {T: frozenset({0})}))
    assert state.subscribed_names() == {"t"}
    for kind in kinds:
        state.apply(key(kind, "m"), None)
    assert (state.members, state.targets, state.subscribed_names()) == ({}, {}, frozenset())


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
