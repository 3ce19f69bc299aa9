"""Options of the sink: names and defaults of Spark's own connector and of Kafka's producer.

The driver validates them before a task runs. Spark passes option names in lower case. An option of Kafka's producer
that the sink cannot implement is rejected with an alternative. It is accepted without effect if no reader of the topic
could notice the difference.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kproc.client.security.settings import PLAINTEXT, ClientSecurity
from kproc.spark.access import CLIENT_CONFIG, is_about_security, read_security
from kproc.spark.option_values import OptionError, read_bootstrap
from kproc.wire.compression import Compression

MiB: Final = 1024 * 1024
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
# Brokers remember this many batches of a producer and partition, to recognise a retry
# (Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
IDEMPOTENT_WINDOW_MAX: Final = 5

# The default of the broker's transaction.max.timeout.ms. A batch must not take longer. If a run crashes while it
# commits a batch, the next run can complete the batch within this time without writing rows again.
TRANSACTION_TIMEOUT_MS: Final = 15 * 60_000

# Rejected option -> the reason, and what to do instead.
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
# Producer settings that change nothing here: sockets, metrics and back-off of connections are this client's own.
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
    """Settings of a Producer. The comments have Kafka's names where they differ."""

    client_id: str = "kproc-spark"
    acks: int = -1
    is_idempotent: bool = True
    codec: int = 0  # compression.type
    level: int | None = None  # compression.<type>.level
    # Kafka's default of 16 KiB is for producers that send single records.
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
        """Largest number of batches of one partition in flight."""
        return min(self.requests_max, IDEMPOTENT_WINDOW_MAX) if self.is_idempotent else self.requests_max


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """Settings of delivery=exactly-once. `app_id` and `version` identify a batch write when it is repeated."""

    timeout_ms: int
    app_id: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Parsed options of one write. Without `topic` the rows have a column of that name."""

    bootstrap: str
    topic: str | None
    producer: ProducerSettings
    exactly_once: ExactlyOnce | None = None
    """None means delivery=at-least-once."""


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse and validate the options of one write. Raise OptionError for the first invalid one."""
    reader = _OptionReader({name.lower(): value for name, value in options.items()})
    bootstrap = read_bootstrap(
        {"kafka.bootstrap.servers": reader.text("kafka.bootstrap.servers", "")}, "producer"
    )
    topic = reader.text("topic", "") or None
    exactly_once = _exactly_once(reader)
    creates = reader.one_of("onunknowntopic", ("create", "error"), "create") == "create"
    producer = _producer(reader, creates)
    if exactly_once is not None and not producer.is_idempotent:
        raise OptionError(f"delivery={EXACTLY_ONCE} needs kafka.acks=all and kafka.enable.idempotence=true")
    reader.finish()
    return SinkOptions(bootstrap, topic, producer, exactly_once)


