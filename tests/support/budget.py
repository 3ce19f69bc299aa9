"""The limits of the suite's time, and the files that take most of it: tests/README.md, "The budget".

Only whole runs have a budget. None of them fails by the clock: that would tell of the machine, not of the code.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.proc import child_pids

PLAIN_SECONDS, ALL_SECONDS = 60, 10 * 60
# CPU of one test in a plain run, with the processes that it waits for: what takes more is marked `long`.
PLAIN_TEST_SECONDS = 1.0
# Of its seeds and of Hypothesis' examples a test takes so many in a plain run; scripts/test and .ci/run take all.
PLAIN_SEEDS, PLAIN_EXAMPLES = 2, 25
# Every run has the same examples, so that more of them add little. A test can have a number of its own by
# `example_count`.
EXAMPLES = 50
FILES_SHOWN = 10


def is_plain(markers: str) -> bool:
    """Return True if a run of the tests with these markers leaves out what is `long`."""
    return "not long" in markers


def is_whole_run(config: pytest.Config) -> bool:
    """Return True if nobody chose some of the tests, but for their markers. A worker of xdist does not know."""
    if hasattr(config, "workerinput"):
        return False
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword


def example_count(count: int) -> int:
    """Return how many examples a test takes in this run if it takes `count` of them in scripts/test."""
    return count * hypothesis.settings().max_examples // EXAMPLES


def is_long(*, has_own_broker: bool, seed: object) -> bool:
    """Return True if a test is `long` by itself: a plain run has one broker for all, and takes the first seeds."""
    return has_own_broker or (isinstance(seed, int) and seed >= PLAIN_SEEDS)


_FILE_MARKS = re.compile(r"^pytestmark = (\[$.*?^\]|.*?$)", re.MULTILINE | re.DOTALL)
_ONLY_LEAVES_OUT = re.compile(r"not \w+( and not \w+)*")
_MARK = re.compile(r"pytest\.mark\.(\w+)")


def leaves_out_all(markers: str, source: str) -> bool:
    """Return True if the marks of a file leave out all of its tests in a plain run, so that it is not imported."""
    found = _FILE_MARKS.search(source)
    if found is None or not _ONLY_LEAVES_OUT.fullmatch(markers):
        return False
    left_out = {"own_broker", *re.findall(r"not (\w+)", markers)}
    return not left_out.isdisjoint(_MARK.findall(found[1]))


def leaves_out_slow(markers: str) -> bool:
    """Return True if a run with these markers takes no test that is `slow`."""
    return "not slow" in markers and bool(_ONLY_LEAVES_OUT.fullmatch(markers))


def cpu_seconds() -> float:
    """CPU time of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds() -> float:
    """Return CPU seconds of this process and of all its descendants, those that still run included."""
    total = 0
    for pid in (os.getpid(), *child_pids(os.getpid())):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            # utime, stime, and those of the children that it has waited for.
            total += sum(map(int, fields[11:15]))
    return total / TICKS


def budget_of(markers: str, *, is_whole: bool) -> int | None:
    """Seconds that a run of the tests with these markers may take; None for a run of some of them."""
    if not is_whole:
        return None
    return {"not slow": ALL_SECONDS}.get(markers, PLAIN_SECONDS if "not faults" in markers else None)


def told(budget: int, seconds: float, by_test: Mapping[str, float], shared: float = 0.0) -> list[str]:
    """What to say at the end of a run whose tests took so many seconds of CPU; nothing if it kept to its budget.

    `shared` is what the end of the session's fixtures took, the brokers that all tests share among them.
    """
    lines = []
    if seconds > budget:
        by_file: dict[str, float] = defaultdict(float)
        for name, each in by_test.items():
            by_file[name.partition("::")[0]] += each
        lines = [
            f"{seconds:.0f} s, the budget is {budget} s on the 2-core machine when nothing else runs "
            f"(tests/README.md); CPU of the tests {sum(by_test.values()):.0f} s, of what they share {shared:.0f} s. "
            "Files that took most CPU:",
            *_longest_first(by_file)[:FILES_SHOWN],
        ]
    dear = {name: each for name, each in by_test.items() if each > PLAIN_TEST_SECONDS}
    if budget == PLAIN_SECONDS and dear:
        lines.append(f"more than {PLAIN_TEST_SECONDS:g} s of CPU in a plain run; make it cheaper, or `long`:")
        lines += _longest_first(dear)
    return lines


