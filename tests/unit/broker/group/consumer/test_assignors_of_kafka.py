"""The cases of Kafka's suites of the assignors: how balanced the result is, and how many partitions stay.

Kafka's suites compare whole assignments. The order in which equal members get partitions differs, so these compare the
numbers of partitions by member, and the number of partitions that keep their owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import pytest

from kproc.broker.group.consumer.assignors import (
    Assignment,
    AssignorMember,
    Members,
    PartitionCounts,
    assign_range,
    assign_uniform,
)
from tests.support.computations import undivided

# Topic -> partitions.
Partitions = Mapping[int, Sequence[int]]


class Case(NamedTuple):
    """A group, and what Kafka's assignor makes of it."""

    name: str
    counts: Sequence[int]  # The number of partitions of each topic.
    before: Mapping[
        str, tuple[Sequence[int], Partitions]
    ]  # Member -> its topics, and its present partitions.
    sizes: Sequence[int]  # The numbers of partitions of the members, sorted.
    kept: int  # The number of partitions that stay with their owner.


NONE: Final[Partitions] = {}
BOTH: Final = (0, 1)
# Two members of two topics: a has 0 and 2 of the first topic and 0 of the second one, b has the rest.
MIXED: Final = {"a": (BOTH, {0: [0, 2], 1: [0]}), "b": (BOTH, {0: [1], 1: [1, 2]})}
EQUAL: Final = (
    Case("first, two members", (3, 2), {"a": (BOTH, NONE), "b": (BOTH, NONE)}, [2, 3], 0),
    Case("more members than partitions", (2,), {each: ([0], NONE) for each in "abc"}, [0, 1, 1], 0),
    Case(
        "large",
        (3,) * 100,
        {f"m{number}": (range(100), NONE) for number in range(49)},
        [6] * 43 + [7] * 6,
        0,
    ),
    Case(
        "unbalanced before",
        (3, 3),
        {"a": (BOTH, {0: [0, 1], 1: [0, 1]}), "b": (BOTH, {0: [2], 1: [2]})},
        [3, 3],
        5,
    ),
    Case("partitions added", (6, 5), MIXED, [5, 6], 6),
    Case("member added", (3, 3), {**MIXED, "c": (BOTH, NONE)}, [2, 2, 2], 4),
    Case(
        "member removed",
        (3, 3),
        {"a": (BOTH, {0: [0], 1: [0]}), "b": (BOTH, {0: [1], 1: [1]})},
        [3, 3],
        4,
    ),
    Case(
        "subscription removed",
        (2, 2),
        {"a": ([1], {0: [0], 1: [0]}), "b": ([1], {0: [1], 1: [1]})},
        [1, 1],
        2,
    ),
    Case("member replaced", (4,), {"b": ([0], {0: [1, 3]}), "c": ([0], NONE)}, [2, 2], 2),
)
DIFFERENT: Final = (
    Case("first, two members", (3, 0, 6), {"a": ([0, 2], NONE), "b": ([2], NONE)}, [4, 5], 0),
    Case(
        "more members than partitions",
        (2, 0, 1),
        {"a": ([2], NONE), "b": ([2], NONE), "c": ([0], NONE)},
        [0, 1, 2],
        0,
    ),
    Case(
        "unbalanced before",
        (6, 4, 4),
        {
            "a": ([0], {0: [0, 1, 2]}),
            "b": (BOTH, {0: [3], 1: [0]}),
            "c": ([0, 1, 2], {0: [4, 5], 1: [1, 2, 3], 2: range(4)}),
        },
        [4, 5, 5],
        10,
    ),
    Case(
        "partitions added",
        (6, 5, 3, 3),
        {
            "a": ([0, 2], {0: range(4), 2: [0, 1]}),
            "b": (range(4), {1: range(3), 3: range(3)}),
        },
        [8, 9],
        12,
    ),
    Case(
        "member and partitions added",
        (6, 7),
        {"a": ([0], {0: [0, 2], 1: [0]}), "b": (BOTH, {0: [1], 1: [1, 2]}), "c": (BOTH, NONE)},
        [4, 4, 5],
        5,
    ),
    Case(
        "member removed",
        (3, 8, 3),
        {"a": ([0, 2], {0: range(3), 2: [0, 1]}), "b": ([1], {1: [3, 4, 5, 6]})},
        [6, 8],
        9,
    ),
    Case(
        "subscription removed",
        (3, 5),
        {"a": ([0], {0: [0, 2], 1: [1, 3]}), "b": (BOTH, {0: [1], 1: [0, 2, 4]})},
        [3, 5],
        5,
    ),
    Case(
        "partitions run out",
        (2, 2, 2),
        {"a": (range(3), {0: [0, 1], 1: [0, 1], 2: [0, 1]}), "b": (range(3), NONE)},
        [3, 3],
        3,
    ),
    Case("member without subscription", (3,), {"a": ([0], NONE), "b": ([], NONE)}, [0, 3], 0),
)
TWO_TO_ONE: Final = {"a": (BOTH, {0: [0, 1], 1: [0, 1]}), "b": (BOTH, {0: [2], 1: [2]})}
RANGE: Final = (
    Case("first, two members", (3, 2), {"a": (BOTH, NONE), "b": (BOTH, NONE)}, [2, 3], 0),
    Case(
        "first, different subscriptions",
        (3, 3, 2),
        {"a": (BOTH, NONE), "b": ([2], NONE), "c": ([1, 2], NONE)},
        [1, 2, 5],
        0,
    ),
    Case("more members than partitions", (3, 2), dict.fromkeys("abc", (BOTH, NONE)), [1, 2, 2], 0),
    Case(
        "member added without a partition left",
        (2, 2),
        {"a": (BOTH, {0: [0], 1: [0]}), "b": (BOTH, {0: [1], 1: [1]}), "c": (BOTH, NONE)},
        [0, 2, 2],
        4,
    ),
    Case("partition added", (4, 4), TWO_TO_ONE, [4, 4], 6),
    Case("member added", (3, 3), {**TWO_TO_ONE, "c": (BOTH, NONE)}, [2, 2, 2], 4),
    Case("member and partition added", (4, 3), {**TWO_TO_ONE, "c": ([0], NONE)}, [1, 2, 4], 6),
    Case("member removed", (3, 3), {"b": (BOTH, {0: [2], 1: [2]})}, [6], 2),
    Case(
        "subscriptions changed",
        (3, 3, 2),
        {
            "a": ([0], {0: range(3), 1: [0]}),
            "b": (range(3), {1: [1]}),
            "c": ([1], {1: [2], 2: [0, 1]}),
        },
        [1, 2, 5],
        4,
    ),
)


