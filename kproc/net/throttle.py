"""When throttled connections are read again: Kafka's ThrottledChannel and its reaper, as one heap.

Connections are named by id and not held, because a throttle may outlast its connection by far: byte rates have no
upper bound for the delay.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

_SWEEP_LEAST: Final = 1024


class Throttles:
    """The ends of throttles, soonest first. One per Processor."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []
        self._sweep_at = _SWEEP_LEAST

    def __bool__(self) -> bool:
        return bool(self._ends)

    def start(self, connection_id: int, until_ns: int) -> None:
        heapq.heappush(self._ends, (until_ns, connection_id))

    def forget_gone(self, is_there: Callable[[int], bool]) -> None:
        """Drop the ends of connections that are gone, whenever there are twice as many as after the last time.

        A client that comes, is throttled for days and leaves, again and again, must not fill the memory.
        """
        if len(self._ends) >= self._sweep_at:
            self._ends = [end for end in self._ends if is_there(end[1])]
            heapq.heapify(self._ends)
            self._sweep_at = max(_SWEEP_LEAST, 2 * len(self._ends))

    def take_ended(self, now_ns: int) -> list[int]:
        """The connections with an end that has come; one may have been throttled again, for longer, meanwhile."""
        ended: list[int] = []
        while self._ends and self._ends[0][0] <= now_ns:
            ended.append(heapq.heappop(self._ends)[1])
        return ended

    def wait_ms(self, now_ns: int) -> int:
        """How long until the next end, rounded up. Only when there is one."""
        return max(0, -(-(self._ends[0][0] - now_ns) // 1_000_000))
