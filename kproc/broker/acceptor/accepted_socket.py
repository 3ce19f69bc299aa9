"""The options of an accepted socket, and the flags and the address that travel with it to a Processor."""

from __future__ import annotations

import socket

from kproc.broker.role.handoff import NO_ADDRESS, pack_address
from kproc.broker.transport.envelope import FLAG_SASL, FLAG_TLS


def configure(sock: socket.socket, send_buffer_bytes: int) -> None:
    """Set the options of Kafka's SocketServer. `send_buffer_bytes` is -1 for the kernel's default.

    Raises OSError if the client has already reset the connection.
    """
    # On Linux an accepted socket does not inherit O_NONBLOCK from the listening one (accept(2)).
    sock.setblocking(False)
    # Answers are sent whole, so Nagle's algorithm could only delay their last segment. Keepalive finds clients whose
    # host vanished without closing the connection. A Unix socket has no TCP options.
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if send_buffer_bytes > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)


def flags_of(protocol: str) -> int:
    """Return the handoff flags (FLAG_TLS, FLAG_SASL) of the connections of a listener with this security protocol."""
    return FLAG_TLS * protocol.endswith("SSL") | FLAG_SASL * protocol.startswith("SASL")


def remote_address(address: object) -> tuple[bytes, int]:
    """Return a client's packed address (handoff.pack_address) and port; NO_ADDRESS and 0 for a Unix socket."""
    if not isinstance(address, tuple):
        return NO_ADDRESS, 0
    return pack_address(address[0]), int(address[1])


def is_loopback(sock: socket.socket) -> bool:
    """Return True if the peer has a loopback address, or the socket is a Unix socket."""
    peer = sock.getpeername()
    if not isinstance(peer, tuple):
        return True
    host = str(peer[0])
    # Compare with ::ffff:127., too, because a listening socket of IPv6 reports IPv4 clients in this form.
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"
