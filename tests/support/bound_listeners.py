"""Listeners that are bound and closed again."""

from __future__ import annotations

import socket
from typing import Any

from kproc.broker.config import Config
from kproc.broker.role.listeners import ListenerEndpoint, open_listeners


def bind(sockets: list[socket.socket], listening: str, **settings: Any) -> list[ListenerEndpoint]:
    made = open_listeners(
        Config.build(
            {"listeners": listening, **{name.replace("_", "."): value for name, value in settings.items()}}
        )
    )
    sockets += [sock for _, sock in made]
    return [endpoint for endpoint, _ in made]
