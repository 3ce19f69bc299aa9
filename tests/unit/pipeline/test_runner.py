"""A run of a pipeline as far as it goes without Spark: how often it looks, and a signal while Spark starts."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("py4j")

from py4j.protocol import Py4JError

from kproc.pipeline import runner
from kproc.pipeline.errors import PipelineError
from kproc.pipeline.running_query import RunningQuery
from kproc.pipeline.spec import Outside, parse_spec
from kproc.pipeline.stop_signals import Stopped

SPEC = """
pipeline = { name = "p", checkpoint = "state" }
source = [{ name = "lines", topic = "words" }]
sink = [{ name = "screen", input = "lines", console = true }]
"""


class Notes:
    """A screen that keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def print_note(self, text: str) -> None:
        self.notes.append(text)


def run_of(tmp_path: Path) -> tuple[runner.PipelineRun, Notes]:
    notes = Notes()
    return runner.PipelineRun(parse_spec(SPEC, tmp_path / "p.toml"), notes, {}), notes  # type: ignore[arg-type]


@pytest.mark.parametrize("problem", [PipelineError, Py4JError])
@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_while_spark_starts_is_no_failure_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: int, problem: type[Exception]
) -> None:
    def start_spark(*_: Any, **__: Any) -> None:
        # py4j turns whatever is raised inside its calls into an error of its own.
        for _number in range(signals):
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except (Stopped, PipelineError):
                continue
        raise problem("Spark did not start: An error occurred while calling o37.get")

    monkeypatch.setattr(runner, "check_packages", lambda: None)
    monkeypatch.setattr(runner, "check_java", lambda _environ: None)
    monkeypatch.setattr(runner, "source_warnings", lambda _pipeline, _away: [])
    monkeypatch.setattr(runner, "start_spark", start_spark)
    run, notes = run_of(tmp_path)
    run.run()
    assert notes.notes[-2:] == ["starting Spark (8-15 s)", "stopped before the first query began"]

    # Without a signal it is one.
    signals = 0
    with pytest.raises(problem, match="Spark did not start"):
        run.run()


def test_missing_broker_is_reported_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_spark(*_: Any, **__: Any) -> None:
        raise PipelineError("far enough")

    monkeypatch.setattr(runner, "check_packages", lambda: None)
    monkeypatch.setattr(runner, "check_java", lambda _environ: None)
    monkeypatch.setattr(runner, "start_spark", start_spark)
    notes = Notes()
    pipeline = parse_spec(SPEC, tmp_path / "p.toml", Outside(bootstrap="127.0.0.1:1"))
    with pytest.raises(PipelineError, match="far enough"):
        runner.PipelineRun(pipeline, notes, {}).run()  # type: ignore[arg-type]
    warning, starting = notes.notes
    assert warning == "cannot connect to 127.0.0.1:1: connection refused; waiting for it"
    assert starting == "starting Spark (8-15 s)"


def test_queries_that_wait_are_looked_at_seldom_until_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = run_of(tmp_path)
    states = [*["waiting"] * 12, "working", "waiting", "ended"]
    figures = SimpleNamespace(name="q", state="", batch=1, rows=0)
    query = SimpleNamespace(isActive=True)
    entry = RunningQuery(None, None, query, figures)  # type: ignore[arg-type]
    waits: list[float] = []

    def collect() -> None:
        figures.state = states[min(len(waits), len(states) - 1)]
        query.isActive = figures.state != "ended"

    monkeypatch.setattr(run, "_queries", [entry])
    monkeypatch.setattr(run, "_collect", collect)
    monkeypatch.setattr(run, "_raise_failure", lambda signals: None)
    run._watch(SimpleNamespace(count=0, wait=waits.append))  # type: ignore[arg-type]
    assert waits == [0.25] * 8 + [1.0] * 4 + [0.25] * 2
