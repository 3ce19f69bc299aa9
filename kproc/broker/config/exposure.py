"""Which listeners other hosts may reach although nobody there is asked who he is: only those that are named.

Kafka binds every interface and asks nobody, unless told otherwise; here it is the other way round.
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


def exposure_complaint(
    config: Config, end_point: EndPoint, address: str, client_auth: str | None = None
) -> str | None:
    """Why the listener may not be bound to an address, or a wildcard; None: it may.

    A host's name says nothing: it is its addresses that are bound. `client_auth` goes over what is configured.
    """
    allowed = {name.upper() for name in config.kproc_allow_unauthenticated_network}
    if end_point.name.upper() in allowed or _ALL in allowed:
        return None
    if _asks_who_it_is(config, end_point, client_auth) or not _is_reached_from_outside(address):
        return None
    return (
        f"{end_point} would be open to other hosts, and nobody there is asked for a password or a certificate: bind it "
        f"to 127.0.0.1, make it SASL_SSL, or say by {ALLOWING}={end_point.name} that this is meant"
    )


def _asks_who_it_is(config: Config, end_point: EndPoint, client_auth: str | None) -> bool:
    """Whether its clients have to log in, or to show a certificate."""
    own = client_auth or config.listener_value(end_point.name, CLIENT_AUTH)
    return end_point.protocol.startswith("SASL_") or (
        end_point.protocol == "SSL" and (own or config.ssl_client_auth) == "required"
    )


def _is_reached_from_outside(address: str) -> bool:
    if address in WILDCARDS:
        return True
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return not (mapped or found).is_loopback
