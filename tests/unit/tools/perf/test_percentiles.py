"""Percentiles of times, against the sorted times themselves."""

from __future__ import annotations

import random

from kproc.tools.perf.percentiles import Percentiles


def of(times: list[int]) -> Percentiles:
    percentiles = Percentiles()
    for each in times:
        percentiles.add(each)
    return percentiles


def test_quantiles_are_at_most_one_percent_above_the_sorted_time() -> None:
    draw = random.Random(1)
    times = [int(10 ** draw.uniform(0, 10)) for _ in range(5000)]
    percentiles = of(times)
    ordered = sorted(times)
    for share in (0.001, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = ordered[max(1, -(-int(share * 1000) * len(times) // 1000)) - 1]
        assert exact <= percentiles.quantile_ns(share) <= exact * 1.01
    assert percentiles.quantile_ns(1.0) == ordered[-1]


def test_smallest_mean_and_largest_time_are_exact() -> None:
    ms = of([1_000_000, 2_000_000, 6_000_000]).in_ms()
    assert (ms["min"], ms["mean"], ms["max"]) == (1.0, 3.0, 6.0)
    assert list(ms) == ["min", "mean", "p50", "p90", "p99", "p999", "max"]


def test_merged_times_give_the_percentiles_of_all() -> None:
    whole = Percentiles()
    for part in ([5, 900, 70_000], [], [3, 10**9]):
        whole.merge(of(part))
    expected = of([5, 900, 70_000, 3, 10**9])
    assert whole.in_ms() == expected.in_ms()
    assert whole.count == 5


def test_percentiles_without_a_time_are_zero() -> None:
    assert set(Percentiles().in_ms().values()) == {0.0}


def test_memory_is_bounded() -> None:
    percentiles = of([1 << shift | low for shift in range(60) for low in range(0, 4096, 7)])
    assert len(percentiles._buckets) < 60 * 256
