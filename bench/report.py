"""Raw samples to tables: medians, spread, and ratios paired within a round.

A ratio is taken between two brokers in the same round and only then summarised: what the machine did in that
round hits both, so the ratio scatters less than either figure. A cell that failed is shown as failed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.cells import BY_NAME, Cell, Metric

YARDSTICK = "kafka"
JUDGED = "process-group"  # the broker whose goals the cells hold


@dataclass(frozen=True)
class Sample:
    """One broker in one cell in one round; `failed` instead of a result when it did not answer rightly."""

    cell: str
    peer: str
    round: int
    result: dict[str, Any] | None
    failed: str | None = None


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some rounds."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1], len(found)) if found else None

    def __str__(self) -> str:
        if self.count == 1:
            return short(self.median)
        return f"{short(self.median)} [{short(self.low)}-{short(self.high)}]"


def short(value: float) -> str:
    """Three significant digits, or whole numbers: nobody believes more."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


class Results:
    """All samples of a comparison, looked up by cell, peer and round."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = {(one.cell, one.peer, one.round): one for one in samples}
        self.rounds = sorted({one.round for one in samples})

    def values(self, metric: Metric, cell: str, peer: str) -> dict[int, float]:
        """Round to value, for the rounds that have one."""
        found = {}
        for number in self.rounds:
            sample = self._samples.get((cell, peer, number))
            value = metric.read(sample.result) if sample and sample.result else None
            if value is not None:
                found[number] = value
        return found

    def ratios(self, metric: Metric, cell: str, peer: str) -> list[float]:
        """To the yardstick, within each round that has both."""
        own, base = self.values(metric, cell, peer), self.values(metric, cell, YARDSTICK)
        return [own[number] / base[number] for number in own if base.get(number)]

    def failures(self, cell: str, peer: str) -> list[str]:
        """Why this peer has no figure in some rounds."""
        found = [self._samples.get((cell, peer, number)) for number in self.rounds]
        return [one.failed for one in found if one and one.failed]


def markdown(results: Results, cells: Sequence[str], peers: Sequence[str], about: dict[str, Any]) -> str:
    """The whole report."""
    lines = [*_head(about), ""]
    lines += ["| cell | metric | " + " | ".join(_title(peer) for peer in peers) + " | goal |"]
    lines += ["|" + "---|" * (len(peers) + 3)]
    for name in cells:
        cell = BY_NAME[name]
        for metric in cell.metrics:
            lines.append(_row(results, cell, metric, peers))
    lines += ["", *_cell_notes(cells), *_failure_notes(results, cells, peers)]
    return "\n".join(lines) + "\n"


def _title(peer: str) -> str:
    return peer if peer == YARDSTICK else f"kproc {peer} (x {YARDSTICK})"


def _row(results: Results, cell: Cell, metric: Metric, peers: Sequence[str]) -> str:
    columns = []
    for peer in peers:
        spread = Spread.of(results.values(metric, cell.name, peer).values())
        text = str(spread) if spread else "failed" if results.failures(cell.name, peer) else "-"
        ratio = Spread.of(results.ratios(metric, cell.name, peer)) if peer != YARDSTICK else None
        columns.append(f"{text} ({ratio})" if ratio else text)
    arrow = "more" if metric.is_higher_better else "less"
    head = f"{cell.name} | {metric.name}, {metric.unit} ({arrow})"
    return f"| {head} | {' | '.join(columns)} | {_verdict(results, cell, metric, peers)} |"


def _verdict(results: Results, cell: Cell, metric: Metric, peers: Sequence[str]) -> str:
    """The goal, and whether the judged broker's median meets it."""
    if metric.wanted is None:
        return ""
    sign = ">=" if metric.is_higher_better else "<="
    bound = metric.wanted.ratio if metric.wanted.ratio is not None else metric.wanted.absolute
    assert bound is not None, "a goal is a ratio or a bound"
    goal = f"{sign} {bound:g}{'x' if metric.wanted.ratio is not None else ''}"
    if JUDGED not in peers:
        return goal
    if metric.wanted.ratio is not None:
        spread = Spread.of(results.ratios(metric, cell.name, JUDGED))
    else:
        spread = Spread.of(results.values(metric, cell.name, JUDGED).values())
    if spread is None:
        return f"{goal}: no figure"
    is_met = spread.median >= bound if metric.is_higher_better else spread.median <= bound
    return f"{goal}: {'met' if is_met else '**missed**'}"


def _head(about: dict[str, Any]) -> list[str]:
    changes = " with local changes" if about["has_local_changes"] else ""
    where = (
        f"Commit {about['commit']}{changes} · {about['cpu']}, {about['cores']} cores, "
        f"{about['memory_gb']} GB · Linux {about['kernel']} · Python {about['python']} · {about['java']}."
    )
    how = (
        f"Load generator and broker share these cores. {about['seconds']} s measured after "
        f"{about['warmup']} s of warm-up in each run. Median [smallest-largest] over the rounds; in "
        f"parentheses the ratio to {YARDSTICK}, paired within each round. `group` answers acks=all after "
        f"fdatasync; `none`, like {YARDSTICK} by default, does not."
    )
    lines = [f"# {about['rounds']} interleaved rounds, {about['time']}", "", where, "", how]
    if not about["is_quiet"]:
        lines += [
            "",
            f"**Not a quiet machine (load {about['load_before']} at the start): not to be quoted.**",
        ]
    return lines


def _cell_notes(cells: Sequence[str]) -> list[str]:
    notes = []
    for name in cells:
        loop = f" ({BY_NAME[name].loop} loop)" if BY_NAME[name].loop else ""
        notes.append(f"- {name}: {BY_NAME[name].title}{loop}")
    return notes


def _failure_notes(results: Results, cells: Sequence[str], peers: Sequence[str]) -> list[str]:
    lines = []
    for cell in cells:
        for peer in peers:
            found = results.failures(cell, peer)
            if found:
                share = f"{len(found)} of {len(results.rounds)} rounds"
                lines.append(f"- **{cell}, {peer}: failed in {share}**: {found[0]}")
    return ["", *lines] if lines else []
