"""Options of the source format("kproc"): those of Spark's own connector, and a few of kproc's.

Option names have no case, as everywhere in Spark. This module validates all options before the first request to a
broker: unknown names, invalid values, options that exclude each other, and options that only a Java consumer can
implement. Each error says what to do instead. No I/O, no Spark. positions.py has the options that choose the records,
and this file has all others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kproc.broker.config.values import INT_MAX, ConfigError
from kproc.common.reading import EARLIEST, LATEST, READ_UNCOMMITTED
from kproc.spark.access import CLIENT_CONFIG, is_about_security, read_security
from kproc.spark.broker_clients import Connecting, parse_bootstrap
from kproc.spark.option_values import (
    OptionError,
    OptionTable,
    parse_table,
    read_bootstrap,
    read_byte_count,
    read_choice,
    read_count,
    read_count_or_zero,
    read_flag,
    read_isolation,
    read_long,
    read_long_or_zero,
    read_text,
    read_time_ms,
    reject_unknown,
)
from kproc.spark.positions import (
    Position,
    Subscription,
    SubscriptionKind,
    read_position,
    read_subscription,
    reject_position,
)

logger = logging.getLogger(__name__)

FETCH_BYTES: Final = 4 << 20
"""Default size of a Fetch. It is large enough to hide the cost of a request, and small compared to a task's memory."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Parsed options of a source."""

    bootstrap: str
    connecting: Connecting
    subscription: Subscription
    starting: Position
    ending: Position
    latest_if_too_late: bool = False
    """True for startingOffsetsByTimestampStrategy=latest: begin at the end if no record is as new as the timestamp."""
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    max_bytes: int | None = None
    min_partitions: int | None = None
    max_partitions: int | None = None
    max_records: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    isolation: int = READ_UNCOMMITTED
    fetch_bytes: int = FETCH_BYTES
    fetch_wait_ms: int = 500
    fetch_min_bytes: int = 1
    poll_ms: int = 120_000
    look_up: Connecting = field(default_factory=Connecting)
    """Connection settings of the driver. fetchOffset.numRetries and .retryIntervalMs apply to its requests only."""
    metadata_ms: int = 0
    commit_group: str | None = None
    checkpoint_state: str | None = None
    source_name: str | None = None
    data_directory: str = "auto"
    """Path of the leader's data directory, to read its files instead of Fetch; or `auto` or `none` (local.py)."""
    check_crcs: bool = True


# ---- names -----------------------------------------------------------------------------------------------

