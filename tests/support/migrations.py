"""Connections that migrate."""

from __future__ import annotations

import socket

from tests.support.migration_rig import MoveRig, Work, received
from tests.support.processor_rig import framed


def only(works: list[Work]) -> Work:
    (work,) = works
    return work


def exchange(rig: MoveRig, client: socket.socket, body: bytes = b"ping") -> None:
    """A request and its answer, wherever the connection is."""
    client.sendall(framed(body))
    rig.step(2)
    work = only(rig.handler.take())
    assert work.body == body
    rig.handler.answer(work, framed(b"pong"))
    rig.step(2)
    assert received(client) == framed(b"pong")
