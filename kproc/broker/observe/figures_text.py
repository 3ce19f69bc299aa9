"""Formats topics, logs and consumer groups in Prometheus' text format, by hand: prometheus-client takes 5 us a line.

The names are those that the JMX exporter's example configuration gives to Kafka's MBeans; for lags, which Kafka's
broker does not report, those of kafka_exporter. Topics without a series of their own share one,
`topic="(others)"`: no topic can have that name, and sums stay right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kproc.broker.observe.broker_figures import BrokerFigures, Group, Sizes
from kproc.broker.observe.prometheus import quoted
from kproc.common.lag import lag_between

OTHERS: Final = "(others)"
_STATES: Final = ("PreparingRebalance", "CompletingRebalance", "Stable", "Empty", "Dead")
_PROTOCOL_STATES: Final = {
    "consumer": ("Assigning", "Reconciling", "Stable", "Empty", "Dead"),
    "share": ("Stable", "Empty", "Dead"),
    "streams": ("NotReady", "Assigning", "Reconciling", "Stable", "Empty", "Dead"),
}
_MANAGER: Final = "kafka_coordinator_group_groupmetadatamanager_numgroups"
_COORDINATOR: Final = "kafka_server_group_coordinator_metrics_"
Sample = tuple[str, int]


def figures_text(figures: BrokerFigures) -> bytes:
    """Return the metric families of topics, logs and groups as text."""
    sizes = figures.sizes()
    families = (*_topics(figures, sizes), *_logs(figures, sizes), *_groups(figures), *_about(figures))
    return "".join(families).encode()


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {about}\n# TYPE {name} {kind}\n"]
    lines += [f"{name}{labels} {value}\n" for labels, value in samples]
    return "".join(lines)


def _gauge(name: str, about: str, value: int) -> str:
    return _family(name, "gauge", about, [("", value)])


def _topics(figures: BrokerFigures, sizes: Sizes) -> Iterator[str]:
    traffic = figures.traffic()
    rows = [(f'{{topic="{name}"}}', row) for name, row in traffic.items()]
    rows.append((f'{{topic="{OTHERS}"}}', figures.others))
    for at, (name, about) in enumerate((
        ("kafka_server_brokertopicmetrics_bytesin_total", "Bytes appended to the topic's logs, as they are stored."),
        ("kafka_server_brokertopicmetrics_messagesin_total", "Records appended to the topic's logs."),
        ("kafka_server_brokertopicmetrics_bytesout_total", "Bytes of the topic's records in answers to Fetch."),
        ("kproc_topic_fetches_total", "Answers to Fetch with records of the topic, one for each partition."),
    )):  # fmt: skip
        yield _family(name, "counter", about, [(labels, row[at]) for labels, row in rows])
    whole = figures.topic_sizes(sizes, OTHERS)
    for at, (name, about) in enumerate((
        ("kproc_topic_log_bytes", "Bytes of the topic's logs, without their indexes."),
        ("kproc_topic_partitions", "Partitions of the topic."),
    )):  # fmt: skip
        yield _family(
            name, "gauge", about, [(f'{{topic="{topic}"}}', row[at]) for topic, row in whole.items()]
        )


def _logs(figures: BrokerFigures, sizes: Sizes) -> Iterator[str]:
    rows = []
    for key, ends in figures.shown_partitions().items():
        size = sizes.get(key) or (figures.untouched_bytes(*key), 0)
        labels = f'{{topic="{key[0]}",partition="{key[1]}"}}'
        rows.append((labels, (*ends, *size)))
    for at, (name, about) in enumerate((
        ("kafka_log_log_logstartoffset", "Offset of the first record that can be read."),
        ("kafka_log_log_logendoffset", "Offset that the next record will get."),
        ("kafka_log_log_size", "Bytes of the log, without its indexes."),
        ("kafka_log_log_numlogsegments", "Segments of the log; 0 while nobody has touched it."),
    )):  # fmt: skip
        yield _family(name, "gauge", about, [(labels, row[at]) for labels, row in rows])
    yield _gauge("kafka_server_replicamanager_partitioncount", "Partitions.", figures.partition_count)
    yield _gauge(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "Partitions that are not served: their log is damaged, or a sync of it has failed.",
        figures.offline,
    )


def _groups(figures: BrokerFigures) -> Iterator[str]:
    groups = figures.groups()
    classic = figures.group_counts("classic")
    yield _gauge(_MANAGER, "Groups of the classic protocol.", classic.total())
    for state in _STATES:
        yield _gauge(
            _MANAGER + state.lower(), f"Groups of the classic protocol in the state {state}.", classic[state]
        )
    yield from _groups_by_protocol(figures)
    shown_ids = set(figures.group_ids.choose([group.id for group in groups]))
    members = [(group.id, group.members) for group in groups if group.id in shown_ids]
    yield _family(
        "kafka_consumergroup_members",
        "gauge",
        "Members of the group.",
        [(f'{{consumergroup="{quoted(group_id)}"}}', count) for group_id, count in members],
    )
    yield from _group_lags(figures, groups)


def _groups_by_protocol(figures: BrokerFigures) -> Iterator[str]:
    """Yield Kafka's metrics of consumer, share and streams groups. A broker without such groups has none of them."""
    counts = {protocol: figures.group_counts(protocol) for protocol in _PROTOCOL_STATES}
    totals = [(f'{{protocol="{protocol}"}}', each.total()) for protocol, each in counts.items() if each]
    if not totals:
        return
    # Untyped, because Prometheus reserves names that end in _count for histograms.
    yield _family(
        f"{_COORDINATOR}group_count",
        "untyped",
        "Groups of the protocols with assignment by the broker.",
        totals,
    )
    for protocol, states in _PROTOCOL_STATES.items():
        if counts[protocol]:
            yield _family(
                f"{_COORDINATOR}{protocol}_group_count",
                "untyped",
                f"Groups of the {protocol} protocol, by state.",
                [(f'{{state="{state}"}}', counts[protocol][state]) for state in states],
            )


