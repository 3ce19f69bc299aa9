"""The help of each benchmark fits a terminal and has groups, placeholders, examples and exit codes."""

from __future__ import annotations

import importlib

import pytest

from kproc.cli.examples import example_lines


@pytest.mark.parametrize("name", ["compare", "report", "simulate", "sweep"])
def test_help_of_benchmark_has_examples_and_exit_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"bench.{name}").parse(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "exit codes: 0 done" in shown
    for line in example_lines(f"bench {name}"):
        assert f"  {line}\n" in shown
