"""Each small benchmark runs once, in its quick form, so that it cannot rot; its figures mean nothing here."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench import oneway, timing
from bench.peers import free_threaded
from tests.support.wait import PATIENCE_SECONDS

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = sorted(
    f"bench.{directory}.{path.stem}"
    for directory in ("micro", "alternatives")
    for path in (ROOT / "bench" / directory).glob("[a-z]*.py")
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("module", MODULES)
def test_small_benchmark_quick_form_checks_its_work(module: str) -> None:
    answer = run(module, "--quick")
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert len(lines) >= 2
    for line in lines:
        assert re.search(r" \d+\.\d\d us  \(one short run: no measurement\)$", line), line


@pytest.mark.parametrize("module", MODULES)
def test_small_benchmark_draws_topology_and_runs_one_request(module: str) -> None:
    path = ROOT / Path(*module.split(".")).with_suffix(".py")
    # What --help prints.
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert "-->" in text
    assert text.count("The question:") == 1


def test_holdings_are_shown_for_each_kind_of_thing() -> None:
    answer = run("bench.holdings", "--count", "2", "--seconds", "0.1")
    assert answer.returncode == 0, answer.stderr
    assert len(answer.stdout.splitlines()) == 6


def test_pass_costs_have_a_positive_count_in_each_row() -> None:
    answer = run("bench.pass_costs")
    assert answer.returncode == 0, answer.stderr
    _version, *rows = answer.stdout.splitlines()
    counts = [int(row.rsplit(maxsplit=1)[1]) for row in rows]
    assert len(counts) == 16
    assert min(counts) > 100


class _Lossy:
    """A channel that drops the last record of a batch."""

    def __init__(self) -> None:
        self._batches: list[list[bytes]] = []

    def send(self, records: list[bytes]) -> None:
        self._batches.append(records[:-1])

    def receive(self) -> list[bytes]:
        return self._batches.pop(0)

    def done(self) -> None:
        """Nothing is lent."""

    def close(self) -> None:
        """Nothing to close."""


def test_channel_that_loses_records_fails() -> None:
    channel = _Lossy()
    for batch in oneway.make_records(100):
        channel.send(batch)
    with pytest.raises(AssertionError, match="where 31 was due"):
        oneway.receive_all(channel, 100)


def test_quick_form_chooses_loop_count_by_time() -> None:
    loops: list[int] = []

    def benchmark(count: int) -> float:
        loops.append(count)
        return count * 0.0001

    assert timing._quick(benchmark) == pytest.approx(0.0001)
    assert loops == [1, 4, 16, 64]


def test_missing_free_threaded_python_prints_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_threaded, "_NAMES", ())
    monkeypatch.setattr(free_threaded, "_PLACES", ())
    monkeypatch.delenv(free_threaded.VARIABLE, raising=False)
    free_threaded.find.cache_clear()
    assert free_threaded.find().python == ""
    assert "no free-threaded interpreter is installed" in free_threaded.find().reason
    monkeypatch.setenv(free_threaded.VARIABLE, sys.executable)
    free_threaded.find.cache_clear()
    assert free_threaded.find() == ("", f"{sys.executable} is built with the interpreter's lock")
    monkeypatch.setenv(free_threaded.VARIABLE, "/nowhere/python")
    free_threaded.find.cache_clear()
    assert "cannot be run" in free_threaded.find().reason
    free_threaded.find.cache_clear()


def test_transport_comparison_gives_reason_of_empty_row() -> None:
    answer = run("bench.transports", "--quick", "--transports", "asyncio,free-threaded")
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"^\| asyncio \| \*\*[1-9]", answer.stdout, re.MULTILINE)
    if free_threaded.find().reason:
        assert "| free-threaded | - |" in answer.stdout
        assert "free-threaded is empty: " in answer.stdout


CELLS = "one-1,fetch-1m,end-to-end-all"


@pytest.mark.slow
def test_two_checkouts_are_compared_within_rounds(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT / "kproc", other / "kproc", ignore=shutil.ignore_patterns("__pycache__"))
    ran = tmp_path / "ran"
    main = other / "kproc" / "__main__.py"
    main.write_text(f"open({str(ran)!r}, 'w').close()\n{main.read_text().replace('from __future__', '#')}")
    chosen = tmp_path / "python"
    chosen.write_text(f'#!/bin/sh\necho "$@" >> {ran}-by-this\nexec {sys.executable} "$@"\n')
    chosen.chmod(0o755)
    how = ("--rounds", "2", "--seconds", "0.2", "--cells", CELLS, "--set", "num.io.threads=2", "--flush", "group")
    answer = run("bench.before", str(other), "--python-before", str(chosen), *how)
    assert answer.returncode == 0, answer.stderr
    assert ran.exists()
    assert "--set num.io.threads=2" in Path(f"{ran}-by-this").read_text()
    ratio = r"\d+\.\d\d \[\d+\.\d\d-\d+\.\d\d\]"
    for cell in ("one-1: rate", "fetch-1m: throughput", "end-to-end-all: p50"):
        line = rf"^\| {cell} \| [1-9].* \| {ratio} \| .* \| {ratio} \|$"
        assert re.search(line, answer.stdout, re.MULTILINE), answer.stdout
    line = rf"^\| end-to-end-all: p99 \| [1-9].* us \| [1-9].* \| {ratio} \| \| \| \|$"
    assert re.search(line, answer.stdout, re.MULTILINE), answer.stdout

    assert "is no checkout" in run("bench.before", str(tmp_path)).stderr
    assert "--set two: NAME=VALUE is meant" in run("bench.before", str(other), "--set", "two").stderr
    assert "nowhere is no program" in run("bench.before", str(other), "--python-before", "nowhere").stderr