def _group_lags(figures: BrokerFigures, groups: Sequence[Group]) -> Iterator[str]:
    lags: dict[tuple[str, str, int], tuple[int, int]] = {}
    sums: dict[tuple[str, str], int] = {}
    for group in groups:
        for topic, offsets in group.offsets.items():
            whole = 0
            for index, offset in offsets.items():
                ends = figures.ends(topic, index)
                lag = lag_between(offset, ends[1]) if ends is not None else 0
                lags[group.id, topic, index] = (offset, lag)
                whole += lag
            sums[group.id, topic] = whole
    yield _gauge(
        "kproc_consumergroup_lag_largest",
        "The largest lag of any group in any topic, also of those without a series of their own.",
        max(sums.values(), default=0),
    )
    labelled = [
        (f'{{consumergroup="{quoted(group_id)}",topic="{topic}"}}', sums[group_id, topic])
        for group_id, topic in figures.group_topics.choose(sums)
    ]
    # Untyped, because Prometheus reserves names that end in _sum for histograms. kafka_exporter has this name, too.
    yield _family(
        "kafka_consumergroup_lag_sum", "untyped", "Records behind the logs' ends, by topic.", labelled
    )
    rows = [
        (f'{{consumergroup="{quoted(key[0])}",topic="{key[1]}",partition="{key[2]}"}}', lags[key])
        for key in figures.group_partitions.choose(lags)
    ]
    for at, (name, about) in enumerate((
        ("kafka_consumergroup_current_offset", "The offset that the group has committed."),
        ("kafka_consumergroup_lag", "Records between what the group has committed and the log's end."),
    )):  # fmt: skip
        yield _family(name, "gauge", about, [(labels, row[at]) for labels, row in rows])


def _about(figures: BrokerFigures) -> Iterator[str]:
    """Yield metrics about the scrape itself, such as the number of topics that it left out.

    They come last, because the families before them count what they leave out.
    """
    left_out = {
        "topics": figures.topics.left_out,
        "partitions": figures.partitions.left_out,
        "groups": figures.group_ids.left_out + figures.unreported_groups,
        "group_topics": figures.group_topics.left_out,
        "group_partitions": figures.group_partitions.left_out,
    }
    yield _family(
        "kproc_metrics_left_out",
        "gauge",
        "What has no series of its own, because 1,000 others have one.",
        [(f'{{of="{what}"}}', count) for what, count in left_out.items()],
    )
    yield _gauge(
        "kproc_metrics_silent_handlers",
        "Handlers that did not answer this scrape within two seconds; their figures are those of the last one.",
        figures.silent_handlers,
    )
