"""Choose the layouts to measure on a machine, and the one to propose from the measurements.

A layout is a transport with numbers of Processors and Handlers (ProcessCounts).
Two layouts differ if their means of log throughput differ by more than twice the standard error of a difference, and by
at least 3 %, because a smaller gain does not justify another process. The noise is estimated from the runs: it is the
residual after each layout's mean and each round's mean are subtracted. Among the layouts that do not differ
from the best, the proposal is one with the transport `process` if there is one, and of these that with the fewest
processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kproc.tools.tune.measure import PROCESS, ProcessCounts, Sample, bottleneck, middle

# The smallest relative difference in throughput that counts, even if the measured noise is lower.
WORTHWHILE: Final = 0.03
NOISY: Final = 0.10
ERRORS: Final = 2.0
CANDIDATES_MAX: Final = 8


class NothingMeasured(RuntimeError):
    """Every run of every layout failed. The message has the first reason."""


def candidates(cpus: float) -> list[ProcessCounts]:
    """Return up to CANDIDATES_MAX layouts for this many CPUs: inline, thread, and then those with processes."""
    whole = max(1, int(cpus))
    half, third = max(1, whole // 2), max(1, whole // 3)
    rest = max(1, whole - third)
    pairs = {(1, 1), (half, half), (third, rest), (rest, third)}
    if whole <= 2:
        pairs |= {(1, 2), (2, 1)}
    if whole >= 8:
        pairs.add((whole // 4, whole // 4))
    if whole >= 4:
        pairs.add((whole, whole))
    layouts = sorted((ProcessCounts(*pair) for pair in pairs), key=lambda each: (each.processes, each))
    return [ProcessCounts(1, 1, "inline"), ProcessCounts(1, 1, "thread"), *layouts][:CANDIDATES_MAX]


@dataclass(frozen=True)
class Standing:
    """Summary of a layout's runs: medians, lowest and highest throughput, and the bottleneck of the median run.

    ratio: throughput relative to the best layout. is_as_good: True if the difference to the best layout can be noise.
    """

    layout: ProcessCounts
    throughput: float
    low: float
    high: float
    p50_us: float
    p99_us: float
    cpu_us_per_request: float
    cores_used: float
    generator_cores: float
    bottleneck: str
    ratio: float
    is_as_good: bool
    failed: str | None = None

    def row(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return {**vars(self), "layout": str(self.layout)}


@dataclass(frozen=True)
class Proposal:
    """The proposed layout and its measurements. Relative differences of throughput below `margin` are noise."""

    layout: ProcessCounts
    margin: float
    standings: tuple[Standing, ...]
    remarks: tuple[str, ...]

    @property
    def settings(self) -> dict[str, str]:
        """Settings for the configuration file."""
        counts = {
            "num.network.threads": str(self.layout.processors),
            "num.io.threads": str(self.layout.handlers),
        }
        return {"kproc.transport": self.layout.transport, **counts}


def choose(samples: Sequence[Sample]) -> Proposal:
    """Return the proposal from the samples. Raise NothingMeasured if no sample succeeded."""
    good = [sample for sample in samples if sample.failed is None and sample.throughput > 0]
    if not good:
        reason = next((sample.failed for sample in samples if sample.failed), "there were no runs")
        raise NothingMeasured(f"no layout could be measured: {reason}")
    margin = _margin(good)
    layouts = sorted({sample.layout for sample in good}, key=lambda each: (each.processes, each))
    # Compare each sample with its round's mean, because a slow phase of the machine slows all layouts of a round.
    moods = {
        number: _mean(math.log(sample.throughput) for sample in good if sample.round == number)
        for number in {sample.round for sample in good}
    }
    means = {
        layout: _mean(math.log(s.throughput) - moods[s.round] for s in good if s.layout == layout)
        for layout in layouts
    }
    best = max(means.values())
    ratios = {layout: math.exp(mean - best) for layout, mean in means.items()}
    equal = {layout for layout, ratio in ratios.items() if ratio >= 1 - margin}
    processes = [layout for layout in layouts if layout.transport == PROCESS]
    # Among equally fast layouts prefer the process transport, because a fault of one role then ends only that role, and
    # then fewer processes, because each takes memory.
    chosen = min(equal, key=lambda each: (each.transport != PROCESS, each.processes, each))
    standings = [_standing(layout, good, ratios[layout], layout in equal) for layout in layouts]
    standings += _failures(samples, layouts)
    return Proposal(
        chosen, margin, tuple(standings), tuple(_remarks(chosen, equal, processes, ratios, standings, margin))
    )


def _margin(good: Sequence[Sample]) -> float:
    """Return twice the standard error of the difference between two layouts, relative to the throughput.

    It is at least 3 %, and 20 % with a single round, which has no estimate of noise.
    """
    layouts, rounds = {s.layout for s in good}, {s.round for s in good}
    if len(rounds) < 2:
        return 0.20
    values = {(s.layout, s.round): math.log(s.throughput) for s in good}
    whole = sum(values.values()) / len(values)
    by_layout = {each: _mean(v for (layout, _), v in values.items() if layout == each) for each in layouts}
    by_round = {each: _mean(v for (_, number), v in values.items() if number == each) for each in rounds}
    left = [v - by_layout[layout] - by_round[number] + whole for (layout, number), v in values.items()]
    freedom = max(1, (len(layouts) - 1) * (len(rounds) - 1))
    # The noise is the part of a result that layout and round do not explain: the residuals of a two-way analysis of
    # variance.
    deviation = math.sqrt(sum(each**2 for each in left) / freedom)
    return max(WORTHWHILE, ERRORS * deviation * math.sqrt(2 / len(rounds)))


def _mean(values: Any) -> float:
    kept = list(values)
    return math.fsum(kept) / len(kept)


def _standing(layout: ProcessCounts, good: Sequence[Sample], ratio: float, is_as_good: bool) -> Standing:
    mine = [sample for sample in good if sample.layout == layout]
    # Take the bottleneck from the run with the median throughput, because bottlenecks cannot be averaged.
    typical = sorted(mine, key=lambda each: each.throughput)[len(mine) // 2]
    return Standing(
        layout=layout,
        throughput=middle(each.throughput for each in mine),
        low=min(each.throughput for each in mine),
        high=max(each.throughput for each in mine),
        p50_us=middle(each.p50_us for each in mine),
        p99_us=middle(each.p99_us for each in mine),
        cpu_us_per_request=middle(1e6 * each.broker_cpu_s / max(1, each.requests) for each in mine),
        cores_used=middle(each.broker_cpu_s / each.seconds for each in mine),
        generator_cores=middle(each.generator_cpu_s / each.seconds for each in mine),
        bottleneck=bottleneck(typical),
        ratio=ratio,
        is_as_good=is_as_good,
    )


def _failures(samples: Sequence[Sample], measured: Sequence[ProcessCounts]) -> list[Standing]:
    rows = {}
    for sample in samples:
        if sample.failed is not None and sample.layout not in measured:
            rows[sample.layout] = Standing(
                sample.layout, 0, 0, 0, 0, 0, 0, 0, 0, "failed", 0, False, sample.failed
            )
    return list(rows.values())


def _remarks(
    chosen: ProcessCounts,
    equal: set[ProcessCounts],
    processes: Sequence[ProcessCounts],
    ratios: dict[ProcessCounts, float],
    standings: Sequence[Standing],
    margin: float,
) -> list[str]:
    said = []
    if margin > NOISY:
        said.append(
            f"layouts less than {100 * margin:.0f} % apart cannot be told from each other: a quieter machine, more"
            " --rounds or longer --seconds would show more"
        )
    same = [layout for layout in processes if layout in equal and layout != chosen]
    if chosen.transport != PROCESS:
        nearest = max((ratios[layout] for layout in processes), default=0.0)
        said.append(
            f"{chosen} is better on this machine: the best layout with processes reaches {100 * nearest:.0f} % of it."
            " With it a fault of one role ends the broker, and more CPUs will not help"
        )
    elif same:
        names = ", ".join(str(layout) for layout in same)
        said.append(
            f"{names} differ from it by no more than noise: the one with the fewest processes is proposed"
        )
    others = [layout for layout in sorted(equal) if chosen.transport == PROCESS != layout.transport]
    said += [
        f"{layout}, one process, is as fast here and needs less memory, but a fault of one role ends the broker"
        for layout in others
    ]
    mine = next(each for each in standings if each.layout == chosen)
    if mine.bottleneck.startswith("generator"):
        said.append("the load generator used all of its CPU time: the broker can handle a higher load")
    if mine.generator_cores > 0.1:
        said.append(
            f"the generator took {mine.generator_cores:.2f} cores of the same machine; clients elsewhere leave them to"
            " the broker"
        )
    return said
