"""The example draws no picture without matplotlib, which `.[spark]` does not bring."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from examples.clicks import __main__ as example
from kproc.pipeline import session


def test_example_without_matplotlib_draws_no_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name, *rest)
    )
    for name in ("check_packages", "check_java"):
        monkeypatch.setattr(session, name, lambda *_: None)
    result = SimpleNamespace(reports={}, sent=[(1.0, 10_000)], checks=[], late_rows=0, seconds={"all": 2.0})
    monkeypatch.setattr(example, "_run", lambda *_: result)

    def drawn(*_: Any) -> None:
        raise AssertionError("there is nothing to draw with")

    monkeypatch.setattr(example, "_draw", drawn)
    assert example.main([]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("no picture: matplotlib is not installed\n")
    assert "every figure is what numpy counts" in printed.out

    assert example.main(["--picture", "mine.png"]) == 1
    assert capsys.readouterr().err == "kproc: --picture needs matplotlib: pip install matplotlib\n"
