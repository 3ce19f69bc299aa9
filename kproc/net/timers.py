"""Timers: when throttled connections are read again (Kafka's ThrottledChannel and its reaper), when sessions end.

The heap holds connection ids and not connections: a time has no upper bound and may outlast its connection by far.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

_SWEEP_LEAST: Final = 1024


class Timers:
    """The times at which something ends for a connection, soonest first."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []
        self._sweep_at = _SWEEP_LEAST

    def __bool__(self) -> bool:
        return bool(self._ends)

    def start(self, connection_id: int, until_ns: int) -> None:
        heapq.heappush(self._ends, (until_ns, connection_id))

    def forget_gone(self, is_there: Callable[[int], bool]) -> None:
        """Drop the entries of closed connections, whenever the heap has doubled since the last time.

        Otherwise a client that connects, is throttled for days and leaves, again and again, would fill the memory.
        """
        if len(self._ends) >= self._sweep_at:
            self._ends = [end for end in self._ends if is_there(end[1])]
            heapq.heapify(self._ends)
            self._sweep_at = max(_SWEEP_LEAST, 2 * len(self._ends))

    def take_ended(self, now_ns: int) -> list[int]:
        """Ids of connections whose time has come. One may have been given more time meanwhile."""
        ended: list[int] = []
        while self._ends and self._ends[0][0] <= now_ns:
            ended.append(heapq.heappop(self._ends)[1])
        return ended

    def wait_ms(self, now_ns: int) -> int:
        """Milliseconds until the next time comes, rounded up. Call it only if there is one."""
        return max(0, -(-(self._ends[0][0] - now_ns) // 1_000_000))
