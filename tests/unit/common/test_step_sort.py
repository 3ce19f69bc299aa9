"""sort_by_steps: the order of `sorted`, and no step that compares many items."""

from __future__ import annotations

import random

from kproc.common.step_sort import sort_by_steps


class Counted:
    """A key that counts comparisons."""

    count = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __lt__(self, other: Counted) -> bool:
        Counted.count += 1
        return self.value < other.value


def test_sort_by_steps_yields_nothing_while_it_reads_then_all() -> None:
    values = random.Random(1).choices(range(1_000), k=5_000)
    items = [value if number % 3 else None for number, value in enumerate(values)]
    found = list(sort_by_steps(items, key=lambda value: value))
    assert found[: len(items)] == [None] * len(items)
    assert found[len(items) :] == sorted(value for value in items if value is not None)


def test_sort_by_steps_bounds_the_comparisons_of_a_step() -> None:
    values = random.Random(2).choices(range(1_000_000), k=20_000)
    steps, most = sort_by_steps(values, key=Counted), 0
    for _ in range(2 * len(values)):
        Counted.count = 0
        next(steps)
        most = max(most, Counted.count)
    assert most < 20_000, "sorting all of them takes 250,000"
