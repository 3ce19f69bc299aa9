"""ProcessorPeer: one Processor as a Handler sees it: its link, and what its connections wait for."""

from __future__ import annotations

from typing import Final

from kproc.broker.handler.held_connections import HeldConnection
from kproc.broker.request.fast_path import FastPath
from kproc.broker.request.request import ClientPeer
from kproc.broker.role.linked_role import LinkedPeer
from kproc.broker.transport.agent import Link

# Size of the first batch of a drain. Responses are sent after each batch. Measured, one quiet run each: with 16
# connections 65 k requests/s if all available requests are one batch, and 79 k/s in batches of 4. With 64 connections
# 98 and 85-89 k/s. So each batch is twice as large as the one before. The first one is half of what the last drain
# took, which costs 0.11 writes per request instead of 0.16 with 64 connections.
BATCH_MIN: Final = 4


class ProcessorPeer(LinkedPeer):
    """A Processor's link, with its connections' fast paths and their requests that have no response yet."""

    __slots__ = ("first_batch", "had_turn", "held", "metered", "paths", "requests")

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.first_batch = BATCH_MIN  # Size of the first batch of the next drain.
        self.requests = ClientPeer(self.outbox)
        self.metered: set[int] = set()  # Connections whose Processor measures its time for them.
        self.paths: dict[bytes, FastPath] = {}  # By the bytes of the connection id, as in a record's head.
        # Connections that rest, or whose large request is being handled or is parked. Each is in `paths`, too.
        self.held: dict[bytes, HeldConnection] = {}
        self.had_turn: set[bytes] = set()  # Connections with a request that the present drain has handled.

    def clear_paths(self) -> None:
        """Discard the fast paths of all connections. Parked connections stay in `paths`, without a path to restore."""
        self.paths.clear()
        self.paths.update(self.held)
        for held in self.held.values():
            held.path = None
