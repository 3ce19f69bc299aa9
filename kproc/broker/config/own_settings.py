"""Settings that Kafka does not have: their names begin with `kproc.`. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass

from kproc.broker.config.listeners import split_address
from kproc.broker.config.values import (
    BOOLEAN,
    CLUSTER,
    INT,
    LIST,
    LONG,
    SIZE,
    STRING,
    ConfigError,
    at_least,
    between,
    one_of,
    power_of_two,
    setting,
)


def _check_address(text: str) -> str | None:
    if not text:
        return None
    try:
        split_address(text, may_be_free=True)
    except ConfigError:
        return "expected host:port, such as 127.0.0.1:9091"
    return None


@dataclass(frozen=True, init=False, repr=False, eq=False)
class OwnSettings:
    """Durability, transports, control and metrics listeners, request log."""

    kproc_flush: str = setting(
        STRING,
        "group",
        "group: acks=all is answered after fdatasync, many batches to one. "
        "none: from the page cache, as Kafka does; a power loss may then leave a part of a transaction.",
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
    kproc_request_receive_timeout_ms: int = setting(
        LONG,
        60_000,
        "A request must arrive completely within this time after its first byte, or its connection is closed. Time in "
        "which the broker does not read the connection does not count. 0: no limit, as in Kafka.",
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
    kproc_start_without_metadata: bool = setting(
        BOOLEAN,
        False,
        "Start although log.dirs has partitions but no metadata (__cluster_metadata-0 is lost). Every topic is then "
        "unknown, and its partitions' directories are set aside as <topic>-<partition>.<hex>-stray. Off: refuse to "
        "start.",
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
        "host:port where GET /metrics is answered in Prometheus' text format, by the controller. Empty: nowhere.",
        _check_address,
    )
    kproc_allow_unauthenticated_network: tuple[str, ...] = setting(
        LIST,
        (),
        "Listeners that other hosts may reach although nobody there is asked who he is: their names, CONTROL, METRICS, "
        "or * for all. A broker refuses to bind others to more than the loopback.",
    )
    kproc_rebalance: str = setting(
        STRING,
        "off",
        "auto: connections move by themselves when one Processor passes on much more requests than the others. "
        "off: only when `kproc rebalance` asks, and after Processors were added.",
        one_of("auto", "off"),
    )
    kproc_validate_records: str = setting(
        STRING,
        "lengths",
        "Depth of the check of produced records. lengths: the lengths of the first 64 records of a batch; compressed "
        "batches above 4 kB are not decompressed. full: every field of every record, as in Kafka; costs the Handler "
        "about 0.3 us a record, and decompression. Topics that are compacted, that have another compression.type than "
        "producer, or that have a lower bound of timestamps are always checked in full.",
        one_of("lengths", "full"),
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
    kproc_unknown_settings: str = setting(
        STRING,
        "refuse",
        "Treatment of unknown settings. refuse: the start fails. warn: they have no effect, as in Kafka.",
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
