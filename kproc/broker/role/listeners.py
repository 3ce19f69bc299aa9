"""Listening sockets. The supervisor owns them, so that clients can connect while a dead Acceptor is being replaced.

Every port is bound at the start, so that a taken port stops the start with an error. A socket listens only when the
broker can serve it: an open port means ready, as in Kafka. Until then the kernel refuses clients. Only
`early.start.listeners` listen from the start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Sequence

import msgspec

from kproc.broker.config import Config, EndPoint
from kproc.broker.config.exposure import exposure_error
from kproc.broker.config.listeners import (
    WILDCARDS,
    is_address,
    join_address,
    outward_host,
    resolve_advertised,
    split_address,
)
from kproc.broker.config.values import ConfigError
from kproc.broker.role.lookups import addresses_of
from kproc.broker.role.port_holder import holder_of
from kproc.common.errors import FatalError


class ListenerEndpoint(msgspec.Struct, frozen=True):
    """One open listener: its name, bound address and advertised address, and its security protocol."""

    name: str
    bound_host: str
    bound_port: int
    advertised_host: str
    advertised_port: int
    protocol: str = "PLAINTEXT"

    @property
    def bound(self) -> str:
        return join_address(self.bound_host, self.bound_port)

    @property
    def advertised(self) -> str:
        return join_address(self.advertised_host, self.advertised_port)


def open_listeners(config: Config) -> list[tuple[ListenerEndpoint, socket.socket]]:
    """Bind every listener, and let those in early.start.listeners listen.

    Raises ConfigError for a listener that may not be open to other hosts, and FatalError with the listener's name if
    one fails.
    """
    for end_point in config.listeners:
        _check_exposure(config, end_point, "listeners")
    sockets: list[tuple[EndPoint, socket.socket]] = []
    try:
        for end_point in config.listeners:  # One by one: if one cannot be bound, the others must be closed.
            sockets.append((end_point, _bind(end_point, config)))  # noqa: PERF401
        start_listening(
            [sock for end_point, sock in sockets if end_point.name in config.early_start_listeners], config
        )
        bound = {end_point.name: sock.getsockname()[:2] for end_point, sock in sockets}
        advertised = config.resolve_advertised(bound)
    except BaseException:
        for _, sock in sockets:
            sock.close()
        raise
    return [
        (
            ListenerEndpoint(
                end_point.name,
                str(bound[end_point.name][0]),
                int(bound[end_point.name][1]),
                advertised[end_point.name].host,
                advertised[end_point.name].port,
                end_point.protocol,
            ),
            sock,
        )
        for end_point, sock in sockets
    ]


def open_control_listener(config: Config) -> tuple[ListenerEndpoint, socket.socket] | None:
    """Bind `kproc.control.listener`, if it is set. Raises ConfigError and FatalError as `open_listeners`."""
    if not config.kproc_control_listener:
        return None
    return _open_own("CONTROL", config.kproc_control_listener, config)


def open_metrics_listener(config: Config) -> tuple[ListenerEndpoint, socket.socket] | None:
    """Open `kproc.metrics.listener`, if it is set. Raises ConfigError and FatalError as `open_listeners`."""
    if not config.kproc_metrics_listener:
        return None
    endpoint, sock = _open_own("METRICS", config.kproc_metrics_listener, config)
    # Listen at once, because an open metrics port does not mean that the broker is ready.
    start_listening([sock], config)
    return endpoint, sock


def _open_own(name: str, address: str, config: Config) -> tuple[ListenerEndpoint, socket.socket]:
    """Bind the control or the metrics listener, which Kafka does not have. Return its endpoint and its socket."""
    host, port = split_address(address, may_be_free=True)
    end_point, setting = EndPoint(name, "PLAINTEXT", host, port), f"kproc.{name.lower()}.listener"
    _check_exposure(config, end_point, setting)
    sock = _bind(end_point, config, setting=setting)
    bound_host, bound_port = sock.getsockname()[:2]
    return ListenerEndpoint(name, str(bound_host), int(bound_port), str(bound_host), int(bound_port)), sock


def _check_exposure(config: Config, end_point: EndPoint, setting: str) -> None:
    """Raise ConfigError if the host of a static setting is an address that may not be open to other hosts.

    `_bind` checks the addresses of a named host, which can change without the setting.
    """
    if problem := exposure_error(config, end_point, end_point.host):
        raise ConfigError(f"{setting}: {problem}")


def start_listening(socks: Iterable[socket.socket], config: Config) -> None:
    """Let bound sockets listen. Raises FatalError if another process has opened one of the ports meanwhile."""
    for sock in socks:
        try:
            # The kernel caps the backlog at net.core.somaxconn (listen(2)).
            sock.listen(config.socket_listen_backlog_size)
        except OSError as error:
            host, port = sock.getsockname()[:2]
            raise FatalError(
                f"listeners: cannot open {join_address(host, port)}: {_reason(error, port)}"
            ) from error


def needs_look_up(end_point: EndPoint, config: Config) -> bool:
    """Return True if opening this listener may need a name server."""
    if end_point.is_wildcard:
        return all(each.name != end_point.name for each in config.advertised_listeners)
    return not is_address(end_point.host)


def look_up(host: str) -> list[str]:
    """Return the argument `found` of `open_listener`: the addresses of a name, or the advertised host of a wildcard.

    This may wait for a name server.
    """
    return [outward_host(host)] if host in WILDCARDS else addresses_of(host)


def open_listener(
    end_point: EndPoint, config: Config, found: Sequence[str] = ()
) -> tuple[ListenerEndpoint, socket.socket]:
    """Open one more listener of a running broker. Clients wait in its backlog until its Acceptor has started.

    This does not wait for a name server: the caller passes the result of `look_up` as `found` if `needs_look_up`.
    Raises FatalError if the listener cannot be opened.
    """
    sock = _bind(end_point, config, found)
    try:
        start_listening([sock], config)
        host, port = sock.getsockname()[:2]
        told = resolve_advertised(
            [end_point],
            config.advertised_listeners,
            {end_point.name: (host, port)},
            outward=lambda _wildcard: found[0],
        )
    except BaseException:
        sock.close()
        raise
    advertised = told[end_point.name]
    return ListenerEndpoint(
        end_point.name, str(host), int(port), advertised.host, advertised.port, end_point.protocol
    ), sock


def close_listener(sock: socket.socket) -> None:
    """Stop listening at once, although the Acceptor has a copy of the socket. Clients in the backlog are reset."""
    with contextlib.suppress(OSError):  # ENOTCONN: the socket was bound but never listened.
        # Closing is not enough: the Acceptor inherited the socket, and it would go on accepting through its
        # copy.
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def find(endpoints: Sequence[ListenerEndpoint], name: str) -> ListenerEndpoint:
    """Return the endpoint of the listener called `name`, which must exist."""
    return next(each for each in endpoints if each.name == name)


def _bind(
    end_point: EndPoint, config: Config, found: Sequence[str] | None = None, *, setting: str = "listeners"
) -> socket.socket:
    """Bind one socket. An empty host binds all interfaces, also those of IPv6 if this machine has it.

    `found` are the addresses of a named host. With None this function resolves the name. Raises FatalError, which
    names `setting` if the address cannot be bound.
    """
    last: OSError | None = None
    addresses = _addresses(end_point, found)
    for _, (host, _) in addresses:
        if problem := exposure_error(config, end_point, host):
            raise FatalError(f"{setting}: {problem}")
    for family, address in addresses:
        try:
            return _bind_address(family, address, config, is_for_all=not end_point.host)
        except OSError as error:
            last = error
    if last is None:
        raise FatalError(f"listeners: cannot resolve the host of {end_point}")
    # Show strerror, because getaddrinfo and bind use different ranges of error numbers.
    raise FatalError(f"{setting}: cannot bind {end_point}: {_reason(last, end_point.port)}") from last


def _bind_address(
    family: int, address: tuple[str, int], config: Config, *, is_for_all: bool
) -> socket.socket:
    """Bind one socket to one address. `is_for_all`: the socket must accept clients of IPv4 and of IPv6. Raises OSError.

    An error also comes from a machine that lacks the address family, and without a free descriptor.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Set SO_REUSEADDR. Otherwise a restarted broker could not bind while connections of its predecessor are in
        # TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # A kernel without the option accepts both anyway.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if is_for_all else 1)
        if config.socket_receive_buffer_bytes > 0:
            # Set SO_RCVBUF before listen(2): accepted sockets inherit it, and it decides the TCP window scale.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes)
        sock.bind(address)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _reason(error: OSError, port: int) -> str:
    """Return the reason in words. For a taken port, name the process that listens there."""
    text = error.strerror or os.strerror(error.errno or 0)
    holder = holder_of(port) if error.errno == errno.EADDRINUSE else None
    return f"{text}: {holder} listens there" if holder is not None else text


def _addresses(end_point: EndPoint, found: Sequence[str] | None) -> list[tuple[int, tuple[str, int]]]:
    """Return the address families and addresses to bind."""
    if not end_point.host:
        return [(socket.AF_INET6, ("::", end_point.port)), (socket.AF_INET, ("0.0.0.0", end_point.port))]  # noqa: S104
    is_name = not is_address(end_point.host)
    hosts = found if found is not None and is_name else [end_point.host]
    flags = 0 if is_name and found is None else socket.AI_NUMERICHOST
    try:
        return [
            (family, address[:2])  # type: ignore[misc]
            for host in hosts
            for family, _, _, _, address in socket.getaddrinfo(
                host, end_point.port, type=socket.SOCK_STREAM, flags=flags
            )
        ]
    # getaddrinfo raises UnicodeError for a name with an empty label.
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a host name"
        raise FatalError(f"listeners: cannot resolve the host of {end_point}: {reason}") from error
