"""The proposal of `kproc tune` follows from its samples; noise is never a reason for more processes."""

from __future__ import annotations

import random

import pytest

from kproc.tools.tune.choice import NothingMeasured, candidates, choose
from kproc.tools.tune.measure import ProcessCounts, Sample
from tests.support.cases import in_one_test

INLINE, ONE, TWO, FOUR = ProcessCounts(1, 1, "inline"), ProcessCounts(1, 1), ProcessCounts(2, 2), ProcessCounts(4, 4)


def samples(rates: dict[ProcessCounts, float], *, noise: float = 0.01, rounds: int = 5, seed: int = 1, **more):
    draw = random.Random(seed)
    moods = [draw.gauss(1, 0.2) for _ in range(rounds)]  # a round that is slow is slow for all
    return [
        Sample(
            layout, number, 64, 8, throughput=rate * moods[number] * draw.gauss(1, noise), unit="requests/s",
            p50_us=100, p99_us=300, broker_cpu_s=1.5, generator_cpu_s=0.3, seconds=1.0, requests=1000,
            cpu_by_role={"handler-0": 0.9, "processor-0": 0.6}, **more,
        )
        for number in range(rounds)
        for layout, rate in rates.items()
    ]  # fmt: skip


def test_the_best_is_proposed_where_it_is_clearly_best():
    proposal = choose(samples({INLINE: 10_000, ONE: 20_000, TWO: 38_000, FOUR: 70_000}))
    assert proposal.layout == FOUR
    assert proposal.settings["num.network.threads"] == "4"
    assert [standing.is_as_good for standing in proposal.standings] == [False, False, False, True]


@pytest.mark.parametrize("seed", range(5))
def test_smallest_of_indistinguishable_counts_is_proposed(seed):
    proposal = choose(samples({ONE: 20_000, TWO: 20_200, FOUR: 19_900}, seed=seed))
    assert proposal.layout == ONE
    assert any("no more than noise" in remark for remark in proposal.remarks)


def test_disturbance_of_whole_round_is_not_noise():
    assert choose(samples({ONE: 20_000, TWO: 24_000}, noise=0.005)).margin < 0.05


def test_much_noise_is_said():
    proposal = choose(samples({ONE: 20_000, TWO: 22_000}, noise=0.3, rounds=3))
    assert proposal.margin > 0.1
    assert proposal.layout == ONE
    assert any("quieter machine" in remark for remark in proposal.remarks)


def test_one_process_is_proposed_if_better_or_reported_if_equal():
    better = choose(samples({INLINE: 30_000, ONE: 20_000}))
    assert better.layout == INLINE
    assert better.settings["kproc.transport"] == "inline"
    assert any("67 % of it" in remark or "66 % of it" in remark for remark in better.remarks)
    equal = choose(samples({INLINE: 20_000, ONE: 20_000}))
    assert equal.layout == ONE
    assert any("is as fast here" in remark for remark in equal.remarks)


def test_failed_runs_are_shown_and_do_not_win():
    failed = Sample(FOUR, 0, 64, 8, failed="the broker ended")
    proposal = choose([*samples({ONE: 20_000}), failed])
    assert proposal.layout == ONE
    assert [each.failed for each in proposal.standings] == [None, "the broker ended"]
    with pytest.raises(NothingMeasured, match="the broker ended"):
        choose([failed])


@in_one_test("cpus", [0.5, 1, 1.5, 2, 3, 4, 8, 64])
def test_candidates_are_few_start_small_and_fit_the_machine(cpus):
    layouts = candidates(cpus)
    assert layouts[:3] == [INLINE, ProcessCounts(1, 1, "thread"), ONE]
    assert len(layouts) == len(set(layouts)) <= 8
    assert all(each.processes <= max(3, 2 * cpus) for each in layouts)
