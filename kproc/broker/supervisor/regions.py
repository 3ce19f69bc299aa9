"""Regions and descriptors that the supervisor creates and sends to roles: slab, table, eventfds, arenas, links.

An agent's eventfd and slab row survive its restarts. A link is created anew, with a higher generation, whenever one of
its two agents starts. A Processor's arena is created anew, with a higher generation, when the Processor starts. The
supervisor maps none of this memory, except the slab while it answers at its status window (status_window.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from kproc.broker.config import Config
from kproc.broker.ipc.arena import WARM_BYTES
from kproc.broker.ipc.fdpass import make_socket_pair
from kproc.broker.ipc.link import create_link
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.wait import make_eventfd
from kproc.broker.metrics.slab import SLAB_BYTES, Slab
from kproc.broker.metrics.spec import SPEC_CRC
from kproc.broker.role.partition_table import TABLE_BYTES
from kproc.broker.role.roles import ACCEPTOR, CLEANER, HANDLER, PROCESSOR, has_handoff, slab_row
from kproc.broker.supervisor.topology import find_link
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.process import Child


class Regions:
    """Creates all shared memory of one broker, in the supervisor.

    It keeps the slab, the partition table, the arenas and the eventfds. Only the two roles of a link keep its region.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._generation = 0
        self._slab = Region.create(RegionKind.SLAB, SLAB_BYTES, 0, is_sparse=True)
        self._slab.write_word(0, SPEC_CRC)
        self._table = Region.create(RegionKind.TABLE, TABLE_BYTES, 0, is_sparse=True)
        self._eventfds: dict[AgentId, int] = {}
        self._arenas: dict[AgentId, Region] = {}

    def heartbeat_ns(self, agent: AgentId) -> int:
        """Return the monotonic time in ns at which the agent last stored its row of the slab, or 0 if it never did."""
        return self.metric(agent, "heartbeat_ns")

    def metric(self, agent: AgentId, name: str) -> int:
        """Return one metric of an agent's row of the slab.

        Read the word by pread(), because the supervisor does not map the slab.
        """
        return self._slab.read_word(8 * Slab.metric_word(slab_row(agent), name))

    @contextlib.contextmanager
    def mapped_slab(self) -> Iterator[memoryview]:
        """Map the slab until the context ends, and yield its words."""
        region = Region.attach(os.dup(self._slab.fd), kind=RegionKind.SLAB)
        try:
            yield region.words
        finally:
            region.close()

    def send_own_regions(
        self, child: Child, *, listening: int = -1, start: dict[str, object] | None = None
    ) -> None:
        """Send a new child its own regions and descriptors, and then the message "start", at which it builds its role.

        The argument `start` has more fields of that message. Raises like `connect`.
        """
        agent = child.agent
        child.send({"do": "slab"}, self._slab.fd)
        child.send({"do": "eventfd"}, self._eventfd(agent))
        start = {"do": "start", **(start or {})}
        if agent.role == PROCESSOR:
            # Links and arenas share one counter of generations, so that a late descriptor of a dead peer never matches
            # a live peer.
            self._generation += 1
            # Twice the largest request, because one can arrive while another is handled. Pages are allocated only when
            # used.
            arena_bytes = 2 * self._config.socket_request_max_bytes
            arena = Region.create(RegionKind.ARENA, arena_bytes, self._generation, is_sparse=True)
            self._arenas[agent] = arena
            child.send({"do": "arena"}, arena.fd)
            start["arena_warm_bytes"] = WARM_BYTES
        elif agent.role == ACCEPTOR:
            child.send({"do": "listening"}, listening)
        elif agent.role in (HANDLER, CLEANER.role):
            child.send({"do": "table"}, self._table.fd)
        elif listening >= 0:
            # The controller serves the metrics listener. Send it the partition table, too, because the metrics include
            # the first and last offsets of logs.
            child.send({"do": "table"}, self._table.fd)
            child.send({"do": "listening"}, listening)
        child.send(start)

    def connect(self, one: Child, other: Child) -> bool:
        """Connect two children as their roles require: by a handoff socket pair, or by a link.

        Both ends of a link get the same region and each other's eventfd. Returns False if the roles have neither.
        Raises BrokenPipeError or ConnectionResetError if one of them has just died. The surviving child may have
        attached the link already, and detaches it when it gets "detach".
        """
        if has_handoff(one.agent, other.agent):
            self._pair("handoff", one, other)
            return True
        plan = find_link(one.agent, other.agent, self._config.kproc_ring_bytes)
        if plan is None:
            return False
        first, second = (one, other) if plan.first == one.agent else (other, one)
        self._generation += 1
        # Close the supervisor's descriptor at once, so that the kernel frees the region when the last of its two roles
        # ends, even after a kill of the supervisor.
        with create_link(plan.capacity, plan.capacity, self._generation) as region:
            self._send_link(first, second, region, is_first=True)
            self._send_link(second, first, region, is_first=False)
        return True

    def connect_migration(self, one: Child, other: Child) -> None:
        """Send two Processors a socket pair over which connections can migrate.

        Raises BrokenPipeError or ConnectionResetError if one of them has just died.
        """
        self._pair("migration", one, other)

    def release(self, agent: AgentId, *, is_final: bool = False) -> None:
        """Release the arena of a reaped agent, and with `is_final` its eventfd, because it has no successor.

        Its row of the slab stays, so that counters continue if an agent of that name is started again.
        """
        arena = self._arenas.pop(agent, None)
        if arena is not None:
            arena.close()
        if is_final and agent in self._eventfds:
            os.close(self._eventfds.pop(agent))

    def close(self) -> None:
        for agent in list(self._arenas):
            self.release(agent)
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

    def _eventfd(self, agent: AgentId) -> int:
        if agent not in self._eventfds:
            self._eventfds[agent] = make_eventfd()
        return self._eventfds[agent]

    def _send_link(self, to: Child, peer: Child, region: Region, *, is_first: bool) -> None:
        # Send the link last, because the child attaches it together with the peer's eventfd and arena, which must have
        # arrived.
        to.send({"do": "peer_eventfd", "peer": peer.agent}, self._eventfd(peer.agent))
        arena = self._arenas.get(peer.agent)
        if arena is not None:
            to.send({"do": "peer_arena", "peer": peer.agent, "generation": arena.generation}, arena.fd)
        to.send(
            {"do": "link", "peer": peer.agent, "generation": region.generation, "is_first": is_first},
            region.fd,
        )
