"""An agent whose duty cycle is a function of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kproc.broker.transport.agent import AgentId


class ScriptedAgent:
    """Runs `work` in every duty cycle, and never sleeps."""

    def __init__(
        self, work: Callable[[], None] = lambda: None, agent_id: AgentId = AgentId("handler", 3)
    ) -> None:
        self.id = agent_id
        self.work = work
        self.timeouts: list[int] = []
        self.has_worked = threading.Event()
        self.following: list[Callable[[], None]] = []

    def do_work(self, timeout_ms: int) -> int:
        self.timeouts.append(timeout_ms)
        self.work()
        self.has_worked.set()
        return 0

    def follow_time(self, on_done: Callable[[], None]) -> None:
        self.following.append(on_done)
