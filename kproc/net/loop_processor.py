"""LoopProcessor: an asyncio loop watches the clients' sockets and also runs the roles.

    loop --reader--> recv_into a record, frames (of every socket that is ready) --> one turn: Handler, answers, send

It uses callbacks (`add_reader`, `add_writer`) instead of asyncio's transports: these are built on the same callbacks
and cost more at each read and write, for buffers and flow control that a Processor already has
(bench/alternatives/asyncio_protocol.py measures it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kproc.net.connection import Connection
from kproc.net.holder import ACTIVE, PAUSED, WRITING
from kproc.net.turn_processor import TurnProcessor


class LoopProcessor(TurnProcessor):
    """`on_input` is called when something was read; no task is made for a request."""

    __slots__ = ("_loop", "_on_input")

    def __init__(
        self, *arguments: Any, loop: asyncio.AbstractEventLoop, on_input: Callable[[], None], **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._loop = loop
        self._on_input = on_input

    def _watch(self, connection: Connection) -> None:
        connection.transport.set_blocking(False)
        self._loop.add_reader(connection.fd, self._on_ready, connection)

    def _unwatch(self, connection: Connection) -> None:
        self._loop.remove_reader(connection.fd)
        self._loop.remove_writer(connection.fd)

    def _set_interest(self, connection: Connection, interest: int) -> None:
        before = connection.interest
        if before == interest:
            return
        connection.interest = interest
        if before == ACTIVE:
            self._loop.remove_reader(connection.fd)
        elif before == WRITING:
            self._loop.remove_writer(connection.fd)
        if interest == ACTIVE:
            self._loop.add_reader(connection.fd, self._on_ready, connection)
        elif interest == WRITING:
            self._loop.add_writer(connection.fd, self._on_room, connection)
        else:
            assert interest == PAUSED, interest

    def _on_ready(self, connection: Connection) -> None:
        self._now_ns = self._clock.now_ns()
        try:
            self._read(connection)
        except OSError as error:  # The kernel refuses something for this connection only.
            self._close_failed(connection, error)
        self._on_input()

    def _on_room(self, connection: Connection) -> None:
        self._now_ns = self._clock.now_ns()
        try:
            self._on_writable(connection)
        except OSError as error:
            self._close_failed(connection, error)
        self._on_input()
