"""Rows of a broker's status, as `kproc top` reads them."""

from __future__ import annotations

from typing import Any

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
        "cpu_seconds": 0.1,
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
        {**row, "requests_total": 0, "cpu_seconds": 0.0, "counters": dict.fromkeys(row["counters"], 0)}
        for row in now["processes"]
    ]
    apis = [
        {**api, "requests_total": 0, "errors_total": 0, "timed": 0, "total_time_buckets": []}
        for api in now["apis"]
    ]
    return {**now, "uptime_ms": now["uptime_ms"] - 1000, "processes": rows, "apis": apis}


def api(
    name: str = "Produce",
    *,
    remote: float = 0.0,
    total: float = 1.0,
    queue: float = 0.1,
    requests: int = 100,
) -> dict[str, Any]:
    times = {each: {"mean": 0.1, "p50": 0.1, "p99": 0.1, "max": 0.1} for each in
             ("RequestQueueTimeMs", "LocalTimeMs", "RemoteTimeMs", "TotalTimeMs")}  # fmt: skip
    times["RequestQueueTimeMs"]["mean"] = queue
    times["RemoteTimeMs"]["mean"], times["TotalTimeMs"]["mean"] = remote, total
    return {"request": name, "key": 0, "requests_total": requests, "errors_total": 0, "timed": 5, "times": times,
            "total_time_buckets": [[40, 3], [50, 2]]}  # fmt: skip
