"""PacedResponses: sends the responses to the members of a group, a part of them in each duty cycle.

When a phase of a rebalance ends, all members are answered. Each response takes about 0.1 ms, and a group of 10,000
members would stop its Handler for 1 s if all were sent in one duty cycle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from kproc.broker.coordinator.steps import Work

R = TypeVar("R")

RESPONSES_AT_ONCE: Final = 64
_RESPONSE_COST: Final = 100


class PacedResponses:
    """Responses in the order in which they were enqueued.

    `send_later` arranges a call of `send` in a later duty cycle.
    """

    def __init__(self, send_later: Callable[[], None]) -> None:
        self._send_later = send_later
        self._responses: deque[Callable[[], None]] = deque()
        self._is_waiting = False  # True while `send` will be called later.

    def enqueue(self, reply: Callable[[R], None], result: R) -> None:
        """Add a response. It is sent by `send` or `send_soon`."""
        self._responses.append(partial(reply, result))

    def send_soon(self) -> None:
        """Send up to RESPONSES_AT_ONCE responses now, more than that from the next duty cycle on.

        Do nothing if a later call of `send` is arranged already.
        """
        if self._responses and not self._is_waiting:
            # The decision about a large group takes some ms itself, so its first response waits for the next duty
            # cycle.
            self.send(0 if len(self._responses) > RESPONSES_AT_ONCE else RESPONSES_AT_ONCE)

    def send(self, count: int = RESPONSES_AT_ONCE) -> None:
        """Send the first `count` responses. The others follow in later duty cycles."""
        for _ in range(min(count, len(self._responses))):
            self._responses.popleft()()
        self._is_waiting = bool(self._responses)
        if self._is_waiting:
            self._send_later()

    def send_all(self) -> Work:
        """Send all responses in steps, because the coordinator resigns."""
        while self._responses:
            self._responses.popleft()()
            yield _RESPONSE_COST
