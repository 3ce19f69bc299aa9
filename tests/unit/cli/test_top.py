"""`kproc top`: screens that fit, rates and dashes, order, keys, and what is read for which rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kproc.cli import top_groups, top_links, top_topics, topic_usage
from kproc.cli.clients import add_rates
from kproc.cli.top import PageName, _has_terminal, _Loop, _PendingReading, all_pages
from kproc.cli.top_links import Links
from kproc.cli.top_page import PageSnapshot, Reading, ReadingPace, Row, Source, TopPage, arrange
from kproc.cli.top_screen import Mode, Screen, StyledText, View, ansi, plain, render
from kproc.cli.top_status import connections_snapshot, processes_snapshot, requests_snapshot
from kproc.cli.top_terminal import parse_keys
from kproc.client import ClientError, ConnectionFailed, ConnectionLost
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey
from tests.support.command_line import call_kproc, described, refused, told
from tests.support.scripted_client import NOW_MS, ScriptedClient, ScriptedGroup, ScriptedLog, StoppedClock
from tests.support.status_rows import api, role, start, status
from tests.support.wait import wait_until

PAGES = {page.name: page for page in all_pages()}
SIZES = [(120, 40), (80, 24), (60, 10), (20, 3), (1, 1)]
HOSTILE = "x\x1b]0;owned\x07\x1b[31m\nforged\u202e"


def view_of(name: str, snapshot: PageSnapshot | None, **more: Any) -> View:
    page = PAGES[name]
    column = page.column(page.sort)
    assert column is not None
    return View(page, Reading(Source(lambda _names: PageSnapshot([], [], {}))), column, snapshot=snapshot, **more)


def drawn(view: View, width: int = 80, height: int = 24, mode: Mode | None = None) -> list[str]:
    return [plain(line) for line in screen_of(view, width, height, mode).lines]


def screen_of(view: View, width: int = 80, height: int = 24, mode: Mode | None = None) -> Screen:
    return render(view, list(PAGES.values()), mode or Mode(2.0), width, height)


def busy_broker(handlers: int = 8) -> dict[str, Any]:
    rows = [role("handler", index, slept=0.5) for index in range(handlers)]
    return status(*rows, role("processor", requests_total=9_000), apis=[api(), api("Fetch")])


def client(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "client_id": name, "address": "127.0.0.1", "port": 1, "age_ms": 10_000, "idle_ms": 0,
            "requests": 100, "bytes_in": 1000, "bytes_out": 500, "principal": "User:ANONYMOUS", "state": "NOT_MUTED",
            "software_name": "librdkafka", "software_version": "2.12.1", "listener_name": "PLAINTEXT",
            "processor": 0, **more}  # fmt: skip


def topic(name: str, **more: Any) -> dict[str, Any]:
    return {"topic": name, "is_internal": False, "partitions": 2, "size_bytes": 5000, "bytes_in_per_s": 1.0,
            "records_in_per_s": 1.0, "bytes_out_per_s": 0.0, "last_write_ms": 1, "last_write_age_ms": 1000,
            **more}  # fmt: skip


def group(name: str, **more: Any) -> dict[str, Any]:
    return {"group": name, "state": "Stable", "type": "classic", "protocol_type": "consumer", "members": 1,
            "lag": 10, "lag_since_ms": 1, "lag_age_ms": 60_000, **more}  # fmt: skip


def snapshots() -> dict[str, PageSnapshot]:
    now = busy_broker()
    return {
        "processes": processes_snapshot(now, start(now), 1.0),
        "requests": requests_snapshot(now, start(now), 1.0),
        "connections": connections_snapshot([client(f"worker-{at}") for at in range(50)]),
        "topics": top_topics.topics_snapshot([topic(f"team.stream-{at}") for at in range(2000)]),
        "groups": top_groups.groups_snapshot([group(f"group-{at}") for at in range(500)]),
    }


# -- the renderer


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "height"), SIZES)
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


def test_processes_show_bottleneck_and_roles() -> None:
    text = "\n".join(drawn(view_of("processes", snapshots()["processes"])))
    assert "up 1s, 0 connections, 9,000 requests/s" in text
    assert "bottleneck none" in text
    assert "handler-7" in text


def test_offline_partitions_take_lines_but_no_role_from_view() -> None:
    now = busy_broker()
    first = [{"topic": "t", "partition": at, "handler": 0, "reason": "broken"} for at in range(9)]
    now["offline"] = {"count": 30, "first": first}
    lines = drawn(view_of("processes", processes_snapshot(now, start(now), 1.0)))
    offline = [line for line in lines if line.startswith("offline: ")]
    assert [line[:12] for line in offline] == ["offline: t-0", "offline: t-1", "offline: t-2", "offline: 27 "]
    assert sum(line.startswith("handler-") for line in lines) == 8, "nothing is left out for want of room"


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


# -- rows


def test_first_reading_has_dashes_instead_of_zeros() -> None:
    now = busy_broker(1)
    rows = processes_snapshot(now, None, 0.0).rows
    assert {row["requests_per_s"] for row in rows} == {row["cpu_percent"] for row in rows} == {None}
    (produce, _) = requests_snapshot(now, None, 0.0).rows
    assert (produce["requests_per_s"], produce["p99_ms"], produce["requests_total"]) == (None, None, 100)
    (row,) = connections_snapshot([client("a")]).rows
    assert row["requests_per_s"] is None
    assert " -  " in drawn(view_of("processes", processes_snapshot(now, None, 0.0)))[-1 - 24 + 5]


def test_times_of_requests_are_those_of_the_interval() -> None:
    now = status(apis=[api(requests=300)])
    before = start(now)
    queue = "RequestQueueTimeMs"
    now["apis"][0]["times"][queue] = {"mean": 0.5, "sum": 50.0}
    now["apis"][0]["timed"] = 100
    before["apis"][0] |= {"requests_total": 100, "timed": 90}
    before["apis"][0]["times"] = {**now["apis"][0]["times"], queue: {"mean": 0.111, "sum": 10.0}}
    (row,) = requests_snapshot(now, before, 2.0).rows
    assert row["requests_per_s"] == 100.0
    assert row["queue_ms"] == pytest.approx(4.0)
    idle = {**now, "apis": [{**now["apis"][0]}]}
    (row,) = requests_snapshot(idle, now, 2.0).rows
    assert (row["requests_per_s"], row["p99_ms"], row["queue_ms"]) == (0.0, None, None)


def test_restarted_role_has_no_rate() -> None:
    now = status(role("handler", requests_total=5))
    before = start(now)
    before["processes"][0] |= {"pid": 7, "requests_total": 500}
    (row,) = processes_snapshot(now, before, 1.0).rows
    assert (row["requests_per_s"], row["cpu_percent"]) == (None, None)


def test_rates_are_of_the_interval_or_of_the_whole_life() -> None:
    rows = [client("old", requests=130), client("new", age_ms=500, requests=50)]
    add_rates(rows, {"old": client("old")}, 2.0)
    assert rows[0]["requests_per_s"] == 15.0
    assert rows[1]["requests_per_s"] == 100.0
    assert rows[1]["bytes_in_per_s"] == 2000.0


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


def test_unknown_sequences_are_no_keys() -> None:
    assert parse_keys(b"\x1b[200~\x1b[1;5Ca\x00\xff\x1b[6~") == ["a", "pagedown"]


def test_scrolling_stays_within_the_rows() -> None:
    view = view_of("topics", snapshots()["topics"], first=1 << 40)
    screen = screen_of(view)
    assert screen.first == 2000 - screen.capacity
    assert f"{screen.first + 1:,}-2,000 of 2,000" in plain(screen.lines[-1])


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


def test_lost_connection_of_a_known_broker_is_told_shortly() -> None:
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


# -- one update, by the command


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    scripted = ScriptedClient()
    for module in (top_links, topic_usage):
        monkeypatch.setattr(module, "connect", lambda _bootstrap: scripted)
    for module in (top_groups, top_topics):
        monkeypatch.setattr(module, "SystemClock", StoppedClock)
    scripted.logs = {
        ("orders", 0): ScriptedLog([NOW_MS - 60_000] * 10),
        ("orders", 1): ScriptedLog([NOW_MS - 3_000]),
        ("__consumer_offsets", 0): ScriptedLog([NOW_MS - 1_000]),
    }
    scripted.internal = {"__consumer_offsets"}
    scripted.groups = {f"g-{at}": ScriptedGroup({("orders", 0): at}, members=at) for at in range(9)}
    return scripted


def once(capsys: pytest.CaptureFixture[str], page: str, *more: str) -> Any:
    return call_kproc(capsys, "top", "--once", "--page", page, "--interval", "0.2", *more)


def test_topics_of_a_local_broker_have_counted_traffic(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedClient, "peer", ("127.0.0.1", 9092))
    counts = {"name": "orders", "records_in": 0, "bytes_out": 0, "fetches": 0}
    broker.traffic = [[{**counts, "bytes_in": 1000}], [{**counts, "bytes_in": 5000}]]
    answer = described(once(capsys, "topics", "--format", "json"))
    assert (answer["page"], answer["interval_s"]) == ("topics", 0.2)
    orders, internal = answer["rows"]
    assert 5_000 < orders["bytes_in_per_s"] <= 20_000
    assert (orders["size_bytes"], orders["partitions"], orders["bytes_out_per_s"]) == (1100, 2, 0)
    assert internal["is_internal"]
    assert broker.requests.count(ApiKey.LIST_OFFSETS) == 0, "no log is opened"


def test_topics_of_another_host_have_growth_of_logs(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(once(capsys, "topics")).splitlines()
    assert lines[0] == "1 topic and 1 internal, 3 partitions, 1.2 KiB, in 0 B/s out -/s"
    assert lines[1].startswith("not shown: last writes: only a kproc broker on this host")
    assert lines[2].split() == ["TOPIC", "PARTS", "SIZE", "IN/S", "REC/S", "OUT/S", "WRITTEN"]
    assert lines[4].split() == ["orders", "2", "1.1", "KiB", "0", "-", "-", "-"]


def test_denied_requests_for_sizes_are_not_repeated(
    broker: ScriptedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(op: str) -> Any:
        if op != "ping":
            raise ClientError("it needs the right DESCRIBE on the cluster")

    monkeypatch.setattr(ScriptedClient, "peer", ("127.0.0.1", 9092))
    broker.operate = deny  # type: ignore[method-assign,assignment]
    broker.denied = {ApiKey.DESCRIBE_LOG_DIRS}
    page = PAGES["topics"]
    reading = Reading(page.open(Links("h:1")))
    for _ in range(2):
        snapshot = reading.read([], has_survey=True)
        assert "sizes: they need the right DESCRIBE on the cluster" in plain(snapshot.head[-1])
    broker.requests.clear()
    broker.operate = None  # type: ignore[method-assign,assignment]
    assert [row["size_bytes"] for row in reading.read([], has_survey=True).rows] == [None, None]
    assert broker.requests == [ApiKey.METADATA]


def test_groups_are_sorted_by_lag_with_its_age(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(once(capsys, "groups", "--filter", "g-1")).splitlines()
    assert lines[0] == "9 groups, 9 with a lag, 54 records behind"
    assert [line.split() for line in lines[2:]] == [
        ["g-1", "Stable", "1", "9", "60s", "classic", "consumer"],
    ]
    rows = described(once(capsys, "groups", "--format", "json", "--sort", "lag", "--reverse"))["rows"]
    assert [row["lag"] for row in rows] == list(range(2, 11))


def test_update_of_groups_asks_for_the_rows_on_the_screen_only(
    broker: ScriptedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = Links("h:1")
    page = PAGES["groups"]
    reading = Reading(page.open(links))
    reading.read([])
    reading.survey_pace._next_s = float("inf")
    fetched: list[list[str]] = []
    real = broker._offset_fetch

    def spy(fields: Any) -> Any:
        fetched.append([row["group_id"] for row in fields["groups"]])
        return real(fields)

    monkeypatch.setattr(broker, "_offset_fetch", spy)
    broker.requests.clear()
    reading.read(["g-3", "g-4"])
    assert ApiKey.FETCH in broker.requests
    broker.requests.clear()
    shown = {row["group"]: row for row in reading.read(["g-3", "g-4"]).rows}
    assert fetched == [["g-3", "g-4"]] * 2
    assert ApiKey.FETCH not in broker.requests, "the time of a record is read once"
    assert len(shown) == 9
    assert (shown["g-3"]["lag_age_ms"], shown["g-5"]["lag_age_ms"]) == (60_000, None)


def test_pages_of_another_host_say_where_they_are_shown(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for page in ("processes", "requests"):
        said = refused(once(capsys, page, "--bootstrap", "192.0.2.1:9092"))
        assert "192.0.2.1:9092 is another host" in said
    assert "takes a kproc broker on this host" in refused(once(capsys, "connections"))


def test_missing_right_ends_one_update(broker: ScriptedClient, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), "groups": []}
    broker._list_groups = lambda _fields: answer  # type: ignore[method-assign]
    assert "CLUSTER_AUTHORIZATION_FAILED" in refused(once(capsys, "groups"))


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
