"""DeferredOpenings: bounds the time that a Handler spends in one duty cycle with opening logs.

A log is opened at its first use. Without a bound, one request about thousands of logs would stall all others. When the
time of a duty cycle is used up, the remaining logs are *deferred* to later cycles, and their requests are parked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kproc.broker.cluster.internal_topics import COORDINATOR_TOPICS
from kproc.broker.request.context import OnReady, PartitionKey

# Time for opening logs in one duty cycle. At least one log is opened.
_OPENING_NS: Final = 20_000_000


class DeferredOpenings:
    """The logs that one Handler opens in later duty cycles, and the requests that wait for each of them.

    release: removes a partition from `waiters` and calls its requests, the first of which opens the log.
    """

    __slots__ = ("_now_ns", "_opens_until_ns", "_release", "is_opening", "waiters")

    def __init__(self, now_ns: Callable[[], int], release: Callable[[PartitionKey], None]) -> None:
        self._now_ns = now_ns
        self._release = release
        self.waiters: dict[PartitionKey, list[OnReady]] = {}  # By partition, in the order of opening.
        self.is_opening = False  # True if a log was opened in this duty cycle or logs are deferred.
        self._opens_until_ns = 0

    def add(self, key: PartitionKey, on_ready: OnReady) -> None:
        """Call `on_ready(True)` in a later duty cycle, within the time for opening logs."""
        self.waiters.setdefault(key, []).append(on_ready)
        self.is_opening = True

    def must_wait(self, key: PartitionKey) -> bool:
        """Return True if a log may only be opened in a later duty cycle, because the time of this one is used up.

        The log is then in `waiters`. Logs of coordinators are exempt, because the CoordinatorRuntime limits their
        loading itself.
        """
        if key in self.waiters:
            return True  # Other requests already wait for this log and come first.
        if not self.is_opening:
            self.is_opening = True
            self._opens_until_ns = self._now_ns() + _OPENING_NS
            return False
        if key[0] in COORDINATOR_TOPICS or self._now_ns() < self._opens_until_ns:
            return False
        self.waiters[key] = []
        return True

    def work(self) -> int:
        """Open deferred logs, for up to 20 ms. Called once in each duty cycle. Return the number of logs."""
        self.is_opening = False
        until_ns = self._now_ns() + _OPENING_NS
        count = 0
        while self.waiters and (not count or self._now_ns() < until_ns):
            self._release(next(iter(self.waiters)))
            count += 1
        if self.waiters:
            self.is_opening = True
        return count
