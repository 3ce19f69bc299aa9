"""Exposition: the metrics in Prometheus' text format, by prometheus-client's metric families.

Only a broker with a metrics listener imports that package.

Metrics that Kafka has, too, get the names that the JMX exporter's example configuration for Kafka makes of the MBeans:
kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Produce,version=9 becomes
kafka_network_requestmetrics_requests_total{request="Produce",version="9"}. Percents are from 0 to 1, as in Kafka.
Metrics that only kproc has are named kproc_<metric of metrics/spec.py>{role,index}, and kproc_role_... for the cost of
the processes.

The names follow Prometheus' conventions, so that `promtool check metrics` finds nothing. Times are in seconds: Kafka's
TotalTimeMs becomes totaltime_seconds. A name of Kafka's that ends in _count or _sum, which Prometheus reserves for
histograms, has no type, as the JMX exporter gives it none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc import __version__
from kproc.broker.metrics.histogram import Histogram
from kproc.broker.metrics.requests import TIMINGS, TOTAL
from kproc.broker.metrics.spec import METRICS, SLOT, MetricKind
from kproc.broker.metrics.spec import Metric as MetricDeclaration
from kproc.broker.observe.network_figures import ApiFigures, NetworkFigures
from kproc.broker.role.roles import HANDLER

if TYPE_CHECKING:
    from prometheus_client.metrics_core import HistogramMetricFamily, Metric

_US_PER_S: Final = 1_000_000
# Kafka's guide to monitoring names the parts of a request's time for these two only. Each bucket is a line per API in
# every scrape, so the other APIs have only the total time in coarse buckets. `kproc status --apis` has all times.
_DETAILED: Final = frozenset(("Produce", "Fetch"))
_TOTAL_BOUNDS_US: Final = tuple(1 << power for power in (*range(7, 18), 19, 21, 23, 25))  # 128 us to 34 s
_PART_BOUNDS_US: Final = tuple(1 << power for power in range(7, 23, 3))  # 128 us to 4 s
_COARSE_BOUNDS_US: Final = tuple(1 << power for power in range(10, 23, 4))  # 1 ms to 4 s
# Counters that must stay 0. They are shown even at 0, because an alert rule on their first increase needs a value
# before it.
_ALWAYS_SHOWN: Final = frozenset(("contained_failures", "hanging_transactions", "wakeups_rescued"))
_SIZE_BOUNDS: Final = tuple(1 << power for power in range(6, 27, 4))  # 64 B to 64 MiB
_BYTES: Final = "RequestBytes"
_REQUESTS: Final = "kafka_network_requestmetrics_"
_LOAD_TIME: Final = "kafka_server_transaction_coordinator_metrics_partition_load_time_{}_seconds"
_MARKERS: Final = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
_VERIFICATION: Final = "kafka_server_addpartitionstotxnmanager_verification"
_SOCKETS: Final = "kafka_server_socket_server_metrics_"
# Units of metrics/spec.py that are no base units of Prometheus: how many of them make one base unit, its name, and the
# word in the metric's name that it replaces.
_BASE_UNITS: Final = {
    "ns": (1e9, "seconds", "ns"),
    "us": (1e6, "seconds", "us"),
    "ms": (1e3, "seconds", "ms"),
    "%": (100.0, "ratio", "percent"),
}

_Figure = tuple[str, str, float | None]


class Exposition:
    """Renders the metrics in the text format of Prometheus.

    The metrics are those of `kproc status` (`describe`), the histograms of requests, and the text about topics, logs
    and groups that `more` returns.
    """

    def __init__(
        self,
        describe: Callable[[], dict[str, Any]],
        figures: NetworkFigures,
        more: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self._describe = describe
        self._figures = figures
        self._more = more
        # Names and labels of the roles' series that have had another value than 0. One that falls back to 0 stays.
        self._moved: set[tuple[str, str, int]] = set()

    def render(self) -> tuple[str, bytes]:
        """Return content type and text of all metrics."""
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

        text = "".join(text_of(family) for family in self._families() if family.samples)
        return CONTENT_TYPE_PLAIN_0_0_4, text.encode() + self._more()

    def _families(self) -> Iterator[Metric]:
        status = self._describe()
        yield from _requests(self._figures.apis())
        yield from _network(status["network"])
        yield from _processors(status["processes"])
        yield from _roles(status["processes"], self._moved)
        yield from _broker(status)
        yield from _transactions(status["processes"], self._figures)
        yield from _coordinator_counters(status["processes"])
        yield from _shares(status["processes"])


def load_prometheus() -> None:
    """Import the modules of the first scrape now, because an import fails when no descriptor is free."""
    import prometheus_client.exposition
    import prometheus_client.metrics_core
    import prometheus_client.utils  # noqa: F401


def exposed(metric: MetricDeclaration) -> tuple[str, float]:
    """Return a declared metric's name in base units, and the number by which its value is divided.

    compaction_swap_us_max becomes kproc_compaction_swap_max_seconds, because a unit stands at the end of a name.
    """
    if metric.unit not in _BASE_UNITS:
        return f"kproc_{metric.name}", 1
    divisor, unit, word = _BASE_UNITS[metric.unit]
    words = [each for each in metric.name.split("_") if each != word]
    return "_".join(["kproc", *words, unit]), divisor


def text_of(family: Metric) -> str:
    """Format a counter, gauge or histogram as prometheus-client's generate_latest does, in a third of the time.

    generate_latest checks whether each name needs escaping. The names in this file never do.
    """
    from prometheus_client.utils import floatToGoString

    name = f"{family.name}_total" if family.type == "counter" else family.name
    kind = "untyped" if family.type == "unknown" else family.type
    lines = [f"# HELP {name} {family.documentation}\n# TYPE {name} {kind}\n"]
    for sample in family.samples:
        labels = ",".join(f'{key}="{quoted(value)}"' for key, value in sorted(sample.labels.items()))
        braced = f"{{{labels}}}" if labels else ""
        lines.append(f"{sample.name}{braced} {floatToGoString(sample.value)}\n")  # type: ignore[no-untyped-call]
    return "".join(lines)


def quoted(text: str) -> str:
    """Escape a label's value for the text format: backslash, double quote and newline. Adds no quotes around it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _requests(apis: list[ApiFigures]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

    requests = CounterMetricFamily(
        _REQUESTS + "requests", "Requests by API and version.", labels=["request", "version"]
    )
    errors = CounterMetricFamily(
        _REQUESTS + "errors", "Error codes in answers, NONE left out.", labels=["request", "error"]
    )
    for api in apis:
        # KIP-896: the metric by version shows which clients are too old for the next release of Kafka.
        for version, count in api.requests.items():
            requests.add_metric([api.name, str(version)], count)
        for error, count in api.errors.items():
            errors.add_metric([api.name, error], count)
    yield requests
    yield errors
    for number, name in enumerate(TIMINGS):
        is_time = name != _BYTES
        named = f"{name.removesuffix('Ms').lower()}_seconds" if is_time else "request_bytes"
        family = HistogramMetricFamily(
            _REQUESTS + named, f"Kafka's {name} of the timed requests.", labels=["request"]
        )
        bounds = _SIZE_BOUNDS if not is_time else _TOTAL_BOUNDS_US if number == TOTAL else _PART_BOUNDS_US
        unit = _US_PER_S if is_time else 1
        for api in apis:
            # A part whose sum is 0, such as the throttle time of clients without a quota, has no series.
            if api.name in _DETAILED and api.times[number].total:
                _add_histogram(family, api.name, api.times[number], bounds, unit)
            elif number == TOTAL and api.times[number].count:
                _add_histogram(family, api.name, api.times[number], _COARSE_BOUNDS_US, unit)
        yield family


