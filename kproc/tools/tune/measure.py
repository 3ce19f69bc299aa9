"""Measurements of broker layouts: start a temporary broker, run a load by the C generator, and record CPU use.

    for each round:  for each layout, in a newly shuffled order:
        new broker in a temporary directory -> warm-up -> load for some seconds -> stop

Layouts are interleaved, so that slow phases of the machine affect all of them. Each run has a new broker, so that no
run profits from the page cache or topics of another one. The generator shares the CPUs with the broker, so every sample
contains its CPU use.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from kproc.client import Client, ClientError
from kproc.common.clock import SystemClock
from kproc.embedded import Broker, BrokerFailed
from kproc.tools.load.build import CompilerMissing, build
from kproc.tools.load.run import LoadFailed, Result, run_load

PROCESS: Final = "process"
WARMUP_SECONDS: Final = 0.5
OTHERS_MAX: Final = 0.3
BULK_BATCH_BYTES: Final = 990_000
# Bytes of the topic to fetch, so few that it stays in the page cache even on a small machine.
FETCH_FILL_BYTES: Final = 128 << 20
_TOPIC_CONFIG: Final = "file.delete.delay.ms=500"


class CannotMeasure(RuntimeError):
    """The load generator cannot be built. The message is one line."""


@dataclass(frozen=True, order=True)
class ProcessCounts:
    """Numbers of Processors and Handlers of a broker.

    The transports `thread` and `inline` have one process for all of them.
    """

    processors: int = 1
    handlers: int = 1
    transport: str = PROCESS

    @property
    def processes(self) -> int:
        """Number of processes that handle requests of clients."""
        return self.processors + self.handlers if self.transport == PROCESS else 1

    def __str__(self) -> str:
        return f"{self.processors}x{self.handlers}" if self.transport == PROCESS else self.transport


@dataclass(frozen=True)
class Load:
    """One run of the generator: its mode and options, and the unit of its throughput."""

    mode: str
    options: Mapping[str, Any]
    unit: str = "requests/s"

    def rate(self, result: Result) -> float:
        """Return the throughput in a generator's result, in `unit`."""
        name = "megabytes_per_second" if self.unit == "MB/s" else "requests_per_second"
        return float(result[name])


@dataclass(frozen=True)
class Workload:
    """Loads that run at the same time and have the same unit. `about` describes them to users."""

    name: str
    about: str
    loads: tuple[Load, ...]

    @property
    def unit(self) -> str:
        """Unit of the throughput."""
        return self.loads[0].unit


def _bulk(connections: int) -> Load:
    return Load("produce", {"connections": connections, "batch_bytes": BULK_BATCH_BYTES}, "MB/s")


def _reading(connections: int) -> Load:
    return Load("fetch", {"connections": connections, "fetch_bytes": 1 << 20}, "MB/s")


WORKLOADS: Final = {
    each.name: each
    for each in (
        Workload(
            "small",
            "one record of 100 B a request, acks=1, 64 connections",
            (Load("produce", {"connections": 64}),),
        ),
        Workload("produce", "batches of 0.99 MB, acks=1, 4 connections", (_bulk(4),)),
        Workload("fetch", "1 MB answers from the page cache, 4 connections", (_reading(4),)),
        Workload("mixed", "2 connections produce batches of 0.99 MB, 2 fetch", (_bulk(2), _reading(2))),
    )
}


@dataclass(frozen=True)
class RunOptions:
    """Options of one run: its round, the duration of its load, and the load's connections and partitions.

    connections: number to use instead of the workload's own. partitions: number of partitions of each topic.
    """

    number: int = 1
    seconds: float = 3.0
    connections: int | None = None
    partitions: int = 1


