"""Ports of a restarted broker: those of its last start, even if its settings have port 0."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any, Final

_FREE_PORT: Final = re.compile(r"(?<=:)0(?=,|$)")
_LISTENER_NAME: Final = re.compile(r"\s*(\w+)://")
_OWN_LISTENERS: Final = {"kproc.control.listener": "control", "kproc.metrics.listener": "metrics"}
"""Settings with one listener each, and the member of the ready file that has the listener's bound address."""


def pin_ports(settings: Mapping[str, str], ready: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings with the ports of a previous start instead of port 0.

    ready: the content of that start's ready file.
    """
    pinned = dict(settings)
    if "listeners" in settings:
        each = settings["listeners"].split(",")
        pinned["listeners"] = ",".join(_pin_listener(text, ready["listeners"]) for text in each)
    for name, member in _OWN_LISTENERS.items():
        if name in settings and member in ready:
            pinned[name] = _FREE_PORT.sub(_port_of(ready[member]), settings[name])
    return pinned


def _pin_listener(text: str, listeners: Mapping[str, Mapping[str, str]]) -> str:
    """Return a listener such as `PLAINTEXT://:0` with the port of its last start instead of 0.

    Return an invalid listener unchanged, for the broker to reject.
    """
    name = _LISTENER_NAME.match(text)
    row = listeners.get(name[1].upper()) if name is not None else None
    return text if row is None else _FREE_PORT.sub(_port_of(row["bound"]), text.rstrip())


def _port_of(address: str) -> str:
    return address.rpartition(":")[2]


@contextlib.contextmanager
def reserved_ports(ready: Mapping[str, Any]) -> Iterator[None]:
    """Keep the ports of a stopped broker for its next start, by sockets that are bound and do not listen.

    A client that connects again and again to a free port is sooner or later given that port as its own. It would then
    be connected with itself, and the broker could not bind. Linux gives no client a port that is bound, and lets the
    broker bind it, too, because both sockets have SO_REUSEADDR.
    """
    with contextlib.ExitStack() as stack:
        for row in ready["listeners"].values():
            host, _, port = row["bound"].rpartition(":")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # If another process has bound the port, continue: the broker's start fails and its message names that
            # process.
            with contextlib.suppress(OSError):
                sock.bind((host.strip("[]"), int(port)))
        yield