def _add_histogram(
    family: HistogramMetricFamily, label: str | None, histogram: Histogram, bounds: tuple[int, ...], unit: int
) -> None:
    # Prometheus' buckets are cumulative: each counts all values up to its bound.
    below = histogram.below(bounds)
    buckets = [(str(bound / unit), float(count)) for bound, count in zip(bounds, below, strict=True)]
    labels = [] if label is None else [label]
    family.add_metric(labels, [*buckets, ("+Inf", float(histogram.count))], histogram.total / unit)


def _network(network: Mapping[str, Any]) -> Iterator[Metric]:
    yield from _gauges(
        ("kafka_network_socketserver_networkprocessoravgidle_percent", "Mean share of time that Processors waited "
         "for work.", network["network_processor_avg_idle"]),
        ("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", "Mean share of time that Handlers "
         "waited for work.", network["request_handler_avg_idle"]),
        ("kafka_network_requestchannel_requestqueuesize", "Requests that no Handler has taken.",
         network["request_queue_size"]),
        ("kafka_network_requestchannel_responsequeuesize", "Answers that no Processor has taken.",
         network["response_queue_size"]),
        ("kafka_network_socketserver_expiredconnectionskilledcount", "Connections closed for a request after their "
         "session's end.",
         network["expired_connections_killed"]),
    )  # fmt: skip
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

    blocked = GaugeMetricFamily(
        "kafka_network_acceptor_acceptorblocked_percent",
        "Share of time that an Acceptor let somebody wait.",
        labels=["listener"],
    )
    for listener, share in network["acceptor_blocked"].items():
        if share is not None:
            blocked.add_metric([listener], share)
    yield blocked
    # Untyped, because Prometheus reserves names that end in _count for histograms.
    count = Metric(_SOCKETS + "connection_count", "Open connections.", "unknown")
    created = CounterMetricFamily(
        _SOCKETS + "connection_creation", "Connections opened.", labels=["listener"]
    )
    closed = CounterMetricFamily(_SOCKETS + "connection_close", "Connections closed.", labels=["listener"])
    for listener, row in network["listeners"].items():
        count.add_sample(count.name, {"listener": listener}, row["connections"])
        created.add_metric([listener], row["created_total"])
        closed.add_metric([listener], row["closed_total"])
    yield from (count, created, closed)
    for name, number in network["authentications"].items():
        family = CounterMetricFamily(_SOCKETS + name, "Logins by SASL; failed ones with TLS handshakes.")
        family.add_metric([], number)
        yield family