def _id(topic: int) -> bytes:
    return topic.to_bytes(16, "big")


@pytest.mark.parametrize(
    ("assign", "cases"),
    [
        (undivided(assign_uniform), EQUAL),
        (undivided(assign_uniform), DIFFERENT),
        (undivided(assign_range), RANGE),
    ],
    ids=["equal", "different", "range"],
)
def test_assignment_is_as_balanced_and_sticky_as_kafkas(
    assign: Callable[[Members, PartitionCounts], dict[str, Assignment]], cases: Sequence[Case]
) -> None:
    wrong = {}
    for case in cases:
        members = {
            member_id: AssignorMember(
                frozenset(map(_id, topics)), {_id(topic): frozenset(each) for topic, each in owned.items()}
            )
            for member_id, (topics, owned) in case.before.items()
        }
        counts = {_id(topic): count for topic, count in enumerate(case.counts)}
        after = assign(members, counts)
        sizes = sorted(sum(map(len, each.values())) for each in after.values())
        kept = sum(
            len(after[member_id].get(topic_id, frozenset()) & partitions)
            for member_id, member in members.items()
            for topic_id, partitions in member.target.items()
        )
        if (sizes, kept) != (sorted(case.sizes), case.kept):
            wrong[case.name] = (sizes, kept)
    assert wrong == {}
