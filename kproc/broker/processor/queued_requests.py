"""QueuedRequests: counts the requests of a Processor that wait in rings for their Handlers.

Kafka's queued.max.requests bounds the one queue of requests. Here they wait in rings, which count bytes and not
requests. If that setting is set, the ring position behind each push is therefore stored, and compared with the position
that the Handler has released. Requests that a Handler has received and not answered, such as long polls, do not count
as queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from kproc.broker.transport.agent import Sender


class QueuedRequests:
    """The count of one Processor."""

    def __init__(self) -> None:
        self._handed: dict[Sender, deque[tuple[int, int]]] = {}
        self._count = 0

    def add(self, sender: Sender, count: int) -> None:
        """Count requests that were just pushed to `sender`, up to its present position."""
        pushed, _ = sender.progress()
        self._handed.setdefault(sender, deque()).append((pushed, count))
        self._count += count

    def count(self, senders: Collection[Sender]) -> int:
        """Return how many requests wait. `senders` are the present links; requests in a closed link do not count."""
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