_SIMPLE: Final[OptionTable] = {
    "maxOffsetsPerTrigger": ("max_offsets", read_long),
    "minOffsetsPerTrigger": ("min_offsets", read_long),
    "maxTriggerDelay": ("max_delay_ms", read_time_ms),
    "maxBytesPerTrigger": ("max_bytes", read_byte_count),
    "minPartitions": ("min_partitions", read_count),
    "maxPartitions": ("max_partitions", read_count),
    "maxRecordsPerPartition": ("max_records", read_long),
    "failOnDataLoss": ("fail_on_data_loss", read_flag),
    "includeHeaders": ("include_headers", read_flag),
    "kafkaConsumer.pollTimeoutMs": ("poll_ms", read_long),
    "partition.metadata.cache.ttl.ms": ("metadata_ms", read_long_or_zero),
    "commitGroup": ("commit_group", read_text),
    "checkpointState": ("checkpoint_state", read_text),
    "sourceName": ("source_name", read_text),
    "kproc.data.dir": ("data_directory", read_text),
    "kafka.check.crcs": ("check_crcs", read_flag),
    "kafka.isolation.level": ("isolation", read_isolation),
    "kafka.fetch.max.wait.ms": ("fetch_wait_ms", read_count_or_zero),
    "kafka.fetch.min.bytes": ("fetch_min_bytes", read_count),
}
_CONNECTING: Final[OptionTable] = {
    "kafka.client.id": ("client_id", read_text),
    "kafka.request.timeout.ms": ("request_ms", read_count),
    "kafka.socket.connection.setup.timeout.ms": ("connect_ms", read_count),
    "kafka.default.api.timeout.ms": ("retry_ms", read_count),
    "kafka.retry.backoff.ms": ("backoff_ms", read_count),
    "kafka.retry.backoff.max.ms": ("backoff_ms_max", read_count),
}
_OTHERS: Final = (
    "kafka.bootstrap.servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafka.group.id",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    "kafka.security.protocol",
    "kafka.sasl.mechanism",
    "kafka.sasl.jaas.config",
    "kafka.ssl.truststore.location",
    CLIENT_CONFIG,
)
# Options of Kafka's consumer that this connector ignores, with a warning, so that a job for Spark's own connector runs
# unchanged.
_WITHOUT_EFFECT: Final = (
    "kafka.allow.auto.create.topics kafka.auto.commit.interval.ms kafka.client.dns.lookup "
    "kafka.client.rack kafka.connections.max.idle.ms kafka.enable.metrics.push "
    "kafka.exclude.internal.topics kafka.group.instance.id kafka.group.protocol "
    "kafka.group.remote.assignor kafka.heartbeat.interval.ms kafka.max.poll.interval.ms "
    "kafka.max.poll.records kafka.metadata.max.age.ms kafka.metadata.recovery.rebootstrap.trigger.ms "
    "kafka.metadata.recovery.strategy kafka.metric.reporters kafka.metrics.num.samples "
    "kafka.metrics.recording.level kafka.metrics.sample.window.ms kafka.partition.assignment.strategy "
    "kafka.receive.buffer.bytes kafka.reconnect.backoff.max.ms kafka.reconnect.backoff.ms "
    "kafka.send.buffer.bytes kafka.session.timeout.ms kafka.share.acknowledgement.mode "
    "kafka.share.acquire.mode kafka.socket.connection.setup.timeout.max.ms"
).split()
# Rejected options, with the reason and the alternative.
_REFUSED: Final = {
    "kafka.key.deserializer": "keys are binary columns: cast(key as string), or from_json(...), reads them",
    "kafka.value.deserializer": "values are binary columns: cast(value as string), or from_json(...), reads them",
    "kafka.auto.offset.reset": "startingOffsets says where a new query begins",
    "kafka.enable.auto.commit": "Spark's checkpoint has the offsets; commitGroup=<group> commits them as well",
    "kafka.interceptor.classes": "there is no Java consumer; transform the DataFrame instead",
    "kafka.config.providers": "there is no Java consumer; kproc.client.config names a file with variables",
    "path": "load() takes no path: subscribe=<topic> names what is read",
    "topic": "it is an option of the sink; a source has subscribe=<topic>",
    "topics": "subscribe=<topic>,<topic> names what is read",
    "filterpushdown": (
        "Spark shares one plan among all uses of a load(); assign, startingOffsets, startingTimestamp and their ending "
        "counterparts choose what is read"
    ),
    "bootstrap.servers": "it is kafka.bootstrap.servers",
    "group.id": "it is kafka.group.id",
}
_KNOWN: Final = (*_SIMPLE, *_CONNECTING, *_OTHERS, *_WITHOUT_EFFECT)


def _check_names(options: Mapping[str, str]) -> None:
    reject_unknown((name for name in options if not is_about_security(name)), _KNOWN, _REFUSED)
    without_effect = [name for name in _WITHOUT_EFFECT if name in options]
    if without_effect:
        logger.warning("options without effect in this source: %s", ", ".join(sorted(without_effect)))


