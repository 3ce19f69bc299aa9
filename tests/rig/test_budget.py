"""Which runs have a budget, and what is said of one that exceeds it."""

from __future__ import annotations

from tests.support.budget import ALL_SECONDS, PLAIN_SECONDS, budget_of, told

PLAIN = "not slow and not long and not clients and not faults and not java and not spark"


def test_whole_runs_have_a_budget_and_parts_have_none():
    assert budget_of(PLAIN, is_whole=True) == PLAIN_SECONDS
    assert budget_of("not slow", is_whole=True) == ALL_SECONDS
    assert budget_of("faults", is_whole=True) is None
    assert budget_of(PLAIN, is_whole=False) is None


def test_a_run_within_its_budget_says_nothing():
    assert told(60, 59.9, 50, 10, {"tests/a.py": 59.0}) == []


def test_a_run_beyond_its_budget_names_the_files_that_took_most_first():
    lines = told(60, 75.2, 50, 10, {"tests/a.py": 9.0, "tests/b.py": 40.0})
    assert "75 s, the budget is 60 s" in lines[0]
    assert [line.split()[-1] for line in lines[1:]] == ["tests/b.py", "tests/a.py"]
