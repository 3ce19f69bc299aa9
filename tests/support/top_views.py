"""Pages of `kproc top` for tests: views of scripted snapshots, as lines of text, and one update by the command."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.cli import top_groups, top_topics
from kproc.cli.top import all_pages
from kproc.cli.top_connections import connections_snapshot
from kproc.cli.top_page import PageSnapshot, Reading, Source
from kproc.cli.top_screen import Mode, Screen, View, plain, render
from kproc.cli.top_status import processes_snapshot, requests_snapshot
from tests.support.command_line import call_kproc
from tests.support.status_rows import api, role, start, status

PAGES = {page.name: page for page in all_pages()}


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


def once(capsys: pytest.CaptureFixture[str], page: str, *more: str) -> Any:
    return call_kproc(capsys, "top", "--once", "--page", page, "--interval", "0.2", *more)
