"""The screens of `kproc top`: they fit the terminal, show errors and escape names."""

from __future__ import annotations

import pytest

from kproc.cli import top_groups
from kproc.cli.top_connections import connections_snapshot
from kproc.cli.top_page import PageSnapshot, Source
from kproc.cli.top_screen import Mode, StyledText, ansi, plain
from kproc.cli.top_status import requests_snapshot
from tests.support.cases import in_one_test
from tests.support.status_rows import api, status
from tests.support.top_views import (
    HOSTILE,
    PAGES,
    client,
    drawn,
    group,
    screen_of,
    snapshots,
    view_of,
)

SIZES = [(120, 40), (80, 24), (60, 10), (20, 3), (1, 1)]


@pytest.mark.parametrize("name", PAGES)
@in_one_test(("width", "height"), SIZES)
def test_page_and_its_help_fit_the_terminal(name: str, width: int, height: int) -> None:
    view = view_of(name, snapshots()[name])
    for mode in (Mode(2.0), Mode(2.0, is_help=True), Mode(2.0, is_paused=True, is_typing=True)):
        lines = drawn(view, width, height, mode)
        assert len(lines) == height
        assert max(map(len, lines)) <= width
    if (width, height) == (80, 24):
        screen = screen_of(view, width, height)
        assert len(screen.names) == min(len(view.rows()), screen.capacity)
        assert plain(screen.lines[-1]).startswith("<> sort  r reverse")
        help_text = "\n".join(drawn(view, width, height, Mode(2.0, is_help=True)))
        assert view.page.legend[-1][1] in help_text, "the help is whole"


def test_narrow_screen_leaves_out_the_time_of_the_survey() -> None:
    view = view_of("topics", snapshots()["topics"])
    view.reading.source = Source(lambda _names: PageSnapshot([], [], {}), lambda: None)
    view.reading.update_pace.took_s = 0.003
    view.reading.survey_pace.took_s = 0.139
    assert drawn(view, width=120)[0].split("requests ")[1].split(" + ")[1].startswith("139 ms every ")
    assert drawn(view)[0].endswith(" 3 ms every 2 s")


def test_error_is_shown_above_last_rows_or_instead_of_a_page() -> None:
    view = view_of("groups", snapshots()["groups"], error="cannot connect to h:1; trying again")
    lines = drawn(view)
    assert lines[1] == "cannot connect to h:1; trying again"
    assert any(line.startswith("group-0") for line in lines)
    lines = drawn(view_of("groups", None, error="groups: no right"))
    assert [line for line in lines[1:-1] if line] == ["groups: no right"]


def test_names_of_clients_are_escaped() -> None:
    hostile = {
        "connections": connections_snapshot([client("1", client_id=HOSTILE, principal=HOSTILE)]),
        "groups": top_groups.groups_snapshot([group(HOSTILE)]),
    }
    for name, snapshot in hostile.items():
        view = view_of(name, snapshot, error=HOSTILE, wanted="forged")
        for mode in (Mode(2.0), Mode(2.0, is_typing=True)):
            text = "".join(drawn(view, 120, 24, mode))
            assert text.isprintable()
            assert r"\x1b]0;owned" in text


def test_wide_characters_count_as_two_cells() -> None:
    from rich.cells import cell_len

    lines = drawn(view_of("groups", top_groups.groups_snapshot([group("注文" * 30), group("b")])))
    narrow, wide = (line for line in lines if "Stable" in line)
    assert cell_len(wide) == cell_len(narrow) == len(narrow)


def test_colours_are_left_out_on_request() -> None:
    line = [StyledText("handler-0", "bold red"), StyledText(" running")]
    assert ansi(line, has_colour=True) == "\x1b[1;31mhandler-0\x1b[0m running"
    assert ansi(line, has_colour=False) == "\x1b[1mhandler-0\x1b[0m running"


def test_connections_keep_principal_on_a_narrow_screen() -> None:
    """A filter by a user once matched a column that was not there, while CLIENT was 18 wide around `kproc`."""
    rows = [client("1", client_id="kproc", port=40_000, principal="User:alice"), client("2", port=40_001)]
    lines = drawn(view_of("connections", connections_snapshot(rows)))
    assert {"CLIENT", "ADDRESS", "PRINCIPAL"} <= set(lines[2].split())
    assert lines[-2] == "(no room for SOFTWARE, AGE, IDLE, LISTENER, PROC)"
    lines = drawn(view_of("connections", connections_snapshot(rows), wanted="LIST"))
    assert lines[-2].endswith("PROC, which the filter reads, too)")
    rows = [client(str(at), client_id="x" * 20, port=40_000) for at in range(50)]
    view = view_of("connections", connections_snapshot(rows))
    assert "PRINCIPAL" not in drawn(view)[2].split(), "nobody has logged in, so it goes first"
    assert drawn(view)[-2].startswith("(no room for PRINCIPAL")
    assert "1-19 of 50" in drawn(view)[-1]
    assert "no room" not in "".join(drawn(view, width=200))
    assert "no room" not in "".join(drawn(view, height=19))


def test_idle_requests_are_hidden_until_they_are_sought() -> None:
    now = status(apis=[api(requests=100), *({**api(f"Api{at}"), "key": at} for at in range(1, 40))])
    before = {**now, "apis": [{**now["apis"][0], "requests_total": 0}, *now["apis"][1:]]}
    snapshot = requests_snapshot(now, before, 1.0)
    lines = drawn(view_of("requests", snapshot))
    assert [line.split()[0] for line in lines[3:-2] if line] == ["Produce"]
    assert lines[-2].endswith("39 idle rows: sort or filter to see them)")
    assert any(line.startswith("Api7 ") for line in drawn(view_of("requests", snapshot, wanted="api7")))
    view = view_of("requests", snapshot)
    view.column = view.page.columns[0]
    assert len(screen_of(view).names) > 10


def test_scrolling_stays_within_the_rows() -> None:
    view = view_of("topics", snapshots()["topics"], first=1 << 40)
    screen = screen_of(view)
    assert screen.first == 2000 - screen.capacity
    assert f"{screen.first + 1:,}-2,000 of 2,000" in plain(screen.lines[-1])