def _strategy(options: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    return bool(read_choice(name, options.get(name.lower(), "error"), {"error": False, "latest": True}))


# ---- all together ----------------------------------------------------------------------------------------


def parse_connecting(options: Mapping[str, str]) -> tuple[str, Connecting]:
    """Parse the bootstrap servers and the connection settings. `options` has names in lower case."""
    bootstrap = read_bootstrap(options, "consumer")
    try:
        parse_bootstrap(bootstrap)
    except ConfigError as error:
        raise OptionError(f"kafka.bootstrap.servers: {error}") from None
    return bootstrap, Connecting(security=read_security(options), **parse_table(options, _CONNECTING))


def _reject_end(options: Mapping[str, str]) -> None:
    """Reject the options for the end of a read, because a stream has no end."""
    given = [name for name in _OTHERS if name.startswith("ending") and name.lower() in options]
    if given:
        raise OptionError(f"{given[0]}: a stream has no end; it is an option of spark.read")


def _reject_empty_batch(starting: Position, ending: Position) -> None:
    """Reject a start at the latest or an end at the earliest offset, because the batch would have no records."""
    reject_position(starting, LATEST, "a batch that starts at the latest offset has no records")
    reject_position(ending, EARLIEST, "a batch that ends at the earliest offset has no records")


def _reject_progress(options: Mapping[str, str]) -> None:
    """Reject the options that store a stream's progress, because a batch query has no progress."""
    for name in ("commitGroup", "checkpointState"):
        if name.lower() in options:
            raise OptionError(f"{name} is an option of spark.readStream: a batch has no progress to keep")


def parse_source(options: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Parse and validate the options of a source. Raise OptionError with one line for the user.

    is_stream: True for readStream. It begins at the latest offset by default, and cannot have an end.
    """
    # Spark ignores case in the names of options, and may pass them in lower case.
    options = {name.lower(): value for name, value in options.items()}
    _check_names(options)
    bootstrap, connecting = parse_connecting(options)
    settings = parse_table(options, _SIMPLE)
    starting = read_position(options, "starting", LATEST if is_stream else EARLIEST)
    ending = read_position(options, "ending", LATEST)
    if is_stream:
        _reject_end(options)
    else:
        _reject_empty_batch(starting, ending)
        _reject_progress(options)
    # Kafka's consumer obeys the limit of a response and that of a partition, so the smaller one applies.
    sizes = [
        read_byte_count(name, options[name.lower()])
        for name in ("kafka.fetch.max.bytes", "kafka.max.partition.fetch.bytes")
        if name.lower() in options
    ]
    if sizes:
        settings["fetch_bytes"] = min(*sizes, INT_MAX)
    result = SourceOptions(
        bootstrap=bootstrap,
        connecting=connecting,
        subscription=read_subscription(options),
        starting=starting,
        ending=ending,
        latest_if_too_late=_strategy(options),
        look_up=_driver_connecting(options, connecting),
        **settings,
    )
    _check_together(result)
    return result


def _driver_connecting(options: Mapping[str, str], connecting: Connecting) -> Connecting:
    """Return the driver's connection settings.

    Without fetchOffset.numRetries and .retryIntervalMs they equal the tasks' settings, whose retries outlast the
    restart of a broker.
    """
    retries = options.get("fetchoffset.numretries")
    interval = options.get("fetchoffset.retryintervalms")
    if retries is not None:
        count = read_count_or_zero("fetchOffset.numRetries", retries)
        connecting = replace(connecting, attempts_max=count + 1)
    if interval is not None:
        pause_ms = read_count_or_zero("fetchOffset.retryIntervalMs", interval)
        connecting = replace(connecting, backoff_ms=pause_ms, backoff_ms_max=pause_ms)
    return connecting


def _check_together(options: SourceOptions) -> None:
    low, high = options.min_offsets, options.max_offsets
    if low is not None and high is not None and low > high:
        raise OptionError(f"minOffsetsPerTrigger ({low}) is above maxOffsetsPerTrigger ({high})")
    low, high = options.min_partitions, options.max_partitions
    if low is not None and high is not None and low > high:
        raise OptionError(f"minPartitions ({low}) is above maxPartitions ({high})")
    if high is not None and options.max_records is not None:
        raise OptionError("give either maxPartitions, which limits the tasks, or maxRecordsPerPartition")
    subscribed = options.subscription
    for position in (options.starting, options.ending):
        named = {partition for partition, _ in position.each}
        if subscribed.kind is SubscriptionKind.PARTITIONS and named and named != set(subscribed.partitions):
            missing = ", ".join(map(str, sorted(set(subscribed.partitions) ^ named)))
            raise OptionError(
                f"{position.option} and assign must name the same partitions; only one has {missing}"
            )
        if subscribed.kind is SubscriptionKind.TOPICS and named:
            unknown = {each.topic for each in named} ^ set(subscribed.topics)
            if unknown:
                raise OptionError(
                    f"{position.option} and subscribe must name the same topics; only one has "
                    f"{', '.join(sorted(unknown))}"
                )
