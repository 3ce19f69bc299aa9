"""RoleThreads: the threads of the thread transport, and work that must run in the thread of one role.

A role's objects have no locks, so only its own thread uses them. The inline transport has no threads: all roles run in
the main thread, which may then call every role.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from kproc.broker.ipc.wait import Sleeper
from kproc.broker.supervisor.topology import WRITERS
from kproc.broker.transport.agent import Agent, AgentId
from kproc.broker.transport.thread import AgentThread, pause_threads

_STOP_S: Final = 5.0
_ABANDON_S: Final = 1.0


class RoleThreads:
    """A thread for each role, or none with the inline transport."""

    def __init__(self, dozes: Mapping[AgentId, Sleeper]) -> None:
        self._dozes = dozes
        self._threads: list[AgentThread] = []

    def start(self, agents: Sequence[Agent], on_error: Callable[[Agent, BaseException], None]) -> None:
        """Run each role in a thread of its own. `on_error` is called in the thread of a role that fails."""
        self._threads = [AgentThread(agent, on_error, self._dozes[agent.id].fd) for agent in agents]
        for thread in self._threads:
            thread.start()

    def post(self, agent: Agent, action: Callable[[], None]) -> None:
        """Run `action` in the agent's thread between two duty cycles. Without threads (inline), call it at once."""
        for thread in self._threads:
            if thread.agent is agent:
                thread.post(action)
                return
        action()

    def post_at_once(self, agent: Agent, action: Callable[[], None]) -> None:
        """Run `action` in the agent's thread as `post` does, and wake that thread."""
        self.post(agent, action)
        # Inline, do not write to the eventfd: the main thread is awake, and because no agent reads the eventfd, every
        # later poll would return at once.
        if self._threads:
            os.eventfd_write(self._dozes[agent.id].fd, 1)

    def pause_writers(self) -> AbstractContextManager[None]:
        """Pause the roles that write files until the context ends.

        Inline roles run in the caller's thread, so they need no pause.
        """
        return pause_threads([each for each in self._threads if each.agent.id.role in WRITERS])

    def stop(self) -> bool:
        """Let all threads end. Return False if one did not end in time."""
        for thread in self._threads:
            thread.request_stop()
        return sum(thread.stop(_STOP_S) for thread in self._threads) == len(self._threads)

    def abandon(self) -> None:
        """Wait up to 1 s for each thread that still runs.

        The caller then closes the descriptors that the threads use.
        """
        for thread in self._threads:
            thread.stop(_ABANDON_S)
