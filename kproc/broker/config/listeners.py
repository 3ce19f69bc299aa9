"""Listeners: parsing of `NAME://host:port`, the protocol of each name, and the addresses that clients are told.

The rules are Kafka's: names are upper-cased and unique, an empty host binds all interfaces, port 0 lets the kernel
choose a free port. Fixed ports are unique, except that one IPv4 and one IPv6 literal may share one. A wildcard is
advertised as the canonical host name. Unlike in Kafka this name must resolve to the address of the interface of the
default route. Otherwise (`localhost`, 127.0.1.1 of a laptop) clients get that address, because they cannot use the
name.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from kproc.broker.config.values import ConfigError, parse_digits, show

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DEFAULT_PROTOCOL_MAP: Final = tuple(f"{protocol}:{protocol}" for protocol in PROTOCOLS)
# Each listener has an Acceptor, and shared memory has this many rows for Acceptors (role/roles.py).
LISTENERS_MAX: Final = 111
WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - these are compared with, not bound to

_LISTENER: Final = re.compile(r"([^:/]+)://(?:\[([0-9a-zA-Z\-%._:]*)\]|([0-9a-zA-Z\-%._:]*)):(-?[0-9]+)")


class EndPoint(NamedTuple):
    """The address of one listener. An empty host means all interfaces."""

    name: str
    protocol: str
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        """True if the host stands for all interfaces. Clients cannot connect to such a host."""
        return self.host in WILDCARDS

    @property
    def address(self) -> str:
        """The `host:port` text, with brackets around an IPv6 literal."""
        return join_address(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def join_address(host: str, port: int) -> str:
    """Format `host:port`, with brackets around an IPv6 literal."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(
    text: str, *, default_port: int | None = None, may_be_free: bool = False
) -> tuple[str, int]:
    """Parse `host:port`, `[v6]:port` or, with a default port, a bare host. Raises ConfigError.

    Port 0 stands for a free port. Pass `may_be_free` for listeners, because only they can use it.
    """
    match = re.fullmatch(r"(?:\[([^\[\]\s\0]+)\]|([^:\[\]\s/\0]+))(?::([0-9]{1,5}))?", text.strip())
    port = int(match[3]) if match and match[3] else default_port
    if match is None and "@" in text:
        # Do not show the text, because it may contain a password.
        raise ConfigError(
            "an address must not have a user or a password: expected host:port, such as 127.0.0.1:9092"
        )
    if match is None or port is None or not (0 if may_be_free else 1) <= port < 65536:
        raise ConfigError(f"{show(text)} is not an address: expected host:port, such as 127.0.0.1:9092")
    return match[1] or match[2], port


def parse_protocol_map(items: Sequence[str]) -> dict[str, str]:
    """Parse `NAME:PROTOCOL` pairs. Names and protocols are upper-cased. Raises ConfigError."""
    protocols: dict[str, str] = {}
    for item in items:
        name, colon, protocol = item.rpartition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not colon or not name:
            raise ConfigError(f"listener.security.protocol.map: {show(item)} is not NAME:PROTOCOL")
        if protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise ConfigError(f"listener.security.protocol.map: {show(item)}: the protocols are {known}")
        # Reject a repeated name, because the second protocol could silently disable the encryption of the first.
        if name in protocols:
            raise ConfigError(f"listener.security.protocol.map: {name} is mapped twice")
        protocols[name] = protocol
    return protocols


def parse_end_points(
    setting: str, items: Sequence[str], protocols: Mapping[str, str]
) -> tuple[EndPoint, ...]:
    """Parse the value of `listeners` or `advertised.listeners`. Raises ConfigError, which names `setting`."""
    return tuple(_parse_end_point(setting, item, protocols) for item in items)


def _parse_end_point(setting: str, item: str, protocols: Mapping[str, str]) -> EndPoint:
    match = _LISTENER.fullmatch(item)
    if match is None:
        raise ConfigError(f"{setting}: {show(item)} is not a listener: expected NAME://host:port")
    name, host, port = match[1].strip().upper(), match[2] or match[3] or "", parse_digits(match[4])
    if not 0 <= port < 65536:
        raise ConfigError(f"{setting}: {show(item)}: the port must be from 0 (a free one) to 65535")
    if match[2] is not None or ":" in host:
        host = _checked_ipv6(setting, item, host)
    if name not in protocols:
        raise ConfigError(
            f"{setting}: {show(item)}: listener.security.protocol.map has no protocol for {name}"
        )
    return EndPoint(name, protocols[name], host, port)


def _checked_ipv6(setting: str, item: str, host: str) -> str:
    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        raise ConfigError(f"{setting}: {show(item)}: {host!r} is not an IPv6 address") from None


def parse_listeners(text: str, protocol_map: Sequence[str]) -> tuple[EndPoint, ...]:
    """Parse and validate a value of `listeners` that a client sent to the running broker. Raises ConfigError."""
    items = [item for item in (part.strip() for part in text.split(",")) if item]
    end_points = parse_end_points("listeners", items, parse_protocol_map(protocol_map))
    check_listeners(end_points)
    return end_points


