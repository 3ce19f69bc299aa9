"""The example's events: always the same, and counted right by a second, slow way."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

import numpy as np

from examples.clicks import events as ev
from examples.clicks.run import spec_text
from examples.clicks.send import to_json
from examples.clicks.verify import check_conversions, check_pages, wrong
from kproc.pipeline.spec import parse_spec

RECORDS = 120_000  # More than one chunk.


def rows(kind: str, events: ev.Events) -> list[dict[str, int]]:
    """All events of a kind, as the pipeline reads them."""
    found: list[dict[str, int]] = []
    for chunk in events.chunks():
        found += [json.loads(value) for value in to_json(getattr(chunk, kind)).to_pylist()]
    return found


@pytest.mark.long
def test_events_have_requested_number_order_and_are_repeatable() -> None:
    events, again = ev.Events(RECORDS), ev.Events(RECORDS)
    every = {kind: rows(kind, events) for kind in ("views", "clicks", "orders")}
    assert sum(map(len, every.values())) == RECORDS
    for kind, found in every.items():
        stamps = [row["ts"] for row in found]
        assert stamps == sorted(stamps), kind
        assert found == rows(kind, again), kind
        assert stamps[0] >= ev.START_MS
        assert stamps[-1] <= ev.LATEST_MS


@pytest.mark.long
def test_expected_figures_are_those_of_a_plain_loop() -> None:
    events = ev.Events(RECORDS)
    expected = events.expected()
    windows: Counter[tuple[int, int]] = Counter()
    last: dict[int, int] = {}
    sessions = session_ms = 0
    for row in rows("views", events):
        windows[(row["ts"] - ev.START_MS) // ev.WINDOW_MS, row["page"]] += 1
        before = last.get(row["visitor"])
        if before is None or row["ts"] - before > ev.SESSION_GAP_MS:
            sessions += 1
        else:
            session_ms += row["ts"] - before
        last[row["visitor"]] = row["ts"]
    assert (expected.sessions, expected.session_ms) == (sessions, session_ms)
    assert expected.sessions > len(last), "some users come back after a pause"
    assert {at: expected.pages[at] for at in windows} == dict(windows)
    assert expected.pages.sum() == expected.views == expected.session_views
    clicked = {row["click"]: row["ts"] for row in rows("clicks", events)}
    orders = rows("orders", events)
    joined = [row for row in orders if 0 <= row["ts"] - clicked[row["click"]] <= ev.JOIN_MS]
    assert 0.7 < len(joined) / len(orders) < 0.9, "some are too late"
    assert (expected.conversions, expected.revenue) == (len(joined), sum(row["amount"] for row in joined))


def test_a_lost_a_doubled_and_a_changed_row_are_noticed() -> None:
    expected = ev.Events(ev.RECORDS_MIN).expected()
    pages = [
        {
            "minute": ev.START_MS + int(minute) * ev.WINDOW_MS,
            "page": int(page),
            "views": int(expected.pages[minute, page]),
            "ms": int(expected.pages_ms[minute, page]),
        }
        for minute, page in np.argwhere(expected.pages)
    ]
    end = {"minute": ev.END_MS // ev.WINDOW_MS * ev.WINDOW_MS, "page": -1, "views": 1, "ms": -1}
    assert not wrong(check_pages([*pages, end], expected))
    assert wrong(check_pages(pages[1:], expected))
    assert wrong(check_pages([*pages, pages[0]], expected))
    assert wrong(check_pages([{**pages[0], "ms": 1}, *pages[1:]], expected))
    orders = [{"order_id": number, "amount": 0} for number in range(expected.conversions)]
    orders[0]["amount"] = expected.revenue
    assert not wrong(check_conversions(orders, expected))
    assert wrong(check_conversions([*orders[1:], orders[1]], expected))


def test_the_specification_is_one_and_its_topics_can_be_others() -> None:
    pipeline = parse_spec(spec_text(), Path("/tmp/shop.toml"))
    assert [sink.name for sink in pipeline.sinks] == ["pages", "sessions", "conversions"]
    other = parse_spec(spec_text("shop.7."), Path("/tmp/shop.toml"))
    topics = [source.values[0] for source in other.sources] + [
        sink.target for sink in other.sinks if sink.kind == "topic"
    ]
    assert topics == [f"shop.7.{name}" for name in ("views", "clicks", "orders", "pages", "conversions")]
