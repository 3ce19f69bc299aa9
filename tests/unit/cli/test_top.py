"""`kproc top`: screens that fit, rates and dashes, order, keys, and what is read for which rows."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kproc.cli.top import PageName, _has_terminal, _Loop, _PendingReading, all_pages
from kproc.cli.top_links import Links
from kproc.cli.top_page import PageSnapshot, Reading, Source, TopPage
from kproc.cli.top_status import requests_snapshot
from kproc.cli.top_terminal import parse_keys
from kproc.client import ConnectionFailed, ConnectionLost
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.command_line import call_kproc, refused, told
from tests.support.scripted_client import ScriptedClient
from tests.support.status_rows import api, status
from tests.support.top_views import (
    PAGES,
    once,
    snapshots,
    view_of,
)
from tests.support.wait import wait_until

# -- the renderer


# -- rows


# -- keys and readings


def loop_of(*snapshots: PageSnapshot | Exception) -> tuple[_Loop, list[Any]]:
    """A loop whose pages all give these snapshots, one after the other."""
    given, asked = list(snapshots), []

    def update(wanted: Sequence[str] | None) -> PageSnapshot:
        asked.append(wanted)
        answer = given.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    views = []
    for page in PAGES.values():
        view = view_of(page.name, None)
        view.reading = Reading(Source(update))
        views.append(view)
    return _Loop(Links("127.0.0.1:1"), views, 0, 2.0), asked


@pytest.mark.parametrize(
    ("keys", "page"),
    [
        (b"3", "groups"),
        (b"\t\t", "groups"),
        (b"\x1b[Z", "requests"),
        (b"9", "processes"),
    ],
)
def test_keys_choose_a_page(keys: bytes, page: str) -> None:
    loop, _ = loop_of()
    for key in parse_keys(keys):
        assert loop.press(key)
    assert loop._view.page.name == page


def test_keys_sort_reverse_and_filter() -> None:
    loop, _ = loop_of()
    view = loop._view
    for key in parse_keys(b"2>r"):
        loop.press(key)
    view = loop._view
    assert (view.column.title, view.is_reversed) == ("REC/S", True)
    for key in parse_keys(b"\x1b[D\x1bOD"):
        loop.press(key)
    assert (view.column.title, view.is_reversed) == ("SIZE", False)
    for key in parse_keys("/qé1x\x7f\r".encode()):
        assert loop.press(key), "while a text is typed, q is a letter"
    assert view.wanted == "qé1"
    loop.press("escape")
    assert view.wanted == ""
    assert not loop.press("q")


def test_error_keeps_the_rows_and_the_next_reading_clears_it() -> None:
    first = snapshots()["processes"]
    loop, _ = loop_of(first, ConnectionFailed("cannot connect to h:1"), first)
    view = loop._view
    loop._apply(loop._read(view, []))
    assert view.due_s - time.monotonic() < 1, "the first rates follow soon"
    loop._apply(loop._read(view, []))
    assert view.error == "cannot connect to h:1; trying again"
    assert view.snapshot is first
    assert not view.has_rates
    assert view.due_s - time.monotonic() <= 2, "the time that an error took does not delay the next try"
    reading, view.reading = view.reading, Reading(Source(lambda _names: first))
    assert reading is not view.reading, "the next readings begin with new counters"
    loop._apply(loop._read(view, []))
    assert view.error is None


def test_top_shows_lost_connection_in_one_line() -> None:
    lost = ConnectionLost("h:1 closed the connection: it is not a kproc broker")
    loop, _ = loop_of(snapshots()["processes"], lost)
    view = loop._view
    loop._apply(loop._read(view, []))
    view.reading.update_pace.took_s = 100
    loop._apply(loop._read(view, []))
    assert view.error == "127.0.0.1:1 has closed the connection; trying again"


def test_missing_right_is_explained_and_not_tried_at_once() -> None:
    loop, _ = loop_of(KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    view = loop._view
    loop._apply(loop._read(view, []))
    assert view.error is not None
    assert "no right on the cluster" in view.error
    assert view.due_s - time.monotonic() > 20


def test_hung_reading_of_another_page_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _ = loop_of()
    begun: list[str] = []
    monkeypatch.setattr(loop, "_read", lambda view, _names: begun.append(view.page.name))
    hung = _PendingReading(loop._views[2], loop._links, time.monotonic())
    loop._task = hung
    loop._start_reading(lambda: None)
    assert begun == [], "it may still answer"
    assert 0 < loop._wait_s() <= 1
    hung.began_s -= 2
    loop._start_reading(lambda: None)
    wait_until(lambda: begun == ["processes"], what="the page on the screen is read")
    assert loop._links is not hung.links


def test_bug_in_the_reader_is_raised_in_the_main_thread() -> None:
    loop, _ = loop_of(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        loop._apply(loop._read(loop._view, []))


# -- one update, by the command


def test_missing_right_ends_one_update(broker: ScriptedClient, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), "groups": []}
    broker._list_groups = lambda _fields: answer  # type: ignore[method-assign]
    assert "CLUSTER_AUTHORIZATION_FAILED" in refused(once(capsys, "groups"))


def test_one_update_hides_idle_requests_in_text_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = status(apis=[api(requests=100), {**api("Fetch"), "key": 1}])
    before = {**now, "apis": [{**now["apis"][0], "requests_total": 0}, now["apis"][1]]}
    page = replace(PAGES["requests"], open=lambda _links: Source(lambda _names: requests_snapshot(now, before, 1.0)))
    monkeypatch.setattr("kproc.cli.top.all_pages", lambda: [page])
    lines = told(once(capsys, "requests")).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["API", "Produce"]
    assert lines[-1] == "(1 idle row: sort or filter to see it)"
    assert len(json.loads(told(once(capsys, "requests", "--format", "json")))["rows"]) == 2


def test_unknown_column_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(once(capsys, "groups", "--sort", "size"), 2)
    assert said.startswith("kproc: --sort size: the page groups has the columns GROUP, STATE, MEMBERS, LAG, ")


def test_without_a_terminal_one_update_is_printed(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    done = call_kproc(capsys, "top", "--page", "groups", "--interval", "0.2")
    assert told(done).startswith("9 groups, ")
    assert done.stderr == "kproc: there is no terminal to draw on, so this is one update\n"


@pytest.mark.parametrize(("term", "can_draw"), [("xterm-256color", True), ("dumb", False), (None, False)])
def test_dumb_terminal_is_none(monkeypatch: pytest.MonkeyPatch, term: str | None, can_draw: bool) -> None:
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}", SimpleNamespace(isatty=lambda: True))
    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    assert _has_terminal() is can_draw


def test_pages_have_the_names_of_the_option() -> None:
    assert [page.name for page in all_pages()] == [name.value for name in PageName]
    for page in all_pages():
        check_page(page)


def check_page(page: TopPage) -> None:
    titles = [column.title for column in page.columns]
    assert len(set(titles)) == len(titles)
    assert page.column(page.sort) is not None
    assert set(page.dropped) <= set(titles[1:])
    assert {title for title, _ in page.legend if title} <= set(titles)
    assert max(len(text) for _, text in page.legend) <= 68, "it fits 80 columns"
