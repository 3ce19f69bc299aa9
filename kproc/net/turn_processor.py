"""TurnProcessor: a Processor that gets turns (transport/turns.py) and does not wait for its clients' sockets itself.

Base of the two that are there for comparison: `loop_processor.py` (one asyncio loop) and `thread_processor.py` (a
thread for each connection). Frames, order, limits and answers are the Processor's; what differs is who reads a socket.
"""

from __future__ import annotations

from typing import Any

from kproc.net.connection import Connection
from kproc.net.processor import Processor


class TurnProcessor(Processor):
    """Its own epoll tells of Acceptors only, so it is asked only when `look` was called."""

    __slots__ = ("_must_look",)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._must_look = True

    def look(self) -> None:
        """At the next turn there is something to see in the epoll (`poll_fd`)."""
        self._must_look = True

    def publish(self) -> None:
        """Let the Handlers see what was read."""
        for handler in self._handlers.values():
            if handler.has_unpublished or (handler.notices is not None and handler.notices.is_dirty):
                handler.publish()

    def do_work(self, timeout_ms: int) -> int:
        """Answers out; all the rest only when it is wanted."""
        self._now_ns = self._clock.now_ns()
        if self._must_look or self._is_pressed or self._now_ns >= self._next_store_ns:
            self._must_look = False
            return super().do_work(0)
        work = self._take_responses()
        self.publish()
        if self._reporter.has_unsent:
            self._reporter.flush()
        return work

    def next_deadline_ms(self) -> int:
        tick_ms = max(0, (self._next_store_ns - self._clock.now_ns() + 999_999) // 1_000_000)
        return min(super().next_deadline_ms(), tick_ms if self._connections else 500)

    def has_input(self) -> bool:
        """Whether a Handler has answered."""
        return self._has_answers()

    @property
    def wants_turn(self) -> bool:
        """Whether it has something to do though no Handler has answered: it waits for room or time, or has to tell an
        Acceptor who left."""
        return self._is_pressed or self._reporter.has_unsent

    def is_here(self, connection: Connection) -> bool:
        return self._by_id.get(connection.id) is connection
