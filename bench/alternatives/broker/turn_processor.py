"""TurnProcessor: a Processor that is called when it is due (turns.py) and does not wait for sockets itself.

It is the base of the two alternatives: `loop_processor.py` (one asyncio loop) and `thread_processor.py` (a thread for
each connection). They differ from kproc's Processor only in who reads a socket.
"""

from __future__ import annotations

from typing import Any

from kproc.broker.processor.connection import Connection
from kproc.broker.processor.processor import Processor


class TurnProcessor(Processor):
    """Its epoll holds Acceptors' sockets only, and is polled only after `request_poll` was called."""

    __slots__ = ("_must_poll",)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._must_poll = True

    def request_poll(self) -> None:
        """Poll the epoll (`poll_fd`) at the next turn."""
        self._must_poll = True

    def publish(self) -> None:
        """Publish the requests that were read to the Handlers."""
        self.handlers.publish()

    def do_work(self, timeout_ms: int) -> int:
        """Send answers; do the rest of a duty cycle only if something asked for it."""
        now_ns = self.update_time()
        if self._must_poll or self._state.is_pressed or now_ns >= self._next_store_ns:
            self._must_poll = False
            return super().do_work(0)
        work = self.writer.send_answers()
        self.publish()
        if self._reporter.has_unsent:
            self._reporter.flush()
        return work

    def update_time(self) -> int:
        """Update the time that the following work uses; return it."""
        self._state.now_ns = now_ns = self._clock.now_ns()
        return now_ns

    def next_deadline_ms(self) -> int:
        tick_ms = max(0, (self._next_store_ns - self._clock.now_ns() + 999_999) // 1_000_000)
        return min(super().next_deadline_ms(), tick_ms if self.table.by_fd else 500)

    def has_input(self) -> bool:
        """Return True if a Handler has published answers."""
        return self.handlers.has_answers()

    @property
    def wants_turn(self) -> bool:
        """Return True if there is work although no Handler has answered.

        A connection waits for room or for a time, or a closed connection must be reported to an Acceptor.
        """
        return self._state.is_pressed or self._reporter.has_unsent

    def is_here(self, connection: Connection) -> bool:
        return self.table.by_id.get(connection.id) is connection
