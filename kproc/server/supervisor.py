"""Supervisor: starts the roles in order, watches them, restarts what dies, stops everything, leaves nothing.

Single-threaded: it forks. It owns what must survive any role: listening sockets, the slab, the partition
table, arenas, eventfds, the data directory's lock. It never blocks on a child and survives the death of
any. The order of a stop: Acceptors, Processors and Handlers take nothing new and drain within one deadline;
then Processors, Handlers, controller close; the cleaner, last, writes the checkpoints.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kproc.api import load_all
from kproc.clock import SystemClock
from kproc.config import Config
from kproc.errors import FatalError
from kproc.server import logs, ready, signals
from kproc.server.broker import Plan
from kproc.server.child import ChildRole
from kproc.server.data_directory import DataDirectory
from kproc.server.janitor import Janitor
from kproc.server.listeners import open_listeners
from kproc.server.regions import Regions
from kproc.server.roles import (
    ACCEPTOR,
    CLEANER,
    CONTROLLER,
    HANDLER,
    PROCESSOR,
    acceptor_id,
    handler_id,
    processor_id,
)
from kproc.transport.agent import AgentId
from kproc.transport.process import Child, fork_child

logger = logging.getLogger(__name__)

_READY_TIMEOUT_NS: Final = 30_000_000_000
# A role that dies this soon after it was started is in trouble of its own making, not killed by somebody.
_QUICK_DEATH_NS: Final = 2_000_000_000
_QUICK_DEATHS_MAX: Final = 8  # With the back-off below about 16 s of trying.
_BACKOFF_NS: Final = 50_000_000
_BACKOFF_NS_MAX: Final = 5_000_000_000


@dataclass
class Role:
    """One role to keep alive: its child, and its history."""

    agent: AgentId
    child: Child | None = None
    is_ready: bool = False
    is_drained: bool = False
    is_closed: bool = False
    closed_cleanly: bool = False
    restarts: int = 0
    quick_deaths: int = 0
    started_ns: int = 0
    restart_at_ns: int = 0
    peers: set[AgentId] = field(default_factory=set)

    @property
    def state(self) -> str:
        if self.child is None:
            return "restarting"
        return "running" if self.is_ready else "starting"


def run(
    config: Config, *, ready_file: Path | None, on_ready: Callable[[dict[str, Any]], None], quiet: bool
) -> int:
    """Run a broker until SIGTERM or SIGINT; the exit status. Raises ConfigError for what cannot be started."""
    logs.configure(logging.ERROR if quiet else logging.INFO)
    load_all()
    janitor = Janitor(config.kproc_temporary_directory) if config.kproc_temporary_directory else None
    try:
        if config.kproc_transport != "process":
            from kproc.server.inprocess import run_in_process

            return run_in_process(config, ready_file=ready_file, on_ready=on_ready)
        supervisor = Supervisor(config)
        try:
            return supervisor.run(ready_file, on_ready)
        finally:
            supervisor.release()
            ready.remove(ready_file)
    finally:
        if janitor is not None:
            janitor.finish()


class Supervisor:
    """One per broker; `run` is its life."""

    def __init__(self, config: Config) -> None:
        self._clock = SystemClock()
        ready.raise_nofile_limit()
        self._directory = DataDirectory(config)
        try:
            self._listeners = open_listeners(config)
        except BaseException:
            self._directory.close()
            raise
        self._config = config
        self._plan = Plan(
            config=config,
            clock=self._clock,
            endpoints=[endpoint for endpoint, _ in self._listeners],
            cluster_id=self._directory.cluster_id,
            was_clean=self._directory.was_clean,
        )
        self._regions = Regions(config)
        self._signals = signals.SignalPipe()
        self._epoll = select.epoll()
        self._epoll.register(self._signals.fd, select.EPOLLIN)
        self._guardian = signals.watch_process(config.kproc_exit_with_pid)
        if self._guardian is not None:
            self._epoll.register(self._guardian, select.EPOLLIN)
        self._roles = {agent: Role(agent) for agent in self._agents()}
        self._by_fd: dict[int, Role] = {}
        self._must_stop = False
        self._failure: str | None = None

    def _agents(self) -> list[AgentId]:
        """In the order in which they start: who must be there first comes first."""
        config = self._config
        return [
            CONTROLLER,
            CLEANER,
            *(handler_id(index) for index in range(config.num_io_threads)),
            *(processor_id(index) for index in range(config.num_network_threads)),
            *(acceptor_id(index) for index in range(len(self._listeners))),
        ]

    # -- life --------------------------------------------------------------------------------------------------

    def run(self, ready_file: Path | None, on_ready: Callable[[dict[str, Any]], None]) -> int:
        gc.disable()
        for role in self._roles.values():
            self._start(role, is_restart=False)
        for role in self._roles.values():
            self._introduce(role)
        deadline_ns = self._clock.now_ns() + _READY_TIMEOUT_NS
        while not all(role.is_ready for role in self._roles.values()) and not self._must_stop:
            if self._clock.now_ns() > deadline_ns:
                waiting = [str(role.agent) for role in self._roles.values() if not role.is_ready]
                self._fail(f"not ready after {_READY_TIMEOUT_NS // 10**9} s: {', '.join(waiting)}")
            self._turn()
        if not self._must_stop:
            self._announce(ready_file, on_ready)
        while not self._must_stop:
            self._turn()
        return self._stop()

    def _announce(self, ready_file: Path | None, on_ready: Callable[[dict[str, Any]], None]) -> None:
        """Say that clients may come: a Metadata and a Produce round trip have worked."""
        problem = ready.round_trips(self._plan.endpoints[0])
        if problem is not None:
            self._fail(f"the broker started but does not answer: {problem}")
            return
        announcement = ready.describe(self._plan, self._processes())
        if ready_file is not None:
            ready.write(ready_file, announcement)
        on_ready(announcement)
        logger.info("ready: listeners=%s", ", ".join(e.bound for e in self._plan.endpoints))

    def _fail(self, reason: str) -> None:
        """Give up: stop everything and end with status 1."""
        logger.error("%s", reason)
        self._failure = self._failure or reason
        self._must_stop = True

    def _turn(self, timeout_ms: int = 1000) -> None:
        """Wait for something to happen and take it in."""
        now_ns = self._clock.now_ns()
        waits = [role.restart_at_ns for role in self._roles.values() if role.restart_at_ns]
        if waits:
            timeout_ms = max(0, min(timeout_ms, (min(waits) - now_ns) // 1_000_000 + 1))
        for fd, _ in self._epoll.poll(timeout_ms / 1000):
            if fd == self._signals.fd:
                number = self._signals.read()
                if number is not None:
                    logger.info("stopping: signal=%s", signal.Signals(number).name)
                    self._must_stop = True
            elif fd == self._guardian:
                logger.info("stopping: process %d has ended", self._config.kproc_exit_with_pid)
                self._epoll.unregister(fd)
                self._must_stop = True
            elif fd in self._by_fd:
                self._on_child(self._by_fd[fd], fd)
        for role in self._roles.values():
            if role.child is not None:
                self._flush(role.child)
            elif role.restart_at_ns and self._clock.now_ns() >= role.restart_at_ns and not self._must_stop:
                self._restart(role)

    # -- children ----------------------------------------------------------------------------------------------

    def _start(self, role: Role, *, is_restart: bool) -> None:
        """Fork one role and give it what is its own."""
        agent = role.agent
        plan = self._plan
        role.started_ns = self._clock.now_ns()
        role.restart_at_ns = 0
        role.is_ready = role.is_drained = role.is_closed = False
        role.peers = set()
        # What a child inherits is moved out of its collector's sight: collecting it would copy pages, and could
        # close descriptor numbers that stand for something else there.
        gc.freeze()
        is_writer = agent.role in (HANDLER, CONTROLLER.role, CLEANER.role)
        role.child = fork_child(
            agent,
            lambda control: ChildRole(agent, plan, control, is_restart=is_restart).run(),
            keep=[self._directory.lock_fd] if is_writer else [],
        )
        for fd in (role.child.pidfd, role.child.control.fd):
            self._by_fd[fd] = role
            self._epoll.register(fd, select.EPOLLIN)
        listening = self._listeners[agent.index][1].fileno() if agent.role == ACCEPTOR else -1
        try:
            self._regions.give_own(role.child, listening=listening)
        except (BrokenPipeError, ConnectionResetError):
            logger.debug("%s has ended; its exit comes next", agent)

    def _introduce(self, role: Role) -> None:
        """Link a role with every peer that is there; both sides get a link of a new generation."""
        assert role.child is not None
        for other in self._roles.values():
            child = other.child
            if other is role or child is None or other.agent in role.peers:
                continue
            try:
                is_linked = self._regions.connect(role.child, child)
            except (BrokenPipeError, ConnectionResetError):
                # One of them has ended. Its exit comes next and tells the other; its successor is linked anew.
                is_linked = True
            if is_linked:
                role.peers.add(other.agent)
                other.peers.add(role.agent)
        self._send(role.child, {"do": "go"})
        self._tell_processes()

    def _on_child(self, role: Role, fd: int) -> None:
        child = role.child
        assert child is not None
        if fd == child.control.fd:
            try:
                while (message := child.control.receive()) is not None:
                    self._take(role, message[0])
                return
            except EOFError:
                self._epoll.unregister(fd)  # Its pidfd tells the rest.
                del self._by_fd[fd]
                return
        self._on_exit(role, child)

    def _take(self, role: Role, message: dict[str, Any]) -> None:
        if message["do"] == "ready":
            role.is_ready = True
            self._tell_processes()
        elif message["do"] == "drained":
            role.is_drained = True
        else:
            assert message["do"] == "closed", message
            role.is_closed = True
            role.closed_cleanly = message["is_clean"]

    def _on_exit(self, role: Role, child: Child) -> None:
        """A child ended: reap it, tell its peers, plan its successor."""
        self._drain_control(role, child)
        for fd in (child.pidfd, child.control.fd):
            if self._by_fd.pop(fd, None) is not None:
                self._epoll.unregister(fd)
        status = child.reap()
        role.child = None
        if role.is_closed:
            return
        lived_ns = self._clock.now_ns() - role.started_ns
        logger.error("%s (pid %d) ended: %s", role.agent, child.pid, _describe(status))
        # Its peers may free what they had lent it only now that it has been reaped.
        for other in self._roles.values():
            if role.agent in other.peers:
                other.peers.discard(role.agent)
                if other.child is not None:
                    self._send(other.child, {"do": "detach", "peer": role.agent})
        self._regions.forget(role.agent)
        if self._must_stop:
            return
        if not role.is_ready and role.restarts == 0:
            self._fail(f"{role.agent} could not start: {_describe(status)}")
            return
        self._plan_restart(role, lived_ns)
        self._tell_processes()

    def _plan_restart(self, role: Role, lived_ns: int) -> None:
        """When the successor starts: at once, or later and later after quick deaths; too many end the broker."""
        role.quick_deaths = role.quick_deaths + 1 if lived_ns < _QUICK_DEATH_NS else 0
        if role.quick_deaths > _QUICK_DEATHS_MAX:
            self._fail(
                f"{role.agent} ended {role.quick_deaths} times in a row right after its start: giving up"
            )
            return
        delay_ns = min(_BACKOFF_NS_MAX, _BACKOFF_NS << role.quick_deaths) if role.quick_deaths > 1 else 0
        role.restart_at_ns = self._clock.now_ns() + delay_ns

    def _drain_control(self, role: Role, child: Child) -> None:
        """What it said before it ended still counts."""
        try:
            while (message := child.control.receive()) is not None:
                self._take(role, message[0])
        except EOFError:
            return

    def _restart(self, role: Role) -> None:
        role.restarts += 1
        logger.info("restarting %s: restarts=%d", role.agent, role.restarts)
        try:
            self._start(role, is_restart=True)
            self._introduce(role)
        except (OSError, FatalError) as error:
            # The host is short of processes, memory or descriptors. Everybody else goes on, and this role gets
            # another try: as after a quick death, of which it dies if it was forked at all.
            logger.error("%s cannot be started now: %s", role.agent, error)
            if role.child is not None:
                role.child.kill()
            else:
                self._plan_restart(role, 0)

    def _send(self, child: Child, message: dict[str, Any]) -> None:
        try:
            child.control.send(message)
        except (BrokenPipeError, ConnectionResetError):
            logger.debug("%s has ended; its exit comes next", child.agent)

    def _flush(self, child: Child) -> None:
        try:
            child.control.flush()
        except (BrokenPipeError, ConnectionResetError):
            logger.debug("%s has ended; its exit comes next", child.agent)

    def _processes(self) -> list[dict[str, Any]]:
        """What runs, for the ready file and for the controller's status."""
        rows: list[dict[str, Any]] = [
            {"role": "supervisor", "index": 0, "pid": os.getpid(), "state": "running", "restarts": 0}
        ]
        for role in self._roles.values():
            pid = role.child.pid if role.child is not None else 0
            rows.append(
                {
                    "role": role.agent.role,
                    "index": role.agent.index,
                    "pid": pid,
                    "state": role.state,
                    "restarts": role.restarts,
                }
            )
        return rows

    def _tell_processes(self) -> None:
        controller = self._roles[CONTROLLER].child
        if controller is not None:
            self._send(controller, {"do": "processes", "processes": self._processes()})

    # -- stopping ----------------------------------------------------------------------------------------------

    def _stop(self) -> int:
        """Drain, close, reap; within kproc.drain.timeout.ms, then by force. The exit status."""
        deadline_ns = self._clock.now_ns() + self._config.kproc_drain_timeout_ms * 1_000_000
        for _, sock in self._listeners:
            sock.close()
        for wave in ((ACCEPTOR, PROCESSOR), (HANDLER,)):
            self._tell(wave, {"do": "stop"})
        is_drained = self._await(lambda role: role.is_drained, (ACCEPTOR, PROCESSOR, HANDLER), deadline_ns)
        if not is_drained:
            logger.warning("stopping without having answered everything: kproc.drain.timeout.ms is over")
        # Closing logs is worth a second of its own even when a client kept the drain from ending.
        deadline_ns = max(deadline_ns, self._clock.now_ns() + 1_000_000_000)
        is_clean = self._failure is None
        for wave in ((ACCEPTOR, PROCESSOR), (HANDLER,), (CONTROLLER.role,), (CLEANER.role,)):
            expected = [role for role in self._roles.values() if role.agent.role in wave]
            if wave[0] in (HANDLER, CONTROLLER.role, CLEANER.role):
                is_clean = is_clean and all(role.child is not None for role in expected)
            self._tell(wave, {"do": "close", "is_clean": is_clean})
            self._await(lambda role: role.child is None, wave, deadline_ns)
            if wave[0] in (HANDLER, CONTROLLER.role):
                is_clean = is_clean and all(role.is_closed and role.closed_cleanly for role in expected)
        self._kill_rest()
        if not is_clean:
            logger.warning("the stop was not clean: the next start recovers")
        return 0 if self._failure is None else 1

    def _tell(self, wave: tuple[str, ...], message: dict[str, Any]) -> None:
        for role in self._roles.values():
            if role.agent.role in wave and role.child is not None:
                self._send(role.child, message)

    def _await(self, is_done: Callable[[Role], bool], wave: tuple[str, ...], deadline_ns: int) -> bool:
        """Turn until every role of the wave is done or gone; False at the deadline."""
        while True:
            waiting = [
                r
                for r in self._roles.values()
                if r.agent.role in wave and r.child is not None and not is_done(r)
            ]
            if not waiting:
                return True
            left_ms = (deadline_ns - self._clock.now_ns()) // 1_000_000
            if left_ms <= 0:
                return False
            self._turn(min(100, left_ms))

    def _kill_rest(self) -> None:
        for role in self._roles.values():
            if role.child is not None:
                logger.warning("%s did not end in time: killing it", role.agent)
                role.child.kill()
                role.child.reap()
                role.child = None

    def release(self) -> None:
        """Whatever happened: no child, no descriptor, no region stays."""
        self._must_stop = True
        self._kill_rest()
        for _, sock in self._listeners:
            sock.close()
        self._regions.close()
        self._signals.close()
        self._epoll.close()
        if self._guardian is not None:
            os.close(self._guardian)
        self._directory.close()


def _describe(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
