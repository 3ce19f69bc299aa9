"""Describe a connection for people: its id in Kafka's form, its client, its counters.

Byte counts are read from the kernel (TCP_INFO) when somebody asks, so that no request pays for counting them.
"""

from __future__ import annotations

import logging
import socket
import struct
from typing import Any, Final

from kproc.broker.processor.connection import Connection
from kproc.broker.role.handoff import address_text
from kproc.common.bounded import shared_text, short_name
from kproc.common.clock import NS_PER_MS
from kproc.wire.header import REQUEST_HEADER

logger = logging.getLogger(__name__)

_HTTP_METHODS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE")
UNKNOWN: Final = "unknown"  # Kafka shows this for a client that has not named its software (KIP-511).
_TCP_INFO_BYTES: Final = 256
# linux/tcp.h: struct tcp_info, tcpi_bytes_acked and tcpi_bytes_received; in kernels since 4.1.
_TCP_BYTES: Final = struct.Struct("=QQ")
_TCP_BYTES_AT: Final = 120


def client_of(frame: memoryview) -> tuple[str, str, str]:
    """Return (client id, UNKNOWN, UNKNOWN) for a connection's first frame.

    The software's name and version are unknown until the client sends ApiVersions (KIP-511).
    """
    client_id = ""
    if len(frame) >= REQUEST_HEADER.size:
        length = max(0, REQUEST_HEADER.unpack_from(frame)[3])
        client_id = bytes(frame[REQUEST_HEADER.size : REQUEST_HEADER.size + length]).decode(
            "utf-8", "replace"
        )
    return shared_text(short_name(client_id)), UNKNOWN, UNKNOWN


def connection_name(connection: Connection) -> str:
    """Return Kafka's connection id: `local:port-remote:port-processor-index`. A migration does not change it."""
    origin = connection.origin
    host, port = _local(connection.transport.sock)
    remote = address_text(origin.address)
    return f"{host}:{port}-{remote}:{origin.port}-{origin.processor}-{origin.number}"


def describe(connection: Connection, processor: int, now_ns: int, moved_ns: int) -> dict[str, Any]:
    """Return one connection as `kproc clients` shows it."""
    origin = connection.origin
    client_id, software_name, software_version = connection.client or ("", UNKNOWN, UNKNOWN)
    bytes_out, bytes_in = _tcp_bytes(connection.transport.sock)
    return {
        "id": connection_name(connection),
        "internal_id": str(connection.id),  # A text, because JavaScript has no integers of 64 bits.
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
        "idle_ms": max(0, now_ns - connection.last_active_ns) // NS_PER_MS,
        "requests": connection.next_sequence,
        "inflight": connection.inflight,
        "state": connection.mute_state().value,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "unsent_parts": len(connection.out or ()),
        "throttled_ms": _throttled_ms(connection, moved_ns),
    }


def _throttled_ms(connection: Connection, moved_ns: int) -> dict[str, int]:
    """Return for how many ms each quota has kept a connection from being read so far."""
    # A throttle is counted in full when it begins. Subtract the time that is left of a running one, from the latest
    # quota first.
    left_ns = max(0, connection.throttled_until_ns - moved_ns)
    found: dict[str, int] = {}
    for quota, duration_ns in reversed((connection.throttled_ns or {}).items()):
        passed_ns = max(0, duration_ns - left_ns)
        left_ns -= duration_ns - passed_ns
        found[quota] = passed_ns // NS_PER_MS
    return found


def _is_known(connection: Connection) -> bool:
    """Return True if the principal is known: the client has logged in at least once, or needs no login."""
    return connection.login is None or connection.login.has_session


def _local(sock: socket.socket) -> tuple[str, int]:
    try:
        name = sock.getsockname()
    except OSError as error:
        logger.debug("listing a connection without its local address: %s", error)
        return "", 0
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)


def _tcp_bytes(sock: socket.socket) -> tuple[int, int]:
    """Return (bytes that the client has acknowledged, bytes received from it).

    (0, 0) for a Unix socket, and before Linux 4.1.
    """
    try:
        # The kernel returns as many bytes as its version of the struct has, so an old kernel gives a shorter
        # result.
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return 0, 0  # A Unix socket.
    return _TCP_BYTES.unpack_from(info, _TCP_BYTES_AT) if len(info) >= _TCP_BYTES_AT + 16 else (0, 0)


def why_refused(start: bytes, length: int, length_max: int, login_max: int = 0) -> str:
    """Return the likely reason why a peer's first four bytes are not a valid frame length, such as TLS or HTTP.

    `login_max` is the longest frame of a client that has not logged in; 0 if that limit does not apply.
    """
    if start in _HTTP_METHODS:
        return "an HTTP request came to a Kafka listener"
    if start[:2] == b"\x16\x03":
        return "a TLS handshake came to a listener without TLS: is the client set to security.protocol=SSL or SASL_SSL?"
    if login_max and 0 <= length <= length_max:
        return f"a frame of {length} bytes before its login; the limit is {login_max} (sasl.server.max.receive.size)"
    return f"invalid frame length {length} (socket.request.max.bytes is {length_max})"
