"""Regions and descriptors that the supervisor makes and hands out: slab, table, eventfds, arenas, links.

What belongs to an agent for the life of the broker (its eventfd, its slab row) survives its restarts; links
are made anew, with a higher generation, whenever one of their ends is; a Processor's arena likewise.
The supervisor maps none of it.
"""

from __future__ import annotations

import os
from typing import Final

from kproc.config import Config
from kproc.ipc.fdpass import make_socket_pair
from kproc.ipc.link import create_link
from kproc.ipc.region import Region, RegionKind
from kproc.ipc.wait import make_eventfd
from kproc.metrics.slab import SLAB_BYTES
from kproc.metrics.spec import SPEC_CRC
from kproc.server.partition_table import TABLE_BYTES
from kproc.server.roles import ACCEPTOR, CLEANER, CONTROLLER, HANDLER, PROCESSOR
from kproc.transport.agent import AgentId
from kproc.transport.process import Child

# Which roles talk with which, and the capacity in bytes of each direction; None: kproc.ring.bytes.
_INTERNAL_BYTES: Final = 256 * 1024
_LINKS: Final[dict[tuple[str, str], int | None]] = {
    (PROCESSOR, HANDLER): None,
    (HANDLER, HANDLER): _INTERNAL_BYTES,
    (CONTROLLER.role, HANDLER): _INTERNAL_BYTES,
    (CONTROLLER.role, CLEANER.role): 64 * 1024,
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

    def give_own(self, child: Child, *, listening: int = -1) -> None:
        """Send a new child what belongs to it alone, and tell it to build its role. Raises as `connect`."""
        agent, control = child.agent, child.control
        control.send({"do": "slab"}, self._slab.fd)
        control.send({"do": "eventfd"}, self._eventfd(agent))
        start: dict[str, object] = {"do": "start"}
        if agent.role == PROCESSOR:
            self._generation += 1
            # Twice the largest request, as address space: one being received while another is being handled.
            arena_bytes = 2 * self._config.socket_request_max_bytes
            arena = Region.create(RegionKind.ARENA, arena_bytes, self._generation, is_sparse=True)
            self._arenas[agent] = arena
            control.send({"do": "arena"}, arena.fd)
            start["arena_warm_bytes"] = ARENA_WARM_BYTES
        elif agent.role == ACCEPTOR:
            control.send({"do": "listening"}, listening)
        elif agent.role in (HANDLER, CLEANER.role):
            control.send({"do": "table"}, self._table.fd)
        control.send(start)

    def connect(self, one: Child, other: Child) -> bool:
        """Link two children, if their roles talk; both get the same region, and how to wake each other.

        Raises BrokenPipeError or ConnectionResetError when one of them has just died; the other may have been
        told of a link by then, which it drops when it hears of the death.
        """
        if {one.agent.role, other.agent.role} == {ACCEPTOR, PROCESSOR}:
            ours, theirs = make_socket_pair()
            with ours, theirs:
                one.control.send({"do": "handoff", "peer": other.agent}, ours.fileno())
                other.control.send({"do": "handoff", "peer": one.agent}, theirs.fileno())
            return True
        first, second = (one, other) if self._talks(one, other) else (other, one)
        if not self._talks(first, second):
            return False
        capacity = _LINKS[first.agent.role, second.agent.role] or self._config.kproc_ring_bytes
        self._generation += 1
        with create_link(capacity, capacity, self._generation) as region:
            self._send_link(first, second, region, is_first=True)
            self._send_link(second, first, region, is_first=False)
        return True

    def forget(self, agent: AgentId) -> None:
        """An agent was reaped: its arena goes, its eventfd and its row wait for the successor."""
        arena = self._arenas.pop(agent, None)
        if arena is not None:
            arena.close()

    def close(self) -> None:
        for agent in list(self._arenas):
            self.forget(agent)
        for fd in self._eventfds.values():
            os.close(fd)
        self._eventfds.clear()
        self._slab.close()
        self._table.close()

    def _talks(self, first: Child, second: Child) -> bool:
        return (first.agent.role, second.agent.role) in _LINKS

    def _eventfd(self, agent: AgentId) -> int:
        if agent not in self._eventfds:
            self._eventfds[agent] = make_eventfd()
        return self._eventfds[agent]

    def _send_link(self, to: Child, peer: Child, region: Region, *, is_first: bool) -> None:
        control = to.control
        control.send({"do": "peer_eventfd", "peer": peer.agent}, self._eventfd(peer.agent))
        arena = self._arenas.get(peer.agent)
        if arena is not None:
            control.send({"do": "peer_arena", "peer": peer.agent, "generation": arena.generation}, arena.fd)
        control.send(
            {"do": "link", "peer": peer.agent, "generation": region.generation, "is_first": is_first},
            region.fd,
        )
