"""Times of opening logs and loading coordinators: a limit for requests, and durations for metrics.

The CoordinatorRuntime of each Handler has one OpeningBudget and one RecentLoads. Both are without a clock: the caller
passes monotonic times in ns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from kproc.common.clock import NS_PER_MS, NS_PER_S

# Requests open no further logs if opening logs took 20 ms in the last 200 ms. The first use of a partition creates its
# files, so the first heartbeats of 50 groups would otherwise delay all other requests by 0.2 s.
_OPENING_NS: Final = 20 * NS_PER_MS
_WINDOW_NS: Final = 200 * NS_PER_MS
# The metrics show the loads of coordinators in the last 30 s, as in Kafka, and at most 1,000 of them.
_LOADS_KEPT_NS: Final = 30 * NS_PER_S
_LOADS_MAX: Final = 1_000


class OpeningBudget:
    """Limits the time that requests spend with opening logs to 20 ms in a window of 200 ms."""

    __slots__ = ("_since_ns", "_spent_ns")

    def __init__(self) -> None:
        self._since_ns = self._spent_ns = 0

    def is_spent(self, now_ns: int) -> bool:
        """Return True if no further log may be opened now. If the window is over, begin the next one."""
        if now_ns - self._since_ns > _WINDOW_NS:
            self._since_ns, self._spent_ns = now_ns, 0
        return self._spent_ns >= _OPENING_NS

    def spend(self, took_ns: int) -> None:
        """Add the time that opening a log took."""
        self._spent_ns += took_ns

    def reset(self) -> None:
        """Allow the next opening, whatever time is spent."""
        self._spent_ns = 0


class RecentLoads:
    """The durations of the last loads of coordinators, for each internal topic."""

    __slots__ = ("_loads",)

    def __init__(self, topics: Iterable[str]) -> None:
        # By topic: (end, duration) of each load, in ns.
        self._loads: dict[str, deque[tuple[int, int]]] = {name: deque(maxlen=_LOADS_MAX) for name in topics}

    def add(self, topic: str, ended_ns: int, took_ns: int) -> None:
        """Record a load of one of the topic's coordinators that has ended."""
        self._loads[topic].append((ended_ns, took_ns))

    def durations(self, topic: str, now_ns: int) -> list[int]:
        """Return the durations in ns of the topic's loads that ended in the last 30 s."""
        since_ns = now_ns - _LOADS_KEPT_NS
        return [took_ns for ended_ns, took_ns in self._loads[topic] if ended_ns > since_ns]
