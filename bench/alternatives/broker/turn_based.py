"""The transports `connection-threads` and `asyncio`, whose roles have no threads of their own.

They run kproc's roles, links and files, with another kind of Processor. Agents run by turns (turns.py). With a thread
for each connection, the thread that holds the one lock runs them. The lock protects everything but sockets. With
asyncio, the loop runs them. Several Handlers and Processors may be configured, but only one thread at a time runs them.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from bench.alternatives.broker.loop_processor import LoopProcessor
from bench.alternatives.broker.substitute import substituted
from bench.alternatives.broker.thread_processor import ThreadProcessor
from bench.alternatives.broker.turn_processor import TurnProcessor
from bench.alternatives.broker.turns import Turns
from kproc.broker.config import Config, ConfigError
from kproc.broker.handler.syncer import Syncer, ThreadSyncer
from kproc.broker.ipc.wait import make_eventfd
from kproc.broker.role.linked_role import LinkedRole
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.supervisor import broker
from kproc.broker.supervisor.data_directory import DataDirectory
from kproc.broker.supervisor.inprocess import InProcessBroker
from kproc.broker.supervisor.inprocess_roles import InProcessRoles
from kproc.broker.supervisor.listening import ListeningSockets
from kproc.broker.supervisor.restore_loop import KeptResources
from kproc.broker.supervisor.service_manager import ServiceManager
from kproc.broker.transport.agent import Agent, AgentId

_MOMENT_S: Final = 0.005
_FAR_NS: Final = 1 << 62


class TurnBasedRoles(InProcessRoles):
    """The roles of a broker that runs due agents by turns. A sync that has ended calls `on_synced`."""

    def __init__(
        self, config: Config, sockets: ListeningSockets, turns: Turns, on_synced: Callable[[AgentId], None]
    ) -> None:
        super().__init__(config, sockets)
        self._turns = turns
        self._on_synced = on_synced

    def build(self, agent: AgentId, plan: BrokerPlan, supervisor: broker.SupervisorCalls) -> Agent:
        role = super().build(agent, plan, supervisor)
        # The links, which are made when all roles exist, wake a role by making it due.
        self._wakers[agent] = self._turns.waker(agent)
        return role

    def _syncer(self, agent: AgentId) -> Syncer:
        return ThreadSyncer(f"{agent}-sync", partial(self._on_synced, agent))


class TurnBasedProcess(InProcessBroker):
    """Base class of the two transports. It runs due agents by turns."""

    def __init__(
        self, config: Config, directory: DataDirectory, manager: ServiceManager, kept: KeptResources | None = None
    ) -> None:
        encrypted = [str(each) for each in config.listeners if each.protocol.endswith("SSL")]
        if encrypted:
            raise ConfigError(f"listeners: {', '.join(encrypted)}: this alternative does not speak TLS")
        self._turns = Turns(lambda: self._plan.clock.now_ns())
        with substituted(broker, Processor=self._make_processor):
            super().__init__(config, directory, manager, kept)
        self._fronts = [each for each in self.agents if isinstance(each, TurnProcessor)]
        for agent in self.agents:
            self._turns.add(agent, _has_input(agent))

    def _make_processor(self, *arguments: Any, **named: Any) -> TurnProcessor:
        raise NotImplementedError

    def _make_roles(self) -> TurnBasedRoles:
        return TurnBasedRoles(self._config, self._sockets, self._turns, self._on_synced)

    def _on_synced(self, agent: AgentId) -> None:
        raise NotImplementedError

    def _on_readable(self, agent: Agent) -> None:
        """Mark an agent as due, because a descriptor in its own epoll is readable (a listener or a handoff socket)."""
        if isinstance(agent, TurnProcessor):
            agent.request_poll()
        self._turns.call(agent.id)

    def _run_turns(self) -> None:
        """Run all due agents, those with expired timers included."""
        turns = self._turns
        turns.call_late()
        for front in self._fronts:
            front.publish()
            if front.wants_turn:
                turns.call(front.id)
        turns.run()


class LoopProcess(TurnBasedProcess):
    """asyncio: one loop, in the main thread."""

    def __init__(
        self, config: Config, directory: DataDirectory, manager: ServiceManager, kept: KeptResources | None = None
    ) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._loop.set_exception_handler(self._on_surprise)
        self._has_pass = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns = _FAR_NS
        self._must_stop = False
        super().__init__(config, directory, manager, kept)

    def _make_processor(self, *arguments: Any, **named: Any) -> TurnProcessor:
        return LoopProcessor(*arguments, loop=self._loop, on_input=self._schedule_turns, **named)

    def _on_synced(self, agent: AgentId) -> None:
        self._loop.call_soon_threadsafe(self._on_synced_agent, agent)

    def _on_synced_agent(self, agent: AgentId) -> None:
        self._turns.call(agent)
        self._schedule_turns()

    def _on_surprise(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(str(context.get("message")))
        self._fail("a callback of the loop", error)
        loop.stop()

    # -- the loop ------------------------------------------------------------------------------------------------

    def _schedule_turns(self) -> None:
        """Schedule one pass for all sockets that are ready now, so that their requests are handled together."""
        if not self._has_pass:
            self._has_pass = True
            self._loop.call_soon(self._run_scheduled_turns)

    def _run_scheduled_turns(self) -> None:
        self._has_pass = False
        self._run_turns()
        deadline_ns = self._turns.deadline_ns()
        if deadline_ns < self._armed_ns:
            if self._timer is not None:
                self._timer.cancel()
            self._armed_ns = deadline_ns
            delay_s = max(0.0, (deadline_ns - self._plan.clock.now_ns()) / 1e9)
            self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._armed_ns = _FAR_NS
        self._run_scheduled_turns()

    def _start(self) -> None:
        for agent in self.agents:
            self._loop.add_reader(agent.poll_fd(), self._on_agent, agent)
        for fd in (self._signals.fd, self._guardian):
            if fd is not None:
                self._loop.add_reader(fd, self._on_sign, fd)
        self._schedule_turns()

    def _on_agent(self, agent: Agent) -> None:
        self._on_readable(agent)
        self._schedule_turns()

    def _on_sign(self, fd: int) -> None:
        if self._is_to_stop(fd):
            self._must_stop = True
            self._loop.remove_reader(fd)
            self._loop.stop()

    def _turn(self) -> bool:
        if not self._must_stop and self._failure is None:
            self._loop.run_forever()
        return not self._must_stop and self._failure is None

    def _run_briefly(self) -> None:
        self._turns.call_all()
        self._schedule_turns()
        self._loop.call_later(_MOMENT_S, self._loop.stop)
        self._loop.run_forever()

    def release(self) -> None:
        super().release()
        self._loop.close()


class ConnectionThreadsProcess(TurnBasedProcess):
    """connection-threads: the main thread runs timers, listeners and the handoff of connections."""

    def __init__(
        self, config: Config, directory: DataDirectory, manager: ServiceManager, kept: KeptResources | None = None
    ) -> None:
        # The lock protects every role, because a partition, a group and the metadata may each have only one writer.
        self._lock = threading.RLock()
        self._alarm = make_eventfd()
        # 0 while the main thread is awake. Then nobody has to wake it, because it checks for work before it sleeps.
        self._sleeps_until_ns = 0
        self._is_over = False
        self._by_fd: dict[int, Agent] = {}
        super().__init__(config, directory, manager, kept)

    def _make_processor(self, *arguments: Any, **named: Any) -> TurnProcessor:
        return ThreadProcessor(
            *arguments, lock=self._lock, run=self._run_locked, on_error=self._on_thread_error, **named
        )

    def _on_thread_error(self, error: BaseException) -> None:
        self._fail("a connection's thread", error)

    def _on_synced(self, agent: AgentId) -> None:
        try:
            with self._lock:
                self._turns.call(agent)
                self._run_locked()
        except BaseException as error:  # noqa: BLE001 - it may have been in any role.
            self._fail("the thread that syncs", error)

    def _run_locked(self) -> None:
        """Run all due agents. The caller must hold the lock.

        Wake the main thread if a timer is due before its sleep ends.
        """
        if self._is_over:
            return
        self._run_turns()
        if self._turns.deadline_ns() < self._sleeps_until_ns:
            self._sleeps_until_ns = 0
            os.eventfd_write(self._alarm, 1)

    def _post(self, agent: Agent, action: Callable[[], None]) -> None:
        with self._lock:
            action()
            self._turns.call(agent.id)

    # -- the main thread -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        for agent in self.agents:
            self._by_fd[agent.poll_fd()] = agent
            self._epoll.register(agent.poll_fd(), select.EPOLLIN)
        self._epoll.register(self._alarm, select.EPOLLIN | select.EPOLLET)

    def _turn(self) -> bool:
        events = self._wait(1 << 62)
        signs = [fd for fd, _ in events if self._is_to_stop(fd)]
        return self._failure is None and not signs

    def _run_briefly(self) -> None:
        self._wait(int(_MOMENT_S * 1e9))

    def _wait(self, longest_ns: int) -> list[tuple[int, int]]:
        """Run due agents, sleep for at most `longest_ns`, and return the epoll events that ended the sleep."""
        with self._lock:
            self._run_locked()
            now_ns = self._plan.clock.now_ns()
            until_ns = min(self._turns.deadline_ns(), now_ns + longest_ns)
            self._sleeps_until_ns = until_ns
        events = self._epoll.poll(max(0, until_ns - now_ns) / 1e9)
        with self._lock:
            self._sleeps_until_ns = 0
            for fd, _ in events:
                agent = self._by_fd.get(fd)
                if agent is not None:
                    self._on_readable(agent)
        return events

    def _close_roles(self, *, is_clean: bool) -> None:
        with self._lock:
            self._is_over = True
        super()._close_roles(is_clean=is_clean)

    def release(self) -> None:
        super().release()
        os.close(self._alarm)


def _has_input(agent: Agent) -> Callable[[], bool] | None:
    if isinstance(agent, LinkedRole | TurnProcessor):
        return agent.has_input
    return None  # An Acceptor has no links; it handles a Processor's report in its next turn.


KINDS: Final[Mapping[str, type[InProcessBroker]]] = {
    "asyncio": LoopProcess,
    "connection-threads": ConnectionThreadsProcess,
}
