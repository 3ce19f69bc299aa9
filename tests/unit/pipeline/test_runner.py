"""A run of a pipeline as far as it goes without Spark: how it takes reports, and a signal while Spark starts."""

from __future__ import annotations

import json
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
from kproc.pipeline.spec import Outside, parse_spec

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
            except (runner.Stopped, PipelineError):
                continue
        raise problem("Spark did not start: An error occurred while calling o37.get")

    monkeypatch.setattr(runner, "check_packages", lambda: None)
    monkeypatch.setattr(runner, "check_java", lambda _environ: None)
    monkeypatch.setattr(runner, "source_warnings", lambda _pipeline, _away: [])
    monkeypatch.setattr(runner, "start_spark", start_spark)
    run, notes = run_of(tmp_path)
    run.run()
    assert notes.notes[-2:] == ["starting Spark (8-15 s)", "stopped before it began"]

    # Without a signal it is one.
    signals = 0
    with pytest.raises(problem, match="Spark did not start"):
        run.run()


def test_a_broker_that_is_away_is_told_of_before_spark_starts(
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


class Progress:
    def __init__(self, number: int) -> None:
        self._row = {"timestamp": f"2026-01-01T00:00:{number:02d}.000Z", "batchId": number}

    def timestamp(self) -> str:
        return str(self._row["timestamp"])

    def json(self) -> str:
        return json.dumps(self._row)


class JavaQuery:
    """Spark's query in the JVM, and how often all of its reports were fetched."""

    def __init__(self) -> None:
        self.reports: list[Progress] = []
        self.fetches = 0

    def lastProgress(self) -> Progress | None:
        return self.reports[-1] if self.reports else None

    def recentProgress(self) -> list[Progress]:
        self.fetches += 1
        return self.reports


def test_reports_are_fetched_once_and_in_order(tmp_path: Path) -> None:
    run, _ = run_of(tmp_path)
    java = JavaQuery()
    query = runner._Query(None, None, SimpleNamespace(_jsq=java), None)  # type: ignore[arg-type]
    assert run._new_rows(query) == []
    java.reports = [Progress(1), Progress(2)]
    assert [row["batchId"] for row in run._new_rows(query)] == [1, 2]
    assert run._new_rows(query) == []
    assert java.fetches == 1
    java.reports.append(Progress(3))
    assert [row["batchId"] for row in run._new_rows(query)] == [3]


def test_queries_that_wait_are_looked_at_seldom_until_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = run_of(tmp_path)
    states = [*["waiting"] * 12, "working", "waiting", "ended"]
    figures = SimpleNamespace(name="q", state="", batch=1, rows=0)
    entry: Any = SimpleNamespace(figures=figures, sink=SimpleNamespace(name="q"), waits_for_broker=False)
    waits: list[float] = []

    def collect() -> None:
        figures.state = states[min(len(waits), len(states) - 1)]
        entry.is_active = figures.state != "ended"

    monkeypatch.setattr(run, "_queries", [entry])
    monkeypatch.setattr(run, "_collect", collect)
    monkeypatch.setattr(run, "_raise_failure", lambda signals: None)
    run._watch(SimpleNamespace(count=0, wait=waits.append))  # type: ignore[arg-type]
    assert waits == [0.25] * 8 + [1.0] * 4 + [0.25] * 2
