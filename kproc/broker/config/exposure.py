"""The rule that a listener without authentication may only be bound to the loopback interface.

Kafka by default binds every interface without authentication. kproc rejects that unless
`kproc.allow.unauthenticated.network` names the listener, so that nobody opens a broker to a network by accident.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from kproc.broker.config.listeners import WILDCARDS, EndPoint

if TYPE_CHECKING:
    from kproc.broker.config.settings import Config

ALLOWING: Final = "kproc.allow.unauthenticated.network"
CLIENT_AUTH: Final = "ssl.client.auth"
_ALL: Final = "*"


def exposure_error(
    config: Config, end_point: EndPoint, address: str, client_auth: str | None = None
) -> str | None:
    """Return an error if the listener must not be bound to `address`, else None.

    `address` is a literal or a wildcard. A host name is never exposed: resolve it first and validate its addresses.
    `client_auth` overrides the configured ssl.client.auth.
    """
    allowed = {name.upper() for name in config.kproc_allow_unauthenticated_network}
    if end_point.name.upper() in allowed or _ALL in allowed:
        return None
    if _has_authentication(config, end_point, client_auth) or not _is_reachable_from_network(address):
        return None
    return (
        f"{end_point} would be open to other hosts without authentication: bind it to 127.0.0.1, make it SASL_SSL, or "
        f"set {ALLOWING}={end_point.name} to allow this"
    )


def _has_authentication(config: Config, end_point: EndPoint, client_auth: str | None) -> bool:
    """Return True if clients of the listener must log in or have a certificate."""
    own = client_auth or config.listener_value(end_point.name, CLIENT_AUTH)
    return end_point.protocol.startswith("SASL_") or (
        end_point.protocol == "SSL" and (own or config.ssl_client_auth) == "required"
    )


def _is_reachable_from_network(address: str) -> bool:
    # A wildcard counts as reachable, because it includes the interfaces of the network.
    if address in WILDCARDS:
        return True
    try:
        literal = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    # Look at the mapped address, because Python does not count ::ffff:127.0.0.1, the IPv4 loopback, as a loopback
    # address.
    mapped = literal.ipv4_mapped if isinstance(literal, ipaddress.IPv6Address) else None
    return not (mapped or literal).is_loopback
