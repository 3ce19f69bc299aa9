"""The questions that the comparison asks, one cell each: what is run, what is read from it, what is wanted.

A cell is the same for every broker. `wanted` is the goal that kproc on processes set itself against Kafka in
the same round; cells and metrics without one are there to be known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bench.load.run import Result

GB: Final = 1e9
BULK_BATCH_BYTES: Final = 990_000  # just below the 1 MB that a broker takes by default
SMALL_BATCH_BYTES: Final = 16_000  # Java's default batch.size: a 64 KB limit then means 64 KB
FETCH_FILL_BYTES: Final = 512 << 20


@dataclass(frozen=True)
class Wanted:
    """A goal: a `ratio` to Kafka in the same round, or an `absolute` bound."""

    ratio: float | None = None
    absolute: float | None = None


@dataclass(frozen=True)
class Metric:
    """One number of a cell."""

    name: str
    unit: str
    is_higher_better: bool
    read: Callable[[Result], float | None]
    wanted: Wanted | None = None


@dataclass(frozen=True)
class Cell:
    """One question. `mode` is the load generator's, or None for what is read from an unloaded broker."""

    name: str
    title: str
    mode: str | None
    metrics: tuple[Metric, ...]
    options: dict[str, Any] = field(default_factory=dict)
    fill: str | None = None  # the prepared topic that it reads: a key of FILLS
    is_default: bool = True

    @property
    def loop(self) -> str:
        """Open or closed loop: latencies of the two must never be compared."""
        return "open" if "rate" in self.options or self.mode == "latency" else "closed" if self.mode else ""


