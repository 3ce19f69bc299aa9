"""`kproc clients`: order, columns and escaping."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.cli.clients import Order, add_rates, print_clients, sort_rows, throttle_lines
from tests.support.cases import in_one_test

ID = "127.0.0.1:9092-127.0.0.1:53214-10-12"


def client(name: str, **more: Any) -> dict[str, Any]:
    row = {"id": name, "client_id": name, "address": "127.0.0.1", "port": 1, "age_ms": 10_000, "idle_ms": 0,
           "requests": 100, "bytes_in": 1000, "bytes_out": 500, "principal": "User:ANONYMOUS",
           "throttled_ms": {}, "quotas": {}}  # fmt: skip
    return {**row, **more}


@in_one_test(
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
        ID,
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


def test_clients_show_the_principal_or_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
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
    monkeypatch.setenv("COLUMNS", "105")
    print_clients([connected("User:ANONYMOUS")])
    assert capsys.readouterr().out.splitlines()[-1] == "(no room for PRINCIPAL, LISTENER)"


def test_long_ids_are_addresses_before_columns_are_dropped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for columns, port, first in ((120, 2, "127.0.0.1:1"), (120, 1, ID), (200, 2, ID)):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_clients([connected("User:alice"), connected("User:bob", port=port)])
        header, row, *_, last = capsys.readouterr().out.splitlines()
        assert row.split()[0] == first, (columns, port)
        assert ("SOFTWARE" in header) == (first != ID or columns == 200), last


def test_client_names_are_escaped_for_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_clients([connected("User:alice") | {"client_id": "\x1b[2Jforged\nrow \u2028é"}])
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 2
    assert r"\x1b[2Jforged\nrow \u2028é" in shown


def test_throttled_clients_are_named_with_their_quota(capsys: pytest.CaptureFixture[str]) -> None:
    quota = {"producer_byte_rate": {"value": 1e6, "of": "user alice"}}
    rows = [
        connected("User:bob", throttled_ms={"request_percentage": 1000}, quotas={}),
        connected("User:alice", throttled_ms={"producer_byte_rate": 8300}, quotas=quota),
        connected("User:carol"),
    ]
    assert throttle_lines(rows) == [
        "throttled 83 % of the time: billing (User:alice, 127.0.0.1:1) by producer_byte_rate=1000000 of user alice",
        "throttled 10 % of the time: billing (User:bob, 127.0.0.1:1) by request_percentage",
    ]
    sort_rows(rows, Order.THROTTLED)
    assert [row["principal"] for row in rows] == ["User:alice", "User:bob", "User:carol"]


def test_throttled_time_is_that_of_the_interval() -> None:
    before = client("a", throttled_ms={"producer_byte_rate": 4000})
    row = client("a", throttled_ms={"producer_byte_rate": 5000, "consumer_byte_rate": 500})
    add_rates([row], {"a": before}, 2.0)
    assert row["throttled_percent"] == {"producer_byte_rate": 50.0, "consumer_byte_rate": 25.0}


def test_many_throttled_clients_are_counted() -> None:
    rows = [connected("User:a", throttled_ms={"producer_byte_rate": 100 + n}) for n in range(12)]
    assert len(throttle_lines(rows)) == 11
    assert throttle_lines(rows)[-1] == "throttled: 2 more; --format json has all"
