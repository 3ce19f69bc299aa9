"""Cells of the comparison: each has one question, the way to ask it, and the figures to read from the answer.

A cell is the same for every broker. `wanted` is the goal that kproc on processes set itself against Kafka in the
same round; cells and metrics without one are there to be known. The cells themselves are in `workloads.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from kproc.tools.load.run import Result

YARDSTICK: Final = "kafka"
JUDGED: Final = "process-group"
"""The broker whose goals the cells hold."""
GB: Final = 1e9


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


# load: one run of the generator on the running broker; scenario: a function of scenarios.py on it; alone: a function
# of alone.py that starts brokers of its own, while no other is up; footprint: read from a broker without clients.
How = Literal["load", "scenario", "alone", "footprint"]


@dataclass(frozen=True)
class Cell:
    """One question. `does` is the load generator's mode or the name of a scenario."""

    name: str
    title: str
    workload: str
    how: How
    does: str
    metrics: tuple[Metric, ...]
    options: dict[str, Any] = field(default_factory=dict)
    fill: str | None = None  # the prepared topic that it reads: a key of FILLS
    settings: dict[str, str] = field(default_factory=dict)  # alone: of a kproc broker
    work_us: int = 0  # alone: CPU that each request burns in a Handler of kproc
    is_quick: bool = False
    also: tuple[str, ...] = ()  # peers that are asked besides all those that are asked everything
    only: tuple[str, ...] | None = None  # these peers; None: all
    quick_peers: tuple[str, ...] | None = None  # with --quick only these; None: all
    overhead_seconds: float = 0.5  # a guess of what a run costs beside the measured time, until it is known
    is_timed: bool = True  # its length is the seconds that each run is given

    @property
    def is_core(self) -> bool:
        """True where a goal is judged: these get the most rounds."""
        return any(metric.wanted for metric in self.metrics)

    def filling_seconds(self, seconds: float) -> float:
        """Return the seconds of a run in which it fills new pages of the page cache: 0 for cells that write little."""
        return seconds if self.workload == "produce" else 0

    @property
    def loop(self) -> str:
        """Open or closed loop: latencies of the two must never be compared."""
        if self.how != "load" and self.does != "cold":
            return ""
        return "open" if "rate" in self.options or self.does == "latency" else "closed"


def path(*keys: str, scale: float = 1.0) -> Callable[[Result], float | None]:
    """Reads a number from a nested result."""

    def read(result: Result) -> float | None:
        value: Any = result
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return None if value is None else float(value) * scale

    return read


def cpu_per(unit: str, scale: float) -> Callable[[Result], float | None]:
    """The broker's CPU seconds for each `scale` of what was counted."""

    def read(result: Result) -> float | None:
        cpu = result.get("broker_cpu_seconds")
        return cpu / result[unit] * scale if cpu is not None and result.get(unit) else None

    return read


def payload_rate(result: Result) -> float | None:
    """MB/s of record values, whatever a codec made of them."""
    return result["records_per_second"] * result["record_bytes"] / 1e6


def payload_cpu(result: Result) -> float | None:
    """CPU seconds per GB of record values."""
    payload = result["records"] * result["record_bytes"]
    return result["broker_cpu_seconds"] / payload * GB if payload else None


def percentiles(
    *names: str, key: str = "latency_us", goals: dict[str, float] | None = None
) -> tuple[Metric, ...]:
    """Metrics of a histogram of the result, with goals as ratios."""
    wanted = {name: Wanted(ratio=goal) for name, goal in (goals or {}).items()}
    return tuple(Metric(name, "us", False, path(key, name), wanted.get(name)) for name in names)