@dataclass(frozen=True)
class Sample:
    """Result of one run. A failed run has the reason in `failed` and no measured values."""

    layout: ProcessCounts
    round: int
    connections: int
    cpus: int
    throughput: float = 0.0
    unit: str = ""
    p50_us: float = 0.0
    p99_us: float = 0.0
    broker_cpu_s: float = 0.0
    generator_cpu_s: float = 0.0
    seconds: float = 0.0
    requests: int = 0
    machine_cores: float = 0.0  # used by all programs on this machine
    cpu_by_role: Mapping[str, float] = field(default_factory=dict)
    failed: str | None = None

    def row(self) -> dict[str, Any]:
        """Return a flat row with plain types, for JSON or Parquet."""
        flat = {name: value for name, value in asdict(self).items() if name not in ("layout", "cpu_by_role")}
        flat |= asdict(self.layout) | {"cores_used_by_role": [
            {"role": role, "cores": used / self.seconds if self.seconds else 0.0}
            for role, used in sorted(self.cpu_by_role.items())
        ]}  # fmt: skip
        return flat


def require_generator() -> None:
    """Compile the load generator before any broker is started. Raise CannotMeasure if that is not possible."""
    try:
        build()
    except (CompilerMissing, RuntimeError) as problem:
        raise CannotMeasure(str(problem)) from None


def running_roles(broker: Broker) -> dict[int, str]:
    """Return the current role of each pid. A process with several roles has the name "all roles"."""
    names: dict[int, str] = {}
    with Client.connect(broker.host, broker.port) as client:
        rows = client.operate("status")["processes"]
    for row in rows:
        pid = int(row["pid"])
        names[pid] = "all roles" if pid in names else f"{row['role']}-{row['index']}"
    return names


def _run_once(layout: ProcessCounts, workload: Workload, run: RunOptions) -> Sample:
    """Measure a new broker under a workload and return the sample."""
    try:
        with Broker(_settings(layout)) as broker:
            return load_running(broker, layout, workload, run)
    except BrokerFailed as problem:
        cpus = len(os.sched_getaffinity(0))
        return Sample(layout, run.number, 0, cpus, unit=workload.unit, failed=_one_line(problem))


def load_running(
    broker: Broker,
    layout: ProcessCounts,
    workload: Workload,
    run: RunOptions,
    *,
    look: Callable[[Broker, Result], None] | None = None,
) -> Sample:
    """Put the workload on a running broker that has this layout, and return the sample. Delete the topics.

    look: called with the broker and the first load's result before the topics are deleted. If a load fails, the sample
    has the reason, and its topics can remain.
    """
    loads = workload.loads
    if run.connections is not None:
        loads = tuple(
            Load(each.mode, {**each.options, "connections": run.connections}, each.unit) for each in loads
        )
    shown = sum(int(each.options["connections"]) for each in loads)
    empty = Sample(layout, run.number, shown, len(os.sched_getaffinity(0)), unit=workload.unit)
    try:
        roles = running_roles(broker)
        _fill(broker.bootstrap, loads, run.partitions)
        before = machine_cpu_seconds()
        begun_ns = SystemClock.now_ns()
        results = _run_loads(broker.bootstrap, loads, roles, run.seconds, run.partitions)
        passed = (SystemClock.now_ns() - begun_ns) / 1e9
        used = (machine_cpu_seconds() - before) / passed
        if look is not None:
            look(broker, results[0])
        for index in range(len(loads)):
            run_load("delete", broker.bootstrap, topic=f"tune-{index}")
    except (LoadFailed, ClientError) as problem:
        return replace(empty, failed=_one_line(problem))
    return _sample(replace(empty, machine_cores=used), loads, results, roles)


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())[:500]


def _settings(layout: ProcessCounts) -> dict[str, object]:
    return {
        "kproc.transport": layout.transport,
        "num.network.threads": layout.processors,
        "num.io.threads": layout.handlers,
        "kproc.flush": "group",
    }


def _fill(bootstrap: str, loads: Sequence[Load], partitions: int) -> None:
    """Create and fill the topics that the workload fetches."""
    for index, load in enumerate(loads):
        if load.mode == "fetch":
            run_load(
                "prepare", bootstrap, topic=f"tune-{index}", partitions=partitions,
                batch_bytes=BULK_BATCH_BYTES, fill_bytes=FETCH_FILL_BYTES,
            )  # fmt: skip


