"""Settings of the broker's identity, its listeners and its network limits. Rows of settings.py's table."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kproc.broker.config.cpus import default_role_count
from kproc.broker.config.listeners import DEFAULT_PROTOCOL_MAP, EndPoint
from kproc.broker.config.values import (
    CLUSTER,
    INT,
    INT_MAX,
    LIST,
    LONG,
    PER_BROKER,
    STRING,
    Check,
    at_least,
    between,
    one_of,
    parse_digits,
    setting,
)


def _check_overrides(text: str) -> str | None:
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, colon, count = item.rpartition(":")
        if not colon or not host or not count.isdecimal() or parse_digits(count) > INT_MAX:
            return "expected host:count, separated by commas"
        if not re.fullmatch(r"[0-9a-zA-Z\-%._:\[\]]+", host):
            return f"contains invalid addresses : {host}"
    return None


@dataclass(frozen=True, init=False, repr=False, eq=False)
class NetworkSettings:
    """Settings of identity, data directory, listeners, and connections with their limits."""

    # -- identity and data directory
    node_id: int = setting(
        INT,
        1,
        "The broker's id. Kafka has no default; kproc has one, because a host runs one broker.",
        at_least(0),
    )
    broker_id: int = setting(INT, 1, "Old name of node.id. If both are set, they must be equal.")
    log_dirs: str = setting(
        STRING,
        "kproc-data",
        "The data directory, exactly one. Kafka's default is /tmp/kafka-logs, which a reboot deletes.",
    )
    log_dir: str = setting(STRING, "kproc-data", "Other name of log.dirs. Ignored if log.dirs is set.")

    # -- listeners
    listeners: tuple[EndPoint, ...] = setting(
        LIST,
        (EndPoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092),),
        "Comma-separated listeners, each NAME://host:port. An empty host binds all interfaces; port 0 chooses a free "
        "port. Unlike in Kafka the default is the loopback interface, because the default has no authentication.",
        dynamic=PER_BROKER,
    )
    advertised_listeners: tuple[EndPoint, ...] = setting(
        LIST, (), "Addresses that clients are told to connect to. Default: the addresses of listeners."
    )
    listener_security_protocol_map: tuple[str, ...] = setting(
        LIST,
        DEFAULT_PROTOCOL_MAP,
        "Security protocol of each listener name, as NAME:PROTOCOL. Protocols: PLAINTEXT, SSL, SASL_PLAINTEXT, "
        "SASL_SSL.",
    )
    inter_broker_listener_name: str | None = setting(
        STRING,
        None,
        "Name of the protected listener. It accepts connections even if the broker has max.connections. For each, the "
        "broker closes the longest idle connection of the other listener with the most connections. Has an effect "
        "only if there is another listener.",
    )
    security_inter_broker_protocol: str = setting(
        STRING,
        "PLAINTEXT",
        "Selects the inter-broker listener by its protocol. Do not set it together with inter.broker.listener.name.",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    early_start_listeners: tuple[str, ...] = setting(
        LIST,
        (),
        "Listeners whose ports are opened before the broker is ready. Clients that connect early wait in the kernel's "
        "backlog.",
    )
    controller_listener_names: tuple[str, ...] = setting(
        LIST,
        (),
        "Listeners of the controller of a combined Kafka server. kproc ignores the listeners of these names.",
    )

    # -- the network layer
    num_network_threads: int = setting(
        INT,
        default_role_count,
        "Number of Processors, the roles that read and write client connections. Default: half of the CPUs, at least "
        "1. With a listener's prefix: Processors of this listener alone.",
        at_least(1),
        dynamic=CLUSTER,
        per_listener=True,
    )
    num_io_threads: int = setting(
        INT,
        default_role_count,
        "Number of Handlers, the roles that execute requests and own partitions. Default: half of the CPUs, at least "
        "1.",
        at_least(1),
        dynamic=CLUSTER,
    )
    queued_max_requests: int = setting(
        INT,
        500,
        "Number of requests that may wait for Handlers before the broker stops reading from clients. Enforced only if "
        "it is set; otherwise the size of the rings (kproc.ring.bytes) is the limit.",
        at_least(1),
    )
    queued_max_request_bytes: int = setting(
        LONG, -1, "Bytes of requests in memory at which the broker stops reading from clients. -1: no limit."
    )
    socket_request_max_bytes: int = setting(
        INT,
        104_857_600,
        "Largest request in bytes. The broker closes a connection that sends a larger one.",
        at_least(1),
    )
    socket_send_buffer_bytes: int = setting(
        INT,
        -1,
        "SO_SNDBUF of client sockets in bytes. -1: the kernel tunes it for each connection.",
        at_least(-1),
    )
    socket_receive_buffer_bytes: int = setting(
        INT,
        -1,
        "SO_RCVBUF of client sockets in bytes. -1: the kernel tunes it for each connection.",
        at_least(-1),
    )
    socket_listen_backlog_size: int = setting(
        INT,
        1024,
        "Length of the queue of connections that the broker has not accepted yet. Kafka's 50 overflows when many "
        "clients connect at once, and each overflow delays a client by 1 s, until its kernel sends the SYN again.",
        at_least(1),
    )
    max_connections: int = setting(
        INT,
        INT_MAX,
        "Maximum number of connections of the broker or, with a listener's prefix, of the listener. At the limit new "
        "connections wait until another one closes.",
        at_least(0),
        dynamic=CLUSTER,
        per_listener=True,
    )
    max_connections_per_ip: int = setting(
        INT,
        INT_MAX,
        "Maximum number of connections from one client address. The broker closes connections above it.",
        at_least(0),
        dynamic=CLUSTER,
    )
    max_connections_per_ip_overrides: str = setting(
        STRING,
        "",
        "Comma-separated host:count pairs that replace max.connections.per.ip for these hosts.",
        Check("host:count pairs", _check_overrides),
        dynamic=CLUSTER,
    )
    max_connection_creation_rate: int = setting(
        INT,
        INT_MAX,
        "Maximum rate of new connections per second, of the broker or, with a listener's prefix, of the listener. "
        "Above it the broker accepts more slowly.",
        at_least(0),
        dynamic=CLUSTER,
        per_listener=True,
    )
    quota_window_num: int = setting(
        INT,
        11,
        "Number of samples over which the rate of connections and of other quotas is measured.",
        between(1, 1000),
    )
    quota_window_size_seconds: int = setting(
        INT,
        1,
        "Length of a sample (quota.window.num) in seconds; also the longest delay of a connection by a rate limit.",
        at_least(1),
    )
    controller_quota_window_num: int = setting(
        INT,
        11,
        "Number of windows of controller.quota.window.size.seconds that a client may accumulate as burst.",
        between(1, 1000),
    )
    controller_quota_window_size_seconds: int = setting(
        INT, 1, "Length of a window of controller.quota.window.num in seconds.", at_least(1)
    )
    connections_max_idle_ms: int = setting(
        LONG,
        600_000,
        "Time in ms after which the broker closes an idle connection. Negative: never.",
        Check(
            "negative, or above 100",
            lambda value: "must be negative (never) or above 100" if 0 <= value <= 100 else None,
        ),
    )
