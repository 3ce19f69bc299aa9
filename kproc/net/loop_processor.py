"""LoopProcessor: the clients' sockets are watched by an asyncio loop, which also gives the roles their turns.

    loop --reader--> recv_into a record, frames (of every socket that is ready) --> one turn: Handler, answers, send

Callbacks (`add_reader`, `add_writer`) and no transports: asyncio's own are made of them and cost more at each read and
write, for buffers and flow control that a Processor has already (bench/alternatives/asyncio_protocol.py measures it).
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
        except OSError as error:  # The kernel refuses something for this one.
            self._close_failed(connection, error)
        self._on_input()

    def _on_room(self, connection: Connection) -> None:
        self._now_ns = self._clock.now_ns()
        try:
            self._on_writable(connection)
        except OSError as error:
            self._close_failed(connection, error)
        self._on_input()
