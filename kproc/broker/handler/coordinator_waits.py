"""CoordinatorWaits: requests that met a coordinator which is still being loaded, and wait for it for a short time.

A client that is told COORDINATOR_LOAD_IN_PROGRESS asks again after a pause of its own, half a second for librdkafka;
most loads take a few ms. A waiting request is called back once: when the coordinator can be asked, when the partition
has another owner, or when the time is over; it then asks again and takes what comes. Requests are served in the order
in which they came, so a later one may not ask a coordinator while an earlier one waits for it.
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
    """One per Handler."""

    def __init__(self, containment: Containment) -> None:
        self._containment = containment
        self.waiting: dict[PartitionKey, list[OnSettled]] = {}  # Looked at by every duty cycle.
        self._settled: dict[PartitionKey, None] = {}
        # When the first one of each has waited long enough: the others go with it.
        self._ends: deque[tuple[int, PartitionKey, OnSettled]] = deque()
        self._running: PartitionKey | None = None

    def add(self, key: PartitionKey, now_ms: int, on_settled: OnSettled) -> None:
        """Call back once, contained, for the request that is being served now."""
        kept = self._containment.bind_owner("a request that waited for a coordinator", on_settled)
        waiting = self.waiting.setdefault(key, [])
        if not waiting:
            self._ends.append((now_ms + WAIT_MS, key, kept))
        waiting.append(kept)

    def holds(self, key: PartitionKey) -> bool:
        """Whether somebody waits for that coordinator, whose turn it is not."""
        return key in self.waiting and key != self._running

    def settle(self, key: PartitionKey) -> None:
        """The coordinator can be asked, or there is none any more."""
        if key in self.waiting:
            self._settled[key] = None

    def settle_all(self) -> None:
        """There are none any more."""
        self._settled.update(dict.fromkeys(self.waiting))

    @property
    def due_ms(self) -> int:
        """When `run` has something to do."""
        if self._settled:
            return 0
        return self._ends[0][0] if self._ends else NEVER

    def run(self, now_ms: int) -> int:
        """Call back those who need not wait any longer."""
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
