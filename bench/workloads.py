"""All questions of the comparison. `is_quick` marks what `--quick` asks: at least one cell of each workload.

The goals are what kproc on processes wants to be beside Kafka: see `bench/README.md`.
"""

from __future__ import annotations

from typing import Any, Final

from bench.cells import (
    GB,
    JUDGED,
    YARDSTICK,
    Cell,
    Metric,
    Wanted,
    cpu_per,
    path,
    payload_cpu,
    payload_rate,
    percentiles,
)

BULK_BATCH_BYTES: Final = 990_000  # just below the 1 MB that a broker takes by default
SMALL_BATCH_BYTES: Final = 16_000  # Java's default batch.size: a 64 KB limit then means 64 KB
UNFLUSHED: Final = ("process-none",)
"""Where the flush level is the question: what durability costs stands beside the transports."""
BESIDE_KAFKA: Final = (YARDSTICK, JUDGED)
AMONG_US: Final = (
    JUDGED,
    *(f"{name}-group" for name in ("thread", "free-threaded", "connection-threads", "asyncio", "inline")),
)
"""Peers of --quick where Kafka takes long: the transports beside each other in a small cell, and Kafka beside
processes in a large one."""

FILLS: Final[dict[str, dict[str, Any]]] = {
    "filled-large": {"batch_bytes": BULK_BATCH_BYTES, "fill_bytes": 256 << 20},
    "filled-small": {"batch_bytes": SMALL_BATCH_BYTES, "fill_bytes": 64 << 20},
}

_PROCESSED: Final = (
    Metric("memory", "MB", False, path("memory_mb"), Wanted(ratio=0.25)),
    Metric("PSS", "MB", False, path("pss_mb")),
    Metric("unmapped", "MB", False, path("unmapped_mb")),
    Metric("CPU", "% of a core", False, path("cpu_percent"), Wanted(ratio=0.25)),
)


def _footprint() -> tuple[Cell, ...]:
    ready = (Metric("ready", "s", False, path("ready_seconds"), Wanted(ratio=0.2)),)
    ready_title = "from exec to the first Metadata answer that names a broker"
    idle_title = "after the start, no client: PSS of all processes, memfd pages that nobody maps, CPU"
    shared: dict[str, Any] = {"is_quick": True, "overhead_seconds": 3.0, "is_timed": False}
    return (
        Cell("ready", ready_title, "footprint", "footprint", "ready", ready, **shared),
        Cell("idle", idle_title, "footprint", "footprint", "idle", _PROCESSED, **shared),
    )


def _bulk(name: str, title: str, *, goal: bool = False, **changes: Any) -> Cell:
    """Batched produce; MB/s and CPU are of the record values, so that codecs can be compared."""
    options = {"batch_bytes": BULK_BATCH_BYTES, **changes.pop("options", {})}
    metrics = (
        Metric("throughput", "MB/s", True, payload_rate, Wanted(ratio=2.0) if goal else None),
        Metric("CPU", "s/GB", False, payload_cpu, Wanted(ratio=0.4) if goal else None),
        *percentiles("p50", "p99"),
    )
    return Cell(
        name, title, "produce", "load", "produce", metrics, options, **{"overhead_seconds": 1.3, **changes}
    )


def _compressed(codec: str, record_bytes: int, *, is_quick: bool = False) -> Cell:
    """The generator sends batches that were compressed before the run: the broker's work is what is measured."""
    size = {100: "100", 1000: "1k", 100_000: "100k"}[record_bytes]
    options = {"codec": codec, "record_bytes": record_bytes}
    title = f"produce, {codec}, log-like records of {size} B, 1 connection; MB/s before compression"
    return _bulk(f"bulk-{size}-{codec}", title, options=options, is_quick=is_quick)


