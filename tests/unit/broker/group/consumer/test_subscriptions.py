"""Subscriptions: topics that members read by name or by expression, and the cost of asking for one of them."""

from __future__ import annotations

import tracemalloc

import pytest

from kproc.broker.group.consumer.records import ExpressionTopics, MemberMetadata
from kproc.broker.group.consumer.subscriptions import Subscriptions
from tests.support.bytecodes import count_bytecodes
from tests.support.consumer_groups import GroupRig, HonestMember
from tests.support.share_groups import ShareRig

MANY = 3_000


def member(*names: str, regex: str | None = None) -> MemberMetadata:
    return MemberMetadata(client_id="c", client_host="/h", topic_names=names, topic_regex=regex)


def test_has_topic_by_name_or_by_expression_in_use() -> None:
    subscriptions = Subscriptions()
    subscriptions.add(member("a", regex="b.*"))
    expressions = {
        "b.*": ExpressionTopics(frozenset({"b1"}), 1, 1),
        "unused": ExpressionTopics(frozenset({"c"}), 1, 1),
    }
    assert [subscriptions.has_topic(name, expressions) for name in ("a", "b1", "c", "d")] == [
        True,
        True,
        False,
        False,
    ]
    subscriptions.remove(member("a", regex="b.*"))
    assert not any(subscriptions.has_topic(name, expressions) for name in ("a", "b1"))


@pytest.mark.parametrize("protocol", ["consumer", "share"])
def test_question_for_one_topic_copies_no_names(protocol: str) -> None:
    """The removal of expired offsets asks for each partition of a group."""
    names = tuple(f"topic-{number}" for number in range(MANY))
    if protocol == "consumer":
        rig = GroupRig()
        rig.set_topics(dict.fromkeys(names, 1))
        HonestMember(rig, "m", topics=(), regex="topic.*").heartbeat()
        is_subscribed_to = rig.group.is_subscribed_to
    else:
        share_rig = ShareRig(dict.fromkeys(names, 1))
        share_rig.heartbeat("m", 0, topic_names=names)
        is_subscribed_to = share_rig.group().is_subscribed_to
    tracemalloc.start()
    try:
        assert is_subscribed_to(names[0])
        assert not is_subscribed_to("other")
        _size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MANY * 8, "the table of a set of the names"


def settled_cost(topic_count: int) -> int:
    """Return the bytecodes of a heartbeat of a member that owns nothing. `range` gives the topics to the other one."""
    rig = GroupRig()
    rig.set_topics({f"topic-{number}": 1 for number in range(topic_count)})
    members = [HonestMember(rig, each, topics=(), regex="topic.*", assignor="range") for each in "ab"]
    for each in members * 4:
        each.heartbeat()
        for _ in rig.group.computation.pop_unscheduled() or ():
            pass
    assert rig.group.state_name == "Stable"
    assert not members[1].owned
    return count_bytecodes(members[1].heartbeat, unless_in="test_subscriptions.py")


def test_settled_heartbeat_visits_no_topic_of_others() -> None:
    """A hundred members of a group with 10,000 topics would take all of a core to settle."""
    assert settled_cost(1_000) < settled_cost(10) + 1_000
