"""CoordinatorWaits: requests that wait for a short time for a coordinator that is being loaded.

A client that gets COORDINATOR_LOAD_IN_PROGRESS retries after its own pause (500 ms in librdkafka), but most loads take
a few ms. So a request waits here and is called back once: when the coordinator is loaded, when the partition has
another owner, or after 200 ms. It then tries once more and returns any error. Requests are handled in the order of
their arrival, so a later request may not use a coordinator while an earlier one waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from kproc.broker.request.context import PartitionKey
from kproc.common.containment import Containment
from kproc.common.deadlines import NEVER

WAIT_MS: Final = 200

OnSettled = Callable[[], None]


class CoordinatorWaits:
    """The requests of one Handler that wait for a coordinator."""

    def __init__(self, containment: Containment) -> None:
        self._containment = containment
        self.waiting: dict[PartitionKey, list[OnSettled]] = {}  # The runtime checks it in every duty cycle.
        self._settled: dict[PartitionKey, None] = {}  # Partitions whose requests `run` calls back.
        # (ms, partition, first request): the end of the wait of each partition's first request. All requests of the
        # partition are called back then.
        self._ends: deque[tuple[int, PartitionKey, OnSettled]] = deque()
        self._running: PartitionKey | None = None

    def add(self, key: PartitionKey, now_ms: int, on_settled: OnSettled) -> None:
        """Park the present request until `run` calls it back. Its callback runs contained, for its owner."""
        kept = self._containment.bind_owner("a request that waited for a coordinator", on_settled)
        waiting = self.waiting.setdefault(key, [])
        if not waiting:
            self._ends.append((now_ms + WAIT_MS, key, kept))
        waiting.append(kept)

    def holds(self, key: PartitionKey) -> bool:
        """Return True if a request must wait behind earlier ones for this coordinator."""
        return key in self.waiting and key != self._running

    def settle(self, key: PartitionKey) -> None:
        """Let the next `run` call back the requests of a partition: its coordinator is loaded or gone."""
        if key in self.waiting:
            self._settled[key] = None

    def settle_all(self) -> None:
        """Let the next `run` call back all requests, because the broker stops."""
        self._settled.update(dict.fromkeys(self.waiting))

    @property
    def due_ms(self) -> int:
        """The time in ms at which `run` has work. 0: now."""
        if self._settled:
            return 0
        return self._ends[0][0] if self._ends else NEVER

    def run(self, now_ms: int) -> int:
        """Call back the requests whose wait is over. Return their number."""
        while self._ends and (self._ends[0][0] <= now_ms or not self._is_first(*self._ends[0][1:])):
            _, key, first = self._ends.popleft()
            if self._is_first(key, first):
                self._settled[key] = None
        work = 0
        while self._settled:
            key = next(iter(self._settled))
            self._running = key
            for on_settled in self.waiting[key]:
                on_settled()
                work += 1
            self._running = None
            del self.waiting[key], self._settled[key]
        return work

    def _is_first(self, key: PartitionKey, on_settled: OnSettled) -> bool:
        return self.waiting.get(key, [None])[0] is on_settled