def _longest_first(seconds: Mapping[str, float]) -> list[str]:
    longest = sorted(seconds, key=seconds.__getitem__, reverse=True)
    return [f"{seconds[name]:7.1f} s  {name}" for name in longest]


class Budget:
    """A plugin of the run: measures its tests, and reports at its end what exceeded the budget.

    With `--cpu-report FILE` it also writes the CPU and wall time of each test to FILE. It then reads the CPU of all
    descendants after each phase: a shared broker or JVM counts for the test that uses it, not when it is waited for.
    """

    def __init__(self, config: pytest.Config, report_path: str | None = None) -> None:
        is_whole = is_whole_run(config)
        self._budget = budget_of(config.getoption("markexpr"), is_whole=is_whole)
        self._begin = time.monotonic()
        self.by_test: dict[str, float] = defaultdict(float)
        self._shared = self.shared_of_all = 0.0
        self._report_path = report_path
        self.reported: dict[str, dict[str, Any]] = {}
        self.worker_seconds: dict[str, float] = {}
        """CPU seconds of each worker that has ended; one that died reports none."""
        self._cpu_seconds = self._fixture_begin = self._read_cpu()

    def _read_cpu(self) -> float:
        return cpu_seconds() if self._report_path is None else tree_cpu_seconds()

    def pytest_runtest_logstart(self) -> None:
        """What came before, such as the collection, is no test's."""
        self._cpu_seconds = self._fixture_begin = self._read_cpu()

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """The CPU of a broker counts when it is waited for: that of a shared one is not the last test's."""
        if self._report_path is not None:
            return
        now = self._read_cpu()
        if fixturedef.scope == "session":
            self._shared += now - self._fixture_begin
        self._fixture_begin = now

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Where the test runs: the report carries the CPU time that has passed since the one before."""
        report = yield
        before, self._cpu_seconds = self._cpu_seconds, self._read_cpu()
        report.cpu_seconds = self._cpu_seconds - before - self._shared
        report.shared_cpu_seconds, self._shared = self._shared, 0.0
        self._fixture_begin = self._cpu_seconds
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Setup, call and teardown of each test; with workers it is the main process that hears of all."""
        self.by_test[report.nodeid] += report.cpu_seconds
        self.shared_of_all += report.shared_cpu_seconds
        if self._report_path is not None:
            row = self.reported.setdefault(
                report.nodeid,
                {
                    "test": report.nodeid,
                    "worker": getattr(report, "worker_id", "main"),
                    "start": round(report.start, 3),
                    "cpu": 0.0,
                    "wall": 0.0,
                },
            )
            row["cpu"] = round(row["cpu"] + report.cpu_seconds, 3)
            row["wall"] = round(row["wall"] + report.duration, 6)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report, in the main process."""
        if self._report_path is None or hasattr(session.config, "workerinput"):
            return
        # Without the workers, which may have been waited for by now.
        self.worker_seconds["main"] = sum(os.times()[:2])
        figures = {
            "wall": round(time.monotonic() - self._begin, 1),
            "cpu_of_workers": self.worker_seconds,
            "tests": list(self.reported.values()),
        }
        Path(self._report_path).write_text(json.dumps(figures, indent=0))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The last lines of the run."""
        if self._budget is None:
            return
        lines = told(self._budget, time.monotonic() - self._begin, self.by_test, self.shared_of_all)
        if lines:
            terminalreporter.section("over the budget")
            terminalreporter.write("\n".join(lines) + "\n")
