"""The pages of `kproc top` from the broker's status: processes and requests."""

from __future__ import annotations

import pytest

from kproc.cli.status import _print_apis
from kproc.cli.status import status as status_command
from kproc.cli.top_status import REQUESTS, processes_snapshot, requests_snapshot
from tests.support.status_rows import api, role, start, status
from tests.support.top_views import (
    busy_broker,
    drawn,
    snapshots,
    view_of,
)


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


def test_first_reading_has_dashes_instead_of_zeros() -> None:
    now = busy_broker(1)
    rows = processes_snapshot(now, None, 0.0).rows
    assert {row["requests_per_s"] for row in rows} == {row["cpu_percent"] for row in rows} == {None}
    (produce, _) = requests_snapshot(now, None, 0.0).rows
    assert (produce["requests_per_s"], produce["p99_ms"], produce["requests_total"]) == (None, None, 100)
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


def test_phases_have_the_names_of_status_apis(capsys: pytest.CaptureFixture[str]) -> None:
    """One phase was QUEUE_MS, LOCAL_MS and REMOTE_MS here, and QUEUE, WORK and WAIT there."""
    row = api() | {"versions": ["9"]}
    row["times"] |= dict.fromkeys(("ResponseQueueTimeMs", "ResponseSendTimeMs"), row["times"]["LocalTimeMs"])
    _print_apis([row])
    header = capsys.readouterr().out.splitlines()[1].split()
    times = {column.title for column in REQUESTS.columns if column.title.endswith("_MS")}
    assert {each for each in header if each.endswith("_MS")} == times | {"ANSWER_MS", "SEND_MS"}
    explained = {line.split()[0] for line in (status_command.__doc__ or "").splitlines() if line.strip()}
    assert set(header) - {"API", "VERSIONS", "ERRORS"} <= explained
