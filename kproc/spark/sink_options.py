"""Options of the sink: names and defaults of Spark's own connector and of Kafka's producer.

The driver validates them before a task runs. Spark passes option names in lower case. An option of Kafka's producer
that the sink cannot implement is rejected with an alternative. It is accepted without effect if no reader of the topic
could notice the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kproc.broker.config.values import LONG_MAX
from kproc.client.security.settings import PLAINTEXT, ClientSecurity
from kproc.spark.access import CLIENT_CONFIG, is_about_security, read_security
from kproc.spark.option_values import (
    OptionError,
    OptionTable,
    parse_table,
    read_bootstrap,
    read_choice,
    read_count,
    read_count_or_zero,
    read_flag,
    read_long,
    read_text,
    reject_unknown,
)
from kproc.wire.compression import Compression

MiB: Final = 1024 * 1024
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
# Number of batches that a broker remembers of a producer in a partition, to recognise retries (Kafka's
# ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
IDEMPOTENT_WINDOW_MAX: Final = 5

# Default of the broker's transaction.max.timeout.ms. A batch must not take longer. If a run crashes while it commits,
# the next run can complete the commit within this time without writing rows again.
TRANSACTION_TIMEOUT_MS: Final = 15 * 60_000

# By rejected option: the reason, and what to do instead.
_REFUSED: Final[Mapping[str, str]] = {
    "kafka.partitioner.class": "a Java class cannot run here: put the partition into a column named partition",
    "kafka.key.serializer": "keys are bytes already: cast the column to string or binary",
    "kafka.value.serializer": "values are bytes already: cast the column to string or binary",
    "kafka.interceptor.classes": "a Java class cannot run here: change the columns instead",
    "kafka.config.providers": "a Java class cannot run here; use kproc.client.config, a file with variables",
    "kafka.partitioner.ignore.keys": "leave the key out of the rows, or put the partition into a column",
    "kafka.transaction.two.phase.commit.enable": f"the sink commits in two phases by itself: delivery={EXACTLY_ONCE}",
    "kafka.transactional.id": f"the sink names its transactions by the query: use delivery={EXACTLY_ONCE}",
}
# Settings of Kafka's producer that are accepted and ignored, because they concern sockets, metrics and reconnects,
# which this client does in its own way.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "kafka.auto.include.jmx.reporter",
        "kafka.client.dns.lookup",
        "kafka.connections.max.idle.ms",
        "kafka.enable.metrics.push",
        "kafka.linger.ms",
        "kafka.metadata.max.idle.ms",
        "kafka.metadata.recovery.strategy",
        "kafka.metadata.recovery.rebootstrap.trigger.ms",
        "kafka.metric.reporters",
        "kafka.metrics.num.samples",
        "kafka.metrics.recording.level",
        "kafka.metrics.sample.window.ms",
        "kafka.partitioner.adaptive.partitioning.enable",
        "kafka.partitioner.availability.timeout.ms",
        "kafka.receive.buffer.bytes",
        "kafka.reconnect.backoff.max.ms",
        "kafka.reconnect.backoff.ms",
        "kafka.send.buffer.bytes",
        "kafka.socket.connection.setup.timeout.max.ms",
    }
)
# Options that Spark itself passes to every streaming sink.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname", "includeheaders"})


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of a BatchProducer. A comment has the setting's name in Kafka if it differs."""

    client_id: str = "kproc-spark"
    acks: int = -1
    is_idempotent: bool = True
    codec: int = 0  # compression.type
    level: int | None = None  # compression.<type>.level
    # Kafka's default is 16 KiB, for producers that send single records. A task has many rows for each batch.
    batch_bytes: int = 512 * 1024  # batch.size
    request_bytes: int = MiB  # max.request.size
    buffer_bytes: int = 32 * MiB  # buffer.memory
    requests_max: int = 5  # max.in.flight.requests.per.connection
    retries: int = 2**31 - 1
    backoff_ms: int = 100  # retry.backoff.ms
    backoff_ms_max: int = 1_000  # retry.backoff.max.ms
    connect_ms: int = 10_000  # socket.connection.setup.timeout.ms
    request_timeout_ms: int = 30_000  # request.timeout.ms
    delivery_timeout_ms: int = 120_000  # delivery.timeout.ms
    max_block_ms: int = 60_000  # max.block.ms
    metadata_age_ms: int = 300_000  # metadata.max.age.ms
    creates_topics: bool = True
    security: ClientSecurity = PLAINTEXT

    @property
    def window_max(self) -> int:
        """Largest number of batches of one partition that are in flight at a time."""
        return min(self.requests_max, IDEMPOTENT_WINDOW_MAX) if self.is_idempotent else self.requests_max


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """Settings of delivery=exactly-once. `app_id` and `version` identify a batch write when it is repeated."""

    timeout_ms: int = TRANSACTION_TIMEOUT_MS
    app_id: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Parsed options of one write. Without `topic`, each row names its topic in the column `topic`."""

    bootstrap: str
    topic: str | None
    producer: ProducerSettings
    exactly_once: ExactlyOnce | None = None
    """None means delivery=at-least-once."""


# By option: the field of ProducerSettings, and the parser of the option's value.
_PRODUCER: Final[OptionTable] = {
    "kafka.client.id": ("client_id", read_text),
    "kafka.acks": ("acks", partial(read_choice, choices={"all": -1, "-1": -1, "1": 1, "0": 0})),
    "kafka.enable.idempotence": ("is_idempotent", read_flag),
    "kafka.compression.type": (
        "codec",
        partial(read_choice, choices={codec.name.lower(): int(codec) for codec in Compression}),
    ),
    "kafka.batch.size": ("batch_bytes", read_count_or_zero),
    "kafka.max.request.size": ("request_bytes", read_count),
    "kafka.buffer.memory": ("buffer_bytes", read_long),
    "kafka.max.in.flight.requests.per.connection": ("requests_max", read_count),
    "kafka.retries": ("retries", read_count_or_zero),
    "kafka.retry.backoff.ms": ("backoff_ms", read_count),
    "kafka.retry.backoff.max.ms": ("backoff_ms_max", read_count),
    "kafka.socket.connection.setup.timeout.ms": ("connect_ms", read_count),
    "kafka.request.timeout.ms": ("request_timeout_ms", read_count),
    "kafka.delivery.timeout.ms": ("delivery_timeout_ms", read_count),
    "kafka.max.block.ms": ("max_block_ms", read_long),
    "kafka.metadata.max.age.ms": ("metadata_age_ms", read_long),
    "onUnknownTopic": ("creates_topics", partial(read_choice, choices={"create": True, "error": False})),
}


def _read_gzip_level(name: str, value: str) -> int | None:
    """Parse a level from 1 to 9. Return None for -1, which is gzip's own default."""
    return None if value.strip() == "-1" else read_count(name, value, high=9)


