"""Merge of state batches, compared with a model that has a state for each offset."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from kproc.broker.share.state.batches import combine, prune
from kproc.broker.share.state.messages import NO_OFFSET, StateBatch

SEEDS = 3_000
Model = dict[int, tuple[int, int]]  # Offset -> delivery count, state.


def random_batches(rng: random.Random) -> list[StateBatch]:
    batches = []
    for _ in range(rng.randrange(7)):
        first = rng.randrange(40)
        batches.append(
            StateBatch(first, first + rng.choice((0, 0, 1, 3, 9)), rng.choice((0, 2, 4)), rng.randint(1, 3))
        )
    return batches


def merge(model: Model, batches: list[StateBatch], start: int) -> Model:
    merged = dict(model)
    for batch in batches:
        for offset in range(batch.first, batch.last + 1):
            merged[offset] = max(merged.get(offset, (0, 0)), (batch.delivery_count, batch.state))
    return {offset: value for offset, value in merged.items() if start == NO_OFFSET or offset >= start}


def expand(batches: tuple[StateBatch, ...]) -> Model:
    """Return a model of merged batches, after checking that they are sorted, disjoint and as few as possible."""
    for before, after in pairwise(batches):
        assert before.last < after.first
        is_adjacent = before.last + 1 == after.first
        assert not is_adjacent or (before.state, before.delivery_count) != (after.state, after.delivery_count)
    return {
        offset: (batch.delivery_count, batch.state)
        for batch in batches
        for offset in range(batch.first, batch.last + 1)
    }


@pytest.mark.parametrize("part", [0, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 2))])
def test_combine_agrees_with_a_state_for_each_offset(part: int) -> None:
    for seed in range(part * SEEDS // 3, (part + 1) * SEEDS // 3):
        rng = random.Random(seed)
        current: tuple[StateBatch, ...] = ()
        model: Model = {}
        for _ in range(6):
            update = random_batches(rng)
            start = rng.choice((NO_OFFSET, NO_OFFSET, rng.randrange(45)))
            current = combine(current, update, start)
            model = merge(model, update, start)
            assert expand(current) == model, f"seed {seed}"


def test_combine_prefers_higher_delivery_count_then_state() -> None:
    stored = (StateBatch(0, 9, 0, 2),)
    assert combine(stored, [StateBatch(3, 5, 4, 1)], NO_OFFSET) == stored
    assert combine(stored, [StateBatch(0, 9, 2, 2)], NO_OFFSET) == (StateBatch(0, 9, 2, 2),)


def test_combine_splits_batches_and_joins_equal_neighbours() -> None:
    stored = (StateBatch(0, 9, 0, 1),)
    split = combine(stored, [StateBatch(4, 5, 2, 1)], NO_OFFSET)
    assert split == (StateBatch(0, 3, 0, 1), StateBatch(4, 5, 2, 1), StateBatch(6, 9, 0, 1))
    assert combine(split, [StateBatch(0, 9, 2, 2)], NO_OFFSET) == (StateBatch(0, 9, 2, 2),)
    assert combine((StateBatch(0, 3, 2, 1),), [StateBatch(4, 6, 2, 1)], NO_OFFSET) == (
        StateBatch(0, 6, 2, 1),
    )


def test_prune_cuts_a_batch_at_the_start_offset() -> None:
    batches = (StateBatch(0, 4, 0, 1), StateBatch(5, 9, 2, 1), StateBatch(10, 10, 4, 1))
    assert prune(batches, 7) == (StateBatch(7, 9, 2, 1), StateBatch(10, 10, 4, 1))
    assert prune(batches, NO_OFFSET) == batches
    assert prune(batches, 11) == ()
