"""InProcessRoles: builds the roles of a broker without processes, in memory of this process, and links them.

The links between the roles are those of topology.py: deques of the same records as rings (transport/thread.py). Sockets
travel over the same socket pairs as between processes. inprocess.py runs and stops the roles.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

from kproc.broker.acceptor.acceptor import Acceptor
from kproc.broker.config import Config
from kproc.broker.handler.syncer import InlineSyncer, Syncer, ThreadSyncer
from kproc.broker.ipc.arena import Arena, ArenaReader
from kproc.broker.ipc.fdpass import make_socket_pair
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.wait import Sleeper, Waker, make_eventfd
from kproc.broker.metrics.slab import SLAB_BYTES, MetricsRow, Slab
from kproc.broker.processor.processor import Processor
from kproc.broker.role.partition_table import TABLE_BYTES, PartitionTable
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import (
    CLEANER,
    CONTROLLER,
    HANDLER,
    PROCESSOR,
    has_handoff,
    is_control,
    slab_row,
)
from kproc.broker.supervisor.broker import RoleParts, SupervisorCalls, build_role
from kproc.broker.supervisor.listening import ListeningSockets
from kproc.broker.supervisor.topology import find_link
from kproc.broker.transport.agent import Agent, AgentId, Link, Wakeable
from kproc.broker.transport.thread import Pipe, PipeReceiver, PipeSender


class InProcessRoles:
    """All roles of one broker in one process, with their links, memory and descriptors.

    agents: the roles, in the order in which they were built.
    dozes: the Sleeper of each role, in which it waits for work.
    """

    def __init__(self, config: Config, sockets: ListeningSockets) -> None:
        self._config = config
        self._sockets = sockets
        self._slab_region = Region.create(RegionKind.SLAB, SLAB_BYTES, 0, is_sparse=True)
        self._table_region = Region.create(RegionKind.TABLE, TABLE_BYTES, 0, is_sparse=True)
        self._slab = Slab(self._slab_region.words, is_new=True)
        self._table = PartitionTable(self._table_region.words)
        self.agents: list[Agent] = []
        self.dozes: dict[AgentId, Sleeper] = {}
        self._wakers: dict[AgentId, Wakeable] = {}
        self._arenas: dict[AgentId, Arena] = {}

    def build(self, agent: AgentId, plan: BrokerPlan, supervisor: SupervisorCalls) -> Agent:
        """Build one role and add it to `agents`. `supervisor` has the functions that the controller calls."""
        row = slab_row(agent)
        words, word = self._slab.words, self._slab.row_word(row)
        doze = self.dozes[agent] = Sleeper(words, word, make_eventfd())
        self._wakers[agent] = Waker(words, word, doze.fd)
        if agent.role == PROCESSOR:
            arena_bytes = 2 * self._config.socket_request_max_bytes
            self._arenas[agent] = Arena.create(arena_bytes, agent.index)
        parts = RoleParts(
            doze=doze,
            metrics=MetricsRow(self._slab, row, os.getpid()),
            table=self._table,
            listening=self._sockets.metrics if agent == CONTROLLER else self._sockets.by_acceptor.get(agent),
            arena=self._arenas.get(agent),
            syncer=self._syncer(agent) if agent.role == HANDLER else None,
            supervisor=supervisor,
        )
        role = build_role(agent, plan, parts)
        self.agents.append(role)
        return role

    def _syncer(self, agent: AgentId) -> Syncer:
        if self._config.kproc_transport == "inline":
            return InlineSyncer()
        doze_fd = self.dozes[agent].fd
        return ThreadSyncer(f"{agent}-sync", lambda: os.eventfd_write(doze_fd, 1))

    def connect_all(self) -> None:
        """Connect each pair of roles as they need it. Called once, after all roles were built."""
        for one, other in itertools.combinations(self.agents, 2):
            self._connect(one, other)

    def _connect(self, one: Agent, other: Agent) -> None:
        """Connect two agents as their roles need it: by a socket pair, by two pipes, or not at all."""
        if has_handoff(one.id, other.id):
            ours, theirs = make_socket_pair()
            for agent, peer, sock in ((one, other, ours), (other, one, theirs)):
                assert isinstance(agent, Acceptor | Processor)
                agent.attach_handoff(peer.id, sock)
            return
        link = find_link(one.id, other.id, self._config.kproc_ring_bytes)
        if link is not None:
            there, back = Pipe(link.capacity), Pipe(link.capacity)
            other.attach(self._link_to(one.id, PipeSender(back), PipeReceiver(there)))
            one.attach(self._link_to(other.id, PipeSender(there), PipeReceiver(back)))

    def _link_to(self, peer: AgentId, sender: PipeSender, receiver: PipeReceiver) -> Link:
        arena = self._arenas.get(peer)
        reader = ArenaReader(arena.region) if arena is not None else None
        return Link(peer, sender=sender, receiver=receiver, waker=self._wakers[peer], arena=reader)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all roles for the ready file and the controller's status."""
        pid = os.getpid()
        return [
            {
                "role": each.id.role,
                "index": each.id.index,
                "pid": pid,
                "state": "running",
                "restarts": 0,
                "hung_ms": 0,
                "pool": "control" if is_control(each.id) else "",
            }
            for each in self.agents
        ]

    def find_silent(self, now_ns: int, limit_ns: int) -> str | None:
        """Return the name of a role without a duty cycle for `limit_ns`, or None if every role had one.

        The cleaner does not count, for the reason in HeartbeatMonitor.silent.
        """
        for agent in self.agents:
            beat_ns = self._slab.read_one(slab_row(agent.id), "heartbeat_ns")
            if agent.id != CLEANER and beat_ns and now_ns - beat_ns >= limit_ns:
                return str(agent.id)
        return None

    def in_waves(self, waves: Sequence[Sequence[str]]) -> list[Agent]:
        """Return the roles of these kinds, in the order of the waves."""
        return [agent for wave in waves for role in wave for agent in self.agents if agent.id.role == role]

    def release(self) -> None:
        """Close the descriptors and the memory that the roles have used, after they were closed."""
        for doze in self.dozes.values():
            os.close(doze.fd)
        for arena in self._arenas.values():
            arena.close()
        self._slab_region.close()
        self._table_region.close()
