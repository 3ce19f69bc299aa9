"""`kproc top`: which stage holds the others up, and tables that fit the terminal."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from kproc.cli.bottleneck import find_bottleneck
from kproc.cli.clients import Order, add_rates, print_clients, sort_rows
from kproc.cli.top import View

SECOND = 1_000_000_000


def role(name: str, index: int = 0, *, slept: float = 1.0, **more: Any) -> dict[str, Any]:
    """A row as `status` gives it, one second after a start in which nothing had been counted."""
    counters = {"heartbeat_ns": SECOND, "slept_ns": int(slept * SECOND), "syncs": 0, "ring_records": 0,
                "bytes_in": 0, "bytes_out": 0}  # fmt: skip
    counters.update(more.pop("counters", {}))
    return {
        "role": name,
        "index": index,
        "pid": 100 + index,
        "state": "running",
        "restarts": 0,
        "hung_ms": 0,
        "pool": "",
        "cpu_percent": 10.0,
        "idle_percent": None,
        "pss_bytes": 1_000_000,
        "connections": 0,
        "requests_total": 0,
        "ring_fill": 0.0,
        "parked": 0,
        "heartbeat_age_ms": 5,
        "counters": counters,
        **more,
    }


def status(
    *rows: dict[str, Any], apis: list[dict[str, Any]] | None = None, **blocked: float
) -> dict[str, Any]:
    return {
        "processes": list(rows),
        "apis": apis or [],
        "network": {"acceptor_blocked": blocked},
        "transport": "process",
        "uptime_ms": 1000,
    }


def start(now: dict[str, Any]) -> dict[str, Any]:
    """The look before: all counters at 0."""
    rows = [
        {**row, "requests_total": 0, "counters": dict.fromkeys(row["counters"], 0)}
        for row in now["processes"]
    ]
    apis = [{**api, "requests_total": 0, "total_time_buckets": []} for api in now["apis"]]
    return {**now, "processes": rows, "apis": apis}


def api(
    name: str = "Produce", *, remote: float = 0.0, total: float = 1.0, requests: int = 100
) -> dict[str, Any]:
    times = {each: {"mean": 0.1, "p50": 0.1, "p99": 0.1, "max": 0.1} for each in
             ("RequestQueueTimeMs", "LocalTimeMs", "RemoteTimeMs", "TotalTimeMs")}  # fmt: skip
    times["RemoteTimeMs"]["mean"], times["TotalTimeMs"]["mean"] = remote, total
    return {"request": name, "key": 0, "requests_total": requests, "errors_total": 0, "timed": 5, "times": times,
            "total_time_buckets": [[40, 3], [50, 2]]}  # fmt: skip


def found(now: dict[str, Any], host_busy: float | None = None) -> tuple[str, str]:
    return find_bottleneck(now, start(now), 1.0, host_busy)


def test_handler_without_time_to_spare_is_named_with_its_ring() -> None:
    now = status(
        role("handler", 0, slept=0.02), role("handler", 1, slept=0.8), role("processor", ring_fill=0.75)
    )
    stage, reason = found(now)
    assert stage == "Handlers"
    assert "handler-0 works 98 % of the time (of 2, the idlest 20 %)" in reason
    assert "request rings 75 % full" in reason
    assert "--handlers" in reason


def test_busy_processor_is_named_but_not_control_plane() -> None:
    control = role("processor", 447, slept=0.0, pool="control")
    assert found(status(role("processor", slept=0.01), control))[0] == "Processors"
    assert found(status(role("processor", slept=0.5), control))[0] == "none"


def test_hung_role_comes_before_everything() -> None:
    now = status(role("handler", slept=0.0), role("processor", state="hung", hung_ms=4_200))
    assert found(now) == ("processor-0", "it hangs: no sign of life for 4.2 s")


def test_limit_of_connections_is_named_by_its_listener() -> None:
    stage, reason = found(status(role("handler"), PLAINTEXT=0.6))
    assert stage == "Acceptor"
    assert reason.startswith("PLAINTEXT let new connections wait 60 % of the time")


def test_full_ring_of_a_handler_that_does_not_take_is_named() -> None:
    assert found(status(role("handler"), role("processor", ring_fill=0.9)))[0] == "request ring"


def test_sync_is_named_when_acks_all_waits_for_it() -> None:
    now = status(role("handler", counters={"syncs": 30}), apis=[api(remote=4.0, total=5.0)])
    assert found(now) == ("disk sync", "acks=all waits 4.0 of 5.0 ms for fdatasync (30 rounds)")
    assert found(status(role("handler"), apis=[api(remote=4.0, total=5.0)]))[0] == "none"


def test_host_without_a_free_core_is_named() -> None:
    assert found(status(role("handler", slept=0.5)), 0.99)[0] == "CPU"
    assert found(status(role("handler", slept=0.5)), 0.5)[0] == "none"


def test_broker_that_has_time_says_what_waits() -> None:
    now = status(role("handler", slept=0.7, parked=3), role("processor", requests_total=500))
    stage, reason = found(now)
    assert stage == "none"
    assert "handler-0 least: it works 30 %" in reason
    assert "3 requests wait in the purgatory" in reason
    assert "nothing to do" in found(status(role("handler"), role("processor")))[1]
    assert "nothing is known yet" in find_bottleneck(now, None, 1.0)[1]


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


@pytest.mark.parametrize(
    ("order", "first"),
    [
        (Order.ADDRESS, "b"),
        (Order.CLIENT, "a"),
        (Order.PRINCIPAL, "c"),
        (Order.AGE, "c"),
        (Order.IDLE, "a"),
        (Order.REQUESTS, "b"),
        (Order.RATE, "a"),
        (Order.BYTES, "c"),
    ],
)
def test_clients_are_sorted_by_what_was_asked(order: Order, first: str) -> None:
    rows = [
        client("a", port=3, age_ms=1, idle_ms=9, requests=5, bytes_in=1),
        client("b", port=1, age_ms=2_000, requests=50, bytes_in=2),
        client("c", port=2, age_ms=900_000, requests=7, bytes_in=9_999, principal=None),
    ]
    add_rates(rows, {}, 0.0)
    sort_rows(rows, order)
    assert rows[0]["id"] == first


def connected(principal: str | None, **more: Any) -> dict[str, Any]:
    """A row of `kproc clients`, with its rates."""
    row = client(
        "127.0.0.1:9092-127.0.0.1:53214-10-12",
        client_id="billing",
        principal=principal,
        software_name="librdkafka",
        software_version="2.12.1",
        listener_name="SASL_SSL",
        processor=10,
        state="NOT_MUTED",
        **more,
    )
    add_rates([row], {}, 0.0)
    return row


def test_clients_show_who_has_logged_in_and_who_has_not_yet(capsys: pytest.CaptureFixture[str]) -> None:
    print_clients([connected("User:alice"), connected(None), connected("User:ANONYMOUS")])
    header, *rows = capsys.readouterr().out.splitlines()
    at = header.split().index("PRINCIPAL")
    assert [row.split()[at] for row in rows] == ["User:alice", "-", "User:ANONYMOUS"]


@pytest.mark.parametrize("columns", [80, 120])
def test_clients_with_long_principals_fit_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    long = "User:CN=billing-service.eu-west-1.internal.example.org,OU=Payments,O=Example Ltd,L=Cork,C=IE"
    print_clients([connected("User:alice"), connected(long)])
    header, *rows = lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert {"ID", "CLIENT", "PRINCIPAL"} <= set(header.split())
    assert "User:alice" in rows[0]
    assert "User:CN=" in rows[1]
    assert ("REQUESTS" in header) == (columns == 120), "a long name alone drops no column"


def test_principals_that_are_all_the_same_are_the_first_to_go(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "130")
    print_clients([connected("User:ANONYMOUS")])
    assert capsys.readouterr().out.splitlines()[-1] == "(no room for PRINCIPAL, LISTENER)"


def test_client_names_are_escaped_for_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_clients([connected("User:alice") | {"client_id": "\x1b[2Jforged\nrow \u2028é"}])
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 2
    assert r"\x1b[2Jforged\nrow \u2028é" in shown
