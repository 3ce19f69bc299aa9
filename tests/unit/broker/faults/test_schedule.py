"""On which matching requests a fault rule acts, by their numbers."""

from __future__ import annotations

import random

import pytest

from kproc.broker.calls.own_operations import FaultRule
from kproc.broker.faults.schedule import Schedule


def acted(matches: int = 20, **schedule: float) -> list[int]:
    """The numbers of the requests on which a rule acts."""
    rule = FaultRule(action="close", **schedule)
    of_rule = Schedule(rule)
    found = [number for number in range(1, matches + 1) if of_rule.acts_on(number)]
    # The count of hits is computed from the number of matches alone, and by any Handler.
    for number in range(0, matches + 1, max(1, matches // 20)):
        assert Schedule(rule).hits(number) == sum(each <= number for each in found)
    return found


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({}, list(range(1, 21))),
        ({"times": 2}, [1, 2]),
        ({"times": 0}, []),
        ({"after": 10, "times": 3}, [11, 12, 13]),
        ({"every": 5}, [1, 6, 11, 16]),
        ({"every": 5, "after": 2, "times": 2}, [3, 8]),
        ({"after": 20}, []),
        ({"probability": 0.0}, []),
    ],
)
def test_schedule_counts_matching_requests(schedule: dict[str, float], expected: list[int]) -> None:
    assert acted(**schedule) == expected


def test_probability_draws_the_same_requests_for_a_seed() -> None:
    found = acted(1000, probability=0.3, seed=7)
    assert found == acted(1000, probability=0.3, seed=7)
    assert found != acted(1000, probability=0.3, seed=8)
    assert 200 < len(found) < 400


def test_probability_with_times_stops_at_that_number() -> None:
    every = acted(200, probability=0.3, seed=1)
    assert acted(200, probability=0.3, seed=1, times=5) == every[:5]


def test_schedule_agrees_for_numbers_that_skip_others() -> None:
    """Each Handler sees only some of the numbers."""
    rule = FaultRule(action="close", probability=0.5, times=20)
    one, other, whole = Schedule(rule), Schedule(rule), Schedule(rule)
    found = [(one if number % 3 else other).acts_on(number) for number in range(1, 100)]
    assert found == [whole.acts_on(number) for number in range(1, 100)]


def test_hits_of_many_requests_need_few_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeding of a generator takes 8 us."""
    made: list[str] = []
    generator = random.Random

    def make(seed: str) -> random.Random:
        made.append(seed)
        return generator(seed)

    monkeypatch.setattr(random, "Random", make)
    rule = FaultRule(action="close", probability=0.5)
    assert 49_000 < Schedule(rule).hits(100_000) < 51_000
    assert len(made) == 98
