"""The utilisation law on two answers of `status`."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.tools.tune.live import TooQuiet, propose

SECOND = 1_000_000_000


def status(
    at: int, rows: list[tuple[str, int, float, float, int]], transport: str = "process"
) -> dict[str, Any]:
    """(role, index, busy seconds, CPU seconds, requests so far) at `at` seconds."""
    return {
        "transport": transport,
        "processes": [
            {
                "role": role, "index": index, "pid": 100 + index, "pool": None, "requests_total": requests,
                "cpu_seconds": cpu, "counters": {"heartbeat_ns": at * SECOND, "slept_ns": int((at - busy) * SECOND)},
            }
            for role, index, busy, cpu, requests in rows
        ],
    }  # fmt: skip


BEFORE = status(0, [("processor", 0, 0, 0, 0), ("handler", 0, 0, 0, 0), ("handler", 1, 0, 0, 0)])


def test_demand_is_busy_time_by_rate():
    after = status(
        10, [("processor", 0, 4, 4, 100_000), ("handler", 0, 9, 9, 60_000), ("handler", 1, 6, 6, 40_000)]
    )
    live = propose(BEFORE, after, 10.0, cpus=8)
    processor, handler = live.uses
    assert processor.requests_per_s == 10_000
    assert processor.demand_us == pytest.approx(40)
    assert processor.rate_max == pytest.approx(25_000)
    assert handler.busy == pytest.approx(1.5)
    assert handler.demand_us == pytest.approx(150)
    assert handler.rate_max == pytest.approx(13_333, rel=1e-3)
    # 0.4 and 1.5 roles at 70 % each
    assert live.settings == {"num.network.threads": "1", "num.io.threads": "3"}
    assert "handlers are saturated first" in live.remarks[-1]


def test_waiting_for_a_cpu_is_no_reason_for_more_processes():
    after = status(
        10, [("processor", 0, 10, 5, 100_000), ("handler", 0, 10, 5, 50_000), ("handler", 1, 10, 5, 50_000)]
    )
    live = propose(BEFORE, after, 10.0, cpus=2)
    assert live.uses[1].waiting == pytest.approx(1.0)
    assert live.settings["num.io.threads"] == "2"
    assert any("do not help" in remark for remark in live.remarks)


def test_a_role_that_did_not_beat_was_busy_all_the_time():
    rows = [("processor", 0, 4.0, 4.0, 100_000), ("handler", 0, 0.0, 5.0, 0), ("handler", 1, 0.0, 0.0, 0)]
    after = status(10, rows)
    for row in after["processes"][1:]:
        row["counters"] = {"heartbeat_ns": 0, "slept_ns": 0}
    live = propose(BEFORE, after, 10.0, cpus=2)
    assert (live.uses[1].busy, live.uses[1].on_cpu) == (2.0, pytest.approx(0.5))


def test_a_quiet_broker_and_one_without_processes_are_refused():
    quiet = status(10, [("processor", 0, 1, 1, 10), ("handler", 0, 1, 1, 10), ("handler", 1, 0, 0, 0)])
    with pytest.raises(TooQuiet, match="10 requests"):
        propose(BEFORE, quiet, 10.0, cpus=2)
    with pytest.raises(TooQuiet, match="inline"):
        propose(BEFORE, {**quiet, "transport": "inline"}, 10.0, cpus=2)
