"""Service times of this machine, from runs of the real broker: what the simulation is fed with.

CPU for each request of a role is a * (passes for each request) + b: passes are counted by the roles themselves (duty
cycles), by the kernel for the generator (its sleeps), and CPU by the kernel's clock of each process. Runs with 1 to 64
connections have 2 to 0.05 passes a request, which parts a from b. What one connection's round trip takes beyond
everybody's CPU is four hand-overs: with two cores four times the delay of waking a core, with one core four changes.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench.simulation.model import Cost, Costs
from kproc.broker.ipc.layout import ring_bytes
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.ring import RingConsumer, format_ring
from kproc.client import Client
from kproc.embedded import Broker
from kproc.tools.load.run import Result
from kproc.tools.tune.measure import WORKLOADS, ProcessCounts, RunOptions, Sample, load_running

Point = tuple[int, int, int, int]  # CPUs, Processors, Handlers, connections
CALIBRATING: Final[tuple[Point, ...]] = (
    (2, 1, 1, 1),
    (2, 1, 1, 4),
    (2, 1, 1, 16),
    (2, 1, 1, 64),
    (1, 1, 1, 1),
)
_WAKES: Final = 2000
_RINGS, _RING_BYTES, _BATCH = 8, 1 << 16, 4
_SCANS, _SCAN_ROUNDS = 2000, 9


@dataclass(frozen=True)
class Run:
    """A measured run with the passes that its roles made for each request."""

    sample: Sample
    passes: dict[str, float]

    def cpu_us(self, role: str) -> float:
        """CPU of one kind of role for each request."""
        if role == "client":
            return 1e6 * self.sample.generator_cpu_s / self.sample.requests
        used = sum(cpu for name, cpu in self.sample.cpu_by_role.items() if name.startswith(role))
        return 1e6 * used / self.sample.requests

    @property
    def others(self) -> float:
        """Cores that other programs used meanwhile."""
        own = (self.sample.broker_cpu_s + self.sample.generator_cpu_s) / self.sample.seconds
        return max(0.0, self.sample.machine_cores - own)

    @property
    def point(self) -> Point:
        """Return the measured point."""
        layout = self.sample.layout
        return int(self.sample.cpus), layout.processors, layout.handlers, self.sample.connections

    def row(self) -> dict[str, Any]:
        names = ("client", "processor", "handler")
        return {
            **self.sample.row(),
            "passes": self.passes,
            "cpu_us": {name: self.cpu_us(name) for name in names},
        }


def measured_runs(
    points: Sequence[Point],
    *,
    seconds: float,
    rounds: int = 1,
    on_run: Callable[[Run], object] = lambda run: None,
) -> list[Run]:
    """Runs with passes counted, on a broker for each layout and number of CPUs: its points in turn, once a round."""
    usable = sorted(os.sched_getaffinity(0))
    if max(cpus for cpus, *_ in points) > len(usable):
        raise RuntimeError("this needs two CPUs: with one, waking another core cannot be seen")
    runs = []
    for broker_of in dict.fromkeys(point[:3] for point in points):
        cpus, processors, handlers = broker_of
        layout = ProcessCounts(processors, handlers)
        with on_cpus(usable[:cpus]):
            settings = {"kproc.flush": "group", "num.network.threads": processors}
            with Broker({**settings, "num.io.threads": handlers}) as broker:
                for number in range(1, rounds + 1):
                    for *_, count in (point for point in points if point[:3] == broker_of):
                        runs.append(_one_run(broker, layout, count, seconds, number))
                        on_run(runs[-1])
    return runs


@contextmanager
def on_cpus(cpus: Iterable[int]) -> Iterator[None]:
    """Pin this process and its children to these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cpus))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _one_run(broker: Broker, layout: ProcessCounts, connections: int, seconds: float, number: int) -> Run:
    passes: dict[str, float] = {}
    before = _counters(broker)
    slept_before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw

    def look(broker: Broker, result: Result) -> None:
        # Of our children only the generator was reaped: the broker is alive.
        slept = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw - slept_before
        share = result["seconds"] / (result["seconds"] + result["warmup"])
        passes["client"] = slept * share / result["requests"]
        for role, (cycles, requests) in _counters(broker).items():
            passes[role] = (cycles - before[role][0]) / max(1, requests - before[role][1])

    run = RunOptions(number, seconds, connections, layout.handlers)
    sample = load_running(broker, layout, WORKLOADS["small"], run, look=look)
    if sample.failed:
        raise RuntimeError(f"{layout} with {connections} connections: {sample.failed}")
    return Run(sample, passes)


def _counters(broker: Broker) -> dict[str, tuple[int, int]]:
    """Duty cycles and requests of each kind of role since the start. A row is stored whole: both are of one moment."""
    with Client.connect(broker.host, broker.port) as client:
        rows = client.operate("status")["processes"]
    answer = {}
    for role in ("processor", "handler"):
        mine = [row["counters"] for row in rows if row["role"] == role and row["pool"] != "control"]
        answer[role] = sum(each["duty_cycles"] for each in mine), sum(each["requests"] for each in mine)
    return answer


