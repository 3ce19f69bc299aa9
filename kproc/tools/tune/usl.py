"""The Universal Scalability Law, X(N) = gN / (1 + a(N-1) + bN(N-1)), fitted to measured throughputs.

    g   throughput of one     a   contention: the share that is done one at a time
    b   coherency: what each pays for every other    N* = sqrt((1-a)/b)   where throughput peaks

N/X = (1/g) + (a/g)(N-1) + (b/g)N(N-1) is linear in 1/g, a/g and b/g, none of which may be negative. Weighted by
X/N, what is minimised is the sum of squares of (fitted - measured) / fitted throughput, and the smallest such sum
over the eight choices of which coefficients are 0 is the optimum: no starting values, no iteration that could stick,
and no library that the base install lacks. Intervals are a residual bootstrap with a fixed seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any, Final

POINTS_MIN: Final = 6
"""Distinct N below which nothing is fitted: three parameters, and as many left to contradict them."""
RESIDUAL_MAX: Final = 0.10
SPREAD_MAX: Final = 3.0
BOOTSTRAP_ROUNDS: Final = 400
INTERVAL: Final = 0.95
_TINY: Final = 1e-12


class CannotFit(ValueError):
    """The points do not support a fit; the message says why."""


@dataclass(frozen=True)
class Point:
    """One measurement: `throughput` at `n`. `is_within_cores` is False where processes shared a core."""

    n: float
    throughput: float
    is_within_cores: bool = True


@dataclass(frozen=True)
class Law:
    """The three coefficients, and what follows from them."""

    g: float
    a: float
    b: float

    def throughput(self, n: float) -> float:
        """X(n)."""
        return self.g * n / (1 + self.a * (n - 1) + self.b * n * (n - 1))

    @property
    def peak_n(self) -> float:
        """N*, where throughput is greatest; infinite without coherency, at least 1."""
        if self.a >= 1:
            return 1.0
        return max(1.0, math.sqrt((1 - self.a) / self.b)) if self.b > _TINY else math.inf

    @property
    def peak_throughput(self) -> float:
        """X(N*); the limit g/a where there is no peak, infinite where nothing limits."""
        if math.isfinite(self.peak_n):
            return self.throughput(self.peak_n)
        return self.g / self.a if self.a > _TINY else math.inf


@dataclass(frozen=True)
class Fit:
    """A law with its evidence. `objections` says what the points do not support; empty is a sound fit."""

    law: Law
    points: tuple[Point, ...]
    residuals: tuple[float, ...]  # (measured - fitted) / fitted, a point each
    intervals: dict[str, tuple[float, float]]
    objections: tuple[str, ...] = field(default=())

    @property
    def is_supported(self) -> bool:
        """True when the parameters may be quoted."""
        return not self.objections

    @property
    def worst_residual(self) -> float:
        """The greatest deviation of a point, as a share of the fitted value."""
        return max(abs(each) for each in self.residuals)

    @property
    def r_squared(self) -> float:
        """Share of the variance of throughput that the law explains."""
        mean = sum(point.throughput for point in self.points) / len(self.points)
        total = sum((point.throughput - mean) ** 2 for point in self.points)
        left = sum((point.throughput - self.law.throughput(point.n)) ** 2 for point in self.points)
        return 1 - left / total if total > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON: infinite becomes None."""
        law = self.law
        return {
            "law": "X(N) = gN / (1 + a(N-1) + bN(N-1))",
            "g": law.g,
            "a": law.a,
            "b": law.b,
            "peak_n": _finite(law.peak_n),
            "peak_throughput": _finite(law.peak_throughput),
            "intervals_95": {
                name: [_finite(low), _finite(high)] for name, (low, high) in self.intervals.items()
            },
            "r_squared": self.r_squared,
            "worst_residual": self.worst_residual,
            "points": [
                {
                    "n": point.n,
                    "throughput": point.throughput,
                    "fitted": law.throughput(point.n),
                    "residual": residual,
                    "is_within_cores": point.is_within_cores,
                }
                for point, residual in zip(self.points, self.residuals, strict=True)
            ],
            "is_supported": self.is_supported,
            "objections": list(self.objections),
        }


def fit(points: Sequence[Point], *, seed: int = 1) -> Fit:
    """Fit the law; CannotFit with the reason where there are too few points to contradict it."""
    if any(not (math.isfinite(p.n) and p.n >= 1 and p.throughput > 0) for p in points):
        raise CannotFit("every point needs N of at least 1 and a throughput above 0")
    distinct = {point.n for point in points}
    if len(distinct) < POINTS_MIN:
        raise CannotFit(f"{len(distinct)} different N: the law has 3 parameters, {POINTS_MIN} are needed")
    ordered = tuple(sorted(points, key=lambda point: point.n))
    law = _solve(ordered)
    residuals = tuple(point.throughput / law.throughput(point.n) - 1 for point in ordered)
    intervals = _intervals(ordered, law, residuals, seed)
    objections = _objections(ordered, law, residuals, intervals)
    return Fit(law, ordered, residuals, intervals, tuple(objections))


