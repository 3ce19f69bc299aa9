"""The budget of a test run: the tests that a plain run leaves out, and the report of a run that exceeds its budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

from tests.support import budget as budget_module
from tests.support.budget import (
    ALL_SECONDS,
    EXAMPLES,
    PLAIN_EXAMPLES,
    PLAIN_SECONDS,
    PLAIN_SEEDS,
    Budget,
    budget_of,
    cpu_seconds,
    example_count,
    is_long,
    is_plain,
    leaves_out_all,
    leaves_out_slow,
    told,
    tree_cpu_seconds,
)

ROOT = Path(__file__).resolve().parents[2]
PLAIN = "not slow and not long and not clients and not faults and not java and not spark"


def test_whole_runs_have_a_budget_and_parts_have_none():
    assert budget_of(PLAIN, is_whole=True) == PLAIN_SECONDS
    assert budget_of("not slow", is_whole=True) == ALL_SECONDS
    assert budget_of("faults", is_whole=True) is None
    assert budget_of(PLAIN, is_whole=False) is None


def test_run_within_budget_prints_nothing():
    assert told(60, 59.9, {"tests/a.py::test_a": 0.9}) == []
    assert told(ALL_SECONDS, 500.0, {"tests/a.py::test_a": 40.0}) == []


def test_exceeded_budget_lists_files_by_cpu_time():
    by_test = {"tests/a.py::test_a": 0.9, "tests/b.py::test_a": 0.7, "tests/b.py::test_b[1]": 0.8}
    lines = told(60, 75.2, by_test, 7.1)
    assert "75 s, the budget is 60 s" in lines[0]
    assert "CPU of the tests 2 s, of what they share 7 s" in lines[0]
    assert [line.split() for line in lines[1:]] == [["1.5", "s", "tests/b.py"], ["0.9", "s", "tests/a.py"]]


def test_plain_run_names_tests_above_cpu_limit():
    lines = told(PLAIN_SECONDS, 40.0, {"tests/a.py::test_a": 0.9, "tests/b.py::test_b[1]": 1.2})
    assert [line.split()[-1] for line in lines[1:]] == ["tests/b.py::test_b[1]"]


def test_plain_run_skips_later_seeds_and_own_brokers():
    assert is_plain(PLAIN)
    assert not is_plain("not slow")
    assert is_long(has_own_broker=True, seed=None)
    assert [is_long(has_own_broker=False, seed=seed) for seed in (None, 0, "11")] == [False] * 3
    assert [is_long(has_own_broker=False, seed=seed) for seed in (PLAIN_SEEDS - 1, PLAIN_SEEDS)] == [
        False,
        True,
    ]


def test_plain_run_uses_fewer_hypothesis_examples(pytestconfig: pytest.Config):
    if pytestconfig.getoption("hypothesis_profile"):
        pytest.skip("a profile was asked for")
    wanted = PLAIN_EXAMPLES if is_plain(pytestconfig.option.markexpr) else EXAMPLES
    assert hypothesis.settings().max_examples == wanted
    assert example_count(2 * EXAMPLES) == 2 * wanted


LEFT_OUT = [
    "pytestmark = pytest.mark.long",
    "pytestmark = [pytest.mark.transports('process'), pytest.mark.faults]",
    "import os\n\npytestmark = [\n    pytest.mark.skipif(os.x, reason='y'),\n    pytest.mark.java,\n]\n",
    "pytestmark = pytest.mark.own_broker",
]
TAKEN = [
    "@pytest.mark.long\ndef test_a():\n    pass\n",
    "pytestmark = pytest.mark.transports('process', 'thread', slow=['thread'])\n\n\n@pytest.mark.slow\n",
    "pytestmark = [\n    pytest.mark.skipif(os.x, reason='y'),\n]\n\n\n@pytest.mark.java\ndef test_a():\n",
    "    pytestmark = pytest.mark.long",
]


def test_pytestmark_tells_files_that_a_plain_run_skips():
    assert [leaves_out_all(PLAIN, source) for source in LEFT_OUT] == [True] * len(LEFT_OUT)
    assert [leaves_out_all(PLAIN, source) for source in TAKEN] == [False] * len(TAKEN)
    assert not leaves_out_all("not long and (not java or clients)", LEFT_OUT[2]), (
        "who has both marks is taken"
    )


def test_slow_variants_exist_unless_slow_tests_are_excluded():
    assert [leaves_out_slow(markers) for markers in (PLAIN, "not slow")] == [True, True]
    assert not any(leaves_out_slow(markers) for markers in ("", "slow", "not slow or faults", "not long"))


def test_cpu_of_processes_that_were_waited_for_counts():
    before = cpu_seconds()
    while cpu_seconds() - before < 0.02:
        pass
    alone = cpu_seconds()
    works = "import os\nwhile sum(os.times()[:2]) < 0.05: pass"
    subprocess.run([sys.executable, "-S", "-c", works], check=True)
    assert cpu_seconds() - alone > 0.03


def test_cpu_of_descendants_that_still_run_counts():
    works = "import os, sys\nwhile sum(os.times()[:2]) < 0.1: pass\nprint('done', flush=True); sys.stdin.read()"
    command = [sys.executable, "-S", "-c", works]
    before = tree_cpu_seconds()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.read(4) == b"done"
        assert tree_cpu_seconds() - before > 0.04
        child.communicate()


@pytest.mark.long
@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_cpu_report_has_a_row_for_each_test(tmp_path: Path, workers: str) -> None:
    path = tmp_path / "report.json"
    command = [sys.executable, "-m", "pytest", "-q", "--workers", workers, "--cpu-report", str(path)]
    files = {"tests/rig/test_wait.py", "tests/rig/test_skips.py"}
    command += files
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    report = json.loads(path.read_text())
    assert {row["test"].partition("::")[0] for row in report["tests"]} == files
    assert {row["worker"] for row in report["tests"]} <= {"main", "gw0", "gw1"}
    assert set(report["cpu_of_workers"]) == ({"main"} if workers == "0" else {"main", "gw0", "gw1"})
    assert all(row["cpu"] >= 0 and row["wall"] > 0 for row in report["tests"])


class Report:
    """What pytest makes of a phase of a test."""

    nodeid = "tests/a.py::test_a"
    cpu_seconds = shared_cpu_seconds = 0.0


class Fixture:
    """What pytest knows of a fixture."""

    def __init__(self, scope: str) -> None:
        self.scope = scope


class Run:
    """Phases of tests, with a clock of CPU that the test moves."""

    def __init__(self, config: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(budget_module, "cpu_seconds", lambda: self.now)
        self.budget = Budget(config)

    def phase(self, *works: tuple[float, str]) -> None:
        """So many seconds each, the end of a fixture of that scope; the test itself has none."""
        for seconds, scope in works:
            self.now += seconds
            if scope:
                self.budget.pytest_fixture_post_finalizer(Fixture(scope))
        step = self.budget.pytest_runtest_makereport()
        next(step)
        with pytest.raises(StopIteration) as end:
            step.send(Report())
        self.budget.pytest_runtest_logreport(end.value.value)


def test_cpu_time_is_attributed_to_the_test_that_ran(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch):
    """All its phases, and nothing that came before: collection took seconds."""
    run = Run(pytestconfig, monkeypatch)
    run.now += 3.0
    run.budget.pytest_runtest_logstart()
    for _ in range(2):
        run.phase((0.25, ""))
    assert run.budget.by_test == {"tests/a.py::test_a": 0.5}


def test_teardown_of_shared_fixtures_is_reported_separately(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
):
    """The processes of a shared broker are waited for, and so counted, when the last test of a worker ends."""
    run = Run(pytestconfig, monkeypatch)
    run.budget.pytest_runtest_logstart()
    run.phase((0.25, ""))
    run.phase((0.5, "function"), (0.125, "module"), (4.0, "session"), (2.0, "session"))
    assert run.budget.by_test == {"tests/a.py::test_a": 0.875}
    assert run.budget.shared_of_all == 6.0
    run.phase((0.25, ""))
    assert run.budget.by_test == {"tests/a.py::test_a": 1.125}
    assert run.budget.shared_of_all == 6.0
