"""Deadlines: `first` is always the time of an existing entry."""

from __future__ import annotations

import random

import pytest

from kproc.common.deadlines import NEVER, Deadlines


@pytest.mark.parametrize("seed", range(20))
def test_the_first_time_is_always_that_of_a_key_that_there_is(seed: int) -> None:
    source = random.Random(seed)
    deadlines: Deadlines[int] = Deadlines()
    expected: dict[int, int] = {}
    now_ms = 0
    for _ in range(500):
        key, at_ms = source.randrange(8), now_ms + source.randrange(1, 50)
        what = source.randrange(5)
        if what == 4:
            deadlines.move(key, at_ms)
            expected[key] = at_ms
        elif what < 2:
            deadlines.bring_forward(key, at_ms)
            expected[key] = min(at_ms, expected.get(key, NEVER))
        elif what == 2:
            deadlines.discard(key)
            expected.pop(key, None)
        else:
            now_ms += source.randrange(30)
            due = deadlines.pop_due(now_ms)
            assert sorted(due) == sorted(key for key, at_ms in expected.items() if at_ms <= now_ms)
            for each in due:
                del expected[each]
        assert deadlines.first == min(expected.values(), default=NEVER), f"seed {seed}"
        assert len(deadlines) == len(expected)


def test_keys_that_come_and_go_leave_nothing_behind() -> None:
    deadlines: Deadlines[int] = Deadlines()
    deadlines.bring_forward(-1, 0)
    for key in range(10_000):
        deadlines.bring_forward(key, 1000 + key)
        deadlines.discard(key)
    assert len(deadlines._heap) < 100


def test_due_keys_come_in_the_order_of_their_deadlines() -> None:
    """Kafka's ThrottledChannelExpirationTest."""
    deadlines: Deadlines[int] = Deadlines()
    for key, at in ((1, 40), (2, 20), (3, 30), (4, 20)):
        deadlines.bring_forward(key, at)
    assert deadlines.pop_due(19) == []
    assert deadlines.pop_due(20) == [2, 4]
    assert deadlines.pop_due(100) == [3, 1]
    assert not deadlines


def test_repeatedly_postponed_key_leaves_nothing_behind() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.bring_forward("first", 0)
    for at in range(1, 10_000):
        deadlines.move("key", at)
    assert len(deadlines._heap) < 100
    assert deadlines.pop_due(0) == ["first"]
    assert deadlines.first == 9_999
