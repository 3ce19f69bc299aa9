"""Turns: runs the agents of one process that have work, for transports where no agent has a thread of its own.

A link's waker or a timer makes an agent due. `run` calls each due agent until none is left. Nothing here waits or
locks, so only one thread may call it at a time: the asyncio loop's, or the one that holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable

from kproc.broker.transport.agent import Agent, AgentId
from kproc.common.clock import NS_PER_MS


class TurnWaker:
    """The `Wakeable` of a link to an agent that is run by turns."""

    __slots__ = ("_due", "_id")

    def __init__(self, due: dict[AgentId, None], agent_id: AgentId) -> None:
        self._due = due
        self._id = agent_id

    def wake(self) -> None:
        self._due[self._id] = None


class Turns:
    """The due agents and the timers of one process."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._due: dict[AgentId, None] = {}
        self._agents: dict[AgentId, Agent] = {}
        self._inputs: dict[AgentId, Callable[[], bool] | None] = {}
        self._deadlines_ns: dict[AgentId, int] = {}

    def add(self, agent: Agent, has_input: Callable[[], bool] | None) -> None:
        """Add an agent. `has_input` returns True if it needs another turn at once.

        Without `has_input`, it gets another turn if its last one did any work.
        """
        self._agents[agent.id] = agent
        self._inputs[agent.id] = has_input
        self.call(agent.id)

    def waker(self, agent_id: AgentId) -> TurnWaker:
        return TurnWaker(self._due, agent_id)

    def call(self, agent_id: AgentId) -> None:
        """Make the agent due at the next `run`."""
        self._due[agent_id] = None

    def call_all(self) -> None:
        for agent_id in self._agents:
            self._due[agent_id] = None

    def call_late(self) -> None:
        """Make the agents due whose timers have expired."""
        now_ns = self._now_ns()
        for agent_id, deadline_ns in self._deadlines_ns.items():
            if deadline_ns <= now_ns:
                self._due[agent_id] = None

    def run(self) -> None:
        """Run due agents until none is left."""
        due, deadlines_ns = self._due, self._deadlines_ns
        while due:
            # A dict keeps the order of insertion, so the agent that was called first gets the first turn.
            agent_id = next(iter(due))
            # Remove the agent before its turn, because a waker may make it due again while it works.
            del due[agent_id]
            agent = self._agents[agent_id]
            work = agent.do_work(0)
            has_input = self._inputs[agent_id]
            if work if has_input is None else has_input():
                due[agent_id] = None
            else:
                deadlines_ns[agent_id] = self._now_ns() + agent.next_deadline_ms() * NS_PER_MS

    def deadline_ns(self) -> int:
        """Return the time of the earliest timer of all agents that had a turn (monotonic ns)."""
        return min(self._deadlines_ns.values())
