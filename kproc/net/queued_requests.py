"""QueuedRequests: how many requests this Processor has handed to Handlers that have not taken them yet.

Kafka's queued.max.requests bounds one queue of requests; here they lie in rings, which are bounded by bytes and know no
requests. Counted only where that setting is set: the position at which each piece of work ends is kept, and compared
with what the Handler has given back. Requests that it took and has not answered, such as long polls, are not queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from kproc.transport.agent import Sender


class QueuedRequests:
    """The count of one Processor."""

    def __init__(self) -> None:
        self._handed: dict[Sender, deque[tuple[int, int]]] = {}
        self._count = 0

    def add(self, sender: Sender, count: int) -> None:
        """So many requests were pushed, the last record of `sender` being theirs."""
        pushed, _ = sender.progress()
        self._handed.setdefault(sender, deque()).append((pushed, count))
        self._count += count

    def count(self, senders: Collection[Sender]) -> int:
        """How many wait. `senders` are the links there are: what went into one that is gone waits no longer."""
        for sender in list(self._handed):
            waiting = self._handed[sender]
            if sender not in senders:
                self._count -= sum(count for _, count in waiting)
                del self._handed[sender]
                continue
            _, taken = sender.progress()
            while waiting and waiting[0][0] <= taken:
                self._count -= waiting.popleft()[1]
        return self._count