def _produce() -> tuple[Cell, ...]:
    one = "produce 0.99 MB batches, acks=1, 1 connection, records of"
    return (
        _bulk("bulk-100", f"{one} 100 B", goal=True, is_quick=True),
        _bulk("bulk-1k", f"{one} 1 KB", goal=True, is_quick=True, options={"record_bytes": 1000}),
        _bulk("bulk-100k", f"{one} 100 KB", goal=True, options={"record_bytes": 100_000}),
        _bulk(
            "bulk-1k-4",
            "the same, 1 KB, 4 connections, 4 partitions",
            options={"record_bytes": 1000, "connections": 4, "partitions": 4},
        ),
        _bulk(
            "bulk-16k",
            "16 KB batches of 100 B records (Java's default), 5 in flight",
            options={"batch_bytes": SMALL_BATCH_BYTES, "in_flight": 5},
        ),
        _bulk("bulk-100-acks-0", "100 B records, acks=0", options={"acks": 0}),
        _bulk("bulk-1k-acks-0", "1 KB records, acks=0", options={"record_bytes": 1000, "acks": 0}),
        _bulk("bulk-100-acks-all", "100 B records, acks=all", options={"acks": -1}, also=UNFLUSHED),
        _bulk(
            "bulk-1k-acks-all",
            "1 KB records, acks=all: `group` is answered after fdatasync",
            options={"record_bytes": 1000, "acks": -1},
            also=UNFLUSHED,
        ),
        _bulk(
            "bulk-100k-acks-all",
            "100 KB records, acks=all",
            options={"record_bytes": 100_000, "acks": -1},
            also=UNFLUSHED,
        ),
        _compressed("lz4", 100),
        _compressed("lz4", 1000),
        _compressed("lz4", 100_000),
        _compressed("zstd", 100),
        _compressed("zstd", 1000, is_quick=True),
        _compressed("zstd", 100_000),
    )


def _fetch(name: str, title: str, fetch_bytes: int, *, goal: bool = False, **changes: Any) -> Cell:
    options = {"fetch_bytes": fetch_bytes, **changes.pop("options", {})}
    metrics = (
        Metric("throughput", "MB/s", True, path("megabytes_per_second"), Wanted(ratio=1.0) if goal else None),
        Metric("CPU", "s/GB", False, cpu_per("bytes", GB), Wanted(ratio=1.0) if goal else None),
        *percentiles("p50", "p99"),
    )
    changes = {"fill": "filled-large", "overhead_seconds": 0.6, "how": "load", "does": "fetch", **changes}
    return Cell(name, title, "consume", changes.pop("how"), changes.pop("does"), metrics, options, **changes)


def _tail(consumers: int, *, is_quick: bool = False) -> Cell:
    title = f"{consumers} consumers at the log's end, each reads all: 64 KB batches, 8 on their way"
    options = {"consumers": consumers, "batch_bytes": 64_000, "record_bytes": 1000, "fetch_bytes": 1 << 20}
    metrics = (
        Metric("delivered", "MB/s", True, path("megabytes_per_second")),
        Metric("CPU", "s/GB", False, cpu_per("bytes", GB)),
        *percentiles("p50", "p99"),
    )
    return Cell(f"tail-{consumers}", title, "consume", "load", "tail", metrics, options, is_quick=is_quick)


def _fanout(consumers: int, *, is_quick: bool = False) -> Cell:
    title = f"{consumers} long polls on one partition, 50 records/s: from the intended send to each consumer"
    metrics = (
        *percentiles("p50", "p99", "max"),
        Metric("CPU", "us/delivery", False, cpu_per("requests", 1e6)),
    )
    options = {"consumers": consumers, "rate": 50}
    return Cell(
        f"fanout-{consumers}", title, "consume", "load", "latency", metrics, options, is_quick=is_quick
    )


def _consume() -> tuple[Cell, ...]:
    cached = "fetch from the page cache, limit"
    small = "fetch, limit 64 KB, 16 KB batches: answers are 64 KB"
    cold = "the topic's files thrown out of the page cache, then read once; 0.99 MB batches, limit 1 MB"
    return (
        _fetch("fetch-1m", f"{cached} 1 MB, 1 consumer", 1 << 20, goal=True, is_quick=True),
        _fetch("fetch-1m-4", "4 consumers", 1 << 20, goal=True, options={"connections": 4}),
        _fetch("fetch-1m-8", "8 consumers", 1 << 20, options={"connections": 8}),
        _fetch("fetch-50m", f"{cached} 50 MB, 1 consumer", 50 << 20),
        _fetch("fetch-64k", small, 64 << 10, goal=True, is_quick=True, fill="filled-small"),
        _fetch(
            "fetch-cold",
            cold,
            1 << 20,
            how="scenario",
            does="cold",
            fill=None,
            overhead_seconds=2.5,
            is_timed=False,
        ),
        _tail(1),
        _tail(4, is_quick=True),
        _tail(8),
        _fanout(50),
        _fanout(200, is_quick=True),
    )


def _single(name: str, title: str, *, goal: float | None = None, **changes: Any) -> Cell:
    metrics = (
        Metric("rate", "requests/s", True, path("requests_per_second"), Wanted(ratio=goal) if goal else None),
        Metric("CPU", "s/million", False, cpu_per("requests", 1e6)),
        *percentiles("p50", "p99"),
    )
    return Cell(name, title, "small", "load", "produce", metrics, **changes)