_LEVELS: Final[OptionTable] = {
    "kafka.compression.gzip.level": (Compression.GZIP.name, _read_gzip_level),
    "kafka.compression.lz4.level": (Compression.LZ4.name, partial(read_count, high=17)),
    "kafka.compression.zstd.level": (Compression.ZSTD.name, partial(read_count, low=-131_072, high=22)),
}
# The version is committed plus one as an offset, which is a long.
_TRANSACTIONS: Final[OptionTable] = {
    "kafka.transaction.timeout.ms": ("timeout_ms", read_count),
    "txnAppId": ("app_id", read_text),
    "txnVersion": ("version", partial(read_count, low=0, high=LONG_MAX - 1)),
}
_KNOWN: Final = (
    *("kafka.bootstrap.servers", "topic", "delivery", CLIENT_CONFIG, "kafka.security.protocol"),
    *_PRODUCER,
    *_LEVELS,
    *_TRANSACTIONS,
    *_WITHOUT_EFFECT,
)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse and validate the options of one write. Raise OptionError for the first invalid one."""
    given = {name.lower(): value for name, value in options.items()}
    reject_unknown(
        (name for name in given if name not in _SPARKS_OWN and not is_about_security(name)), _KNOWN, _REFUSED
    )
    bootstrap = read_bootstrap(given, "producer")
    exactly_once = _exactly_once(given)
    producer = _producer(given)
    if exactly_once is not None and not producer.is_idempotent:
        raise OptionError(f"delivery={EXACTLY_ONCE} needs kafka.acks=all and kafka.enable.idempotence=true")
    return SinkOptions(bootstrap, given.get("topic", "").strip() or None, producer, exactly_once)


def _exactly_once(options: Mapping[str, str]) -> ExactlyOnce | None:
    chosen = read_choice(
        "delivery",
        options.get("delivery", AT_LEAST_ONCE).replace("_", "-"),
        {each: each for each in (AT_LEAST_ONCE, EXACTLY_ONCE)},
    )
    given = parse_table(options, _TRANSACTIONS)
    if ("app_id" in given) != ("version" in given):
        raise OptionError(
            "set both txnAppId (who writes) and txnVersion (the number of this write), or neither"
        )
    if chosen == EXACTLY_ONCE:
        return ExactlyOnce(**given)
    # Without transactions, kafka.transaction.timeout.ms is accepted and has no effect. txnAppId is rejected.
    if "app_id" in given:
        raise OptionError(f"txnAppId has an effect only with delivery={EXACTLY_ONCE}: set that, too")
    return None


def _producer(options: Mapping[str, str]) -> ProducerSettings:
    given = parse_table(options, _PRODUCER)
    levels = parse_table(options, _LEVELS)
    given.setdefault("is_idempotent", given.get("acks", -1) == -1)
    settings = ProducerSettings(**given, security=read_security(options))
    if settings.is_idempotent and settings.acks != -1:
        raise OptionError("kafka.enable.idempotence=true needs kafka.acks=all")
    if settings.is_idempotent and settings.requests_max > IDEMPOTENT_WINDOW_MAX:
        raise OptionError(
            f"kafka.max.in.flight.requests.per.connection={settings.requests_max}: at most "
            f"{IDEMPOTENT_WINDOW_MAX} with kafka.enable.idempotence"
        )
    if settings.delivery_timeout_ms < settings.request_timeout_ms:
        raise OptionError(
            f"kafka.delivery.timeout.ms={settings.delivery_timeout_ms} is less than "
            f"kafka.request.timeout.ms={settings.request_timeout_ms}"
        )
    batch_bytes = min(settings.batch_bytes, settings.request_bytes)
    return replace(settings, batch_bytes=batch_bytes, level=levels.get(Compression(settings.codec).name))
