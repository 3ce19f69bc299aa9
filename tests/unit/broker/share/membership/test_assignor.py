"""The assignor of share groups (KIP-932): every partition has a member, balance, stickiness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproc.broker.share.membership.assignor import ShareAssignorMember, assign_simple
from kproc.broker.share.membership.records import ShareAssignment
from tests.support.budget import example_count
from tests.support.bytecodes import count_bytecodes
from tests.support.computations import undivided


def topic(number: int) -> bytes:
    return number.to_bytes(16, "big")


def assignable(*counts: int) -> dict[bytes, frozenset[int]]:
    return {topic(number): frozenset(range(count)) for number, count in enumerate(counts)}


def assign(
    subscriptions: Mapping[str, list[int]],
    partitions: ShareAssignment,
    before: Mapping[str, ShareAssignment] | None = None,
) -> dict[str, ShareAssignment]:
    members = {
        member_id: ShareAssignorMember(frozenset(map(topic, topics)), (before or {}).get(member_id, {}))
        for member_id, topics in subscriptions.items()
    }
    return undivided(assign_simple)(members, partitions)


def pairs(assignment: ShareAssignment) -> set[tuple[bytes, int]]:
    return {(topic_id, number) for topic_id, numbers in assignment.items() for number in numbers}


SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from("abcdefghij"), st.lists(st.integers(0, 2), unique=True), min_size=1
)
MEMBERS = st.sets(st.sampled_from("abcdefghijkl"), min_size=1)
HISTORIES = st.lists(st.tuples(SUBSCRIPTIONS, st.tuples(*[st.integers(0, 5)] * 3)), min_size=1, max_size=5)


@settings(max_examples=example_count(60), deadline=None)
@given(HISTORIES)
def test_each_partition_has_subscribed_members_at_every_step(
    history: list[tuple[dict[str, list[int]], tuple[int, ...]]],
) -> None:
    current: dict[str, ShareAssignment] = {}
    for subscriptions, counts in history:
        partitions = assignable(*counts)
        current = assign(subscriptions, partitions, current)
        assert current.keys() == subscriptions.keys()
        for member_id, assigned in current.items():
            assert {each for each, _ in pairs(assigned)} <= set(map(topic, subscriptions[member_id]))
            assert pairs(assigned) <= pairs(partitions)
        users = Counter(each for assigned in current.values() for each in pairs(assigned))
        for topic_id, number in pairs(partitions):
            subscribers = sum(topic_id in map(topic, names) for names in subscriptions.values())
            assert bool(users[topic_id, number]) == bool(subscribers)
        # An assignment that is computed again stays as it is.
        assert assign(subscriptions, partitions, current) == current


@settings(max_examples=example_count(60), deadline=None)
@given(st.lists(st.tuples(MEMBERS, st.integers(1, 9)), min_size=1, max_size=5))
def test_members_with_one_subscription_are_balanced(history: list[tuple[set[str], int]]) -> None:
    current: dict[str, ShareAssignment] = {}
    for member_ids, count in history:
        current = assign({member_id: [0] for member_id in member_ids}, assignable(count), current)
        sizes = [len(pairs(each)) for each in current.values()]
        assert max(sizes) - min(sizes) <= 1
        users = Counter(each for assigned in current.values() for each in pairs(assigned))
        assert set(users.values()) == {-(-len(member_ids) // count)}


@pytest.mark.parametrize(("members", "partitions", "moved"), [(3, 4, 1), (4, 4, 1), (8, 4, 4)])
def test_new_member_moves_few_partitions(members: int, partitions: int, moved: int) -> None:
    subscriptions = {f"m{number}": [0] for number in range(members)}
    before = assign(subscriptions, assignable(partitions))
    after = assign({**subscriptions, "new": [0]}, assignable(partitions), before)
    lost = sum(len(pairs(before[each]) - pairs(after[each])) for each in before)
    assert lost <= moved
    assert after["new"]


def test_member_without_subscribed_topics_gets_nothing() -> None:
    assert assign({"m": []}, assignable(2)) == {"m": {}}


def test_topic_without_initialized_partitions_is_not_assigned() -> None:
    assert assign({"m": [0, 1]}, {topic(0): frozenset({1})}) == {"m": {topic(0): frozenset({1})}}


def test_members_of_different_topics_share_the_common_one() -> None:
    after = assign({"a": [0], "b": [1], "c": [0, 1]}, assignable(2, 2))
    assert [len(pairs(after[each])) for each in "abc"] == [1, 1, 2]


def test_cost_grows_with_the_topics_of_different_subscriptions() -> None:
    """Each topic is balanced alone then. Its balance must not visit the members' partitions of all other topics."""

    def cost(topics: int) -> int:
        subscriptions = {"odd": [0], **{f"m{number}": list(range(topics)) for number in range(5)}}
        partitions = assignable(*[5] * topics)
        before = assign(subscriptions, partitions)
        return count_bytecodes(
            lambda: assign(subscriptions, partitions, before), unless_in="test_assignor.py"
        )

    assert cost(80) < 2.5 * cost(40)
