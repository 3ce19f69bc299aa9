"""Shard: one partition of an internal topic at this Handler, with one state and one queue of requests that wait.

    absent ---> opening ---> loading ---> ready
       ^           |  ^         |           |
       |           v  |         v           |
       +-------- failed <-------+-----------+ (all states: absent again when the partition gets another owner)

absent: no shard. Nobody has used the partition, or it belongs to another Handler.
opening: the log is still in transfer from another Handler, or an eager coordinator waits for its epoch.
loading: the coordinator replays its log and prepares for requests, one step in a duty cycle.
ready: requests are handled.
failed: the log cannot be opened or replayed. Clients get NOT_COORDINATOR.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, Generic

from kproc.broker.coordinator.coordinator_log import C
from kproc.common.deadlines import NEVER

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.request.context import PartitionKey

OnWake = Callable[[], None]

# A client that gets COORDINATOR_LOAD_IN_PROGRESS retries after its own pause (500 ms in librdkafka), but most loads
# take a few ms. So a request first waits up to this long, and then gets that error.
WAIT_MS: Final = 200


class ShardState(Enum):
    """The state of a coordinator's partition at this Handler. A partition without a Shard object is absent."""

    OPENING = "opening"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


class Shard(Generic[C]):
    """One partition of an internal topic at this Handler: its state, its queue, and its coordinator with the log."""

    __slots__ = ("is_settled", "key", "log", "state", "try_at_ms", "wait_ends_ms", "waiting")

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        # None: the coordinator is not opened. The shard then exists only for the requests that wait for it.
        self.state: ShardState | None = None
        # Set while loading and when ready, and when a replay has failed.
        self.log: CoordinatorLog[C] | None = None
        # The time in ms at which the runtime opens the shard without a request, or opens its interrupted log again.
        self.try_at_ms = NEVER
        # The requests that wait, in the order of their arrival. A later request may not use the coordinator while an
        # earlier one waits. All are woken together: when the load has ended, or at `wait_ends_ms` for the first one.
        self.waiting: list[OnWake] = []
        self.wait_ends_ms = NEVER
        self.is_settled = False  # The next duty cycle wakes the requests.

    def park(self, on_wake: OnWake, now_ms: int) -> None:
        """Let a request wait.

        A request waits only once: afterwards it tries again and returns any error to its client.
        """
        if not self.waiting:
            self.wait_ends_ms = now_ms + WAIT_MS
        self.waiting.append(on_wake)

    def dequeue(self) -> list[OnWake]:
        """Empty the queue and return the functions that repeat its requests.

        A request that parks later waits up to 200 ms of its own.
        """
        waiting, self.waiting = self.waiting, []
        self.wait_ends_ms, self.is_settled = NEVER, False
        return waiting

    @property
    def due_ms(self) -> int:
        """The monotonic time in ms from which the runtime has work for the shard. 0: now. NEVER: no work is due."""
        if self.state is ShardState.LOADING or self.is_settled:
            return 0
        return min(self.try_at_ms, self.wait_ends_ms)
