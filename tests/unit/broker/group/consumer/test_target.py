"""The target assignment of a consumer group: members count with the topics of their subscription that exist."""

from __future__ import annotations

from kproc.broker.group.consumer import target
from kproc.broker.group.consumer.target import topic_ids
from tests.support.computations import undivided
from tests.support.consumer_groups import GroupRig, HonestMember, topic_id

T = topic_id("t")
compute_target = undivided(target.compute_target)


def test_missing_topics_are_left_out_of_the_target(rig: GroupRig) -> None:
    HonestMember(rig, "a", topics=("t", "missing")).heartbeat()
    state, topics = rig.group.state, rig.environment.cluster.topics
    assert topic_ids(state, topics, state.members["a"].metadata) == {T}
    assert topic_ids(state, topics, None) == frozenset()
    assert compute_target(state, topics, "range") == {"a": {T: frozenset(range(4))}}


def test_name_and_expression_of_one_topic_count_once(rig: GroupRig) -> None:
    HonestMember(rig, "a", topics=("t",), regex="t.*").heartbeat()
    HonestMember(rig, "b", topics=("t",)).heartbeat()
    assignments = compute_target(rig.group.state, rig.environment.cluster.topics, "uniform")
    assert sorted(len(each[T]) for each in assignments.values()) == [2, 2]