def _exactly_once(reader: _OptionReader) -> ExactlyOnce | None:
    delivery = reader.text("delivery", AT_LEAST_ONCE)
    chosen = delivery.lower().replace("_", "-")
    if chosen not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise OptionError(f"delivery={delivery} is none of {AT_LEAST_ONCE}, {EXACTLY_ONCE}")
    # Without transactions this option has no effect. It is accepted.
    timeout_ms = reader.count("kafka.transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
    app_id = reader.text("txnappid", "") or None
    version = reader.integer("txnversion", None)
    if (app_id is None) != (version is None):
        raise OptionError("txnAppId and txnVersion go together: who writes, and the number of this write")
    if chosen == AT_LEAST_ONCE:
        if app_id is not None:
            raise OptionError(f"txnAppId goes with delivery={EXACTLY_ONCE}")
        return None
    if version is not None and version < 0:
        raise OptionError(f"txnVersion={version} is less than 0")
    return ExactlyOnce(timeout_ms, app_id, version or 0)


def _producer(reader: _OptionReader, creates_topics: bool) -> ProducerSettings:
    default = ProducerSettings()
    acks = {"all": -1, "-1": -1, "0": 0, "1": 1}[reader.one_of("kafka.acks", ("all", "-1", "1", "0"), "all")]
    is_idempotent = reader.flag("kafka.enable.idempotence", acks == -1)
    if is_idempotent and acks != -1:
        raise OptionError("kafka.enable.idempotence=true needs kafka.acks=all")
    requests_max = reader.count("kafka.max.in.flight.requests.per.connection", default.requests_max)
    if is_idempotent and requests_max > IDEMPOTENT_WINDOW_MAX:
        raise OptionError(
            f"kafka.max.in.flight.requests.per.connection={requests_max}: at most {IDEMPOTENT_WINDOW_MAX} "
            "with kafka.enable.idempotence"
        )
    names = [codec.name.lower() for codec in Compression]
    codec = Compression[reader.one_of("kafka.compression.type", names, "none").upper()]
    levels = {
        name: reader.integer(f"kafka.compression.{name}.level", None) for name in ("gzip", "lz4", "zstd")
    }
    request_bytes = reader.count("kafka.max.request.size", default.request_bytes)
    request_timeout_ms = reader.count("kafka.request.timeout.ms", default.request_timeout_ms)
    delivery_timeout_ms = reader.count("kafka.delivery.timeout.ms", default.delivery_timeout_ms)
    if delivery_timeout_ms < request_timeout_ms:
        raise OptionError(
            f"kafka.delivery.timeout.ms={delivery_timeout_ms} is less than "
            f"kafka.request.timeout.ms={request_timeout_ms}"
        )
    return ProducerSettings(
        client_id=reader.text("kafka.client.id", default.client_id),
        acks=acks,
        is_idempotent=is_idempotent,
        codec=codec,
        level=levels.get(codec.name.lower()),
        batch_bytes=min(reader.count("kafka.batch.size", default.batch_bytes, least=0), request_bytes),
        request_bytes=request_bytes,
        buffer_bytes=reader.count("kafka.buffer.memory", default.buffer_bytes),
        requests_max=requests_max,
        retries=reader.count("kafka.retries", default.retries, least=0),
        backoff_ms=reader.count("kafka.retry.backoff.ms", default.backoff_ms),
        backoff_ms_max=reader.count("kafka.retry.backoff.max.ms", default.backoff_ms_max),
        connect_ms=reader.count("kafka.socket.connection.setup.timeout.ms", default.connect_ms),
        request_timeout_ms=request_timeout_ms,
        delivery_timeout_ms=delivery_timeout_ms,
        max_block_ms=reader.count("kafka.max.block.ms", default.max_block_ms),
        metadata_age_ms=reader.count("kafka.metadata.max.age.ms", default.metadata_age_ms),
        creates_topics=creates_topics,
        security=reader.security(),
    )


class _OptionReader:
    """Reader of options by name. It records which names were read; `finish` rejects the others as unknown."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._asked: set[str] = set()

    def text(self, name: str, default: str) -> str:
        self._asked.add(name)
        return str(self._options.get(name, default)).strip()

    def one_of(self, name: str, choices: tuple[str, ...] | list[str], default: str) -> str:
        value = self.text(name, default).lower()
        if value not in choices:
            raise OptionError(f"{name}={value} is none of {', '.join(choices)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return self.one_of(name, ("true", "false"), str(default).lower()) == "true"

    def integer(self, name: str, default: int | None) -> int | None:
        value = self.text(name, "" if default is None else str(default))
        if not value:
            return default
        try:
            return int(value)
        except ValueError:
            raise OptionError(f"{name}={value} is no number") from None

    def count(self, name: str, default: int, *, least: int = 1) -> int:
        value = self.integer(name, default)
        assert value is not None
        if value < least:
            raise OptionError(f"{name}={value} is less than {least}")
        return value

    def security(self) -> ClientSecurity:
        """Return the settings for TLS and SASL."""
        self._asked |= {"kafka.security.protocol", CLIENT_CONFIG, *filter(is_about_security, self._options)}
        return read_security(self._options)

    def finish(self) -> None:
        """Reject the options that were not read, with the reason or a similar name."""
        for name in sorted(self._options.keys() - self._asked - _WITHOUT_EFFECT - _SPARKS_OWN):
            why = _REFUSED.get(name)
            if why is not None:
                raise OptionError(f"option {name} is not supported here: {why}")
            known = sorted(self._asked | _WITHOUT_EFFECT)
            near = difflib.get_close_matches(
                name, [*known, *(one.removeprefix("kafka.") for one in known)], 1
            )
            hint = ""
            if f"kafka.{name}" in known:
                hint = f": producer settings are written kafka.{name}"
            elif near:
                hint = f": did you mean {near[0] if near[0] in known else 'kafka.' + near[0]}?"
            raise OptionError(f"unknown option {name} for writing{hint or ' (kproc/SPARK.md lists them)'}")
