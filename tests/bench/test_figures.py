"""The README's table from samples: medians, ratios within a round, units, markers, the tests' time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bench import figures
from bench.cells import JUDGED, YARDSTICK
from bench.figures import BEGIN, END, Figure, blocks, digits, line_of_tests, replaced, table, text_of
from bench.workloads import BY_NAME

ABOUT = {
    "time": "2026-11-26T20:00:00+00:00",
    "commit": "0123456789ab",
    "has_local_changes": False,
    "cpu": "A processor",
    "cores": 2,
    "memory_gb": 23.4,
    "kernel": "6.1.0",
    "python": "3.11.2 (/usr/bin/python3.11, of Mar 13 2023, in the executable)",
    "load_before": 0.2,
    "is_quiet": True,
    "stolen": 0.0,
}


def row(peer: str, number: int, value: float | None, **more: Any) -> dict[str, Any]:
    """Return a sample of the rate of one connection."""
    head = {"cell": "one-1", "metric": "rate", "unit": "requests/s", "peer": peer, "round": number}
    return {**ABOUT, **head, "value": value, **more}


ROWS = [
    row(YARDSTICK, 1, 10_000),
    row(JUDGED, 1, 20_000),
    row(YARDSTICK, 2, 20_000),
    row(JUDGED, 2, 20_000),
    row(YARDSTICK, 3, None),
    row(JUDGED, 3, 5_000),
]


def test_every_line_is_a_metric_of_a_cell() -> None:
    for line in figures.LINES:
        assert line.metric in {metric.name for metric in BY_NAME[line.cell].metrics}, line


def test_ratio_is_the_median_of_the_ratios_within_a_round() -> None:
    lines = table(figures.figures_of(ROWS), with_range=True)
    assert (
        "| Produce one record of 100 B, acks=1, 1 connection | 15.0 k/s | 20.0 k/s | 1.50 | 1.00-2.00 |"
        in lines
    )
    assert len(lines) == 2 + len(figures.LINES)
    assert "| memory when idle | - | - | - | - |" in lines, "what was not measured is not left out in silence"


def test_without_kafka_its_column_and_the_ratio_are_empty() -> None:
    only_ours = [each for each in ROWS if each["peer"] == JUDGED]
    assert any(
        line.endswith("| - | 20.0 k/s | - |")
        for line in table(figures.figures_of(only_ours), with_range=False)
    )


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.1749, "s", "0.17 s"),
        (385.4, "MB", "385 MB"),
        (0.23, "% of a core", "0.23 %"),
        (1373.2, "MB/s", "1,373 MB/s"),
        (0.4321, "s/GB", "0.43 s"),
        (2572.0, "us", "2,572 us"),
        (None, "us", "-"),
    ],
)
def test_value_has_three_digits_and_its_unit(value: float | None, unit: str, text: str) -> None:
    assert text_of(value, unit) == text


def test_digits_never_show_an_exponent() -> None:
    assert [digits(each) for each in (99.96, 9.999, 1.0, 0.996)] == ["100", "10.0", "1.00", "1.00"]


def test_ratio_of_a_broker_that_is_zero_is_left_out() -> None:
    assert Figure("s", {YARDSTICK: {1: 0.0, 2: 2.0}, JUDGED: {1: 1.0, 2: 1.0}}).ratios() == [0.5]


def test_block_says_when_where_and_of_which_commit() -> None:
    readme, results = blocks(ROWS, "The tests took 1 s.")
    assert readme.splitlines()[0] == (
        "Measured on 2026-11-26 at commit 0123456789ab, in 3 rounds: A processor, 2 cores, 23.4 GB, Linux 6.1.0, "
        "CPython 3.11.2 (in the executable)."
    )
    assert "Do not quote" not in readme + results
    assert readme.endswith("|\n\nThe tests took 1 s.")
    assert "its range" in results


def test_figures_of_a_busy_machine_are_marked() -> None:
    busy = [{**each, "is_quiet": False, "load_before": 3.5, "stolen": 0.1} for each in ROWS]
    (readme, _) = blocks(busy, "", is_short=True)
    assert (
        "**Do not quote these figures: the runs were shortened, the load was 3.5 at the start, the host gave 10% "
        "of the CPU time to other machines.**"
    ) in readme


def test_time_of_the_tests_is_that_of_the_last_summary(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "55 passed in 26.54s\n== 2 failed in 3s ==\n== 9709 passed, 21 skipped in 654.69s (0:10:54) ==\n"
    )
    os.utime(log, (1_795_694_400, 1_795_694_400))
    assert (
        line_of_tests(log) == "The tests, `scripts/test`, took 655 s on 2026-11-26: 9,709 passed, 21 skipped."
    )
    log.write_text("nothing")
    with pytest.raises(SystemExit, match="expected a summary of pytest"):
        line_of_tests(log)


def test_block_between_the_markers_is_replaced() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replaced(text, "new", "README.md") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert figures.block_of(text) == "old"
    with pytest.raises(SystemExit, match=r"README\.md: expected one line"):
        replaced("before\n", "new", "README.md")


def test_command_writes_readme_and_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = tmp_path / "README.md", tmp_path / "RESULTS.md"
    for path in targets:
        path.write_text(f"before\n{BEGIN}\nold\nThe tests, kept.\n{END}\nafter\n")
    monkeypatch.setattr(figures, "REPOSITORY", tmp_path)
    monkeypatch.setattr(figures, "TARGETS", targets)
    monkeypatch.setattr(figures, "read_samples", lambda _directory: ROWS)
    assert figures.main(["--samples", str(tmp_path)]) == 0
    readme, results = (path.read_text() for path in targets)
    assert readme.startswith(f"before\n{BEGIN}\nMeasured on 2026-11-26 at commit 0123456789ab, ")
    assert readme.endswith(f"|\n\nThe tests, kept.\n{END}\nafter\n")
    assert "its range" in results
    assert "old" not in readme + results
