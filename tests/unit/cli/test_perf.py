"""`kproc perf`: the limit that it names, and how records are shared out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kproc.cli.bottleneck import Finding
from kproc.cli.common import Format
from kproc.cli.perf import ProduceLoad, split_records
from kproc.cli.perf_run import LoadPlan, LoadReport, LoadUsage, find_limit
from kproc.tools.perf.load import LoadTotals
from tests.support.cases import in_one_test
from tests.support.status_rows import role, start, status


def limit(
    *,
    rate: float | None = None,
    records: int = 1000,
    throttled_ms: int = 0,
    latency_ms: int | None = None,
    client: float = 0.2,
    host: float = 0.5,
    after: dict[str, Any] | None = None,
) -> Finding:
    plan = LoadPlan("produce", "t", 1.0, None, rate, {})
    totals = LoadTotals(requests=records, records=records, throttled_ms=throttled_ms)
    if latency_ms is not None:
        totals.times.add(latency_ms * 1_000_000)
    before = start(after) if after is not None else None
    return find_limit(plan, totals, LoadUsage(1.0, client, host), before, after, 4)


def test_report_of_one_record_names_it_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    plan, totals = LoadPlan("consume", "t", 1.0, None, None, {}), LoadTotals(requests=1, records=1)
    LoadReport("b:1", plan, totals, LoadUsage(1.0, 0.1, 0.5), Finding("none", ""), {}, 1).print()
    assert capsys.readouterr().out.startswith("1 record consumed from t in 1.0 s, 1 connection\n")


def test_report_shows_json_or_text_by_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    plan, totals = LoadPlan("consume", "t", 1.0, None, None, {}), LoadTotals(requests=1, records=1)
    report = LoadReport("b:1", plan, totals, LoadUsage(1.0, 0.1, 0.5), Finding("none", ""), {}, 1)
    report.show(Format.JSON)
    assert json.loads(capsys.readouterr().out) == report.as_json()
    report.show(Format.TABLE)
    assert capsys.readouterr().out.startswith("1 record consumed")


def test_throttled_load_names_the_quota() -> None:
    assert limit(throttled_ms=40, client=0.99).stage == "quota"


def test_reached_rate_is_the_limit_and_a_missed_one_is_not() -> None:
    assert limit(rate=1000) == Finding("--rate", "the load reached 1000 records/s")
    quick, late = (limit(rate=1000, latency_ms=latency_ms).reason for latency_ms in (2, 2022))
    assert quick == "the load reached 1000 records/s, and 99 of 100 requests were answered within 2.00 ms"
    assert "within 2022.00 ms; this is long: kproc top --once " in late
    assert limit(rate=2000, client=0.99).stage == "client CPU"
    assert limit(rate=1234567, records=1234567).reason.startswith("the load reached 1234567 records/s")


def test_busy_handler_is_named_after_our_own_cpu() -> None:
    busy = status(role("handler", 0, slept=0.02), role("processor", slept=0.5))
    assert limit(after=busy).stage == "Handlers"
    assert limit(after=busy, client=0.9).stage == "client CPU"


def test_load_of_idle_parts_is_limited_by_round_trips() -> None:
    idle = status(role("handler", 0, slept=0.7), role("processor", slept=0.8, requests_total=500))
    found = limit(after=idle)
    assert found.stage == "round trips"
    assert "each of 4 connections" in found.reason
    assert "handler-0 least" in found.reason


def test_broker_without_a_status_is_said_to_be_unknown() -> None:
    assert "gives us no status" in limit().reason
    assert limit(host=0.99).stage == "CPU"


@in_one_test(
    ("size", "batch", "rate", "connections", "records"),
    [(100, 16_384, None, 4, 163), (0, 10, None, 1, 10), (1 << 20, 16_384, None, 4, 1), (100, 16_384, 100_000, 5, 100),
     (100, 16_384, 10, 4, 1), (100, 16_384, 1e9, 4, 163)],
)  # fmt: skip
def test_request_holds_a_batch_or_the_records_of_5_ms(size, batch, rate, connections, records) -> None:
    load = ProduceLoad(size, batch, rate, connections)
    assert load.records_per_request == records
    assert load.details()["records_per_request"] == records


def test_request_of_a_transaction_holds_at_most_its_records() -> None:
    assert ProduceLoad(per_transaction=10).records_per_request == 10
    assert ProduceLoad(per_transaction=1000, rate=10).records_per_request == 163


def test_connections_share_the_records() -> None:
    assert split_records(10, 4) == [3, 3, 2, 2]
    assert split_records(None, 2) == [None, None]