def check_listeners(end_points: Sequence[EndPoint]) -> None:
    """Raise ConfigError if the listeners cannot all be bound, or if there are none or too many."""
    if not end_points:
        raise ConfigError("listeners: at least one listener is needed")
    if len(end_points) > LISTENERS_MAX:
        raise ConfigError(
            f"listeners: {len(end_points)} listeners are too many; the maximum is {LISTENERS_MAX}"
        )
    _refuse_doubles("listeners", end_points)
    by_port: dict[int, list[EndPoint]] = {}
    for end_point in end_points:
        # Port 0 lets the kernel choose, and it never chooses one port twice.
        if end_point.port:
            by_port.setdefault(end_point.port, []).append(end_point)
    for port, sharing in by_port.items():
        versions = sorted(_ip_version(end_point.host) for end_point in sharing)
        # KIP-797: one IPv4 and one IPv6 address may share a port, because the kernel binds them separately.
        if len(sharing) > 1 and versions != [4, 6]:
            raise ConfigError(
                f"listeners: port {port} is used {len(sharing)} times; "
                "only one IPv4 and one IPv6 address may share it"
            )


def check_advertised(advertised: Sequence[EndPoint], listeners: Sequence[EndPoint]) -> None:
    """Raise ConfigError for an address that no client could use, a name without a listener, or a repeated name."""
    _refuse_doubles("advertised.listeners", advertised)
    names = {end_point.name for end_point in listeners}
    for end_point in advertised:
        if end_point.name not in names:
            raise ConfigError(f"advertised.listeners: {end_point}: listeners has no {end_point.name}")
        # Reject a wildcard, because a client would connect to its own host instead.
        if end_point.is_wildcard:
            raise ConfigError(
                f"advertised.listeners: {end_point}: clients cannot connect to a wildcard; name a host"
            )


def _refuse_doubles(setting: str, end_points: Sequence[EndPoint]) -> None:
    names = [end_point.name for end_point in end_points]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{setting}: the name {name} is used twice")


def _ip_version(host: str) -> int:
    """Return 4 or 6 for a literal, 0 for a name or an empty host."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def is_address(host: str) -> bool:
    """Return True if the host is a literal address, perhaps with a scope (`fe80::1%eth0`), and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    # ipaddress accepts any characters in a scope. No interface has a name with spaces or control characters.
    return host.isprintable() and " " not in host


def resolve_advertised(
    listeners: Sequence[EndPoint],
    advertised: Sequence[EndPoint],
    bound: Mapping[str, tuple[str, int]],
    *,
    outward: Callable[[str], str] | None = None,
) -> dict[str, EndPoint]:
    """Return the address to advertise for each listener name, once every port is known.

    `bound` has the result of getsockname() by listener name. An advertised port of 0 means the bound port, as in
    Kafka. `outward` replaces `outward_host` for callers that must not wait for a name server.
    """
    outward = outward or outward_host
    explicit = {end_point.name: end_point for end_point in advertised}
    resolved: dict[str, EndPoint] = {}
    for listener in listeners:
        port = bound[listener.name][1]
        if end_point := explicit.get(listener.name):
            resolved[listener.name] = end_point._replace(port=end_point.port or port)
        else:
            host = outward(listener.host) if listener.is_wildcard else listener.host
            resolved[listener.name] = listener._replace(host=host, port=port)
    return resolved


def outward_host(wildcard: str = "") -> str:
    """Return the host to advertise for a wildcard. May wait for a name server.

    It is the canonical host name if that resolves to the outward address, else the outward address itself.
    """
    address = outward_address(wildcard)
    name = socket.getfqdn()
    try:
        resolved = {str(target[0]) for *_, target in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        # Advertise the address, because a name that the host itself cannot resolve is unknown to clients, too.
        return address
    # Do not use a name that resolves to the loopback, as on many laptops, because it would send remote clients to
    # themselves.
    return name if address in resolved and not ipaddress.ip_address(address).is_loopback else address


def outward_address(wildcard: str = "") -> str:
    """Return this host's address on the interface of the default route, or the loopback if there is no route.

    Connecting a datagram socket sends nothing. It only makes the kernel choose a route and a source address.
    """
    # These addresses are reserved for documentation (RFC 5737, RFC 3849). No host has them, so the kernel chooses the
    # default route.
    attempts = [(socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")]
    for family, target in attempts:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
        except OSError:
            # This family has no route to the outside, because the host has no network or no IPv6. Try the next one.
            continue
    return "::1" if wildcard == "::" and not _has_ipv4_wildcard() else "127.0.0.1"


def _has_ipv4_wildcard() -> bool:
    """Return True if an IPv6 wildcard socket of this host also accepts IPv4 connections."""
    return socket.has_dualstack_ipv6()