def _processors(processes: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield Kafka's metrics with a series for each Processor. The sums of the counters are the broker's values."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    idle = GaugeMetricFamily(
        "kafka_network_processor_idle_percent",
        "Share of time that a Processor waited.",
        labels=["networkprocessor"],
    )
    # Kafka counts requests and responses from the client's side: its "requests" are the answers that we send.
    names = {
        "incoming_byte": ("bytes_in", "Bytes received."),
        "outgoing_byte": ("bytes_out", "Bytes sent."),
        "request": ("responses", "Answers sent (Kafka counts from the client's side)."),
        "response": ("requests", "Requests received (Kafka counts from the client's side)."),
    }
    families = {
        name: CounterMetricFamily(_SOCKETS + name, about, labels=["networkprocessor"])
        for name, (_, about) in names.items()
    }
    for row in processes:
        if row["role"] != "processor":
            continue
        label = [str(row["index"])]
        if row["idle_percent"] is not None:
            idle.add_metric(label, row["idle_percent"] / 100)
        for name, (counter, _) in names.items():
            families[name].add_metric(label, row["counters"][counter])
    yield idle
    yield from families.values()


def _roles(processes: Iterable[Mapping[str, Any]], moved: set[tuple[str, str, int]]) -> Iterator[Metric]:
    """Yield metrics that Kafka does not have: the metrics of every role, and the cost of its process.

    A role counts a few of the declared metrics. The others stay 0 and have no series.
    """
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    rows = [(row, [row["role"], str(row["index"])]) for row in processes]
    labels = ["role", "index"]
    for metric in METRICS:
        if metric.name == "heartbeat_ns":
            continue
        make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
        name, divisor = exposed(metric)
        family = make(name, metric.doc, labels=labels)
        for row, label in rows:
            if row["role"] == "supervisor":
                continue
            value = row["counters"][metric.name]
            key = (name, row["role"], row["index"])
            if value:
                moved.add(key)
            if key in moved or metric.name in _ALWAYS_SHOWN:
                family.add_metric(label, value / divisor)
        yield family
    cpu = CounterMetricFamily("kproc_role_cpu_seconds", "CPU time of the role's process.", labels=labels)
    restarts = CounterMetricFamily("kproc_role_restarts", "How often it was started anew.", labels=labels)
    memory = GaugeMetricFamily("kproc_role_pss_bytes", "Proportional set size of its process.", labels=labels)
    running = GaugeMetricFamily("kproc_role_running", "1 while it is in the state running.", labels=labels)
    beat = GaugeMetricFamily(
        "kproc_role_heartbeat_age_seconds", "Since its last sign of life.", labels=labels
    )
    for row, label in rows:
        cpu.add_metric(label, row["cpu_seconds"])
        restarts.add_metric(label, row["restarts"])
        memory.add_metric(label, row["pss_bytes"])
        running.add_metric(label, row["state"] == "running")
        if row["heartbeat_age_ms"] is not None:
            beat.add_metric(label, row["heartbeat_age_ms"] / 1000)
    yield from (cpu, restarts, memory, running, beat)


