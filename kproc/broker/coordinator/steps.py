"""Steps: the long work of a coordinator, divided so that a duty cycle runs only a few ms of it.

A coordinator can have 100,000 groups or transactional ids, and work on all of them takes seconds: the end of a load, a
sweep, the deletion of a topic, a resignation. The coordinator starts such work, and CoordinatorRuntime runs its steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Final, TypeVar

T = TypeVar("T")
# Each `next` does a part of some work and returns its cost, in units of about 1 us.
Work = Iterator[int]
# Work that has a result.
Computation = Generator[int, None, T]

# A step ends at this cost, in units of about 1 us.
STEP_COST: Final = 3_000


class Steps:
    """The unfinished work of one coordinator. It is done in the order in which it was started.

    flush: appends the coordinator's queued writes. It runs before each step, because the work must see their effect.
    """

    __slots__ = ("_flush", "_queue")

    def __init__(self, flush: Callable[[], None] | None = None) -> None:
        self._flush = flush
        self._queue: deque[Work] = deque()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, work: Work) -> None:
        """Queue work behind all unfinished work."""
        self._queue.append(work)

    def replace_all(self, work: Work) -> None:
        """Replace all unfinished work by `work`, and flush no more. The work that runs now may call this, too."""
        self._flush = None
        self._queue.clear()
        self._queue.append(work)

    def run(self) -> int:
        """Run one step: unfinished work, the oldest first, until its cost reaches STEP_COST. Return the cost."""
        if self._flush is not None:
            self._flush()
        cost = 0
        while self._queue and cost < STEP_COST:
            work = self._queue[0]
            part = next(work, None)
            if part is not None:
                cost += part
            elif self._queue[0] is work:
                self._queue.popleft()
        return cost
