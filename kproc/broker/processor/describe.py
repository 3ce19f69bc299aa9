"""How a connection is shown: its id in Kafka's form, its client, its counters.

Bytes are the kernel's counts (TCP_INFO), read when somebody asks, so that no request pays for counting them.
"""

from __future__ import annotations

import logging
import socket
import struct
import sys
from typing import Any, Final

from kproc.broker.processor.connection import Connection
from kproc.broker.role.handoff import address_text
from kproc.common.bounded import short_name
from kproc.wire.header import REQUEST_HEADER

logger = logging.getLogger(__name__)

_HTTP_METHODS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE")
UNKNOWN: Final = "unknown"  # What Kafka shows for a client that has not named its software.
_TCP_INFO_BYTES: Final = 256
# linux/tcp.h: struct tcp_info, tcpi_bytes_acked and tcpi_bytes_received; in kernels since 4.1.
_TCP_BYTES: Final = struct.Struct("=QQ")
_TCP_BYTES_AT: Final = 120


def client_of(frame: memoryview) -> tuple[str, str, str]:
    """The client id in a connection's first frame; ApiVersions tells the client's software later."""
    client_id = ""
    if len(frame) >= REQUEST_HEADER.size:
        length = max(0, REQUEST_HEADER.unpack_from(frame)[3])
        client_id = bytes(frame[REQUEST_HEADER.size : REQUEST_HEADER.size + length]).decode(
            "utf-8", "replace"
        )
    return sys.intern(short_name(client_id)), UNKNOWN, UNKNOWN


def connection_name(connection: Connection) -> str:
    """Kafka's connection id: `local:port-remote:port-processor-index`. It stays the same when the connection moves."""
    origin = connection.origin
    host, port = _local(connection.transport.sock)
    remote = address_text(origin.address)
    return f"{host}:{port}-{remote}:{origin.port}-{origin.processor}-{origin.number}"


def describe(connection: Connection, processor: int, now_ns: int) -> dict[str, Any]:
    """One connection as `kproc clients` shows it."""
    origin = connection.origin
    client_id, software_name, software_version = connection.client or ("", UNKNOWN, UNKNOWN)
    bytes_out, bytes_in = _tcp_bytes(connection.transport.sock)
    return {
        "id": connection_name(connection),
        "processor": processor,
        "listener": origin.listener,
        "address": address_text(origin.address),
        "port": origin.port,
        "principal": str(connection.session.principal) if _is_known(connection) else None,
        "mechanism": connection.session.mechanism,
        "client_id": client_id,
        "software_name": software_name,
        "software_version": software_version,
        "accepted_ms": origin.accepted_ms,
        "idle_ms": max(0, now_ns - connection.last_active_ns) // 1_000_000,
        "requests": connection.next_sequence,
        "inflight": connection.inflight,
        "state": connection.mute_state().value,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "unsent_parts": len(connection.out or ()),
    }


def _is_known(connection: Connection) -> bool:
    """Whether it is known who the client is: it has logged in, also if it has to again, or nobody asks it to."""
    return connection.gate is None or connection.gate.has_session


def _local(sock: socket.socket) -> tuple[str, int]:
    try:
        name = sock.getsockname()
    except OSError as error:
        logger.debug("a connection has no local address any more: %s", error)
        return "", 0
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)


def _tcp_bytes(sock: socket.socket) -> tuple[int, int]:
    """Bytes that the client has acknowledged, and bytes received of it; zeros for what is not TCP."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return 0, 0  # A Unix socket.
    return _TCP_BYTES.unpack_from(info, _TCP_BYTES_AT) if len(info) >= _TCP_BYTES_AT + 16 else (0, 0)


def why_refused(start: bytes, length: int, length_max: int, login_max: int = 0) -> str:
    """What a peer probably speaks whose first four bytes cannot be a frame's length, such as TLS or HTTP.

    `login_max`: how long a frame may be of a client that has not logged in, which this one has not.
    """
    if start in _HTTP_METHODS:
        return "an HTTP request came to a Kafka listener"
    if start[:2] == b"\x16\x03":
        return "a TLS handshake came to a listener without TLS: is the client set to security.protocol=SSL or SASL_SSL?"
    if login_max and 0 <= length <= length_max:
        return f"a frame of {length} bytes before its login; the limit is {login_max} (sasl.server.max.receive.size)"
    return f"invalid frame length {length} (socket.request.max.bytes is {length_max})"
