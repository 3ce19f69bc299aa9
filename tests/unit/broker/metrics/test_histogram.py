"""Histograms: every value has one bucket, and what is read back is right to a quarter."""

from __future__ import annotations

import random

import pytest

from kproc.broker.metrics.histogram import BUCKETS, HISTOGRAM_WORDS, Histogram, add, bucket_of, lower_bound


def words() -> memoryview:
    return memoryview(bytearray(8 * HISTOGRAM_WORDS)).cast("Q")


def filled(values: list[int]) -> Histogram:
    shared = words()
    for value in values:
        add(shared, 0, value)
    histogram = Histogram()
    histogram.add(shared)
    return histogram


def test_buckets_follow_each_other_without_a_gap() -> None:
    for bucket in range(BUCKETS - 1):
        low, end = lower_bound(bucket), lower_bound(bucket + 1)
        assert bucket_of(low) == bucket_of(end - 1) == bucket
        assert bucket_of(end) == bucket + 1
        assert end - low <= max(1, low // 4)


def test_more_than_an_hour_is_counted_in_the_last_bucket() -> None:
    hour_us = 3_600_000_000
    assert bucket_of(hour_us) < BUCKETS - 1
    assert bucket_of(1 << 40) == BUCKETS - 1
    assert filled([1 << 40]).count == 1


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_quantiles_are_right_to_a_quarter(share: float) -> None:
    numbers = random.Random(1)
    values = sorted(int(numbers.lognormvariate(6, 1.5)) for _ in range(10_000))
    exact = values[int(share * len(values))]
    assert filled(values).quantile(share) == pytest.approx(exact, rel=0.25)


def test_sum_count_and_largest_are_exact() -> None:
    values = [0, 3, 17, 4_000, 123_456]
    histogram = filled(values)
    assert (histogram.count, histogram.total, histogram.largest) == (5, sum(values), 123_456)
    assert histogram.mean == sum(values) / 5
    assert histogram.quantile(1.0) == 123_456, "no quantile is larger than the largest value"
    assert Histogram().quantile(0.99) == Histogram().mean == 0.0


def test_several_add_up_and_an_earlier_look_can_be_taken_away() -> None:
    first = filled([1, 10, 100])
    both = filled([1, 10, 100])
    shared = words()
    add(shared, 0, 1000)
    both.add(shared)
    assert (both.count, both.total, both.largest) == (4, 1111, 1000)
    news = both.since(first)
    assert (news.count, news.total) == (1, 1000)
    assert 750 < news.quantile(0.5) <= 1024


def test_counts_below_bounds_are_cumulative() -> None:
    histogram = filled([0, 1, 15, 16, 1023, 1024, 5_000_000])
    assert histogram.below([16, 1024, 1 << 20]) == [3, 5, 6]
