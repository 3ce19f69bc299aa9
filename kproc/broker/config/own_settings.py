"""Settings that Kafka does not have. Their names begin with `kproc.`. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kproc.broker.config.listeners import split_address
from kproc.broker.config.values import (
    BOOLEAN,
    CLUSTER,
    INT,
    LIST,
    LONG,
    SIZE,
    STRING,
    Check,
    ConfigError,
    at_least,
    one_of,
    power_of_two,
    setting,
)

KEEP_FILE: Final = "keep"
"""Name of the file that keeps kproc.temporary.directory when the broker ends."""
RELEASES: Final = ("2.1", "2.8", "3.3", "3.9", "4.0", "4.3", "4.4")
"""Releases of Apache Kafka that can be emulated (broker/request/releases.py)."""
LOSE_POWER_FILE: Final = "lose"
"""Name of the file in kproc.faults.power.directory that lets the next start lose all that was not synced."""


def _check_address(text: str) -> str | None:
    if not text:
        return None
    try:
        split_address(text, may_be_free=True)
    except ConfigError:
        return "expected host:port, such as 127.0.0.1:9091"
    return None


def _transport_error(value: str) -> str | None:
    """Return an error for a transport that this broker does not offer, or None if it offers the transport."""
    if value in ("connection-threads", "asyncio"):
        return f"is for comparison only: in a checkout, run python -m bench.alternatives --transport {value}"
    return _TRANSPORTS(value)


def _release_error(value: str) -> str | None:
    return None if value in ("", *RELEASES) else f"expected one of {', '.join(RELEASES)}, or empty"


_TRANSPORTS: Final = one_of("process", "thread", "inline")
_ADDRESS: Final = Check("host:port, or empty", _check_address)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class OwnSettings:
    """Settings that only kproc has: durability, transports, control and metrics listeners, request log."""

    kproc_flush: str = setting(
        STRING,
        "group",
        "When acks=all is acknowledged. group: after fdatasync, which many batches share. none: after the write to the "
        "page cache, as in Kafka; a power loss can then lose acknowledged records and parts of a transaction.",
        one_of("group", "none"),
    )
    kproc_transport: str = setting(
        STRING,
        "process",
        "How the roles run. process: each role is a process, which is restarted if it dies. thread: each role is a "
        "thread of one process. inline: one thread runs all roles.",
        Check(_TRANSPORTS.range, _transport_error),
    )
    kproc_drain_timeout_ms: int = setting(
        LONG,
        10_000,
        "Time in ms that a stop waits for requests in progress. Afterwards a Handler has half of this time, but at "
        "least 1 s, to close its logs, and any other role 1 s.",
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
        "Size of each ring between a Processor and a Handler. Must be a power of two.",
        # The minimum is 256 KiB, because a Processor reserves a whole read (32 KiB and the beginning of a frame), and
        # a record may take a quarter of a ring.
        power_of_two(256 << 10, 1 << 30),
    )
    kproc_clamp_replication_factor: bool = setting(
        BOOLEAN,
        False,
        "Treat replication factors above 1 as 1 and ignore other brokers in assignments, for test suites and compose "
        "files that expect three brokers. false: reject them, as Kafka does with one broker. `kproc dev` and "
        "kproc.Broker set it to true.",
    )
    kproc_faults_enable: bool = setting(
        BOOLEAN,
        False,
        "Let clients of this host inject faults, such as error codes, delays and closed connections "
        "(`kproc fault`, kproc.Broker.faults). For tests only. It costs nothing until a rule is added. `kproc dev` and "
        "kproc.Broker set it to true.",
    )
    kproc_time_movable: bool = setting(
        BOOLEAN,
        False,
        "Let clients of this host advance and freeze the broker's time (kproc.Broker.time). For tests only: records, "
        "sessions and tokens expire at once. It adds 100 bytecodes to each request. `kproc dev` and kproc.Broker set "
        "it to true.",
    )
    kproc_emulate_release: str = setting(
        STRING,
        "",
        "Release of Apache Kafka whose API versions and features the broker advertises. Requests of newer "
        "versions are rejected, as by that release. For tests of clients. Empty: no restriction.",
        Check(f"one of {', '.join(RELEASES)}, or empty", _release_error),
    )
    kproc_start_without_metadata: bool = setting(
        BOOLEAN,
        False,
        "Start even if log.dirs has partitions but no metadata (__cluster_metadata-0 is missing). Topics are then "
        "unknown, and the directories of their partitions are renamed to <topic>-<partition>.<hex>-stray. false: do "
        "not start.",
    )
    kproc_control_listener: str = setting(
        STRING,
        "",
        "host:port of a listener for administrative requests. It has its own Acceptor and Processor and works even if "
        "the Handlers are busy. Empty: no such listener.",
        _ADDRESS,
    )
    kproc_metrics_listener: str = setting(
        STRING,
        "",
        "host:port of the HTTP server for Prometheus: /metrics, /health/live and /health/ready. Empty: no such server.",
        _ADDRESS,
    )
    kproc_allow_unauthenticated_network: tuple[str, ...] = setting(
        LIST,
        (),
        "Listeners that may be bound to a network address without authentication: their names, CONTROL, METRICS, or * "
        "for all. The broker does not bind other listeners without authentication to more than the loopback interface.",
    )
    kproc_rebalance: str = setting(
        STRING,
        "off",
        "auto: migrate connections when one Processor receives many more requests than the others. off: migrate them "
        "only on `kproc rebalance` and after Processors were added.",
        one_of("auto", "off"),
    )
    kproc_validate_records: str = setting(
        STRING,
        "lengths",
        "How produced records are validated. lengths: the lengths of the first 64 records of a batch; compressed "
        "batches above 4 kB are not decompressed. full: every field of every record, as in Kafka. This costs the "
        "Handler about 0.3 us a record, and the decompression. Records are always validated in full in topics that "
        "are compacted, that have another compression.type than producer, or that limit the age of timestamps.",
        one_of("lengths", "full"),
    )
    kproc_request_log: str = setting(
        STRING,
        "off",
        "Requests to log as JSON lines in requests-handler-N.log of each Handler. off: none. slow: requests that take "
        "kproc.slow.request.log.ms or longer. all: every request.",
        one_of("off", "all", "slow"),
        dynamic=CLUSTER,
    )
    kproc_slow_request_log_ms: int = setting(
        LONG, 1000, "Time in ms from which on a request counts as slow.", at_least(0), dynamic=CLUSTER
    )
    kproc_request_log_dir: str = setting(STRING, "", "Directory of the request logs. Empty: log.dirs.")
    kproc_request_log_bytes: int = setting(
        LONG,
        64 << 20,
        "Size in bytes at which a request log is renamed to .1, which replaces the previous .1.",
        at_least(1024),
    )
    kproc_unknown_settings: str = setting(
        STRING,
        "refuse",
        "Reaction to unknown settings. refuse: the broker does not start. warn: log a warning and ignore them, as in "
        "Kafka.",
        one_of("refuse", "warn"),
    )
    kproc_hung_ms: int = setting(
        LONG,
        5000,
        "Time in ms without a duty cycle after which a role is reported as hung. 0: never.",
        at_least(0),
    )
    kproc_hung_kill: bool = setting(
        BOOLEAN,
        False,
        "Kill and restart a hung role. Requests in progress there fail, even if the role was only slow.",
    )
    kproc_exit_with_pid: int = setting(
        INT, 0, "Stop the broker when the process with this id ends. 0: never.", at_least(0), internal=True
    )
    kproc_faults_power_directory: str = setting(
        STRING,
        "",
        "Directory for a record of what was synced, for kproc.Broker.lose_power(). It must be on the file system of "
        "log.dirs. It has an effect only with kproc.faults.enable=true. Empty: no record.",
        internal=True,
    )
    kproc_temporary_directory: str = setting(
        STRING,
        "",
        "Directory that is removed after the broker has ended, even if it was killed, unless the file "
        f"{KEEP_FILE!r} is in it.",
        internal=True,
    )
