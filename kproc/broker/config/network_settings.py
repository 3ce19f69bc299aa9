"""Who the broker is, its listeners, and the limits of the network layer. Rows of settings.py's table."""

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
    at_least,
    between,
    one_of,
    setting,
)


def _check_overrides(text: str) -> str | None:
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, colon, count = item.rpartition(":")
        if not colon or not host or not count.isdecimal() or int(count) > INT_MAX:
            return "expected host:count, separated by commas"
        if not re.fullmatch(r"[0-9a-zA-Z\-%._:\[\]]+", host):
            return f"contains invalid addresses : {host}"
    return None


@dataclass(frozen=True, init=False, repr=False, eq=False)
class NetworkSettings:
    """Identity, data directory, listeners, connections and their limits."""

    # -- who and where
    node_id: int = setting(INT, 1, "This broker's id. Kafka has no default; one host needs one.", at_least(0))
    broker_id: int = setting(INT, 1, "Another name of node.id; both must agree if both are set.")
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
        LIST,
        DEFAULT_PROTOCOL_MAP,
        "NAME:PROTOCOL of each listener name. Protocols: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL.",
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
        per_listener=True,
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
        per_listener=True,
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
        per_listener=True,
    )
    quota_window_num: int = setting(INT, 11, "Samples of a rate that is limited.", between(1, 1000))
    quota_window_size_seconds: int = setting(
        INT, 1, "Length of each; no connection waits longer for a rate.", at_least(1)
    )
    controller_quota_window_num: int = setting(
        INT,
        11,
        "Number of windows of controller.quota.window.size.seconds that a client may accumulate as burst.",
        between(1, 1000),
    )
    controller_quota_window_size_seconds: int = setting(
        INT, 1, "See controller.quota.window.num.", at_least(1)
    )
    connections_max_idle_ms: int = setting(
        LONG,
        600_000,
        "An idle connection is closed after this; negative: never.",
        lambda value: "must be negative (never) or above 100" if 0 <= value <= 100 else None,
    )
