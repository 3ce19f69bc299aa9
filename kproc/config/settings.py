"""The table of settings: one field, one line of declaration each.

A field is Kafka's own name with underscores; ours start with `kproc_`. Flags, DescribeConfigs and README's
table come from these rows. Defaults are Kafka 4.3's, except where the row's text gives the reason. Kafka's
other settings are in unhonoured.py. To add one, add the row: a test fails if no code reads it. It is one file, because
it is one table.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kproc.config.build import check_together, derive, merge, parse_given
from kproc.config.cpus import default_role_count
from kproc.config.listeners import DEFAULT_PROTOCOL_MAP, EndPoint, resolve_advertised, split_address
from kproc.config.sources import Flag, read_settings_file
from kproc.config.values import (
    INT_MAX,
    LONG_MAX,
    ConfigError,
    Dynamic,
    Kind,
    Setting,
    at_least,
    between,
    one_of,
    power_of_two,
    setting,
    some_of,
    wire_text,
)

ONE_CLEANER: Final = "one process compacts"
DOUBLE_MAX: Final = 1.7976931348623157e308  # Java's Double.MAX_VALUE.
ONE_REPLICA: Final = "one host keeps one replica"
BOOLEAN, DOUBLE, INT, LIST, LONG, SIZE, STRING = (
    Kind.BOOLEAN,
    Kind.DOUBLE,
    Kind.INT,
    Kind.LIST,
    Kind.LONG,
    Kind.SIZE,
    Kind.STRING,
)
CLUSTER, PER_BROKER = Dynamic.CLUSTER, Dynamic.PER_BROKER


def _check_overrides(text: str) -> str | None:
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, colon, count = item.rpartition(":")
        if not colon or not host or not count.isdecimal() or int(count) > INT_MAX:
            return "expected host:count, separated by commas"
        if not re.fullmatch(r"[0-9a-zA-Z\-%._:\[\]]+", host):
            return f"contains invalid addresses : {host}"
    return None


def _check_address(text: str) -> str | None:
    if not text:
        return None
    try:
        split_address(text, may_be_free=True)
    except ConfigError:
        return "expected host:port, such as 127.0.0.1:9091"
    return None


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting of one broker, checked. Built once, passed down, never changed."""

    # -- who and where
    node_id: int = setting(INT, 1, "This broker's id. Kafka has no default; one host needs one.", at_least(0))
    broker_id: int = setting(INT, -1, "Another name of node.id; both must agree if both are set.")
    log_dirs: str = setting(
        STRING, "kproc-data", "The data directory. Kafka's /tmp/kafka-logs does not outlive a boot."
    )
    log_dir: str = setting(STRING, "kproc-data", "Another name of log.dirs, which wins.")

    # -- listeners
    listeners: tuple[EndPoint, ...] = setting(
        LIST,
        (EndPoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092),),
        "NAME://host:port of each listener; no host binds all interfaces, port 0 takes a free one. "
        "The default is the loopback, unlike Kafka's: a broker without authentication should not be open by "
        "surprise.",
        dynamic=PER_BROKER,
    )
    advertised_listeners: tuple[EndPoint, ...] = setting(
        LIST, (), "What clients are told to connect to; by default what is bound."
    )
    listener_security_protocol_map: tuple[str, ...] = setting(
        LIST, DEFAULT_PROTOCOL_MAP, "NAME:PROTOCOL of each listener name. Only PLAINTEXT works yet."
    )
    inter_broker_listener_name: str | None = setting(
        STRING,
        None,
        "The listener that max.connections does not hold up, if there are others: they make room for it.",
    )
    security_inter_broker_protocol: str = setting(
        STRING,
        "PLAINTEXT",
        "inter.broker.listener.name by its protocol; not both.",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    early_start_listeners: tuple[str, ...] = setting(
        LIST,
        (),
        "Listeners whose ports are open before the broker is ready; clients wait in the backlog.",
    )
    controller_listener_names: tuple[str, ...] = setting(
        LIST, (), "Names in listeners that a combined Kafka gives to its controller; kproc leaves them out."
    )

    # -- the network layer
    num_network_threads: int = setting(
        INT,
        default_role_count,
        "Processors. Default: half of the CPUs, at least 1.",
        at_least(1),
        dynamic=CLUSTER,
    )
    num_io_threads: int = setting(
        INT,
        default_role_count,
        "Handlers. Default: half of the CPUs, at least 1.",
        at_least(1),
        dynamic=CLUSTER,
    )
    queued_max_requests: int = setting(
        INT,
        500,
        "Requests that wait for Handlers, in the whole broker, before reading stops. Counted only where it is set: "
        "else the bytes of the rings (kproc.ring.bytes) are the bound.",
        at_least(1),
    )
    queued_max_request_bytes: int = setting(
        LONG, -1, "Bytes of requests in memory before reading stops; -1: no limit."
    )
    socket_request_max_bytes: int = setting(
        INT, 104_857_600, "Longest request; a longer one closes its connection.", at_least(1)
    )
    socket_send_buffer_bytes: int = setting(
        INT, -1, "SO_SNDBUF of client sockets; -1: the kernel fits it to each.", at_least(-1)
    )
    socket_receive_buffer_bytes: int = setting(
        INT, -1, "SO_RCVBUF of client sockets; -1: the kernel fits it to each.", at_least(-1)
    )
    socket_listen_backlog_size: int = setting(
        INT,
        1024,
        "Connections that the kernel holds before accept. Kafka's 50 overflows in a burst of connecting clients, "
        "and each one lost then waits a second for the kernel's next try.",
        at_least(1),
    )
    max_connections: int = setting(
        INT,
        INT_MAX,
        "Connections at a time, of the broker and of each listener; above, accepting waits.",
        at_least(0),
        dynamic=CLUSTER,
    )
    max_connections_per_ip: int = setting(
        INT,
        INT_MAX,
        "Connections of one address; above, they are closed.",
        at_least(0),
        dynamic=CLUSTER,
    )
    max_connections_per_ip_overrides: str = setting(
        STRING,
        "",
        "host:count pairs that replace max.connections.per.ip.",
        _check_overrides,
        dynamic=CLUSTER,
    )
    max_connection_creation_rate: int = setting(
        INT,
        INT_MAX,
        "New connections per second, of the broker and of each listener; above, accepting waits.",
        at_least(0),
        dynamic=CLUSTER,
    )
    quota_window_num: int = setting(INT, 11, "Samples of a rate that is limited.", between(1, 1000))
    quota_window_size_seconds: int = setting(
        INT, 1, "Length of each; no connection waits longer for a rate.", at_least(1)
    )
    connections_max_idle_ms: int = setting(
        LONG,
        600_000,
        "An idle connection is closed after this; negative: never.",
        lambda value: "must be negative (never) or above 100" if 0 <= value <= 100 else None,
    )

    # -- topics
    auto_create_topics_enable: bool = setting(
        BOOLEAN, True, "A Metadata or Produce request may create its topic."
    )
    num_partitions: int = setting(INT, 1, "Partitions of a topic created without a count.", at_least(1))
    default_replication_factor: int = setting(
        INT,
        1,
        "Replicas of a topic created without a count; one host has one, and more are refused when the topic is made.",
        at_least(1),
    )
    max_request_partition_size_limit: int = setting(
        INT, 2000, "Most partitions of one DescribeTopicPartitions answer.", at_least(1)
    )
    delete_topic_enable: bool = setting(BOOLEAN, True, "Clients may delete topics.")
    min_insync_replicas: int = setting(
        INT, 1, "Default of min.insync.replicas.", at_least(1), dynamic=CLUSTER, unhonoured=ONE_REPLICA
    )
    unclean_leader_election_enable: bool = setting(
        BOOLEAN, False, "Default of unclean.leader.election.enable.", dynamic=CLUSTER, unhonoured=ONE_REPLICA
    )

    # -- logs: defaults of the topic settings
    message_max_bytes: int = setting(INT, 1_048_588, "Largest record batch.", at_least(0), dynamic=CLUSTER)
    compression_type: str = setting(
        STRING,
        "producer",
        "Codec on disk; producer keeps what was sent, any other has the broker compress again.",
        one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        dynamic=CLUSTER,
    )
    compression_gzip_level: int = setting(
        INT,
        -1,
        "Level of gzip where the broker compresses; -1: zlib's own, which is 6.",
        lambda value: None if value == -1 or 1 <= value <= 9 else "must be -1 or from 1 to 9",
        dynamic=CLUSTER,
    )
    compression_lz4_level: int = setting(
        INT, 9, "Level of lz4 where the broker compresses.", between(1, 17), dynamic=CLUSTER
    )
    compression_zstd_level: int = setting(
        INT, 3, "Level of zstd where the broker compresses.", between(-131_072, 22), dynamic=CLUSTER
    )
    log_segment_bytes: int = setting(
        INT, 1 << 30, "A segment is rolled at this size.", at_least(1 << 20), dynamic=CLUSTER
    )
    log_roll_hours: int = setting(INT, 168, "log.roll.ms in hours.", at_least(1))
    log_roll_ms: int = setting(
        LONG, 604_800_000, "A segment is rolled at this age.", at_least(1), dynamic=CLUSTER
    )
    log_roll_jitter_hours: int = setting(INT, 0, "log.roll.jitter.ms in hours.", at_least(0))
    log_roll_jitter_ms: int = setting(
        LONG, 0, "At most this much earlier, by chance.", at_least(0), dynamic=CLUSTER
    )
    log_retention_hours: int = setting(INT, 168, "log.retention.ms in hours.")
    log_retention_minutes: int | None = setting(INT, None, "log.retention.ms in minutes; wins over hours.")
    log_retention_ms: int = setting(
        LONG, 604_800_000, "Segments older than this are deleted; negative: never.", dynamic=CLUSTER
    )
    log_retention_bytes: int = setting(
        LONG, -1, "A partition's oldest segments above this size are deleted; -1: never.", dynamic=CLUSTER
    )
    log_retention_check_interval_ms: int = setting(
        LONG, 300_000, "How often retention is checked.", at_least(1)
    )
    log_index_interval_bytes: int = setting(
        INT, 4096, "Bytes between index entries.", at_least(0), dynamic=CLUSTER
    )
    log_index_size_max_bytes: int = setting(
        INT, 10_485_760, "Largest index; full: roll.", at_least(4), dynamic=CLUSTER
    )
    log_segment_delete_delay_ms: int = setting(
        LONG, 60_000, "From renaming a file to .deleted until it is removed.", at_least(0), dynamic=CLUSTER
    )
    log_preallocate: bool = setting(
        BOOLEAN,
        False,
        "Default of preallocate.",
        dynamic=CLUSTER,
        unhonoured="files grow as they are written",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        LIST,
        ("delete",),
        "Default of cleanup.policy.",
        some_of("delete", "compact"),
        dynamic=CLUSTER,
    )
    log_cleaner_delete_retention_ms: int = setting(
        LONG,
        86_400_000,
        "Default of delete.retention.ms.",
        at_least(0),
        dynamic=CLUSTER,
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        LONG, 0, "Default of min.compaction.lag.ms.", at_least(0), dynamic=CLUSTER
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        LONG,
        LONG_MAX,
        "Default of max.compaction.lag.ms.",
        at_least(1),
        dynamic=CLUSTER,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        DOUBLE,
        0.5,
        "Default of min.cleanable.dirty.ratio.",
        between(0, 1),
        dynamic=CLUSTER,
    )
    log_cleaner_enable: bool = setting(BOOLEAN, True, "Compaction of topics with cleanup.policy=compact.")
    log_cleaner_threads: int = setting(
        INT, 1, "Kafka's cleaner threads.", at_least(0), dynamic=CLUSTER, unhonoured=ONE_CLEANER
    )
    log_cleaner_backoff_ms: int = setting(
        LONG, 15_000, "Pause of the cleaner when no log is dirty enough.", at_least(0), dynamic=CLUSTER
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        LONG,
        134_217_728,
        "Memory for the keys of one pass of compaction; a log with more keys takes several passes.",
        at_least(1 << 20),
        dynamic=CLUSTER,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        DOUBLE, 0.9, "Share of log.cleaner.dedupe.buffer.size that is used.", between(0, 1), dynamic=CLUSTER
    )
    log_cleaner_io_buffer_size: int = setting(
        INT, 524_288, "Bytes that the cleaner reads at once.", at_least(0), dynamic=CLUSTER
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        DOUBLE, DOUBLE_MAX, "Bytes that the cleaner reads and writes in a second.", dynamic=CLUSTER
    )
    log_message_timestamp_type: str = setting(
        STRING,
        "CreateTime",
        "Who dates records: the producer or the broker.",
        one_of("CreateTime", "LogAppendTime"),
        dynamic=CLUSTER,
    )
    log_message_timestamp_before_max_ms: int = setting(
        LONG, LONG_MAX, "Older records are refused.", at_least(0), dynamic=CLUSTER
    )
    log_message_timestamp_after_max_ms: int = setting(
        LONG, 3_600_000, "Records from further in the future are refused.", at_least(0), dynamic=CLUSTER
    )
    log_flush_interval_messages: int = setting(
        LONG, LONG_MAX, "Records between syncs of a log.", at_least(1), dynamic=CLUSTER
    )
    log_flush_interval_ms: int = setting(LONG, LONG_MAX, "Time between syncs of a log.", dynamic=CLUSTER)
    log_flush_scheduler_interval_ms: int = setting(
        LONG, LONG_MAX, "log.flush.interval.ms where that is not set."
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        INT, 60_000, "How often recovery points are written.", at_least(0)
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        INT, 60_000, "How often log starts are written.", at_least(0)
    )

    # -- fetching and producing
    fetch_max_bytes: int = setting(INT, 57_671_680, "Most bytes of one Fetch answer.", at_least(1024))
    max_incremental_fetch_session_cache_slots: int = setting(
        INT, 1000, "Fetch sessions kept (KIP-227).", at_least(0)
    )
    producer_id_expiration_ms: int = setting(
        INT, 86_400_000, "An idempotent producer is forgotten after this.", at_least(1), dynamic=CLUSTER
    )

    # -- consumer groups
    group_min_session_timeout_ms: int = setting(
        INT, 6_000, "Shortest session timeout that a group's member may ask for.", at_least(0)
    )
    group_max_session_timeout_ms: int = setting(
        INT, 1_800_000, "Longest session timeout that a group's member may ask for.", at_least(0)
    )
    group_initial_rebalance_delay_ms: int = setting(
        INT,
        3_000,
        "How long the first rebalance of an empty group waits for more members. dev and kproc.Broker: 0.",
        at_least(0),
    )
    group_max_size: int = setting(INT, INT_MAX, "Members of one group.", at_least(1))
    offsets_topic_num_partitions: int = setting(
        INT, 50, "Partitions of __consumer_offsets, when it is made.", at_least(1)
    )
    offsets_topic_replication_factor: int = setting(
        INT, 3, "Replicas of __consumer_offsets; one host has one.", at_least(1), unhonoured=ONE_REPLICA
    )
    offsets_topic_segment_bytes: int = setting(
        INT, 104_857_600, "segment.bytes of __consumer_offsets, when it is made.", at_least(1 << 20)
    )
    offsets_topic_compression_codec: int = setting(
        INT, 0, "Codec of the broker's batches: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.", between(0, 4)
    )
    offsets_retention_minutes: int = setting(
        INT, 10_080, "Committed offsets are kept this long after a group became empty.", at_least(1)
    )
    offsets_retention_check_interval_ms: int = setting(
        LONG, 600_000, "How often expired offsets are looked for.", at_least(1)
    )
    offset_metadata_max_bytes: int = setting(
        INT, 4_096, "Longest text that a consumer may commit with an offset.", at_least(0)
    )

    # -- ours
    kproc_flush: str = setting(
        STRING,
        "group",
        "group: acks=all is answered after fdatasync, many batches to one. "
        "none: from the page cache, as Kafka does.",
        one_of("group", "none"),
    )
    kproc_transport: str = setting(
        STRING,
        "process",
        "process: roles are processes. thread: threads of one process. inline: one thread. "
        "connection-threads: a thread for each connection. asyncio: one asyncio loop. Only process restarts roles; the "
        "others are there to be compared.",
        one_of("process", "thread", "inline", "connection-threads", "asyncio"),
    )
    kproc_work_us: int = setting(
        INT,
        0,
        "CPU time in microseconds that each request burns in its Handler, for studies of scaling. 0: none.",
        between(0, 1_000_000),
    )
    kproc_drain_timeout_ms: int = setting(
        LONG,
        10_000,
        "How long a stop waits for answers; each role then has a second to close, a Handler half of this.",
        at_least(0),
    )
    kproc_ring_bytes: int = setting(
        SIZE,
        1 << 20,
        "Each ring between a Processor and a Handler; a power of two.",
        # A Processor reserves a whole read (32 KiB and the beginning of a frame), a record takes a quarter of a ring.
        power_of_two(256 << 10, 1 << 30),
    )
    kproc_clamp_replication_factor: bool = setting(
        BOOLEAN,
        False,
        "Replication factors above 1 count as 1 and other brokers of an assignment are overlooked: for suites and "
        "compose files written for three brokers. Off: they are refused, as Kafka does with one broker.",
    )
    kproc_handler_batch_max: int = setting(
        INT, 256, "Most requests that a Handler takes in one go.", at_least(4)
    )
    kproc_control_listener: str = setting(
        STRING,
        "",
        "host:port of a listener for administration alone: its own Acceptor and Processor, straight to the "
        "controller. Empty: none, and these requests travel the data plane.",
        _check_address,
    )
    kproc_metrics_listener: str = setting(
        STRING,
        "",
        "host:port where GET /metrics is answered in Prometheus' text format, by the cleaner. Empty: nowhere.",
        _check_address,
    )
    kproc_rebalance: str = setting(
        STRING,
        "off",
        "auto: connections move by themselves when one Processor passes on much more requests than the others. "
        "off: only when `kproc rebalance` asks, and after Processors were added.",
        one_of("auto", "off"),
    )
    kproc_request_log: str = setting(
        STRING,
        "off",
        "off, all, or slow (kproc.slow.request.log.ms and above): a JSON line for each answered request, in "
        "requests-handler-N.log of each Handler.",
        one_of("off", "all", "slow"),
        dynamic=CLUSTER,
    )
    kproc_slow_request_log_ms: int = setting(
        LONG, 1000, "From here on a request is slow.", at_least(0), dynamic=CLUSTER
    )
    kproc_request_log_dir: str = setting(STRING, "", "Where the request logs are; empty: in log.dirs.")
    kproc_request_log_bytes: int = setting(
        LONG, 64 << 20, "At this size a request log becomes .1, over the one before.", at_least(1024)
    )
    kproc_telemetry: str = setting(
        STRING,
        "off",
        "off, metrics, requests (a sample of them) or all: what is written to the topic __kproc_telemetry.",
        one_of("off", "metrics", "requests", "all"),
        dynamic=CLUSTER,
    )
    kproc_telemetry_interval_ms: int = setting(
        LONG, 10_000, "How often metrics are written to that topic.", at_least(100), dynamic=CLUSTER
    )
    kproc_telemetry_requests_per_second: int = setting(
        INT,
        10,
        "How many requests of each API a Handler tells of in that topic, at most.",
        between(1, 100),
        dynamic=CLUSTER,
    )
    kproc_unknown_settings: str = setting(
        STRING,
        "refuse",
        "What settings are that nobody knows: refuse, they are mistakes; warn, they have no effect, as in Kafka.",
        one_of("refuse", "warn"),
    )
    kproc_hung_ms: int = setting(
        LONG, 5000, "A role without a duty cycle for so long is reported as hung; 0: never.", at_least(0)
    )
    kproc_hung_kill: bool = setting(
        BOOLEAN,
        False,
        "A hung role is killed and started again. It may only be slow: what it had in work is lost.",
    )
    kproc_exit_with_pid: int = setting(
        INT, 0, "Stop when this process ends; 0: never.", at_least(0), internal=True
    )
    kproc_temporary_directory: str = setting(
        STRING, "", "Removed when the broker has ended, however it ends.", internal=True
    )

    explicit_settings: frozenset[str] = frozenset()
    """Names that were set by a source; DescribeConfigs tells them from defaults."""
    listener_overrides: tuple[tuple[str, str, int], ...] = ()
    """(listener in lower case, setting, value) of each `listener.name.<listener>.<setting>`."""

    @classmethod
    def build(
        cls,
        settings: Mapping[str, object] | None = None,
        *,
        flags: Iterable[Flag] = (),
        file: Path | None = None,
        defaults: Mapping[str, object] | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> Config:
        """Merge sources into one checked Config, or raise ConfigError.

        `settings` are `--set` assignments by Kafka's name; `defaults` replace the table's.

        Settings of no effect are told to `on_warning`, a line each.
        """
        warnings: list[str] = []
        from_file = read_settings_file(file) if file is not None else {}
        given = merge(defaults or {}, from_file, file, settings or {}, flags)
        values = parse_given(given, SETTINGS, warnings)
        explicit = frozenset(values)
        derive(values, warnings)
        fields = {name.replace(".", "_"): value for name, value in values.items()}
        config = cls(**fields, explicit_settings=explicit)
        check_together(config)
        if on_warning is not None:
            for warning in warnings:
                on_warning(warning)
        return config

    def resolve_advertised(self, bound: Mapping[str, tuple[str, int]]) -> dict[str, EndPoint]:
        """What each listener tells its clients; `bound` is getsockname() by listener name."""
        return resolve_advertised(self.listeners, self.advertised_listeners, bound)

    def listener_value(self, listener: str, name: str) -> int | None:
        """What `listener.name.<listener>.<name>` was set to, or None: the plain setting holds."""
        wanted = (listener.lower(), name)
        return next((value for *key, value in self.listener_overrides if tuple(key) == wanted), None)

    @property
    def inter_broker_listener(self) -> str:
        """The listener that other brokers would use, if it is there."""
        return (self.inter_broker_listener_name or self.security_inter_broker_protocol).upper()

    def wire_value(self, name: str) -> str | None:
        """A setting's value as DescribeConfigs writes it; KeyError for a name that is not in SETTINGS."""
        return wire_text(getattr(self, SETTINGS[name].field_name))


def _table() -> dict[str, Setting]:
    rows = {}
    for entry in dataclasses.fields(Config):
        if row := entry.metadata.get("setting"):
            name = entry.name.replace("_", ".")
            rows[name] = dataclasses.replace(row, name=name)
    return rows


SETTINGS: Final[Mapping[str, Setting]] = _table()
"""Every setting by Kafka's name, in the order of the table."""
