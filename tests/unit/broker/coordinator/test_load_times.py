"""The limit of the time for opening logs, and the durations of recent loads."""

from __future__ import annotations

from kproc.broker.coordinator.load_times import OpeningBudget, RecentLoads

MS, S = 1_000_000, 1_000_000_000
START = 5 * S


def test_budget_is_spent_after_20_ms_until_the_window_ends() -> None:
    budget = OpeningBudget()
    assert not budget.is_spent(START)
    budget.spend(20 * MS - 1)
    assert not budget.is_spent(START + 50 * MS)
    budget.spend(1)
    assert budget.is_spent(START + 200 * MS)
    assert not budget.is_spent(START + 200 * MS + 1)


def test_next_window_begins_at_the_first_check_after_it() -> None:
    budget = OpeningBudget()
    assert not budget.is_spent(START)
    budget.spend(30 * MS)
    assert not budget.is_spent(START + 300 * MS)
    budget.spend(30 * MS)
    assert budget.is_spent(START + 450 * MS)


def test_reset_allows_an_opening_within_the_window() -> None:
    budget = OpeningBudget()
    assert not budget.is_spent(START)
    budget.spend(30 * MS)
    budget.reset()
    assert not budget.is_spent(START + MS)


def test_durations_of_loads_are_kept_for_30_s_by_topic() -> None:
    loads = RecentLoads(["a", "b"])
    loads.add("a", START, 7)
    loads.add("a", START + S, 9)
    assert loads.durations("a", START + 30 * S - 1) == [7, 9]
    assert loads.durations("a", START + 30 * S) == [9]
    assert loads.durations("b", START) == []


def test_at_most_1000_loads_of_a_topic_are_kept() -> None:
    loads = RecentLoads(["a"])
    for took_ns in range(1001):
        loads.add("a", START, took_ns)
    assert loads.durations("a", START) == list(range(1, 1001))
