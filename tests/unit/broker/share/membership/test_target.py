"""Input of a share group's target: only partitions with a state in the share coordinator are assignable (KIP-932)."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.group.consumer.topics import TopicView
from kproc.broker.share.membership.records import (
    NamedPartitions,
    ShareRecordType,
    ShareSubscription,
    ShareTarget,
    ShareTopics,
)
from kproc.broker.share.membership.state import ShareGroupState
from kproc.broker.share.membership.target import (
    assignable_partitions,
    assignor_members,
    has_unassigned,
    uninitialized_partitions,
)
from tests.support.consumer_groups import topic_id
from tests.support.share_groups import ShareRig

T, U = topic_id("t"), topic_id("u")
FIRST = frozenset({0})


@pytest.fixture
def topics() -> TopicView:
    """Return the topics t, with 2 partitions, and u, with 1."""
    image = ShareRig({"t": 2, "u": 1}).image
    return TopicView(lambda: image)


@pytest.fixture
def state() -> ShareGroupState:
    """Return a group with a member of t and of a missing topic. Partition 0 of t and of u has a state."""
    state = ShareGroupState("g")
    subscription = ShareSubscription(topic_names=("missing", "t"))
    state.apply(RecordKey(ShareRecordType.MEMBER, "g", "m"), subscription)
    initialized = {T: NamedPartitions("t", FIRST), U: NamedPartitions("u", FIRST)}
    state.apply(RecordKey(ShareRecordType.TOPICS, "g"), ShareTopics(initialized=initialized))
    return state


def test_subscribed_partitions_with_a_state_are_assignable(state: ShareGroupState, topics: TopicView) -> None:
    assert assignable_partitions(state, topics) == {T: FIRST}


def test_namesake_of_a_deleted_topic_is_not_assignable(state: ShareGroupState, topics: TopicView) -> None:
    state.topics = ShareTopics(initialized={b"former topic t!!": NamedPartitions("t", FIRST)})
    assert assignable_partitions(state, topics) == {}


def test_partitions_without_a_state_are_uninitialized(state: ShareGroupState, topics: TopicView) -> None:
    assert uninitialized_partitions(state, topics) == {T: NamedPartitions("t", frozenset({1}))}


def test_targets_that_differ_from_assignable_are_found(state: ShareGroupState, topics: TopicView) -> None:
    assert has_unassigned(state, topics)
    state.apply(RecordKey(ShareRecordType.MEMBER_TARGET, "g", "m"), ShareTarget({T: FIRST}))
    assert not has_unassigned(state, topics)
    state.apply(RecordKey(ShareRecordType.MEMBER_TARGET, "g", "m"), ShareTarget({T: FIRST, U: FIRST}))
    assert has_unassigned(state, topics)


def test_members_have_existing_topics_and_last_targets(state: ShareGroupState, topics: TopicView) -> None:
    state.apply(RecordKey(ShareRecordType.MEMBER_TARGET, "g", "m"), ShareTarget({T: FIRST}))
    members = assignor_members(state, topics)
    assert [*members] == ["m"]
    assert (members["m"].topic_ids, members["m"].target) == ({T}, {T: FIRST})
