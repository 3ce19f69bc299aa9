"""NetworkFigures: Kafka's metrics of the network layer, from the roles' rows in the slab.

Idle and blocked shares cover the last ten seconds: `sample` takes a sample once a second. Counters are sums over all
roles that have run since the broker's start, also those that have ended. Times come from the timed requests only
(processor/timed_requests.py); the counts of requests and errors cover all requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kproc.broker.config.cpus import PROCESSORS_MAX
from kproc.broker.metrics.histogram import Histogram
from kproc.broker.metrics.requests import (
    CLOSED,
    CONTROLLER_PART,
    ERRORS,
    HANDLERS_PART,
    OPEN,
    OPENED,
    PROCESSORS_PART,
    REQUESTS,
    TIMINGS,
    TOTAL,
    UNVERIFIED,
    VERIFIED,
    VERIFYING,
)
from kproc.broker.metrics.slab import Slab
from kproc.broker.role.roles import (
    ACCEPTOR,
    CONTROL_PROCESSOR,
    CONTROLLER,
    HANDLER,
    PROCESSOR,
    handler_id,
    is_control,
    processor_id,
    slab_row,
)
from kproc.broker.transport.agent import AgentId
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

# Samples kept of each role, for its share of idle time. One sample a second makes 10 s between the first and the last.
_LOOKS: Final = 11
_LOOK_NS: Final = 1_000_000_000
_BYTES: Final = TIMINGS.index("RequestBytes")
CONTROL: Final = "CONTROL"


class ApiFigures:
    """The request metrics of one API (counts, errors, times), summed over all roles."""

    __slots__ = ("errors", "key", "requests", "times")

    def __init__(self, key: int) -> None:
        self.key = key
        self.requests: dict[int, int] = {}  # By version.
        self.errors: dict[str, int] = {}  # By Kafka's name of the code.
        self.times = [Histogram() for _ in TIMINGS]

    @property
    def name(self) -> str:
        return api_name(self.key)

    def row(self) -> dict[str, Any]:
        """Return the API's row in `kproc status --json`, with times in milliseconds."""
        total = self.times[TOTAL]
        return {
            "request": self.name,
            "key": self.key,
            "requests_total": sum(self.requests.values()),
            "versions": {str(version): count for version, count in sorted(self.requests.items())},
            "errors_total": sum(self.errors.values()),
            "errors": dict(sorted(self.errors.items())),
            "timed": total.count,
            "times": {
                name: _shown(histogram, 1000)
                for name, histogram in zip(TIMINGS, self.times, strict=True)
                if name != TIMINGS[_BYTES]
            },
            "request_bytes": _shown(self.times[_BYTES], 1),
            # Lets a reader compute the times of an interval: [bucket, count] of TotalTimeMs.
            "total_time_buckets": [[at, count] for at, count in enumerate(total.buckets) if count],
        }


