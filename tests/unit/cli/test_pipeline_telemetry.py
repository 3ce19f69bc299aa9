"""What `kproc pipeline telemetry` prints of its tables."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.cli.pipeline_telemetry import _print_apis, _print_partitions


def stage(api: str, name: str, timed: int, p99: float) -> dict[str, Any]:
    quantiles = {"p50": p99 / 4, "p95": p99 / 2, "p99": p99, "p999": 2 * p99}
    return {"api": api, "stage": name, "timed": timed, **quantiles}


def api(name: str, requests: int) -> dict[str, Any]:
    return {"api": name, "requests": requests, "per_s": 12.5, "peak_per_s": 40.0, "errors": 0}


def test_apis_are_in_the_order_of_their_requests_with_what_was_timed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    latency = [
        stage("Fetch", "TotalTimeMs", 7, 4.0),
        stage("Fetch", "RemoteTimeMs", 7, 3.0),
        stage("Fetch", "LocalTimeMs", 7, 1.0),
    ]
    _print_apis({"apis": [api("Metadata", 1), api("Fetch", 900)], "latency": latency})
    blank, header, fetch, metadata = capsys.readouterr().out.split("\n")[:4]
    assert not blank
    assert header.split("  ")[0] == "API"
    assert fetch.split() == ["Fetch", "900", "12.5", "40.0", "0", "7", "1", "2", "4", "8", "RemoteTime"]
    assert metadata.split() == ["Metadata", "1", "12.5", "40.0", "0", "0", "-", "-", "-", "-", "-"]


def test_a_table_without_rows_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    _print_apis({"apis": [], "latency": []})
    _print_partitions([], 10)
    assert not capsys.readouterr().out