def calibrate(
    *, seconds: float = 1.0, rounds: int = 4, on_run: Callable[[Run], object] = lambda run: None
) -> tuple[Costs, list[Run]]:
    """Costs of this machine and the runs that they come from; about 2 s a run."""
    runs = measured_runs(CALIBRATING, seconds=seconds, rounds=rounds, on_run=on_run)
    return costs_of(runs, wake_us=measure_wake_us(), scan_us=measure_scan_us()), runs


def costs_of(runs: Sequence[Run], *, wake_us: float, scan_us: float) -> Costs:
    """The costs that explain the runs."""
    runs = undisturbed(runs)
    two = [run for run in runs if run.sample.cpus >= 2]
    lines = {
        role: line([(run.passes[role], run.cpu_us(role)) for run in two])
        for role in ("client", "processor", "handler")
    }
    # What sim adds by itself at one connection must not be in the passes' own cost, too.
    handler = Cost(max(0.5, lines["handler"][0] - wake_us - scan_us), lines["handler"][1])
    processor = Cost(max(0.5, lines["processor"][0] - wake_us / 2 - scan_us), lines["processor"][1] / 2)
    alone = [run for run in two if run.sample.connections == 1]
    one_core = [run for run in runs if run.sample.cpus == 1 and run.sample.connections == 1]
    return Costs(
        client=Cost(*lines["client"]),
        processor_in=processor,
        processor_out=lines["processor"][1] / 2,
        handler=handler,
        wake=wake_us,
        wake_delay=_hand_over_us(alone),
        switch=_hand_over_us(one_core),
        scan=scan_us,
    )


def undisturbed(runs: Sequence[Run]) -> list[Run]:
    """The fastest run of each cell: what else happened on a machine can only have slowed the others."""
    best: dict[tuple[ProcessCounts, int, int], Run] = {}
    for run in runs:
        key = (run.sample.layout, run.sample.connections, run.sample.cpus)
        if key not in best or run.sample.throughput > best[key].sample.throughput:
            best[key] = run
    return list(best.values())


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """y = a x + b with neither negative, by least squares of relative errors."""
    rows = [(x / y, 1 / y) for x, y in points]
    xx, x1, one = sum(r[0] ** 2 for r in rows), sum(r[0] * r[1] for r in rows), sum(r[1] ** 2 for r in rows)
    tx, t1 = sum(r[0] for r in rows), sum(r[1] for r in rows)
    determinant = xx * one - x1**2
    if determinant > 1e-12 * xx * one:
        a, b = (tx * one - t1 * x1) / determinant, (t1 * xx - tx * x1) / determinant
        if a >= 0 and b >= 0:
            return a, b
    only_a, only_b = (tx / xx if xx else 0.0), t1 / one
    errors = [sum((1 - r[0] * a - r[1] * b) ** 2 for r in rows) for a, b in ((only_a, 0.0), (0.0, only_b))]
    return (only_a, 0.0) if errors[0] < errors[1] else (0.0, only_b)


def _hand_over_us(runs: Sequence[Run]) -> float:
    """A quarter of what one connection's round trip takes beyond the CPU that was used for it."""
    left = [
        (1e6 / run.sample.throughput - sum(run.cpu_us(role) for role in ("client", "processor", "handler")))
        / 4
        for run in runs
    ]
    return max(0.5, statistics.median(left))


def measure_wake_us() -> float:
    """CPU of an eventfd write that wakes a process asleep in epoll on another core."""
    bell, answer = os.eventfd(0), os.eventfd(0)
    child = os.fork()
    if child == 0:
        for _ in range(_WAKES):
            os.eventfd_read(bell)
            os.eventfd_write(answer, 1)
        os._exit(0)
    used = 0
    for _ in range(_WAKES):
        begun = time.thread_time_ns()
        os.eventfd_write(bell, 1)
        used += time.thread_time_ns() - begun
        os.eventfd_read(answer)
    os.waitpid(child, 0)
    os.close(bell)
    os.close(answer)
    return used / _WAKES / 1e3


def measure_scan_us() -> float:
    """A look at one more ring that is empty, as a role takes it: its loop's step and the ring's own `poll`."""
    with ExitStack() as stack:
        rings = []
        for _ in range(_RINGS):
            region = stack.enter_context(Region.create(RegionKind.LINK, ring_bytes(_RING_BYTES), 1))
            format_ring(region, 0, _RING_BYTES)
            rings.append(RingConsumer(region))
        best = math.inf
        for _ in range(_SCAN_ROUNDS):  # What else happened can only have slowed the others.
            begun = time.perf_counter_ns()
            for _ in range(_SCANS):
                for ring in rings:
                    if ring.poll(_BATCH):
                        raise RuntimeError("nobody has pushed anything")
            best = min(best, time.perf_counter_ns() - begun)
        return best / _SCANS / _RINGS / 1e3