class NetworkFigures:
    """Reads the network metrics from the slab. One per process that shows them.

    `processes` are always the rows of the running roles, from the supervisor.
    """

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._looks: dict[AgentId, deque[tuple[int, int, int]]] = {}
        self._next_look_ns = 0
        self._seen = set(self._found_at_start())

    def sample(self, processes: Iterable[Mapping[str, Any]], now_ns: int) -> None:
        """Take a sample of the roles' sleep times, from which `idle` computes shares, at most once a second.

        From the first sample of a role on, all sums include its counters.
        """
        if now_ns < self._next_look_ns:
            return
        self._next_look_ns = now_ns + _LOOK_NS
        agents = set(_agents(processes))
        self._seen |= agents
        for agent in agents:
            sample = self._sample(agent)
            if sample[0]:  # The role has stored its row at least once.
                self._looks.setdefault(agent, deque(maxlen=_LOOKS)).append(sample)
        # Remove the samples of roles that have ended. A later role of the same name begins with new ones, because the
        # counters did not grow in between.
        for agent in self._looks.keys() - agents:
            del self._looks[agent]

    def idle(self, agent: AgentId) -> float | None:
        """Return the share (0 to 1) of the last 10 s that a role waited for work, or None if it is not known yet."""
        return self._share(agent, 1)

    def describe(
        self, processes: Iterable[Mapping[str, Any]], listeners: Mapping[int, str]
    ) -> dict[str, Any]:
        """Return the broker's network metrics for the status. `listeners` has names by index."""
        agents = _agents(processes)
        processors = [each for each in agents if each.role == PROCESSOR and not is_control(each)]
        handlers = [each for each in agents if each.role == HANDLER]
        return {
            "network_processor_avg_idle": self._mean_idle(processors),
            "request_handler_avg_idle": self._mean_idle(handlers),
            "request_queue_size": sum(self._metric(each, "ring_records") for each in processors),
            "response_queue_size": sum(self._metric(each, "ring_records") for each in handlers),
            "expired_connections_killed": self._sum("sessions_killed"),
            "authentications": {
                "successful_authentication": self._sum("logins"),
                "failed_authentication": self._sum("logins_failed") + self._sum("authentications_failed"),
                "successful_reauthentication": self._sum("sessions_prolonged"),
                "failed_reauthentication": self._sum("sessions_not_prolonged"),
            },
            "acceptor_blocked": {
                self._listener(each, listeners): _rounded(self._share(each, 2))
                for each in agents
                if each.role == ACCEPTOR
            },
            "listeners": self.connections(listeners),
        }

    def connections(self, listeners: Mapping[int, str]) -> dict[str, dict[str, int]]:
        """Return by listener the number of open connections, and of those created and closed since the start."""
        answer: dict[str, dict[str, int]] = {}
        names = {OPEN: "connections", OPENED: "created_total", CLOSED: "closed_total"}
        for agent in self._seen:
            if agent.role != PROCESSOR:
                continue
            for count in self._slab.read_counts(PROCESSORS_PART + agent.index):
                listener = CONTROL if is_control(agent) else listeners.get(count.a, f"removed-{count.a}")
                row = answer.setdefault(listener, dict.fromkeys(names.values(), 0))
                # A removed listener keeps its row, so that sums over all listeners never fall.
                row[names[count.kind]] += count.value
        return dict(sorted(answer.items()))

    def apis(self) -> list[ApiFigures]:
        """Return the metrics of every API that received a request, in the order of the keys."""
        found: dict[int, ApiFigures] = {}
        times: dict[int, list[Histogram]] = {}
        for agent in self._seen:
            if agent.role == PROCESSOR:
                self._slab.read_timings(agent.index, times)
            elif agent.role == HANDLER or agent == CONTROLLER:
                part = CONTROLLER_PART if agent == CONTROLLER else HANDLERS_PART + agent.index
                for count in self._slab.read_counts(part):
                    if count.kind not in (REQUESTS, ERRORS):
                        continue
                    api = found.setdefault(count.a, ApiFigures(count.a))
                    if count.kind == REQUESTS:
                        api.requests[count.b] = api.requests.get(count.b, 0) + count.value
                    elif count.kind == ERRORS:
                        name = _error_name(count.b)
                        api.errors[name] = api.errors.get(name, 0) + count.value
        for key, histograms in times.items():
            found.setdefault(key, ApiFigures(key)).times = histograms
        return [found[key] for key in sorted(found)]

    def verifications(self) -> tuple[Histogram, int]:
        """Return (times, rejected) of the verifications of transactions' partitions (KIP-890).

        `times` are those that transaction coordinators took to respond to owners of partitions, in microseconds.
        `rejected` is the number of partitions that they rejected.
        """
        buckets: dict[int, int] = {}
        time_us = refused = 0
        for agent in self._seen:
            for count in self._slab.read_counts(HANDLERS_PART + agent.index) if agent.role == HANDLER else ():
                if count.kind == VERIFIED:
                    buckets[count.a] = buckets.get(count.a, 0) + count.value
                elif count.kind == VERIFYING:
                    time_us += count.value
                elif count.kind == UNVERIFIED:
                    refused += count.value
        times = Histogram.of_buckets(sorted(buckets.items()))
        times.total = time_us
        return times, refused

    # -- parts -------------------------------------------------------------------------------------------------

    def _found_at_start(self) -> Iterable[AgentId]:
        """Yield the roles with used rows in the slab: the controller may have been restarted while the broker runs."""
        for make in (processor_id, handler_id):
            for index in range(PROCESSORS_MAX):
                # Indexes are used from 0 on, and a row stays after its role has ended. So the first unused row ends the
                # search.
                if not self._slab.pid(slab_row(make(index))):
                    break
                yield make(index)
        if self._slab.pid(slab_row(CONTROL_PROCESSOR)):
            yield CONTROL_PROCESSOR
        yield CONTROLLER

    def _metric(self, agent: AgentId, name: str) -> int:
        return int(self._slab.words[Slab.metric_word(slab_row(agent), name)])

    def _sum(self, name: str) -> int:
        return sum(self._metric(each, name) for each in self._seen if each.role in (PROCESSOR, HANDLER))

    def _sample(self, agent: AgentId) -> tuple[int, int, int]:
        names = ("heartbeat_ns", "slept_ns", "acceptor_blocked_ns")
        heartbeat_ns, slept_ns, blocked_ns = (self._metric(agent, name) for name in names)
        return heartbeat_ns, slept_ns, blocked_ns

    def _share(self, agent: AgentId, what: int) -> float | None:
        looks = self._looks.get(agent)
        if not looks:
            return None
        now, before = self._sample(agent), looks[0]
        passed_ns = now[0] - before[0]
        if passed_ns <= 0:
            return None
        return min(1.0, max(0.0, (now[what] - before[what]) / passed_ns))

    def _mean_idle(self, agents: list[AgentId]) -> float | None:
        """Return the mean of `idle` over these roles. One without samples counts as 0. None if no role has samples."""
        shares = [self.idle(each) for each in agents]
        known = [each for each in shares if each is not None]
        return round(sum(known) / len(shares), 4) if known else None

    def _listener(self, acceptor: AgentId, listeners: Mapping[int, str]) -> str:
        return CONTROL if is_control(acceptor) else listeners.get(acceptor.index, f"removed-{acceptor.index}")


def api_name(key: int) -> str:
    """Return an API's name in Kafka's spelling. All of kproc's own operations share one name."""
    try:
        return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))
    except ValueError:
        return "KprocOperation"


def _agents(processes: Iterable[Mapping[str, Any]]) -> list[AgentId]:
    return [AgentId(row["role"], row["index"]) for row in processes if row["role"] != "supervisor"]


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _rounded(share: float | None) -> float | None:
    return round(share, 4) if share is not None else None


def _shown(histogram: Histogram, unit: int) -> dict[str, float]:
    return {
        "mean": round(histogram.mean / unit, 3),
        "p50": round(histogram.quantile(0.5) / unit, 3),
        "p99": round(histogram.quantile(0.99) / unit, 3),
        "max": round(histogram.largest / unit, 3),
        # Lets a reader compute the mean of an interval.
        "sum": round(histogram.total / unit, 3),
    }
