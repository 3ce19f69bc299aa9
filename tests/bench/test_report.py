"""The report about an analysis: tables, verdicts, and a page without requests to other hosts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench.analysis import Analysis
from bench.page import page
from bench.plots import Plot, plots
from bench.samples import Sample, Samples
from bench.tables import markdown, short, spread
from bench.workloads import BY_NAME

RUN = {
    "run_id": "r", "time": "2026-01-01T00:00:00+00:00", "commit": "abc", "has_local_changes": False, "cpu": "a <cpu>",
    "cores": 2, "memory_gb": 24.0, "kernel": "6", "python": "3.11", "java": "17", "arguments": ["--quick"], "note": "",
    "load_before": 0.1, "is_quiet": True, "is_quick": True, "stolen": 0.004, "stolen_max": 0.05,
}  # fmt: skip


def a_row(peer: str, median: float, *, metric: str = "rate", **changes: Any) -> dict[str, Any]:
    row = {
        "workload": "small",
        "cell": "one-64",
        "metric": metric,
        "peer": peer,
        "median": median,
        "low": median,
    }
    row |= {"high": median, "count": 3, "unit": "requests/s", "is_higher_better": True, "goal_ratio": 1.4}
    return row | {"goal_absolute": None, "place": 0} | changes


def an_analysis(**changes: Any) -> Analysis:
    """kafka 100, processes 150, threads 75 requests/s, in one cell."""
    rows = [a_row("kafka", 100), a_row("process-group", 150), a_row("thread-group", 75)]
    ratios = [a_row("process-group", 1.5), a_row("thread-group", 0.75)]
    found = Analysis(
        commit="abc",
        against=None,
        runs=[RUN],
        cells=[{"workload": "small", "cell": "one-64", "title": "64 connections", "loop": "closed"}],
        peers=["kafka", "process-group", "thread-group"],
        summary={(row["cell"], row["metric"], row["peer"]): row for row in rows},
        to_yardstick={(row["cell"], row["metric"], row["peer"]): row for row in ratios},
        of_judged={("one-64", "rate", "thread-group"): a_row("thread-group", 2.0)},
        failures={},
        empties={},
        percentiles={},
        steps={},
    )
    for name, value in changes.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize(("ratio", "word"), [(1.4, "met"), (1.39, "**missed**")])
def test_goal_is_judged_by_the_median_ratio(ratio: float, word: str) -> None:
    found = an_analysis()
    found.to_yardstick["one-64", "rate", "process-group"]["median"] = ratio
    assert f">= 1.4x | {word} |" in markdown(found, [])


def test_goal_of_less_is_met_from_below() -> None:
    found = an_analysis()
    for row in [*found.summary.values(), *found.to_yardstick.values()]:
        row["is_higher_better"] = False
    assert found.verdict(a_row("kafka", 1, is_higher_better=False)) == ("<= 1.4x", False)
    found.to_yardstick["one-64", "rate", "process-group"]["median"] = 1.3
    assert found.verdict(a_row("kafka", 1, is_higher_better=False)) == ("<= 1.4x", True)


def test_goal_without_a_figure_is_not_met() -> None:
    text = markdown(an_analysis(to_yardstick={}), [])
    assert "| no figure |" in text


def test_variant_that_wins_is_left_in() -> None:
    found = an_analysis()
    found.of_judged["one-64", "rate", "thread-group"]["median"] = 0.5
    assert "| one-64 | rate, requests/s | 0.50 |" in markdown(found, [])


def test_failed_and_empty_cells_are_shown_with_their_reasons() -> None:
    found = an_analysis(
        failures={("one-64", "thread-group"): {"failed": 1, "rounds": 3, "why": "connection\nlost"}},
        empties={("one-64", "free-threaded-group"): "no such interpreter"},
        peers=["kafka", "process-group", "thread-group", "free-threaded-group"],
    )
    del found.summary["one-64", "rate", "thread-group"]
    text = markdown(found, [])
    assert "**one-64, thread-group: failed in 1 of 3 rounds**: connection lost" in text
    assert "free-threaded-group is empty in all cells: no such interpreter" in text
    assert "| **failed** | empty |" in text


def test_noisy_machine_is_written_on_the_report() -> None:
    found = an_analysis(runs=[{**RUN, "is_quiet": False, "load_before": 1.9}])
    assert "not to be quoted" in markdown(found, [])
    assert "not to be quoted" in page(found, [])


def test_report_mentions_stolen_cpu_time() -> None:
    assert "other machines" not in markdown(an_analysis(), [])
    assert "other machines" not in markdown(
        an_analysis(runs=[{**RUN, "stolen": None, "stolen_max": None}]), []
    )
    found = an_analysis(runs=[{**RUN, "stolen": 0.14, "stolen_max": 0.383}])
    for text in (markdown(found, []), page(found, [])):
        assert "14% of the CPU time that was wanted to other machines (up to 38% around one run)" in text


def test_report_sample_has_cpu_time_stolen_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([(5, 100), (5, 100), (30, 200)])
    monkeypatch.setattr("bench.samples.cpu_times", lambda: next(times))
    samples = Samples({}, _times=(0, 0))
    for number in range(3):
        samples.add(Sample(BY_NAME["one-1"], "kafka", number, failed="a test says so"))
    assert [row["stolen"] for row in samples.rows()] == [0.05, 0.0, 0.25]


def test_regression_is_named() -> None:
    row = a_row("process-group", 100, median_before=150, low_before=149, high_before=151, count_before=3)
    row |= {"change": 0.67, "gain": -0.33, "verdict": "worse"}
    text = markdown(an_analysis(against="old", changes=[row]), [])
    assert "| 150 [149-151] | 100 | 0.67 | **worse** |" in text


def test_report_page_fetches_nothing_and_shows_all_rows() -> None:
    """One file: no address of anything outside, and what a machine calls itself is no markup."""
    text = page(an_analysis(), [Plot("p", "a plot", {"light": b"png", "dark": b"gnp"})])
    assert not re.search(r"https?://|src=\"(?!data:)|href=\"(?!#)|@import|url\(", text)
    assert "a &lt;cpu&gt;" in text
    assert text.count("data:image/png;base64,") == 2
    for word in ("one-64", "1.4x", "thread-group", "0.75x"):
        assert word in text


@pytest.mark.no_leak_guard  # matplotlib keeps its fonts open for as long as the process lives
@pytest.mark.long
def test_report_plots_skip_missing_cells() -> None:
    pytest.importorskip("matplotlib")
    drawn = {plot.name: plot for plot in plots(an_analysis())}
    assert drawn.keys() == {"goals"}
    assert drawn["goals"].png["light"].startswith(b"\x89PNG")
    assert drawn["goals"].png["light"] != drawn["goals"].png["dark"]


def test_report_rounds_figures_by_their_spread() -> None:
    assert [short(value) for value in (12345.6, 123.4, 1.2345, 0.01234)] == [
        "12,346",
        "123",
        "1.23",
        "0.0123",
    ]
    assert spread(a_row("p", 5, low=4, high=6)) == "5 [4-6]"
    assert spread(a_row("p", 5, low=4, high=6, count=1)) == "5"
