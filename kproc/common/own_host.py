"""Check of the Host header of HTTP requests, against web pages that send requests to listeners on the loopback.

A web page can make its own name resolve to the loopback and then talk to a listener there (DNS rebinding). The browser
sends the page's name in the Host header. A listener on the loopback therefore serves only requests whose Host is
`localhost`, the name of the host or an address.
"""

from __future__ import annotations

import ipaddress
import socket


def is_own_host(host: str) -> bool:
    """Return True for localhost, the host's name and any address, with or without a port."""
    bare = _without_port(host.strip().lower())
    if bare.rstrip(".") in ("localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(bare.strip("[]"))
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    bare, _, port = host.rpartition(":")
    return bare if bare and (port.isdecimal() or not port) else host
