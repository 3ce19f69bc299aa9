"""MemoryBudget: a Processor's share of Kafka's limits queued.max.requests and queued.max.request.bytes.

One read may exceed a limit; the next read then waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.transport.agent import BlockOwner, Sender


class QueuedRequests:
    """Counts the requests of a Processor that wait in rings for their Handlers.

    Kafka's queued.max.requests bounds the one queue of requests. In kproc requests wait in rings, which count bytes and
    not requests. If that setting is set, the ring position behind each push is therefore stored, and compared with the
    position that the Handler has released. Requests that a Handler has received and not answered, such as long polls,
    do not count as queued.
    """

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
            # The Handler has died and its ring is gone. Its clients were disconnected, so nothing waits there
            # any more.
            if sender not in senders:
                self._count -= sum(count for _, count in waiting)
                del self._handed[sender]
                continue
            _, taken = sender.progress()
            while waiting and waiting[0][0] <= taken:
                self._count -= waiting.popleft()[1]
        return self._count


class MemoryBudget:
    """A Processor's share of queued.max.requests and queued.max.request.bytes.

    It is the broker's limit divided by the number of Processors; -1 means no limit.
    """

    __slots__ = (
        "_arena", "_bytes_max", "_handlers", "_processor_count", "_processors_in_all", "_queued",
        "_requests_max", "held_bytes", "is_limited",
    )  # fmt: skip

    def __init__(
        self,
        handlers: HandlerSet,
        arena: BlockOwner,
        *,
        bytes_max: int,
        requests_max: int,
        processors_in_all: Callable[[DynamicSettings], int],
    ) -> None:
        self._handlers = handlers
        self._arena = arena
        self._bytes_max, self._requests_max = bytes_max, requests_max
        self._processors_in_all = processors_in_all
        self._processor_count = processors_in_all(DynamicSettings())
        self._queued = QueuedRequests()
        self.held_bytes = 0  # Bytes in Connection.held of all connections.
        self.is_limited = bytes_max > 0 or requests_max > 0

    def apply_settings(self, settings: DynamicSettings) -> None:
        """Update the number of Processors, by which the limits are divided, from changed settings."""
        self._processor_count = self._processors_in_all(settings)

    def has_room(self) -> bool:
        """Return True if a new request may be read without exceeding the limits."""
        senders = self._handlers.senders()
        if self._requests_max > 0:
            waiting = self._queued.count(senders)
            if waiting * self._processor_count >= self._requests_max:
                return False
        if self._bytes_max <= 0:
            return True
        # KIP-72 counts all memory of requests that are not handled yet: here in rings, in the arena and in
        # connections.
        queued = sum(sender.capacity - sender.free_bytes() for sender in senders)
        lent = self._arena.lent_bytes
        return (queued + lent + self.held_bytes) * self._processor_count < self._bytes_max

    def count(self, connection: Connection, requests: int) -> None:
        """Count the requests of one read. All of them went to one Handler, the connection's target."""
        link = connection.target.link
        if requests and link is not None and self._requests_max > 0:
            self._queued.add(link.sender, requests)