def _small() -> tuple[Cell, ...]:
    one = "produce one record of 100 B, acks=1,"
    everywhere = [
        _single(
            f"one-{count}",
            f"{one} {count} connection{'s' * (count > 1)}",
            goal=goal,
            is_quick=count != 4,
            options={"connections": count},
        )
        for count, goal in ((1, 1.1), (4, None), (16, 1.4), (64, 1.4), (256, 1.4))
    ]
    return (
        *everywhere,
        _single("one-64-p4", "64 connections, 4 partitions", options={"connections": 64, "partitions": 4}),
        _single("one-4-acks-0", "4 connections, acks=0", options={"connections": 4, "acks": 0}),
        _single("one-1-acks-all", "1 connection, acks=all", options={"acks": -1}, also=UNFLUSHED),
        _single(
            "one-64-acks-all",
            "64 connections, acks=all",
            is_quick=True,
            options={"connections": 64, "acks": -1},
            also=UNFLUSHED,
        ),
    )


def _latency(rate: int, *, goals: dict[str, float] | None = None, is_quick: bool = False) -> Cell:
    metrics = (
        *percentiles("p50", "p99", "p999", "max", goals=goals),
        Metric("acknowledged p50", "us", False, path("ack_latency_us", "p50")),
        Metric("acknowledged p99", "us", False, path("ack_latency_us", "p99")),
        Metric("generator late p50", "us", False, path("late_us", "p50")),
        # No broker gets below this: how late a program that waits for its time is woken, beside it.
        Metric("generator late p99", "us", False, path("late_us", "p99")),
        Metric("CPU", "s/million", False, cpu_per("requests", 1e6)),
    )
    title = f"produce to consume, {rate:,} records/s of 100 B, from the intended send"
    return Cell(
        f"latency-{rate}", title, "latency", "load", "latency", metrics, {"rate": rate}, is_quick=is_quick
    )


def _latencies() -> tuple[Cell, ...]:
    collapse = (
        Metric("collapse rate", "requests/s", True, path("collapse_rate"), Wanted(ratio=1.0)),
        Metric("p99 just below", "us", False, path("latency_us", "p99")),
    )
    title = (
        "16 connections, open loop: the highest rate with p99 <= 50 ms and no growing backlog, by bisection"
    )
    return (
        _latency(1000, goals={"p50": 0.9, "p99": 0.25}, is_quick=True),
        _latency(5000),
        _latency(10_000),
        _latency(20_000),
        Cell(
            "collapse",
            title,
            "latency",
            "scenario",
            "collapse",
            collapse,
            is_quick=True,
            overhead_seconds=6.0,
            is_timed=False,
        ),
    )


def _connections() -> tuple[Cell, ...]:
    churn = (
        Metric("rate", "connections/s", True, path("requests_per_second")),
        Metric("CPU", "s/million", False, cpu_per("requests", 1e6)),
        *percentiles("p50", "p99"),
    )
    idle = (
        Metric("memory", "KB/connection", False, path("kb_per_connection")),
        Metric("CPU", "% of a core", False, path("cpu_percent")),
        Metric("p99 of the last request", "us", False, path("latency_us", "p99")),
    )
    shared: dict[str, Any] = {"overhead_seconds": 6.0, "is_timed": False}
    held = "held open; then each asks once more"
    return (
        Cell(
            "churn",
            "connect, ApiVersions, close; 8 at a time",
            "connections",
            "load",
            "churn",
            churn,
            {"connections": 8},
            is_quick=True,
        ),
        Cell(
            "idle-1000",
            f"1,000 connections {held}",
            "connections",
            "scenario",
            "idle_connections",
            idle,
            {"connections": 1000},
            **shared,
        ),
        Cell(
            "idle-10000",
            f"10,000 connections {held}",
            "connections",
            "scenario",
            "idle_connections",
            idle,
            {"connections": 10_000},
            is_quick=True,
            quick_peers=BESIDE_KAFKA,
            **shared,
        ),
    )


