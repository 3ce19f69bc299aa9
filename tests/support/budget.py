"""How long the suite may take, and which files to look at when it takes longer: tests/README.md, "The budget".

Only whole runs have a budget. None of them fails by the clock: that would tell of the machine, not of the code.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

PLAIN_SECONDS, ALL_SECONDS = 60, 15 * 60
FILES_SHOWN = 10


def budget_of(markers: str, *, is_whole: bool) -> int | None:
    """Seconds that a run of the tests with these markers may take; None for a run of some of them."""
    if not is_whole:
        return None
    return {"not slow": ALL_SECONDS}.get(markers, PLAIN_SECONDS if "not faults" in markers else None)


def told(
    budget: int, seconds: float, own_cpu: float, children_cpu: float, by_file: Mapping[str, float]
) -> list[str]:
    """What to say at the end of a run; nothing if it kept to its budget."""
    if seconds <= budget:
        return []
    longest = sorted(by_file, key=by_file.__getitem__, reverse=True)
    return [
        f"{seconds:.0f} s, the budget is {budget} s on the 2-core machine when nothing else runs (tests/README.md); "
        f"CPU of the run {own_cpu:.0f} s, of its children {children_cpu:.0f} s. Longest files:",
        *(f"{by_file[name]:7.1f} s  {name}" for name in longest[:FILES_SHOWN]),
    ]


class Budget:
    """A plugin of the run: measures it, and tells at its end."""

    def __init__(self, config: pytest.Config) -> None:
        is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
        self._budget = budget_of(config.getoption("markexpr"), is_whole=is_whole)
        self._begin = time.monotonic()
        self._by_file: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setup, call and teardown of each test; with workers it is the main process that hears of all."""
        self._by_file[report.nodeid.partition("::")[0]] += report.duration

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The last lines of the run."""
        if self._budget is None:
            return
        times = os.times()
        lines = told(
            self._budget,
            time.monotonic() - self._begin,
            times.user + times.system,
            times.children_user + times.children_system,
            self._by_file,
        )
        if lines:
            terminalreporter.section("over the budget")
            terminalreporter.write("\n".join(lines) + "\n")
