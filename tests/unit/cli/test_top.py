"""`kproc top`: views that fit the terminal, and rates."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from kproc.cli.clients import add_rates
from kproc.cli.top import View
from tests.support.status_rows import api, role, start, status


@pytest.mark.parametrize(("width", "height"), [(120, 40), (80, 24), (60, 10), (20, 3), (1, 1)])
def test_view_fits_the_terminal(width: int, height: int) -> None:
    rows = [role("handler", index, slept=0.5) for index in range(8)]
    now = status(*rows, role("processor", requests_total=9_000), apis=[api(), api("Fetch")])
    console = Console(file=StringIO(), width=width, height=height)
    console.print(View(now, start(now), 1.0).render(width, height))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in lines)
    if (width, height) == (80, 24):
        assert len(lines) <= height
        assert lines[0].startswith("process, up 1 s")
        text = "\n".join(lines)
        assert "bottleneck none" in text
        assert "handler-7" in text
        assert "Produce" in text


def test_offline_partitions_take_lines_but_no_role_from_view() -> None:
    now = status(*(role("handler", index, slept=0.5) for index in range(8)), apis=[api()])
    first = [{"topic": "t", "partition": at, "handler": 0, "reason": "broken " * 20} for at in range(9)]
    now["offline"] = {"count": 30, "first": first}
    console = Console(file=StringIO(), width=80, height=24)
    console.print(View(now, start(now), 1.0).render(80, 20))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= 20
    offline = [line for line in lines if line.startswith("offline: ")]
    assert [line[:12] for line in offline] == ["offline: t-0", "offline: t-1", "offline: t-2", "offline: 27 "]
    assert sum(line.startswith("handler-") for line in lines) == 8, "nothing is left out for want of room"


def client(name: str, **more: Any) -> dict[str, Any]:
    row = {"id": name, "client_id": name, "address": "127.0.0.1", "port": 1, "age_ms": 10_000, "idle_ms": 0,
           "requests": 100, "bytes_in": 1000, "bytes_out": 500, "principal": "User:ANONYMOUS"}  # fmt: skip
    return {**row, **more}


def test_rates_are_of_the_interval_or_of_the_whole_life() -> None:
    rows = [client("old", requests=130), client("new", age_ms=500, requests=50)]
    add_rates(rows, {"old": client("old")}, 2.0)
    assert rows[0]["requests_per_s"] == 15.0
    assert rows[1]["requests_per_s"] == 100.0
    assert rows[1]["bytes_in_per_s"] == 2000.0
