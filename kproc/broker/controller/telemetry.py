"""ControllerTelemetry: writes the figures of all roles and APIs to telemetry's topic, once an interval, from the slab.

Kinds of lines, with what is in them besides the head (observe/telemetry_feed.py):

    broker     cpus, transport, flush, topics, partitions
    process    process (the role), process_index, pid, state, restarts, cpu (CPUs used; None in a shared process),
               busy (share of its time not asleep), connections, parked, queued records, ring fill, counters: deltas
    api        api, requests, errors, and of the timed ones of the interval: stages: {name: count, sum, largest,
               buckets [[from, to, count]...]}, times in microseconds

All figures but gauges are those of the interval; lines of one interval have the same at_ms. The Handlers write the
`partition` and `request` lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kproc.broker.cluster.image import ClusterImage
from kproc.broker.config import Config
from kproc.broker.config.cpus import available_cpus
from kproc.broker.metrics.histogram import Histogram, lower_bound
from kproc.broker.metrics.requests import TIMINGS
from kproc.broker.metrics.slab import Slab
from kproc.broker.metrics.spec import METRICS, Kind
from kproc.broker.metrics.utilisation import busy_between
from kproc.broker.observe.network_figures import ApiFigures
from kproc.broker.observe.status import Status, cpu_seconds
from kproc.broker.observe.telemetry_feed import Ask, Create, Feed, Wanted
from kproc.broker.role.roles import CONTROLLER, slab_row
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import NS_PER_MS, Clock

if TYPE_CHECKING:
    from kproc.broker.role.plan import Plan

_Key = TypeVar("_Key")
_COUNTERS: Final = tuple(metric.name for metric in METRICS if metric.kind is Kind.COUNTER)
_GAUGES: Final = tuple(
    metric.name for metric in METRICS if metric.kind is Kind.GAUGE and metric.name != "heartbeat_ns"
)


class _Seen:
    """One role's figures at the end of the last interval."""

    __slots__ = ("counts", "cpu", "pid")

    def __init__(self, pid: int, counts: dict[str, int], cpu: float) -> None:
        self.pid = pid
        self.counts = counts
        self.cpu = cpu


