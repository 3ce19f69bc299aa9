"""The reasons of skipped tests: one line each, however many tests and files share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.skips import skip_lines


@dataclass
class Report:
    """A report of pytest, as far as a skip is concerned."""

    longrepr: Any


def test_places_with_one_reason_share_a_line() -> None:
    reports = [Report(("a.py", 3, "Skipped: no java")), Report(("b.py", 9, "Skipped: no kcat"))]
    reports += [Report(("b.py", 9, "Skipped: no java\nlong story")), Report("Skipped: no java")]
    assert skip_lines(reports) == ["SKIPPED 3: no java", "SKIPPED 1: no kcat"]


def test_run_without_skips_prints_nothing() -> None:
    assert skip_lines([]) == []
