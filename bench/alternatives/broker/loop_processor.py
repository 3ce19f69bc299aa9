"""LoopProcessor: an asyncio loop watches the clients' sockets and also runs the roles.

    loop --reader--> recv_into a record, frames (of every socket that is ready) --> one turn: Handler, answers, send

It uses callbacks (`add_reader`, `add_writer`) instead of asyncio's transports: these are built on the same callbacks
and cost more at each read and write, for buffers and flow control that a Processor already has
(bench/alternatives/asyncio_protocol.py measures it).
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any

from bench.alternatives.broker.substitute import substituted
from bench.alternatives.broker.turn_processor import TurnProcessor
from kproc.broker.processor import processor
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_state import ACTIVE, PAUSED, WRITING
from kproc.broker.processor.socket_watch import EpollWatch

OnEvent = Callable[[Connection], None]


class LoopWatch(EpollWatch):
    """Lets the loop watch the clients' sockets; its epoll holds Acceptors' sockets only."""

    __slots__ = ("_loop", "_on_readable", "_on_writable")

    def __init__(
        self,
        epoll: select.epoll,
        loop: asyncio.AbstractEventLoop,
        *,
        on_readable: OnEvent,
        on_writable: OnEvent,
    ) -> None:
        super().__init__(epoll)
        self._loop = loop
        self._on_readable = on_readable
        self._on_writable = on_writable

    def register(self, connection: Connection, interest: int = ACTIVE) -> None:
        connection.transport.sock.setblocking(False)
        self.set(connection, interest)

    def unregister(self, connection: Connection) -> None:
        self._loop.remove_reader(connection.fd)
        self._loop.remove_writer(connection.fd)

    def set(self, connection: Connection, interest: int) -> None:
        before = connection.interest
        if before == interest:
            return
        connection.interest = interest
        if before == ACTIVE:
            self._loop.remove_reader(connection.fd)
        elif before == WRITING:
            self._loop.remove_writer(connection.fd)
        if interest == ACTIVE:
            self._loop.add_reader(connection.fd, self._on_readable, connection)
        elif interest == WRITING:
            self._loop.add_writer(connection.fd, self._on_writable, connection)
        else:
            assert interest == PAUSED, interest


class LoopProcessor(TurnProcessor):
    """`on_input` is called when something was read; no task is made for a request."""

    __slots__ = ("_loop", "_on_input")

    def __init__(
        self, *arguments: Any, loop: asyncio.AbstractEventLoop, on_input: Callable[[], None], **named: Any
    ) -> None:
        self._loop = loop
        self._on_input = on_input
        with substituted(processor, EpollWatch=self._make_watch):
            super().__init__(*arguments, **named)

    def _make_watch(self, epoll: select.epoll) -> LoopWatch:
        return LoopWatch(epoll, self._loop, on_readable=self._on_ready, on_writable=self._on_room)

    def _on_ready(self, connection: Connection) -> None:
        self.update_time()
        self.reader.read_ready([(connection.fd, ACTIVE)])
        self._on_input()

    def _on_room(self, connection: Connection) -> None:
        self.update_time()
        try:
            self.writer.send_rest(connection)
        except OSError as error:
            self.table.close_failed(connection, error)
        self._on_input()
