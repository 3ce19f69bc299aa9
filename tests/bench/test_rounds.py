"""A whole comparison on a clock of its own: no broker runs, every run takes what it is thought to take, or more."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from bench import compare
from bench.budget import Budget, Step
from bench.compare import REPORT_SECONDS, START, Comparison, parse
from bench.peers.registry import PEERS
from bench.samples import Samples
from bench.workloads import BY_NAME, CELLS

SLACK_SECONDS = 10.0
"""A run is known to be slow when it is over."""


class Machine:
    """Takes time instead of measuring: `slowness` times what the plan says."""

    def __init__(self, slowness: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._slowness = slowness
        kinds = {name: dataclasses.replace(kind, missing=lambda: None) for name, kind in PEERS.items()}
        kinds["free-threaded-group"] = dataclasses.replace(
            kinds["free-threaded-group"], missing=lambda: "none"
        )
        monkeypatch.setattr(compare, "PEERS", kinds)
        monkeypatch.setattr(compare, "time", self)
        monkeypatch.setattr(compare, "ALONE", {"partitions": self._alone, "work": self._alone})
        monkeypatch.setattr(
            Comparison, "_footprint", lambda _, name, number: self._footprint(_, name, number)
        )
        monkeypatch.setattr(
            Comparison, "_load", lambda _, cell, name, peer, number: self._load(_, cell, name, number)
        )
        monkeypatch.setattr(Comparison, "_start_all", lambda _, stack, number: self._start_all(_))
        monkeypatch.setattr(Comparison, "_keep", lambda _: None)

    def monotonic(self) -> float:
        return self.now

    def _take(self, step: Step, seconds: float) -> None:
        self.now += self._slowness * Budget(0, 1.0, 0.25, self.monotonic).cost([step], seconds)

    def _footprint(self, comparison: Comparison, name: str, number: int) -> None:
        for cell in comparison._footprints:
            self._take(Step(cell, name), 0)
            comparison.samples.add(compare.Sample(cell, name, number, {}))

    def _alone(self, kind: Any, cell: Any, run: Any) -> dict[str, Any]:
        self._take(Step(cell, kind.name), run.seconds)
        return {}

    def _start_all(self, comparison: Comparison) -> dict[str, Any]:
        for name in comparison._peers:
            self._take(Step(START, name), 0)
        return dict.fromkeys(comparison._peers)

    def _load(self, comparison: Comparison, cell: Any, name: str, number: int) -> None:
        self._take(Step(cell, name), comparison._seconds)
        comparison.samples.add(compare.Sample(cell, name, number, {}))


@pytest.mark.parametrize(
    "slowness", [pytest.param(0.7, marks=pytest.mark.long), 1.0, pytest.param(1.3, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("arguments", [["--quick"], []], ids=["quick", "full"])
def test_comparison_runs_every_cell_on_every_peer_in_time(
    arguments: list[str], slowness: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(slowness, monkeypatch)
    options = parse([*arguments, "--out", str(tmp_path)])
    budget = Budget(60 * options.minutes, options.seconds, options.warmup, machine.monotonic)
    samples = Samples({}, is_quick=options.quick)
    with Progress(disable=True) as progress:
        comparison = Comparison(options, samples, budget, progress)
        comparison.choose_peers()
        comparison.run()
    assert budget.left >= REPORT_SECONDS - SLACK_SECONDS
    asked = Counter((each.cell.name, each.peer) for each in samples.kept)
    wanted = {(step.cell.name, step.peer) for step in comparison.steps() if step.cell is not START}
    missing = {(cell, "free-threaded-group") for cell in options.cells}
    assert asked.keys() - missing >= wanted
    again = Counter((each.cell.name, each.peer, each.round) for each in samples.kept)
    assert set(again.values()) == {1}, "a cell was asked twice in one round"
    left_out = {each.cell.name for each in samples.kept if each.empty == "the time was up"}
    if slowness <= 1:
        assert not left_out
        twice = {each.cell.name for each in samples.kept if each.round == 2}
        wanted_twice = {each.name for each in CELLS if each.is_core and each.name in options.cells}
        assert wanted_twice - ({"partitions-2000"} if options.quick else set()) <= twice
    assert not {name for name in left_out if BY_NAME[name].is_core}
