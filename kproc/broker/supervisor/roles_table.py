"""RolesTable: the supervisor's table of roles, with the child and the state of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from kproc.broker.role.roles import HANDLER, PROCESSOR, is_control, start_order
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.process import Child

QUICK_DEATHS_MAX: Final = 8  # With the back-off of children.py about 16 s of trying.


class ManagedRole(msgspec.Struct):
    """One role to keep alive: its child, and its history."""

    agent: AgentId
    # For Processors: the name (in lower case) of the listener whose own set of Processors this one belongs to, or ""
    # for the common set.
    pool: str = ""
    child: Child | None = None
    is_ready: bool = False
    is_drained: bool = False
    is_closed: bool = False
    closed_cleanly: bool = False
    # True from the role's start by a change of the counts until it is ready. If the role ends in that time, the change
    # fails and the broker goes on.
    is_trial: bool = False
    # True while the role migrates its connections or transfers its partitions before it ends. If it dies meanwhile, it
    # is not restarted.
    is_leaving: bool = False
    targets: tuple[AgentId, ...] = ()  # The Processors that a leaving Processor's connections migrate to.
    users: set[AgentId] = msgspec.field(default_factory=set)  # Processors that still use a leaving Handler.
    # For Processors: the Processors that have a migration socket pair with this one.
    migrations: set[AgentId] = msgspec.field(default_factory=set)
    # For Acceptors: the Processors that get the listener's connections. Empty: all Processors.
    serving: tuple[AgentId, ...] = ()
    restarts: int = 0
    quick_deaths: int = 0
    started_ns: int = 0
    restart_at_ns: int = 0
    hung_ms: int = 0  # Time without a duty cycle; 0 if the role does not hang.
    peers: set[AgentId] = msgspec.field(default_factory=set)
    failure: str | None = None  # Why the role in its present child could not be built.

    @property
    def state(self) -> str:
        if self.child is None:
            return "down" if self.is_failing else "restarting"
        if self.hung_ms:
            return "hung"
        if self.is_leaving:
            return "leaving"
        return "running" if self.is_ready else "starting"

    @property
    def is_failing(self) -> bool:
        """True if more than QUICK_DEATHS_MAX processes of the role in a row have died soon after their start."""
        return self.quick_deaths > QUICK_DEATHS_MAX

    @property
    def failing(self) -> str:
        """The text about a failing role for the status and the log."""
        return f"{self.agent} ended {self.quick_deaths} times in a row right after its start"

    @property
    def is_backed_up(self) -> bool:
        """True if the child's control socket is full, because the child is stopped or too busy to read it."""
        return self.child is not None and self.child.control.has_unsent

    def reset(self, now_ns: int) -> None:
        """Reset the role's state, because a new child is forked next."""
        self.started_ns = now_ns
        self.restart_at_ns = self.hung_ms = 0
        self.is_ready = self.is_drained = self.is_closed = self.closed_cleanly = False
        self.failure = None
        self.peers = set()
        self.migrations = set()

    def mark_leaving(self) -> None:
        """Mark the role as leaving, so that it is not restarted. Cancel a restart that is due."""
        self.is_leaving = True
        self.restart_at_ns = 0

    def serving_message(self) -> dict[str, Any]:
        """Return the message that tells an Acceptor which Processors serve its listener."""
        return {"do": "targets", "peers": self.serving}

    def row(self) -> dict[str, Any]:
        """Return the role's row in the ready file and in the status."""
        return {
            "role": self.agent.role,
            "index": self.agent.index,
            "pid": self.child.pid if self.child is not None else 0,
            "state": self.state,
            "restarts": self.restarts,
            "hung_ms": self.hung_ms,
            "pool": "control" if is_control(self.agent) else self.pool,
        }


class RolesTable:
    """All roles by agent. Iterates in the order in which roles are started, not in the order of `add`."""

    def __init__(self) -> None:
        self._roles: dict[AgentId, ManagedRole] = {}

    def __iter__(self) -> Iterator[ManagedRole]:
        return iter([self._roles[agent] for agent in sorted(self._roles, key=start_order)])

    def __getitem__(self, agent: AgentId) -> ManagedRole:
        return self._roles[agent]

    def __contains__(self, agent: AgentId) -> bool:
        return agent in self._roles

    def get(self, agent: AgentId) -> ManagedRole | None:
        """Return the role, or None if it does not exist or was removed."""
        return self._roles.get(agent)

    def add(self, agent: AgentId, *, pool: str = "") -> ManagedRole:
        """Add a role to the table and return its entry. The supervisor restarts a role that dies after its start."""
        assert agent not in self._roles, agent
        role = self._roles[agent] = ManagedRole(agent, pool=pool)
        return role

    def remove(self, agent: AgentId) -> None:
        """Remove a role, so that it is not restarted."""
        del self._roles[agent]

    def of(self, *roles: str) -> list[ManagedRole]:
        """Return all managed roles of these kinds, such as HANDLER."""
        return [each for each in self if each.agent.role in roles]

    def handlers(self) -> list[ManagedRole]:
        """Return the Handlers that are not leaving."""
        return [each for each in self.of(HANDLER) if not each.is_leaving]

    def processors(self, pool: str | None = None) -> list[ManagedRole]:
        """Return the Processors of the set `pool` that are not leaving. None: those of all sets.

        The control listener's Processor is never included.
        """
        return [
            each
            for each in self.of(PROCESSOR)
            if not each.is_leaving and not is_control(each.agent) and pool in (None, each.pool)
        ]

    def pools(self) -> dict[str, int]:
        """Return the number of Processors of each set."""
        counts: dict[str, int] = {}
        for role in self.processors():
            counts[role.pool] = counts.get(role.pool, 0) + 1
        return counts

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all processes for the ready file and the controller's status, supervisor first."""
        supervisor: dict[str, Any] = {
            "role": "supervisor",
            "index": 0,
            "pid": os.getpid(),
            "state": "running",
            "restarts": 0,
            "hung_ms": 0,
            "pool": "",
        }
        return [supervisor, *(role.row() for role in self)]