def _broker(status: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

    build = GaugeMetricFamily(
        "kproc_build_info", "Versions of kproc and Python.", labels=["version", "python"]
    )
    build.add_metric([__version__, ".".join(map(str, sys.version_info[:3]))], 1)
    yield build
    yield CounterMetricFamily("kproc_uptime_seconds", "Since the start.", value=status["uptime_ms"] / 1000)
    yield _certificates(status["certificates"])
    yield from _gauges(
        ("kproc_topics", "Topics, internal ones too.", status["topics"] + status["internal_topics"]),
        ("kproc_partitions", "Partitions, internal ones too.",
         status["partitions"] + status["internal_partitions"]),
        ("kproc_shared_memory_unmapped_bytes", "Shared memory that no process has mapped.",
         status["shared_memory_unmapped_bytes"]),
        ("kproc_disk_free_bytes", "Free bytes of the data directory's disk.", status["disk"]["free_bytes"]),
        ("kproc_disk_used_bytes", "Used bytes of the data directory's disk.", status["disk"]["used_bytes"]),
        ("kafka_log_logcleanermanager_uncleanable_bytes", "Log sizes of the partitions that are not compacted.",
         status["uncleanable"]["bytes"]),
        ("kproc_disk_time_to_full_seconds", "Until no byte is free, at the rate of the last hour. Only while it fills.",
         status["disk"]["full_in_s"]),
        ("kproc_disk_full", "1 while there is no room for what clients write.", int(status["disk"]["is_full"])),
        ("kproc_faults_enabled", "1 if clients may inject faults. Must be 0 where data matter.",
         int(status["faults"]["is_enabled"])),
        ("kproc_fault_rules", "Fault rules by which requests or writes fail on purpose.", status["faults"]["rules"]),
    )  # fmt: skip
    uncleanable = Metric(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Partitions that are not compacted, because a batch cannot be read.",
        "unknown",
    )
    uncleanable.add_sample(uncleanable.name, {}, status["uncleanable"]["count"])
    yield uncleanable


def _certificates(by_listener: Mapping[str, Any]) -> Metric:
    from prometheus_client.metrics_core import GaugeMetricFamily

    expiry = GaugeMetricFamily(
        "kproc_certificate_expiry_timestamp_seconds",
        "End of the listener's certificate in use, or of an issuer in its chain if that is earlier.",
        labels=["listener"],
    )
    for listener, certificate in by_listener.items():
        expiry.add_metric([listener], certificate["expires_ms"] / 1000)
    return expiry


# Counter of Handlers -> Kafka's name of it, without `_total`.
_COORDINATOR_COUNTERS: Final = {
    "consumer_group_rebalances": "kafka_server_group_coordinator_metrics_consumer_group_rebalance",
    "share_group_rebalances": "kafka_server_group_coordinator_metrics_share_group_rebalance",
    "streams_group_rebalances": "kafka_server_group_coordinator_metrics_streams_group_rebalance",
    "share_state_writes": "kafka_server_share_coordinator_metrics_write",
    "share_locks_expired": "kafka_server_sharepartitionmetrics_acquisitionlocktimeout",
}
# Counter of Handlers -> Kafka's name of a type of acknowledgements.
_ACKNOWLEDGEMENTS: Final = {
    "share_records_accepted": "accept",
    "share_records_released": "release",
    "share_records_rejected": "reject",
}
# Gauge of Handlers -> Kafka's name of it.
_SHARE_GAUGES: Final = {
    "share_sessions": "kafka_server_sharesessioncache_sharesessionscount",
    "share_session_partitions": "kafka_server_sharesessioncache_sharepartitionscount",
    "share_ranges_in_flight": "kafka_server_sharepartitionmetrics_inflightbatchcount",
}


def _coordinator_counters(processes: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield Kafka's counters of group and share coordinators. Skip counters that are 0."""
    from prometheus_client.metrics_core import CounterMetricFamily

    rows = [row["counters"] for row in processes if row["role"] == HANDLER]
    for name, kafkas in _COORDINATOR_COUNTERS.items():
        count = sum(row[name] for row in rows)
        if count:
            yield CounterMetricFamily(kafkas, METRICS[SLOT[name]].doc, value=count)


def _shares(processes: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield Kafka's metrics of share sessions and of acknowledged records."""
    from prometheus_client.metrics_core import CounterMetricFamily

    rows = [row["counters"] for row in processes if row["role"] == HANDLER]
    records = CounterMetricFamily(
        "kafka_server_share_group_metrics_record_acknowledgement",
        "Records that members of share groups have acknowledged, by the type of the acknowledgement.",
        labels=["ack_type"],
    )
    for name, ack_type in _ACKNOWLEDGEMENTS.items():
        count = sum(row[name] for row in rows)
        if count:
            records.add_metric([ack_type], count)
    if records.samples:
        yield records
    yield from _gauges(
        *(
            (kafkas, METRICS[SLOT[name]].doc, sum(row[name] for row in rows))
            for name, kafkas in _SHARE_GAUGES.items()
        )
    )


def _transactions(processes: Iterable[Mapping[str, Any]], figures: NetworkFigures) -> Iterator[Metric]:
    """Yield Kafka's metrics of transactions. `_roles` yields the numbers by state, which are kproc's own metrics."""
    from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

    rows = [row["counters"] for row in processes if row["role"] == HANDLER]

    def total(name: str) -> int:
        return sum(row[name] for row in rows)

    loads = total("transaction_loads")
    longest_us = max((row["transaction_load_us_max"] for row in rows), default=0)
    yield from _gauges(
        (_LOAD_TIME.format("max"), "Longest load of a coordinator of transactions in the last 30 s.",
         longest_us / _US_PER_S if loads else None),
        (_LOAD_TIME.format("avg"), "Mean time of these loads.",
         total("transaction_load_us") / loads / _US_PER_S if loads else None),
        (_MARKERS + "unknowndestinationqueuesize", "Transactions that have ended and whose markers are sent again: the "
         "owner of a partition was away, or could not write one.", total("transactions_unmarked")),
        (_MARKERS + "logappendretryqueuesize", "Transactions whose last state is written again.",
         total("transactions_unfinished")),
        ("kafka_server_replicamanager_partitionswithlatetransactionscount", "Partitions with a transaction that nobody "
         "ends.", total("late_transaction_partitions")),
    )  # fmt: skip
    times, refused = figures.verifications()
    yield CounterMetricFamily(
        _VERIFICATION + "failures",
        "Partitions that a transaction's coordinator refused when their owner asked.",
        value=refused,
    )
    family = HistogramMetricFamily(
        _VERIFICATION + "time_seconds", "Time that a transaction's coordinator took to answer owners."
    )
    if times.count:
        _add_histogram(family, None, times, _PART_BOUNDS_US, _US_PER_S)
    yield family


def _gauges(*figures: _Figure) -> Iterator[Metric]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    for name, about, value in figures:
        if value is not None:  # None: not known yet.
            yield GaugeMetricFamily(name, about, value=value)
