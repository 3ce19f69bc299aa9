"""The assignors of consumer groups (KIP-848): one subscribed owner each, balance, stickiness, co-partitioning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproc.broker.group.consumer.assignors import (
    ASSIGNORS,
    Assignment,
    AssignorMember,
    Members,
    PartitionCounts,
    join_rows,
)
from tests.support.budget import example_count
from tests.support.bytecodes import count_bytecodes
from tests.support.computations import undivided

Assignor = Callable[[Members, PartitionCounts], dict[str, Assignment]]
assign_uniform = undivided(ASSIGNORS["uniform"])
assign_range = undivided(ASSIGNORS["range"])
every_assignor = pytest.mark.parametrize(
    "assign", [assign_uniform, assign_range], ids=["uniform", "range"]
)


def topic(number: int) -> bytes:
    return number.to_bytes(16, "big")


def members(
    subscriptions: Mapping[str, list[int]], target: Mapping[str, Assignment]
) -> dict[str, AssignorMember]:
    return {
        member_id: AssignorMember(frozenset(map(topic, topics)), target.get(member_id, {}))
        for member_id, topics in subscriptions.items()
    }


def counts(*partition_counts: int) -> dict[bytes, int]:
    return {topic(number): count for number, count in enumerate(partition_counts)}


def sizes(assignment: Mapping[str, Assignment]) -> list[int]:
    return sorted(sum(map(len, topics.values())) for topics in assignment.values())


def kept(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> int:
    """Return the number of partitions that have the same owner in both assignments."""
    return sum(
        len(partitions & after.get(member_id, {}).get(topic_id, frozenset()))
        for member_id, topics in before.items()
        for topic_id, partitions in topics.items()
    )


SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from("abcdefg"), st.lists(st.integers(0, 3), unique=True), min_size=1
)
# A history of a group: at each step its members and their subscriptions, and the numbers of partitions.
HISTORIES = st.lists(st.tuples(SUBSCRIPTIONS, st.tuples(*[st.integers(1, 9)] * 4)), min_size=1, max_size=4)


@every_assignor
@settings(max_examples=example_count(50), deadline=None)
@given(history=HISTORIES)
def test_each_partition_has_one_subscribed_owner(
    assign: Assignor, history: list[tuple[dict[str, list[int]], tuple[int, ...]]]
) -> None:
    target: dict[str, Assignment] = {}
    for subscriptions, partition_counts in history:
        target = assign(members(subscriptions, target), counts(*partition_counts))
        owners = Counter(
            (topic_id, partition)
            for topics in target.values()
            for topic_id, partitions in topics.items()
            for partition in partitions
        )
        subscribed = {number for topics in subscriptions.values() for number in topics}
        assert set(owners) == {
            (topic(number), partition)
            for number in subscribed
            for partition in range(partition_counts[number])
        }
        assert set(owners.values()) <= {1}
        assert all(
            topic_id in members(subscriptions, {})[each].topic_ids
            for each in target
            for topic_id in target[each]
        )


@every_assignor
@settings(max_examples=example_count(50), deadline=None)
@given(subscriptions=SUBSCRIPTIONS, partition_counts=st.tuples(*[st.integers(1, 9)] * 4))
def test_unchanged_group_keeps_its_assignment(
    assign: Assignor, subscriptions: dict[str, list[int]], partition_counts: tuple[int, ...]
) -> None:
    first = assign(members(subscriptions, {}), counts(*partition_counts))
    reordered = dict(reversed(members(subscriptions, first).items()))
    assert assign(reordered, counts(*partition_counts)) == first


@settings(max_examples=example_count(50), deadline=None)
@given(
    history=st.lists(
        st.tuples(st.integers(1, 7), st.tuples(*[st.integers(1, 9)] * 4)), min_size=1, max_size=4
    )
)
def test_uniform_balances_equal_subscriptions(history: list[tuple[int, tuple[int, ...]]]) -> None:
    target: dict[str, Assignment] = {}
    for member_count, partition_counts in history:
        subscriptions = {f"m{number}": [0, 1, 2, 3] for number in range(member_count)}
        target = assign_uniform(members(subscriptions, target), counts(*partition_counts))
        assert sizes(target)[-1] - sizes(target)[0] <= 1


@settings(max_examples=example_count(50), deadline=None)
@given(subscriptions=SUBSCRIPTIONS, partition_counts=st.tuples(*[st.integers(1, 9)] * 4))
def test_uniform_leaves_no_better_move(
    subscriptions: dict[str, list[int]], partition_counts: tuple[int, ...]
) -> None:
    """With different subscriptions, nobody subscribes to a partition of a member that has two more."""
    target = assign_uniform(members(subscriptions, {}), counts(*partition_counts))
    size = {member_id: sum(map(len, topics.values())) for member_id, topics in target.items()}
    for owner_id, topics in target.items():
        for topic_id in topics:
            for member_id, subscribed in subscriptions.items():
                if topic_id in map(topic, subscribed):
                    assert size[owner_id] - size[member_id] < 2


@pytest.mark.parametrize("topics_of", [lambda _number: [0, 1], lambda number: [number % 2, 2]], ids=["equal", "mixed"])
def test_uniform_divides_a_large_group_in_linear_time(topics_of: Callable[[int], list[int]]) -> None:
    """The first member owns everything, then 1,000 more join before the next assignment."""
    first = members({"m0": [0, 1, 2]}, {})
    before = assign_uniform(first, counts(1_000, 1_000, 1_000))
    subscriptions = {"m0": [0, 1, 2], **{f"m{number}": topics_of(number) for number in range(1, 1_001)}}
    if topics_of(1) == topics_of(2):
        subscriptions["m0"] = topics_of(0)
    many = members(subscriptions, before)
    after: dict[str, Assignment] = {}
    bytecodes = count_bytecodes(
        lambda: after.update(assign_uniform(many, counts(1_000, 1_000, 1_000))), unless_in="test_assignors.py"
    )
    assert sizes(after)[-1] - sizes(after)[0] <= 1
    # Each move must not look at all owners.
    assert bytecodes < 2_500_000


def test_uniform_ends_the_balance_of_a_hostile_group_early() -> None:
    """In a chain of overlapping subscriptions each partition would move through all members."""
    size = 400
    subscriptions = {f"m{number:03}": [number, number + 1] for number in range(size)}
    target = {"m000": {topic(0): frozenset(range(2_000)), topic(1): frozenset(range(2_000))}}
    many = members(subscriptions, target)
    partition_counts = counts(2_000, 2_000, *[1] * size)
    after: dict[str, Assignment] = {}
    bytecodes = count_bytecodes(
        lambda: after.update(assign_uniform(many, partition_counts)), unless_in="test_assignors.py"
    )
    assert sum(sizes(after)) == 4_000 + size - 1
    assert bytecodes < 12_000_000


@every_assignor
def test_member_that_leaves_moves_only_its_partitions(assign: Assignor) -> None:
    before = assign(members({each: [0] for each in "abc"}, {}), counts(12))
    after = assign(members({each: [0] for each in "ab"}, before), counts(12))
    assert kept(before, after) == 8
    assert sizes(after) == [6, 6]


@every_assignor
def test_member_that_joins_gets_its_share_and_no_more_moves(assign: Assignor) -> None:
    before = assign(members({each: [0] for each in "bc"}, {}), counts(12))
    after = assign(members({each: [0] for each in "abc"}, before), counts(12))
    assert kept(before, after) == 8
    assert sizes(after) == [4, 4, 4]


@every_assignor
def test_topic_that_shrank_has_no_owner_of_missing_partitions(assign: Assignor) -> None:
    before = assign(members({"a": [0], "b": [0]}, {}), counts(6))
    after = assign(members({"a": [0], "b": [0]}, before), counts(3))
    assert sizes(after) == [1, 2]


@every_assignor
def test_member_without_topics_gets_nothing(assign: Assignor) -> None:
    assert assign(members({"a": [], "b": [0]}, {}), counts(2)) == {
        "a": {},
        "b": {topic(0): frozenset({0, 1})},
    }


def test_range_divides_topics_alike() -> None:
    first = assign_range(members({each: [0, 1] for each in "abc"}, {}), counts(7, 7))
    assert all(topics[topic(0)] == topics[topic(1)] for topics in first.values())
    assert sorted(len(topics[topic(0)]) for topics in first.values()) == [2, 2, 3]


def test_range_gives_a_new_topic_the_owners_of_the_old() -> None:
    first = assign_range(members({each: [0] for each in "abc"}, {}), counts(7))
    # Member b is gone, so a and c have other numbers than a fresh division would give them.
    second = assign_range(members({each: [0] for each in "ac"}, first), counts(7))
    third = assign_range(members({each: [0, 1] for each in "ac"}, second), counts(7, 7))
    assert all(topics[topic(0)] == topics[topic(1)] for topics in third.values())
    assert kept(second, third) == 7


def test_range_gives_every_subscriber_its_quota_of_each_topic() -> None:
    assignment = assign_range(members({"a": [0, 1], "b": [0], "c": [1]}, {}), counts(4, 5))
    assert [len(assignment[each][topic(0)]) for each in "ab"] == [2, 2]
    assert sorted(len(assignment[each][topic(1)]) for each in "ac") == [2, 3]


def test_rows_of_one_topic_are_joined() -> None:
    rows = [("t", [1, 0]), ("u", []), ("t", []), ("t", [0, 7])]
    assert join_rows(rows) == {"t": frozenset({0, 1, 7}), "u": frozenset()}