def _solve(points: Sequence[Point]) -> Law:
    # The measured side is then 1 in every row.
    rows = [(w := p.throughput / p.n, w * (p.n - 1), w * p.n * (p.n - 1)) for p in points]
    best: tuple[float, list[float]] | None = None
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            if 0 not in chosen:
                continue  # 1/g = 0 would be endless throughput of one.
            solved = _least_squares([[row[i] for i in chosen] for row in rows])
            if solved is None or min(solved) < 0 or solved[0] <= 0:
                continue
            whole = [0.0, 0.0, 0.0]
            for i, value in zip(chosen, solved, strict=True):
                whole[i] = value
            error = sum((1 - sum(c * v for c, v in zip(row, whole, strict=True))) ** 2 for row in rows)
            if best is None or error < best[0]:
                best = error, whole
    assert best is not None, "one coefficient alone always has a solution"
    one, contention, coherency = best[1]
    return Law(1 / one, contention / one, coherency / one)


def _least_squares(rows: list[list[float]]) -> list[float] | None:
    """Coefficients that bring every row nearest to 1, by the normal equations of scaled columns; None if singular."""
    size = len(rows[0])
    scale = [math.sqrt(sum(row[i] ** 2 for row in rows)) or 1.0 for i in range(size)]
    scaled = [[value / scale[i] for i, value in enumerate(row)] for row in rows]
    matrix = [
        [sum(row[i] * row[j] for row in scaled) for j in range(size)] + [sum(row[i] for row in scaled)]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(matrix[r][column]))
        if abs(matrix[pivot][column]) < _TINY:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for other in range(size):
            if other != column:
                factor = matrix[other][column] / matrix[column][column]
                matrix[other] = [v - factor * u for v, u in zip(matrix[other], matrix[column], strict=True)]
    return [matrix[i][size] / matrix[i][i] / scale[i] for i in range(size)]


def _intervals(
    points: Sequence[Point], law: Law, residuals: Sequence[float], seed: int
) -> dict[str, tuple[float, float]]:
    # Residuals of a fit are smaller than the errors were, by the parameters it spent.
    grow = math.sqrt(len(points) / max(1, len(points) - 3))
    draw = random.Random(seed)  # noqa: S311 - a resampling, no secret
    laws = []
    for _ in range(BOOTSTRAP_ROUNDS):
        again = [
            Point(p.n, law.throughput(p.n) * max(0.05, 1 + grow * draw.choice(residuals))) for p in points
        ]
        laws.append(_solve(again))
    return {
        name: _middle([getattr(each, name) for each in laws])
        for name in ("g", "a", "b", "peak_n", "peak_throughput")
    }


def _middle(values: list[float]) -> tuple[float, float]:
    values.sort()
    cut = int(len(values) * (1 - INTERVAL) / 2)
    return values[cut], values[-1 - cut]


def _objections(
    points: Sequence[Point],
    law: Law,
    residuals: Sequence[float],
    intervals: dict[str, tuple[float, float]],
) -> list[str]:
    """What a reader must know before quoting a parameter."""
    found = []
    within = {point.n for point in points if point.is_within_cores}
    if len(within) < POINTS_MIN:
        found.append(
            f"only {len(within)} of {len({p.n for p in points})} different N had a core for each process: the others"
            " show how cores are shared, not how the broker scales"
        )
    worst = max(residuals, key=abs)
    if abs(worst) > RESIDUAL_MAX:
        at = points[list(residuals).index(worst)].n
        found.append(f"N={at:g} is {100 * worst:+.0f} % off the law: it does not describe these points")
    elif _runs_one_way(residuals):
        found.append("the residuals follow a curve of their own: the law misses something systematic")
    if law.a <= _TINY and law.b <= _TINY:
        found.append("no contention or coherency shows: throughput rose as fast as N, or faster")
    n_max = max(point.n for point in points)
    low, high = intervals["peak_n"]
    if low > n_max:
        found.append(f"no point lies beyond the peak (N* > {n_max:g}): where it is remains open")
    elif high > SPREAD_MAX * max(low, 1.0):
        upper = f"{high:.3g}" if math.isfinite(high) else "infinity"
        found.append(f"N* lies anywhere from {low:.3g} to {upper}: more points, or less noise, are needed")
    return found


def _runs_one_way(residuals: Sequence[float]) -> bool:
    """Signs in long runs although deviations matter: fewer than three runs in eight or more points."""
    signs = [each > 0 for each in residuals]
    runs = 1 + sum(a != b for a, b in pairwise(signs))
    return len(signs) >= 8 and runs <= 2 and max(map(abs, residuals)) > RESIDUAL_MAX / 3


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
