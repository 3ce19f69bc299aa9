"""ProduceNodes: the brokers of a BatchProducer, their connections and the requests in flight on them.

The producer decides what to send. It also decides which batches of a failed connection are sent again.
"""

from __future__ import annotations

import selectors
from collections import deque
from dataclasses import dataclass, field

from kproc.spark.brokers import pause
from kproc.spark.lane import Lane, QueuedBatch
from kproc.spark.produce_link import ProduceLink
from kproc.spark.sink_options import ProducerSettings


@dataclass(slots=True, eq=False)
class SentProduce:
    """A Produce request in flight. `batches`: those whose result was not handled yet, by topic and partition."""

    correlation_id: int
    sent_ns: int
    batches: dict[tuple[str, int], tuple[Lane, QueuedBatch]]


@dataclass(slots=True, eq=False)
class ProduceNode:
    """A broker that leads partitions. `requests` are in flight, the oldest first."""

    address: tuple[str, int]
    link: ProduceLink | None = None
    requests: deque[SentProduce] = field(default_factory=deque)
    not_before_ns: int = 0
    """The time from which it may be connected again after a failure."""
    backoff_ms: int = 0

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


class ProduceNodes:
    """The nodes by their numbers, and the selector of their connections."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self.by_number: dict[int, ProduceNode] = {}

    def close(self) -> None:
        """Close the connections."""
        for node in self.by_number.values():
            self.unlink(node)
        self._selector.close()

    def connect(self, node: ProduceNode) -> bool:
        """Connect a node unless it is connected. Raises ClientError.

        Return False if the SASL session expires soon and requests are in flight: send no more until their responses.
        """
        if node.link is not None and node.link.is_expiring:
            # The SASL session expires soon. Before the connection is replaced by a new one, wait for the responses to
            # the requests in flight.
            if node.requests or node.link.wants_write:
                return False
            self.unlink(node)
        if node.link is not None:
            return True
        node.link = ProduceLink.connect(
            node.address,
            connect_ms=self._settings.connect_ms,
            client_id=self._settings.client_id,
            security=self._settings.security,
        )
        self._selector.register(node.link, selectors.EVENT_READ, node)
        return True

    def unlink(self, node: ProduceNode) -> None:
        """Close a node's connection, if it has one."""
        if node.link is not None:
            if node.link.fileno() >= 0 and node.link in self._selector.get_map():
                self._selector.unregister(node.link)
            node.link.close()
            node.link = None

    def connected(self) -> list[ProduceNode]:
        """Return the nodes with a connection."""
        return [node for node in self.by_number.values() if node.link is not None]

    def has_unsent_bytes(self) -> bool:
        """Return True if a connection waits until its socket takes more bytes."""
        return any(node.link and node.link.wants_write for node in self.by_number.values())

    def select(self, wait_ms: int) -> list[tuple[ProduceNode, bool]]:
        """Wait for sockets. Return (node, True if it has something to read) of those that are ready."""
        # Without descriptors, select() returns at once on some systems, and the caller's loop would consume CPU without
        # a pause.
        if not self._selector.get_map():
            pause(wait_ms)
            return []
        for node in self.connected():
            assert node.link is not None
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if node.link.wants_write else 0)
            self._selector.modify(node.link, events, node)
        ready = self._selector.select(wait_ms / 1000)
        return [(key.data, bool(events & selectors.EVENT_READ)) for key, events in ready]
