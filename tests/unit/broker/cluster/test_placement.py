from __future__ import annotations

import random
from collections import Counter

import pytest

from kproc.broker.cluster.placement import owners_of_block
from tests.support.cases import in_one_test

TOPICS = [random.Random(seed).randbytes(16) for seed in range(60)]


def owners(topic_id: bytes, count: int, handlers: int, first: int = 0) -> list[int]:
    return owners_of_block(topic_id, first_index=first, count=count, handler_count=handlers)


def test_owners_are_the_same_in_every_process_and_version():
    # Changing these numbers moves partitions between Handlers at an upgrade: it needs a reason.
    assert owners(bytes(range(16)), 8, 3) == [2, 2, 0, 2, 1, 0, 1, 1]


@in_one_test("handlers", [1, 2, 3, 5, 8])
@in_one_test("count", [1, 2, 4, 7, 50])
def test_no_handler_gets_more_than_its_share_of_a_topic(handlers, count):
    for topic_id in TOPICS:
        loads = Counter(owners(topic_id, count, handlers))
        assert set(loads) <= set(range(handlers))
        assert max(loads.values()) <= -(-count // handlers)


@pytest.mark.parametrize("handlers", [2, 3, 4])
def test_topics_of_one_partition_spread_evenly(handlers):
    source = random.Random(7)
    loads = Counter(owners(source.randbytes(16), 1, handlers)[0] for _ in range(3000))
    fair = 3000 / handlers
    assert all(0.85 * fair < loads[handler] < 1.15 * fair for handler in range(handlers))


@in_one_test(("before", "after"), [(1, 2), (2, 3), (3, 4), (4, 5), (5, 4), (3, 2)])
def test_handler_count_change_moves_few_partitions(before, after):
    count = 48
    moved = sum(
        old != new
        for topic_id in TOPICS
        for old, new in zip(owners(topic_id, count, before), owners(topic_id, count, after), strict=True)
    )
    least = 1 - min(before, after) / max(before, after)
    assert least - 0.02 <= moved / (count * len(TOPICS)) <= least + 0.10


def test_a_later_block_does_not_depend_on_an_earlier_one():
    for topic_id in TOPICS:
        first = owners(topic_id, 4, 3)
        assert owners(topic_id, 4, 3) == first
        assert len(owners(topic_id, 2, 3, first=4)) == 2
