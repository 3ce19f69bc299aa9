"""A page of `kproc top`: the order of its rows, and the rests between its readings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kproc.cli.top_page import PageSnapshot, Reading, ReadingPace, Row, Source, arrange
from tests.support.top_views import (
    PAGES,
    topic,
)


def names(rows: Sequence[Row]) -> list[str]:
    return [row["topic"] for row in rows]


def test_rows_are_sorted_by_value_with_unknown_ones_last() -> None:
    page = PAGES["topics"]
    rows = [topic("t-10", size_bytes=5), topic("t-2", size_bytes=70), topic("t-1", size_bytes=None)]
    name, size = page.column("topic"), page.column("SIZE")
    assert name is not None
    assert size is not None
    assert names(arrange(page, rows, name)) == ["t-1", "t-2", "t-10"]
    assert names(arrange(page, rows, name, is_reversed=True)) == ["t-10", "t-2", "t-1"]
    assert names(arrange(page, rows, size)) == ["t-2", "t-10", "t-1"]
    assert names(arrange(page, rows, size, is_reversed=True)) == ["t-10", "t-2", "t-1"]
    assert names(arrange(page, rows, name, wanted="T-1")) == ["t-1", "t-10"]


def test_dear_reading_rests_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.3, 114.0, 116.0, 200.0, 203.0])
    monkeypatch.setattr("kproc.cli.top_page.time.monotonic", lambda: next(clock))
    pace = ReadingPace(50, 60.0)
    pace.run(lambda: None)
    assert not pace.is_due
    assert pace.is_due
    pace.run(lambda: None)
    assert pace.rest_s == 60, "not 150"


def test_answer_of_the_supervisor_needs_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 106.0])
    monkeypatch.setattr("kproc.cli.top_page.time.monotonic", lambda: next(clock))
    reading = Reading(Source(lambda _names: PageSnapshot([], [], {"notice": "no answer in 1500 ms"})))
    reading.read([])
    assert reading.update_pace.rest_s == 0
    assert reading.cost(2.0) == ""
