"""Which runs have a budget, what a plain run leaves out, and what is said of a run that exceeds its budget."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

from tests.support.budget import (
    ALL_SECONDS,
    PLAIN_EXAMPLES,
    PLAIN_SECONDS,
    PLAIN_SEEDS,
    Budget,
    budget_of,
    cpu_seconds,
    is_long,
    is_plain,
    told,
)

ROOT = Path(__file__).resolve().parents[2]
PLAIN = "not slow and not long and not clients and not faults and not java and not spark"


def test_whole_runs_have_a_budget_and_parts_have_none():
    assert budget_of(PLAIN, is_whole=True) == PLAIN_SECONDS
    assert budget_of("not slow", is_whole=True) == ALL_SECONDS
    assert budget_of("faults", is_whole=True) is None
    assert budget_of(PLAIN, is_whole=False) is None


def test_a_run_within_its_budget_says_nothing():
    assert told(60, 59.9, {"tests/a.py::test_a": 0.9}) == []
    assert told(ALL_SECONDS, 800.0, {"tests/a.py::test_a": 40.0}) == []


def test_a_run_beyond_its_budget_names_the_files_that_took_most_first():
    by_test = {"tests/a.py::test_a": 0.9, "tests/b.py::test_a": 0.7, "tests/b.py::test_b[1]": 0.8}
    lines = told(60, 75.2, by_test)
    assert "75 s, the budget is 60 s" in lines[0]
    assert [line.split() for line in lines[1:]] == [["1.5", "s", "tests/b.py"], ["0.9", "s", "tests/a.py"]]


def test_a_test_that_takes_too_much_cpu_for_a_plain_run_is_named():
    lines = told(PLAIN_SECONDS, 40.0, {"tests/a.py::test_a": 0.9, "tests/b.py::test_b[1]": 1.2})
    assert [line.split()[-1] for line in lines[1:]] == ["tests/b.py::test_b[1]"]


def test_a_plain_run_takes_the_first_seeds_and_no_broker_of_a_tests_own():
    assert is_plain(PLAIN)
    assert not is_plain("not slow")
    assert is_long(has_own_broker=True, seed=None)
    assert [is_long(has_own_broker=False, seed=seed) for seed in (None, 0, "11")] == [False] * 3
    assert [is_long(has_own_broker=False, seed=seed) for seed in (PLAIN_SEEDS - 1, PLAIN_SEEDS)] == [
        False,
        True,
    ]


def test_a_plain_run_takes_fewer_of_hypothesis_examples(pytestconfig: pytest.Config):
    if pytestconfig.getoption("hypothesis_profile"):
        pytest.skip("a profile was asked for")
    wanted = PLAIN_EXAMPLES if is_plain(pytestconfig.option.markexpr) else 100
    assert hypothesis.settings().max_examples == wanted


def test_cpu_of_a_test_is_counted_where_it_ran(pytestconfig: pytest.Config):
    """All its phases, and nothing that came before: collection took seconds."""
    budget = Budget(pytestconfig)

    class Report:
        nodeid = "tests/a.py::test_a"

    def work(seconds: float) -> None:
        begin = cpu_seconds()
        while cpu_seconds() - begin < seconds:
            pass

    def phase() -> Report:
        step = budget.pytest_runtest_makereport()
        next(step)
        work(0.1)
        with pytest.raises(StopIteration) as end:
            step.send(Report())
        return end.value.value

    work(0.3)
    budget.pytest_runtest_logstart()
    for _ in range(2):
        budget.pytest_runtest_logreport(phase())
    assert 0.19 < budget._by_test["tests/a.py::test_a"] < 0.3
