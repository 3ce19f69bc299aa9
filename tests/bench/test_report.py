"""The comparison's arithmetic: medians, paired ratios, goals, failures."""

from __future__ import annotations

from typing import Any

import pytest

from bench.cells import BY_NAME, CELLS
from bench.report import Results, Sample, Spread, markdown

ABOUT: dict[str, Any] = {
    "rounds": 3,
    "time": "2026-01-01T00:00:00+00:00",
    "commit": "abc",
    "has_local_changes": False,
    "cpu": "a processor",
    "cores": 2,
    "memory_gb": 24,
    "kernel": "6",
    "python": "3.11",
    "java": "17",
    "seconds": 4,
    "warmup": 1,
    "is_quiet": True,
    "load_before": 0.1,
}
RATE = BY_NAME["one-64"].metrics[0]


def single(peer: str, number: int, rate: float) -> Sample:
    return Sample(
        "one-64", peer, number, {"requests_per_second": rate, "broker_cpu_seconds": 1.0, "requests": 10}
    )


def test_ratio_is_paired_within_rounds_before_the_median() -> None:
    """The machine halved its speed in round 2: both figures scatter, the ratio does not."""
    results = Results(
        [
            single("kafka", 1, 100),
            single("kafka", 2, 50),
            single("process-group", 1, 150),
            single("process-group", 2, 75),
        ]
    )
    assert Spread.of(results.ratios(RATE, "one-64", "process-group")) == Spread(1.5, 1.5, 1.5, 2)


def test_round_that_only_one_broker_finished_gives_no_ratio() -> None:
    results = Results(
        [single("kafka", 1, 100), single("process-group", 1, 90), single("process-group", 2, 300)]
    )
    assert results.ratios(RATE, "one-64", "process-group") == [0.9]


def test_failed_cell_is_shown_as_failed_with_its_reason() -> None:
    samples = [single("kafka", 1, 100), Sample("one-64", "process-group", 1, None, "connection lost")]
    table = markdown(Results(samples), ["one-64"], ["kafka", "process-group"], ABOUT)
    assert "| failed |" in table
    assert "failed in 1 of 1 rounds**: connection lost" in table
    assert "no figure" in table


@pytest.mark.parametrize(("rate", "word"), [(100, "met"), (99, "**missed**")])
def test_goal_is_judged_by_the_median_ratio(rate: float, word: str) -> None:
    samples = [single("kafka", 1, 100), single("process-group", 1, rate)]
    table = markdown(Results(samples), ["one-64"], ["kafka", "process-group"], ABOUT)
    assert f">= 1x: {word}" in table


def test_noisy_machine_is_written_on_the_table() -> None:
    about = {**ABOUT, "is_quiet": False, "load_before": 1.9}
    assert "not to be quoted" in markdown(Results([single("kafka", 1, 1)]), ["one-64"], ["kafka"], about)


def test_every_cell_has_a_loop_or_needs_none() -> None:
    assert {cell.loop for cell in CELLS if cell.mode} == {"open", "closed"}
    assert len(BY_NAME) == len(CELLS)
