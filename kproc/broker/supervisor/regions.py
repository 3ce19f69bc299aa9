"""Regions and descriptors that the supervisor makes and hands out: slab, table, eventfds, arenas, links.

What belongs to an agent for the life of the broker (its eventfd, its slab row) survives its restarts. A link is made
anew, with a higher generation, whenever one of its two agents is started; so is a Processor's arena. The supervisor
maps none of this memory, except while it answers at its status window (status_window.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from kproc.broker.config import Config
from kproc.broker.ipc.fdpass import make_socket_pair
from kproc.broker.ipc.link import create_link
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.wait import make_eventfd
from kproc.broker.metrics.slab import SLAB_BYTES, Slab
from kproc.broker.metrics.spec import SPEC_CRC
from kproc.broker.role.partition_table import TABLE_BYTES
from kproc.broker.role.roles import (
    ACCEPTOR,
    CLEANER,
    CONTROLLER,
    HANDLER,
    PROCESSOR,
    has_handoff,
    is_control,
    slab_row,
)
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.process import Child

# Which roles talk with which, and the capacity in bytes of each direction; None: kproc.ring.bytes.
_INTERNAL_BYTES: Final = 256 * 1024
_LINKS: Final[dict[tuple[str, str], int | None]] = {
    (PROCESSOR, HANDLER): None,
    (HANDLER, HANDLER): _INTERNAL_BYTES,
    (CONTROLLER.role, HANDLER): _INTERNAL_BYTES,
    (CONTROLLER.role, CLEANER.role): 64 * 1024,
    (PROCESSOR, CONTROLLER.role): _INTERNAL_BYTES,  # That of the control listener alone.
    (CLEANER.role, HANDLER): 64 * 1024,
}
# How much of a Processor's arena stays allocated between frames, so that steady traffic faults no pages.
ARENA_WARM_BYTES: Final = 8 << 20


class Regions:
    """All shared memory of one broker. Owned by the supervisor."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._generation = 0
        self._slab = Region.create(RegionKind.SLAB, SLAB_BYTES, 0, is_sparse=True)
        self._slab.write_word(0, SPEC_CRC)
        self._table = Region.create(RegionKind.TABLE, TABLE_BYTES, 0, is_sparse=True)
        self._eventfds: dict[AgentId, int] = {}
        self._arenas: dict[AgentId, Region] = {}

    def heartbeat_ns(self, agent: AgentId) -> int:
        """When the agent last stored its row, by the monotonic clock; 0 if it never did."""
        return self.metric(agent, "heartbeat_ns")

    def metric(self, agent: AgentId, name: str) -> int:
        """One word of an agent's row, read through the descriptor: the supervisor maps nothing."""
        return self._slab.read_word(8 * Slab.metric_word(slab_row(agent), name))

    @contextlib.contextmanager
    def slab_for_a_look(self) -> Iterator[memoryview]:
        """The slab's words, mapped until the context ends."""
        region = Region.attach(os.dup(self._slab.fd), kind=RegionKind.SLAB)
        try:
            yield region.words
        finally:
            region.close()

    def give_own(self, child: Child, *, listening: int = -1, start: dict[str, object] | None = None) -> None:
        """Send a new child what belongs to it alone, and tell it to build its role. Raises as `connect`.

        `start` goes into that last message.
        """
        agent = child.agent
        child.send({"do": "slab"}, self._slab.fd)
        child.send({"do": "eventfd"}, self._eventfd(agent))
        start = {"do": "start", **(start or {})}
        if agent.role == PROCESSOR:
            self._generation += 1
            # Twice the largest request, as address space: one being received while another is being handled.
            arena_bytes = 2 * self._config.socket_request_max_bytes
            arena = Region.create(RegionKind.ARENA, arena_bytes, self._generation, is_sparse=True)
            self._arenas[agent] = arena
            child.send({"do": "arena"}, arena.fd)
            start["arena_warm_bytes"] = ARENA_WARM_BYTES
        elif agent.role == ACCEPTOR:
            child.send({"do": "listening"}, listening)
        elif agent.role in (HANDLER, CLEANER.role):
            child.send({"do": "table"}, self._table.fd)
        elif listening >= 0:  # The controller's metrics listener. The metrics show where logs start and end.
            child.send({"do": "table"}, self._table.fd)
            child.send({"do": "listening"}, listening)
        child.send(start)

    def connect(self, one: Child, other: Child) -> bool:
        """Link two children, if their roles talk; both get the same region, and how to wake each other.

        Raises BrokenPipeError or ConnectionResetError when one of them has just died; the other may have been
        told of a link by then, which it drops when it hears of the death.
        """
        if has_handoff(one.agent, other.agent):
            self._pair("handoff", one, other)
            return True
        first, second = (one, other) if self._talks(one, other) else (other, one)
        if not self._talks(first, second):
            return False
        capacity = _LINKS[first.agent.role, second.agent.role] or self._config.kproc_ring_bytes
        self._generation += 1
        # We close it at once: with the last of its two agents the kernel frees it, whatever becomes of us.
        with create_link(capacity, capacity, self._generation) as region:
            self._send_link(first, second, region, is_first=True)
            self._send_link(second, first, region, is_first=False)
        return True

    def connect_migration(self, one: Child, other: Child) -> None:
        """Give two Processors a socket pair, over which connections can migrate. Raises as `connect`."""
        self._pair("migration", one, other)

    def forget(self, agent: AgentId, *, is_final: bool = False) -> None:
        """Release the arena of a reaped agent, and its eventfd if there will be no successor.

        Its row in the slab stays, so that counters continue when an agent of that name is started again.
        """
        arena = self._arenas.pop(agent, None)
        if arena is not None:
            arena.close()
        if is_final and agent in self._eventfds:
            os.close(self._eventfds.pop(agent))

    def close(self) -> None:
        for agent in list(self._arenas):
            self.forget(agent)
        for fd in self._eventfds.values():
            os.close(fd)
        self._eventfds.clear()
        self._slab.close()
        self._table.close()

    def _pair(self, what: str, one: Child, other: Child) -> None:
        ours, theirs = make_socket_pair()
        with ours, theirs:
            one.send({"do": what, "peer": other.agent}, ours.fileno())
            other.send({"do": what, "peer": one.agent}, theirs.fileno())

    def _talks(self, first: Child, second: Child) -> bool:
        if (first.agent.role, second.agent.role) not in _LINKS:
            return False
        # The control listener's Processor is linked with the controller only, and the other Processors never are.
        return first.agent.role != PROCESSOR or is_control(first.agent) == (second.agent == CONTROLLER)

    def _eventfd(self, agent: AgentId) -> int:
        if agent not in self._eventfds:
            self._eventfds[agent] = make_eventfd()
        return self._eventfds[agent]

    def _send_link(self, to: Child, peer: Child, region: Region, *, is_first: bool) -> None:
        # The link comes last: the child opens it with the eventfd and the arena that it has by then.
        to.send({"do": "peer_eventfd", "peer": peer.agent}, self._eventfd(peer.agent))
        arena = self._arenas.get(peer.agent)
        if arena is not None:
            to.send({"do": "peer_arena", "peer": peer.agent, "generation": arena.generation}, arena.fd)
        to.send(
            {"do": "link", "peer": peer.agent, "generation": region.generation, "is_first": is_first},
            region.fd,
        )
