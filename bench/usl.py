"""Fit of Gunther's Universal Scalability Law, X(N) = gN / (1 + a(N-1) + bN(N-1)), to measured throughputs.

    g   throughput for N = 1                                  a   contention: the serial share of the work
    b   coherency: the cost of each pair of participants      N* = sqrt((1-a)/b), where throughput peaks

N/X = (1/g) + (a/g)(N-1) + (b/g)N(N-1) is linear in 1/g, a/g and b/g, none of which may be negative. With rows weighted
by X/N, least squares minimises the sum of squares of the relative deviation. The fit tries every choice of coefficients
that are 0 and takes the smallest sum. This gives the optimum without starting values, iteration or a library.
Intervals come from a residual bootstrap with a fixed seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any, Final

POINTS_MIN: Final = 6
"""Least number of distinct N for a fit: three for the parameters, and three to contradict them."""
RESIDUAL_MAX: Final = 0.10
SPREAD_MAX: Final = 3.0
BOOTSTRAP_ROUNDS: Final = 400
INTERVAL: Final = 0.95
_TINY: Final = 1e-12


class CannotFit(ValueError):
    """The points do not support a fit. The message has the reason."""


@dataclass(frozen=True)
class Point:
    """One measurement: `throughput` at `n`. `is_within_cores` is False where processes shared a core."""

    n: float
    throughput: float
    is_within_cores: bool = True


@dataclass(frozen=True)
class Law:
    """The three coefficients of the law."""

    g: float
    a: float
    b: float

    def throughput(self, n: float) -> float:
        """Return X(n)."""
        return self.g * n / (1 + self.a * (n - 1) + self.b * n * (n - 1))

    @property
    def peak_n(self) -> float:
        """N*, where throughput peaks. It is at least 1, and infinite without coherency."""
        if self.a >= 1:
            return 1.0
        return max(1.0, math.sqrt((1 - self.a) / self.b)) if self.b > _TINY else math.inf

    @property
    def peak_throughput(self) -> float:
        """X(N*), or the limit g/a if there is no peak, or infinity without contention and coherency."""
        if math.isfinite(self.peak_n):
            return self.throughput(self.peak_n)
        return self.g / self.a if self.a > _TINY else math.inf


@dataclass(frozen=True)
class Fit:
    """A fitted law with its evidence. `objections` are reasons against the fit; a sound fit has none."""

    law: Law
    points: tuple[Point, ...]
    residuals: tuple[float, ...]  # (measured - fitted) / fitted for each point
    intervals: dict[str, tuple[float, float]]
    objections: tuple[str, ...] = field(default=())

    @property
    def is_supported(self) -> bool:
        """True if there are no objections, so that the parameters can be quoted."""
        return not self.objections

    @property
    def worst_residual(self) -> float:
        """Largest deviation of a point, as a share of the fitted value."""
        return max(abs(each) for each in self.residuals)

    @property
    def r_squared(self) -> float:
        """Share of the variance of throughput that the law explains."""
        mean = sum(point.throughput for point in self.points) / len(self.points)
        total = sum((point.throughput - mean) ** 2 for point in self.points)
        left = sum((point.throughput - self.law.throughput(point.n)) ** 2 for point in self.points)
        return 1 - left / total if total > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the fit for JSON. Infinity becomes None."""
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
    """Fit the law. Raise CannotFit if a point is invalid or there are fewer than POINTS_MIN distinct N."""
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
    # Multiply each row by X/N, so that its right-hand side is 1.
    rows = [(w := p.throughput / p.n, w * (p.n - 1), w * p.n * (p.n - 1)) for p in points]
    best: tuple[float, list[float]] | None = None
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            if 0 not in chosen:
                # 1/g = 0 would mean infinite throughput for N = 1.
                continue
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
    """Return the least-squares solution of rows * x = 1, by normal equations of scaled columns. None if singular."""
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
    # A fit with three parameters has smaller residuals than the true errors. Scale them up by the degrees of freedom.
    grow = math.sqrt(len(points) / max(1, len(points) - 3))
    draw = random.Random(seed)
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
    """Return the reasons why the parameters should not be quoted."""
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
    """Return True if the residuals show a trend: at most two runs of equal signs in eight or more points.

    Residuals of at most a third of RESIDUAL_MAX are ignored.
    """
    signs = [each > 0 for each in residuals]
    runs = 1 + sum(a != b for a, b in pairwise(signs))
    return len(signs) >= 8 and runs <= 2 and max(map(abs, residuals)) > RESIDUAL_MAX / 3


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
