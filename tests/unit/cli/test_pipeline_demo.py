"""The demo's picture is left out where matplotlib is not there: `.[spark]` does not bring it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from kproc.cli import pipeline_demo
from kproc.pipeline import session
from tests.support.command_line import call_kproc


def test_demo_without_matplotlib_prints_hint_without_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name, *rest)
    )
    for name in ("check_packages", "check_java"):
        monkeypatch.setattr(session, name, lambda *_: None)
    result = SimpleNamespace(reports={}, sent=[(1.0, 10_000)], checks=[], late_rows=0)
    monkeypatch.setattr(pipeline_demo, "_run", lambda *_, **__: (result, 2.0))

    def drawn(*_: Any) -> None:
        raise AssertionError("there is nothing to draw with")

    monkeypatch.setattr(pipeline_demo, "_draw", drawn)
    done = call_kproc(capsys, "pipeline", "demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no picture: matplotlib is not installed\n")
    assert "every figure is what numpy counts" in done.stdout

    done = call_kproc(capsys, "pipeline", "demo", "--picture", "mine.png")
    assert (done.returncode, done.stderr) == (
        1,
        "kproc: --picture needs matplotlib: pip install matplotlib\n",
    )