class Figures:
    """The figures of the present interval: differences to those at its begin."""

    def __init__(self, slab: Slab, status: Status, clock: Clock) -> None:
        self._slab = slab
        self._status = status
        self._clock = clock
        self._since_ns = clock.now_ns()
        self._roles: dict[tuple[str, int], _Seen] = {}
        self._apis: dict[int, ApiFigures] = {}

    def start(self) -> None:
        """Begin the first interval."""
        for _ in self.lines():
            pass

    def lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """End the interval: (kind, fields) of every role and API; begin the next one."""
        now_ns = self._clock.now_ns()
        self._status.figures.note(self._status.processes)
        interval_ms = max(1, (now_ns - self._since_ns) // NS_PER_MS)
        self._since_ns = now_ns
        yield from self._process_lines(interval_ms)
        yield from self._api_lines(interval_ms)

    def _process_lines(self, interval_ms: int) -> Iterator[tuple[str, dict[str, Any]]]:
        processes = list(self._status.processes)
        is_shared = len({each["pid"] for each in processes}) < len(processes)
        seen: dict[tuple[str, int], _Seen] = {}
        for each in processes:
            role, index, pid = each["role"], each["index"], each["pid"]
            counts = {} if role == "supervisor" else self._slab.read(slab_row(AgentId(role, index)))
            now = seen[role, index] = _Seen(pid, counts, cpu_seconds(pid))
            before = self._roles.get((role, index))
            if before is None:
                before = _Seen(pid, counts, now.cpu)
            spent = now.cpu - (before.cpu if before.pid == pid else 0.0)
            busy = busy_between(before.counts, counts) if counts else None
            yield (
                "process",
                {
                    "interval_ms": interval_ms,
                    "process": role,
                    "process_index": index,
                    "pid": pid,
                    "state": each["state"],
                    "pool": each["pool"],
                    "restarts": each["restarts"],
                    "cpu": None if is_shared else round(max(0.0, spent) * 1000 / interval_ms, 4),
                    "busy": None if busy is None else round(busy, 4),
                    **{name: counts[name] for name in _GAUGES if counts},
                    "counters": {
                        name: counts[name] - before.counts[name]
                        for name in _COUNTERS
                        if counts and counts[name] > before.counts[name]
                    },
                },
            )
        self._roles = seen

    def _api_lines(self, interval_ms: int) -> Iterator[tuple[str, dict[str, Any]]]:
        apis = {api.key: api for api in self._status.figures.apis()}
        for key, api in apis.items():
            before = self._apis.get(key) or ApiFigures(key)
            requests = _rise(api.requests, before.requests)
            stages = {
                name: _stage(now.since(then))
                for name, now, then in zip(TIMINGS, api.times, before.times, strict=True)
                if now.count > then.count
            }
            if not requests and not stages:
                continue
            yield (
                "api",
                {
                    "interval_ms": interval_ms,
                    "api": api.name,
                    "api_key": key,
                    "requests": sum(requests.values()),
                    "versions": {str(version): count for version, count in requests.items()},
                    "requests_total": sum(api.requests.values()),
                    "errors": _rise(api.errors, before.errors),
                    "stages": stages,
                },
            )
        self._apis = apis


def _rise(now: Mapping[_Key, int], before: Mapping[_Key, int]) -> dict[_Key, int]:
    return {key: count - before.get(key, 0) for key, count in now.items() if count > before.get(key, 0)}


def _stage(histogram: Histogram) -> dict[str, Any]:
    return {
        "count": histogram.count,
        "sum": histogram.total,
        # The largest since the start; the largest of an interval is not stored.
        "largest": histogram.largest,
        "buckets": [
            [lower_bound(bucket), lower_bound(bucket + 1), count]
            for bucket, count in enumerate(histogram.buckets)
            if count
        ],
    }


class ControllerTelemetry:
    """The controller's part of telemetry. `ask` sends a batch to a Handler, `create` creates the topic."""

    def __init__(
        self,
        plan: Plan,
        status: Status,
        slab: Slab,
        *,
        image: Callable[[], ClusterImage],
        ask: Ask,
        create: Create,
    ) -> None:
        self._clock, self._config = plan.clock, plan.config
        self._image = image
        self._figures = Figures(slab, status, plan.clock)
        self._feed = Feed(
            CONTROLLER, clock=plan.clock, config=plan.config, image=image, ask=ask, create=create
        )
        self._next_ns: int | None = None  # None: off, or not begun.

    @property
    def is_on(self) -> bool:
        return self._next_ns is not None

    def tick(self, now_ns: int) -> None:
        """Called ten times a second while telemetry is on."""
        wanted = Wanted(self._image(), self._config)
        if not wanted.metrics:
            if self._next_ns is not None:
                self._next_ns = None
                self._feed.forget()
            return
        if self._next_ns is None:
            self._figures.start()
            self._next_ns = now_ns + wanted.interval_ns
        # The interval may have been made shorter.
        self._next_ns = min(self._next_ns, now_ns + wanted.interval_ns)
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + wanted.interval_ns
            at_ms = self._clock.wall_ms()
            self._feed.add("broker", {"at_ms": at_ms, **_broker(self._config, self._image())})
            for kind, fields in self._figures.lines():
                self._feed.add(kind, {"at_ms": at_ms, **fields})
        self._feed.tick()


def _broker(config: Config, image: ClusterImage) -> dict[str, Any]:
    return {
        "cpus": available_cpus(),
        "transport": config.kproc_transport,
        "flush": config.kproc_flush,
        "topics": len(image.topics_by_name),
        "partitions": image.partition_count,
    }