FILLS: Final[dict[str, dict[str, Any]]] = {
    "filled-large": {"batch_bytes": BULK_BATCH_BYTES, "fill_bytes": FETCH_FILL_BYTES},
    "filled-small": {"batch_bytes": SMALL_BATCH_BYTES, "fill_bytes": FETCH_FILL_BYTES // 2},
}


def _field(*path: str) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        value: Any = result
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return None if value is None else float(value)

    return read


def _cpu_per(unit: str, scale: float) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        return result["broker_cpu_seconds"] / result[unit] * scale if result.get(unit) else None

    return read


READY: Final = Cell(
    "ready",
    "from exec to the first Metadata answer that names a broker",
    None,
    (Metric("ready", "s", False, _field("ready_seconds"), Wanted(absolute=0.5)),),
)
IDLE: Final = Cell(
    "idle",
    "after the start, no client: PSS of all processes, memfd pages that nobody maps, CPU",
    None,
    (
        Metric("memory", "MB", False, _field("memory_mb"), Wanted(absolute=100)),
        Metric("PSS", "MB", False, _field("pss_mb")),
        Metric("unmapped", "MB", False, _field("unmapped_mb")),
        Metric("CPU", "% of a core", False, _field("cpu_percent"), Wanted(absolute=1)),
    ),
)


def _bulk(name: str, title: str, *, is_default: bool = True, **options: Any) -> Cell:
    rate = Metric("throughput", "MB/s", True, _field("megabytes_per_second"), Wanted(ratio=1.5))
    cpu = Metric("CPU", "s/GB", False, _cpu_per("bytes", GB), Wanted(ratio=0.5))
    p99 = Metric("p99", "us", False, _field("latency_us", "p99"))
    options = {"batch_bytes": BULK_BATCH_BYTES, **options}
    return Cell(name, title, "produce", (rate, cpu, p99), options, is_default=is_default)


def _fetch(name: str, title: str, fetch_bytes: int, *, fill: str = "filled-large", **options: Any) -> Cell:
    rate = Metric("throughput", "MB/s", True, _field("megabytes_per_second"), Wanted(ratio=0.9))
    cpu = Metric("CPU", "s/GB", False, _cpu_per("bytes", GB))
    p99 = Metric("p99", "us", False, _field("latency_us", "p99"))
    options = {"fetch_bytes": fetch_bytes, **options}
    return Cell(name, title, "fetch", (rate, cpu, p99), options, fill=fill)


def _single(name: str, title: str, *, is_default: bool = True, wanted: bool = True, **options: Any) -> Cell:
    goal = Wanted(ratio=1.0) if wanted else None
    metrics = (
        Metric("rate", "requests/s", True, _field("requests_per_second"), goal),
        Metric("p50", "us", False, _field("latency_us", "p50")),
        Metric("p99", "us", False, _field("latency_us", "p99")),
        Metric("CPU", "us/request", False, _cpu_per("requests", 1e6)),
    )
    return Cell(name, title, "produce", metrics, options, is_default=is_default)


def _latency(rate: int, *, is_default: bool = False) -> Cell:
    metrics = (
        Metric("p50", "us", False, _field("latency_us", "p50"), Wanted(ratio=1.1) if is_default else None),
        Metric("p99", "us", False, _field("latency_us", "p99"), Wanted(ratio=0.5) if is_default else None),
        Metric("max", "us", False, _field("latency_us", "max")),
        Metric("acknowledged p50", "us", False, _field("ack_latency_us", "p50")),
        Metric("generator late p50", "us", False, _field("late_us", "p50")),
        Metric("CPU", "us/record", False, _cpu_per("requests", 1e6)),
    )
    title = f"produce to consume, {rate:,} records/s of 100 B, from the intended send"
    return Cell(f"latency-{rate}", title, "latency", metrics, {"rate": rate}, is_default=is_default)


def _churn() -> Cell:
    metrics = (
        Metric("rate", "connections/s", True, _field("requests_per_second")),
        Metric("p99", "us", False, _field("latency_us", "p99")),
        Metric("CPU", "us/connection", False, _cpu_per("requests", 1e6)),
    )
    title = "connect, ApiVersions, close; 8 at a time"
    return Cell("churn", title, "churn", metrics, {"connections": 8}, is_default=False)


CELLS: Final = (
    READY,
    IDLE,
    _bulk("bulk-1", "produce 0.99 MB batches of 100 B records, 1 connection", connections=1),
    _bulk("bulk-4", "the same, 4 connections, 4 partitions", connections=4, partitions=4),
    _bulk("bulk-1k", "the same, 1 KB records, 1 connection", is_default=False, record_bytes=1000),
    _fetch("fetch-64k", "fetch from the page cache, limit 64 KB, 0.99 MB batches", 64 << 10),
    _fetch("fetch-64k-small", "the same, 16 KB batches: answers are 64 KB", 64 << 10, fill="filled-small"),
    _fetch("fetch-1m", "fetch, limit 1 MB", 1 << 20),
    _fetch("fetch-50m", "fetch, limit 50 MB", 50 << 20),
    _fetch("fetch-1m-4", "fetch, limit 1 MB, 4 connections", 1 << 20, connections=4),
    _single("one-1", "produce one record of 100 B, acks=1, 1 connection", connections=1),
    _single("one-16", "16 connections", connections=16),
    _single("one-64", "64 connections", connections=64),
    _single("one-256", "256 connections", is_default=False, wanted=False, connections=256),
    _single("one-64-p4", "64 connections, 4 partitions", is_default=False, connections=64, partitions=4),
    _single("acks-0", "4 connections, acks=0", is_default=False, wanted=False, connections=4, acks=0),
    _single("acks-all-1", "acks=all, 1 connection", wanted=False, connections=1, acks=-1),
    _single("acks-all-64", "acks=all, 64 connections", wanted=False, connections=64, acks=-1),
    _latency(1000, is_default=True),
    _latency(5000),
    _latency(10000),
    _churn(),
)
BY_NAME: Final = {cell.name: cell for cell in CELLS}
DEFAULT: Final = tuple(cell.name for cell in CELLS if cell.is_default)
