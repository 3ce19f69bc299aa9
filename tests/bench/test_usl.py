"""The fit of the Universal Scalability Law finds what made the points, and says when they do not support it."""

from __future__ import annotations

import math
import random

import pytest

from bench.usl import CannotFit, Law, Point, fit

KNOWN = Law(g=1000.0, a=0.04, b=0.002)
SIZES = (1, 2, 4, 8, 16, 24, 32, 48)


def points(law: Law = KNOWN, sizes=SIZES, noise: float = 0.0, seed: int = 7, repeats: int = 1) -> list[Point]:
    draw = random.Random(seed)
    return [Point(n, law.throughput(n) * (1 + draw.gauss(0, noise))) for n in sizes for _ in range(repeats)]


def test_points_without_noise_give_back_the_parameters():
    found = fit(points())
    assert (found.law.g, found.law.a, found.law.b) == pytest.approx((KNOWN.g, KNOWN.a, KNOWN.b), rel=1e-9)
    assert found.law.peak_n == pytest.approx(math.sqrt(0.96 / 0.002))
    assert found.worst_residual < 1e-9
    assert found.is_supported


@pytest.mark.parametrize("seed", range(5))
def test_two_percent_noise_keeps_truth_inside_intervals(seed):
    found = fit(points(noise=0.02, seed=seed, repeats=5), seed=seed)
    for name in ("g", "a", "b", "peak_n"):
        low, high = found.intervals[name]
        # 95 % of intervals hold the truth; a tenth of slack keeps the other 5 % of seeds from being a coin toss.
        assert low * 0.9 <= getattr(KNOWN, name) <= high * 1.1, name
    assert found.law.peak_n == pytest.approx(KNOWN.peak_n, rel=0.15)
    assert found.is_supported, found.objections


@pytest.mark.parametrize("count", range(6))
def test_fewer_than_six_different_n_are_rejected(count):
    with pytest.raises(CannotFit, match=rf"{count} different N.*6 are needed"):
        fit(points(sizes=SIZES[:count], repeats=10))


@pytest.mark.parametrize("bad", [Point(2, 0.0), Point(0, 10.0), Point(3, -1.0), Point(math.nan, 1.0)])
def test_impossible_points_are_refused(bad):
    with pytest.raises(CannotFit, match="above 0"):
        fit([*points(), bad])


def test_parameters_never_become_negative():
    faster_than_linear = [Point(n, 100 * n**1.2) for n in SIZES]
    law = fit(faster_than_linear).law
    assert law.a == 0.0
    assert law.b == 0.0


def test_usl_fit_without_coherency_has_no_peak():
    found = fit(points(Law(1000, 0.2, 0.0)))
    assert found.law.b == pytest.approx(0, abs=1e-9)
    assert found.law.peak_n == math.inf or found.law.peak_n > 1e4
    assert not found.is_supported
    assert found.as_dict()["objections"]


def test_points_beyond_the_cores_support_nothing():
    flat = [Point(n, p.throughput, is_within_cores=n <= 2) for n, p in zip(SIZES, points(), strict=True)]
    found = fit(flat)
    assert not found.is_supported
    assert "only 2 of 8" in found.objections[0]


def test_points_that_are_no_such_law_are_named():
    crooked = points()
    crooked[4] = Point(16, crooked[4].throughput * 2)
    found = fit(crooked)
    assert any("N=16" in each for each in found.objections)


def test_a_peak_beyond_the_points_is_not_claimed():
    found = fit(points(Law(1000, 0.01, 1e-5), sizes=(1, 2, 3, 4, 5, 6, 7, 8)))
    assert any("no point lies beyond the peak" in each for each in found.objections)


def test_no_other_coefficients_do_better():
    """The solution is the optimum of what it minimises: nudging any coefficient makes it worse."""
    measured = points(noise=0.05, repeats=3)
    law = fit(measured).law

    def error(candidate: Law) -> float:
        return sum((1 - p.throughput / candidate.throughput(p.n)) ** 2 for p in measured)

    best = error(law)
    for factor in (0.98, 1.02):
        for name in ("g", "a", "b"):
            nudged = Law(**{**vars(law), name: getattr(law, name) * factor})
            assert error(nudged) > best, (name, factor)


def test_intervals_do_not_depend_on_the_day():
    assert fit(points(noise=0.03)).intervals == fit(points(noise=0.03)).intervals