def _run_loads(
    bootstrap: str, loads: Sequence[Load], roles: Mapping[int, str], seconds: float, partitions: int
) -> list[Result]:
    """Run all loads at the same time. Raise the first error after all have ended."""
    results: list[Result | None] = [None] * len(loads)
    problems: list[Exception] = []

    def run(index: int, load: Load) -> None:
        more: dict[str, Any] = {"topic_config": _TOPIC_CONFIG} if load.mode == "produce" else {}
        try:
            results[index] = run_load(
                load.mode, bootstrap, pids=roles, topic=f"tune-{index}", partitions=partitions,
                seconds=seconds, warmup=WARMUP_SECONDS, **more, **load.options,
            )  # fmt: skip
        except (LoadFailed, OSError) as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(loads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return [result for result in results if result is not None]


def _sample(
    empty: Sample, loads: Sequence[Load], results: Sequence[Result], roles: Mapping[int, str]
) -> Sample:
    # Loads that run together measure the CPU time of the same broker, so count it from the first load only.
    first = results[0]
    by_role: dict[str, float] = {}
    for pid, used in first["broker_cpu_by_pid"].items():
        role = roles.get(int(pid), "other")
        by_role[role] = by_role.get(role, 0.0) + used
    return replace(
        empty,
        throughput=sum(load.rate(result) for load, result in zip(loads, results, strict=True)),
        p50_us=max(result["latency_us"]["p50"] for result in results),
        p99_us=max(result["latency_us"]["p99"] for result in results),
        broker_cpu_s=first["broker_cpu_seconds"],
        generator_cpu_s=sum(result["generator_cpu_seconds"] for result in results),
        seconds=first["seconds"],
        requests=sum(result["requests"] for result in results),
        cpu_by_role=by_role,
    )


def run_rounds(
    cells: Sequence[tuple[ProcessCounts, int | None]],
    workload: Workload,
    run: RunOptions,
    *,
    rounds: int,
    seed: int = 1,
    on_sample: Callable[[Sample], object] | None = None,
) -> list[Sample]:
    """Measure every cell, a layout with a number of connections, once in each round, and return all samples.

    Each round has a newly shuffled order. on_sample: called after each run.
    """
    draw = random.Random(seed)  # noqa: S311 - an order, no secret
    samples = []
    for number in range(1, rounds + 1):
        for layout, count in draw.sample(cells, len(cells)):
            sample = _run_once(layout, workload, replace(run, number=number, connections=count))
            samples.append(sample)
            if on_sample is not None:
                on_sample(sample)
    return samples


def machine_cpu_seconds(stat: Path = Path("/proc/stat")) -> float:
    """Return the CPU seconds of all programs since the boot, and stolen time. 0 if /proc/stat is not readable."""
    try:
        fields = stat.read_text(encoding="ascii").splitlines()[0].split()
    except (OSError, IndexError):
        return 0.0
    # proc(5): cpu user nice system idle iowait irq softirq steal. User time contains guest time.
    ticks = [int(word) for word in fields[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def bottleneck(sample: Sample) -> str:
    """Return what limited a run's throughput, as text: other programs, all CPUs, the generator, a role, or none.

    A failed run gives "failed".
    """
    if sample.failed or not sample.seconds:
        return "failed"
    generator = sample.generator_cpu_s / sample.seconds
    total = generator + sample.broker_cpu_s / sample.seconds
    role, used = max(sample.cpu_by_role.items(), key=lambda each: each[1], default=("", 0.0))
    share = used / sample.seconds
    others = sample.machine_cores - total
    if others >= OTHERS_MAX and total + others >= 0.85 * (os.cpu_count() or 1):
        return f"other programs, which used {others:.1f} cores"
    if total >= 0.9 * sample.cpus:
        return f"CPUs (all {sample.cpus}), most by {role if share > generator else 'generator'}"
    if max(share, generator) < 0.85:
        return f"none; most by {role} {100 * share:.0f} %"
    return f"{role} {100 * share:.0f} %" if share >= generator else f"generator {100 * generator:.0f} %"


def middle(values: Iterable[float]) -> float:
    """Return the median, or 0 without values."""
    kept = list(values)
    return statistics.median(kept) if kept else 0.0