def _partitions(count: int, *, goal: bool = False, **changes: Any) -> Cell:
    """Made and touched; then stopped in order and started again."""
    metrics = (
        Metric("create", "s", False, path("create_seconds")),
        Metric("all leaders", "s", False, path("leaders_seconds")),
        Metric("first record, p50", "us", False, path("latency_us", "p50")),
        Metric("first record, p99", "us", False, path("latency_us", "p99")),
        Metric("first record to all", "s", False, path("touch_seconds")),
        Metric("memory", "KB/partition", False, path("kb_per_partition")),
        Metric("Metadata of all", "ms", False, path("metadata_us", "p50", scale=1e-3)),
        Metric("restart to ready", "s", False, path("restart_seconds"), Wanted(ratio=0.25) if goal else None),
        Metric("restart to a record in each", "s", False, path("restart_touched_seconds")),
        Metric("stop", "s", False, path("stop_seconds")),
    )
    return Cell(
        f"partitions-{count}",
        f"one topic of {count:,} partitions in a broker of its own; then a restart with them",
        "partitions",
        "alone",
        "partitions",
        metrics,
        {"partitions": count},
        overhead_seconds=3 + count / 100,
        is_timed=False,
        **changes,
    )


def _groups(groups: int, *, is_quick: bool = False) -> Cell:
    metrics = (
        Metric("join all", "s", False, path("join_seconds")),
        Metric("CPU", "s/million heartbeats", False, cpu_per("heartbeats", 1e6)),
        Metric("ListGroups", "ms", False, path("list_ms")),
        Metric("DescribeGroups of all", "ms", False, path("describe_ms")),
        Metric("OffsetFetch of all", "ms", False, path("offset_fetch_ms")),
    )
    title = f"{groups:,} groups of 3 members join, then heartbeat every 3 s"
    return Cell(
        f"groups-{groups}",
        title,
        "groups",
        "scenario",
        "consumer_groups",
        metrics,
        {"groups": groups},
        is_quick=is_quick,
        overhead_seconds=7 + groups / 60,
        is_timed=False,
    )


def _work(work_us: int, *, is_quick: bool = False) -> Cell:
    metrics = (
        Metric("rate", "requests/s", True, path("requests_per_second")),
        Metric("cores used", "cores", True, path("cores_used")),
        *percentiles("p50", "p99"),
    )
    title = f"each request burns {work_us} us of CPU in its Handler; 16 connections, 4 partitions, 2 Handlers"
    # Two Handlers whatever the machine: who shares a GIL cannot use them both.
    settings = {"num.io.threads": "2"}
    return Cell(
        f"work-{work_us}",
        title,
        "work",
        "alone",
        "work",
        metrics,
        {"connections": 16, "partitions": 4},
        settings=settings,
        work_us=work_us,
        is_quick=is_quick,
        overhead_seconds=1.5,
    )


def _clients() -> tuple[Cell, ...]:
    rate = Metric("throughput", "MB/s", True, path("megabytes_per_second"))
    records = Metric("records", "records/s", True, path("records_per_second"))
    cpu = Metric("broker CPU", "s/GB", False, cpu_per("bytes", GB))
    own = Metric("client CPU", "s/GB", False, path("client_cpu_per_gb"))
    shared: dict[str, Any] = {"overhead_seconds": 3.0, "is_timed": False}

    def cell(does: str, title: str, *, is_quick: bool) -> Cell:
        name = does.replace("_", "-")
        return Cell(
            name,
            title,
            "clients",
            "scenario",
            does,
            (rate, records, cpu, own),
            {"record_bytes": 100},
            is_quick=is_quick,
            **shared,
        )

    return (
        cell(
            "confluent_produce",
            "confluent-kafka, 100 B records, acks=all, linger 5 ms, delivery reports",
            is_quick=True,
        ),
        cell("confluent_consume", "confluent-kafka reads them back, every record looked at", is_quick=False),
        cell("java_produce", "Kafka's own ProducerPerformance, 100 B records, acks=all", is_quick=False),
        cell("java_consume", "Kafka's own ConsumerPerformance reads them back", is_quick=False),
    )


CELLS: Final = (
    *_footprint(),
    *_produce(),
    *_consume(),
    *_small(),
    *_latencies(),
    *_connections(),
    _partitions(200, is_quick=True, quick_peers=AMONG_US),
    _partitions(1000),
    _partitions(2000, goal=True, is_quick=True, quick_peers=BESIDE_KAFKA),
    _partitions(10_000, only=(*BESIDE_KAFKA, "thread-group")),
    _groups(100, is_quick=True),
    _groups(1000),
    _work(100),
    _work(500, is_quick=True),
    *_clients(),
)
BY_NAME: Final = {cell.name: cell for cell in CELLS}
WORKLOADS: Final = tuple(dict.fromkeys(cell.workload for cell in CELLS))
