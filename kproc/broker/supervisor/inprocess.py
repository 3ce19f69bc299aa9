"""InProcessBroker: runs all roles in one process, each in a thread (thread transport) or in one (inline).

inprocess_roles.py builds and links the roles. The order of a stop is that of topology.py. No role is restarted: a role
that fails ends the broker, because the others share its memory.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import select
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from kproc.broker.acceptor.acceptor import Acceptor
from kproc.broker.cleaner.cleaner import Cleaner
from kproc.broker.cluster.role_counts import IO_THREADS, NETWORK_THREADS
from kproc.broker.config import Config, ConfigError
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.controller.controller import Controller
from kproc.broker.ipc.wait import make_eventfd
from kproc.broker.processor.processor import Processor
from kproc.broker.role.roles import (
    CONTROLLER,
)
from kproc.broker.supervisor import preload, ready, signals
from kproc.broker.supervisor.broker import SupervisorCalls
from kproc.broker.supervisor.data_directory import DataDirectory
from kproc.broker.supervisor.inprocess_operations import InProcessOperations
from kproc.broker.supervisor.inprocess_roles import InProcessRoles
from kproc.broker.supervisor.listening import ListeningSockets
from kproc.broker.supervisor.logs import reopen_file
from kproc.broker.supervisor.reload import Reread, find_unapplied_changes
from kproc.broker.supervisor.restore_loop import KeptResources, run_with_restores
from kproc.broker.supervisor.role_threads import RoleThreads
from kproc.broker.supervisor.service_manager import ServiceManager
from kproc.broker.supervisor.snapshots import Snapshots, remove_snapshots
from kproc.broker.supervisor.tls_check import check_listeners
from kproc.broker.supervisor.topology import CLOSE_WAVES, DRAIN_WAVES, initial_roles
from kproc.broker.transport.agent import Agent
from kproc.common.clock import NS_PER_MS, SystemClock

logger = logging.getLogger(__name__)

_TURN_MS: Final = 100
_READY_TIMEOUT_NS: Final = 30_000_000_000


def run_in_process(
    config: Config,
    *,
    ready_file: Path | None,
    on_ready: Callable[[dict[str, Any]], None],
    manager: ServiceManager,
    reread: Reread | None = None,
) -> int:
    """Run a broker in this process until SIGTERM or SIGINT. Return the exit status.

    With `reread` SIGHUP does not end the broker, but reopens the log file, and the status shows the changes of the
    configuration file that need a restart.
    """
    ready.raise_nofile_limit()
    preload.load(config)

    def make_broker(kept: KeptResources | None) -> InProcessBroker:
        directory = DataDirectory(config)
        try:
            process = InProcessBroker(config, directory, manager, kept)
        except BaseException:
            directory.close()
            raise
        process.reread = reread
        return process

    return run_with_restores(make_broker, ready_file, on_ready)


class InProcessBroker:
    """All roles of one broker in one process, each in a thread or all inline."""

    reread: Reread | None = None  # None if SIGHUP ends the broker.

    def __init__(
        self,
        config: Config,
        directory: DataDirectory,
        manager: ServiceManager,
        kept: KeptResources | None = None,
    ) -> None:
        """Build the roles. `kept` are the resources of the former run if this run restores a snapshot, else None."""
        self._manager = manager
        self._config = config
        self._directory = directory
        self._is_inline = config.kproc_transport == "inline"
        self._sockets = kept.sockets if kept is not None else ListeningSockets(config)
        self._restores = kept.restores if kept is not None else 0
        self._is_restoring = False
        if kept is None:
            remove_snapshots(directory.path)
        self._plan = self._sockets.make_plan(SystemClock(), directory.cluster_id)
        self._roles = self._make_roles()
        self.agents = self._roles.agents
        self._threads = RoleThreads(self._roles.dozes)
        self._failure: BaseException | None = None
        self._settings = DynamicSettings()
        self._has_started = False
        self._signals = kept.signals if kept is not None else signals.SignalPipe()
        self._wake_fd = make_eventfd()
        self._operations = InProcessOperations(
            self.agents,
            self._threads,
            self._plan.movable,
            snapshots=Snapshots(directory.path, self._threads.pause_writers, self._restore),
            wake_main=partial(os.eventfd_write, self._wake_fd, 1),
        )
        self._guardian = signals.watch_process(config.kproc_exit_with_pid)
        self._epoll = self._watch_descriptors()
        self._build()

    def _make_roles(self) -> InProcessRoles:
        return InProcessRoles(self._config, self._sockets)

    def _watch_descriptors(self) -> select.epoll:
        epoll = select.epoll()
        for fd in (self._signals.fd, self._wake_fd, self._guardian):
            if fd is not None:
                epoll.register(fd, select.EPOLLIN)
        return epoll

    # -- building ----------------------------------------------------------------------------------------------

    def _build(self) -> None:
        """Build the controller, then the numbers of roles that the settings in the metadata require. Link all roles."""
        config = self._config
        calls = SupervisorCalls(send_request=self._operations.handle, send_settings=self._send_settings)
        controller = self._roles.build(CONTROLLER, self._plan, calls)
        assert isinstance(controller, Controller)
        self._controller = controller
        checked = check_listeners(config, self._settings, config.listeners, in_child=False)
        if checked.problem is not None:
            raise ConfigError(checked.problem)
        controller.status.certificates.use(checked.certificates)
        # Remove the marker of a clean stop only now. A start that failed earlier has changed no log, so it must leave
        # the marker to the next start.
        self._plan = dataclasses.replace(self._plan, was_clean=self._directory.remove_clean_marker())
        # The thread and inline transports have only the common set of Processors, for all listeners.
        pools = {"": self._settings.integer(NETWORK_THREADS, config.num_network_threads)}
        handler_count = self._settings.integer(IO_THREADS, config.num_io_threads)
        for agent, _ in initial_roles(pools, handler_count, self._sockets.by_acceptor):
            self._roles.build(agent, self._plan, calls)
        self._roles.connect_all()
        self._send_settings(self._settings)
        controller.status.processes = self._roles.rows()

    # -- between the roles -------------------------------------------------------------------------------------

    def _send_settings(self, settings: DynamicSettings) -> None:
        """Send changed settings to Acceptors and Processors, which have no image of the metadata.

        The controller calls this.
        """
        self._settings = settings
        for agent in self.agents:
            if isinstance(agent, Acceptor | Processor):
                self._threads.post(agent, partial(agent.apply_settings, settings))
        if self._has_started:
            checked = check_listeners(self._config, settings, self._config.listeners, in_child=False)
            # If a certificate cannot be used, the Processors keep the present ones, so keep the shown ones, too.
            if checked.problem is None:
                self._controller.status.certificates.use(checked.certificates)

    # -- running -----------------------------------------------------------------------------------------------

    def run(self, ready_file: Path | None, on_ready: Callable[[dict[str, Any]], None]) -> int:
        # `kproc serve` disables the garbage collector during its imports, so that forked roles share pages. Enable it,
        # because this transport forks no role.
        gc.enable()
        self._start()
        problem = self._check_ready()
        if problem is not None:
            logger.error("stopping: the broker started but does not answer requests: %s", problem)
            self._manager.failed(problem)
            return 1
        self._sockets.start()
        self._controller.status.phase = "running"
        self._has_started = True
        announcement = ready.describe(self._plan, self._roles.rows(), self._restores)
        if ready_file is not None:
            ready.write(ready_file, announcement)
        if not self._restores:
            on_ready(announcement)
        self._manager.ready(f"serving at {announcement['bootstrap']}")
        while self._turn():
            pass
        return self._stop()

    def _start(self) -> None:
        if self._is_inline:
            for agent in self.agents:
                self._epoll.register(agent.poll_fd(), select.EPOLLIN)
            return
        self._threads.start(self.agents, self._on_error)

    def _check_ready(self) -> str | None:
        """Send a client's requests before clients can connect, and run the roles meanwhile.

        Returns the problem with the responses, or None.
        """
        ours, theirs = socket.socketpair()
        processor = next(each for each in self.agents if isinstance(each, Processor))
        self._threads.post(processor, partial(processor.adopt_probe, theirs))
        probe = ready.Probe(ours)
        deadline_ns = self._plan.clock.now_ns() + _READY_TIMEOUT_NS
        try:
            while not probe.is_done():
                if self._plan.clock.now_ns() > deadline_ns:
                    return "no answer in time"
                self._run_briefly()
        finally:
            probe.close()
        return probe.problem

    def _turn(self) -> bool:
        """Run one turn of the main thread. Return False when it is time to stop."""
        timeout_s = 1.0
        if self._is_inline:
            # Inline, all roles run in this thread. While one of them has work to do, poll for signals without waiting.
            timeout_s = 0.0 if self._step() else self._pause_s()
        before_ns = self._plan.clock.now_ns()
        events = self._epoll.poll(self._manager.timeout_ms(int(timeout_s * 1000)) / 1000)
        self._manager.feed(self._silent)
        # Inline, all roles sleep together in this poll, so add its duration to the sleep time of each.
        if self._is_inline:
            slept_ns = self._plan.clock.now_ns() - before_ns
            for doze in self._roles.dozes.values():
                doze.slept_ns += slept_ns
        signs = [fd for fd, _ in events if self._is_to_stop(fd)]
        if signs:
            self._is_restoring = False
        return self._failure is None and not signs and not self._is_restoring

    def _silent(self, limit_ns: int) -> str | None:
        return self._roles.find_silent(self._plan.clock.now_ns(), limit_ns)

    def _is_to_stop(self, fd: int) -> bool:
        """Act on a readable descriptor: a signal, the end of kproc.exit.with.pid, or queued snapshot requests.

        Return True if the broker must stop.
        """
        if fd == self._signals.fd:
            number = self._signals.read()
            if number == signal.SIGHUP and self.reread is not None:
                self._reload(self.reread)
            elif number is not None:
                logger.info("stopping: signal=%s", signal.Signals(number).name)
                return True
        elif fd == self._guardian:
            logger.info(
                "stopping: process %d (kproc.exit.with.pid) has ended", self._config.kproc_exit_with_pid
            )
            return True
        elif fd == self._wake_fd:
            os.eventfd_read(fd)
            self._operations.handle_snapshot_requests()
        return False

    def _reload(self, reread: Reread) -> None:
        """Open the log file again. Find changes of settings and certificates, which are read at the start only."""
        reopen_file()
        self._manager.reloading()
        status = self._controller.status
        checked = check_listeners(self._config, self._settings, self._config.listeners, in_child=False)
        problem = checked.problem
        if problem is None and checked.certificates != status.certificates.describe():
            problem = f"with kproc.transport={self._config.kproc_transport}, new certificates need a restart"
        at_ms = self._plan.clock.wall_ms()
        status.last_reload = find_unapplied_changes(self._config, reread, problem, at_ms)
        self._manager.reloaded(status.last_reload["problem"])

    # -- snapshots ---------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """End this run after this turn of the main loop. The next run unpacks the snapshot over the files."""
        self._is_restoring = True

    def _run_briefly(self) -> None:
        """Run each inline role once. Without inline roles, or if none had work, wait up to 5 ms for an event."""
        if not self._is_inline or not self._step():
            self._epoll.poll(0.005)

    def _step(self) -> int:
        return sum(agent.do_work(0) for agent in self.agents)

    def _pause_s(self) -> float:
        return min(_TURN_MS, *(agent.next_deadline_ms() for agent in self.agents)) / 1000

    def _on_error(self, agent: Agent, error: BaseException) -> None:
        self._fail(str(agent.id), error)

    def _fail(self, who: str, error: BaseException) -> None:
        logger.critical("%s failed", who, exc_info=error)
        self._failure = error
        # Wake the main thread, which may sleep in epoll, by a signal to its SignalPipe. It then stops the broker.
        os.kill(os.getpid(), signal.SIGTERM)

    # -- stopping ----------------------------------------------------------------------------------------------

    def _stop(self) -> int:
        """Drain within kproc.drain.timeout.ms, then close the roles in order. Return the exit status."""
        if self._is_restoring:
            self._close_for_restore()
            return 0
        self._controller.status.phase = "stopping"
        self._manager.stopping("stopping" if self._failure is None else f"stopping: {self._failure}")
        deadline_ns = self._plan.clock.now_ns() + self._config.kproc_drain_timeout_ms * NS_PER_MS
        draining = self._roles.in_waves(DRAIN_WAVES)
        for agent in draining:
            self._threads.post(agent, agent.drain)
        while not all(agent.is_drained() for agent in draining) and self._failure is None:
            if self._plan.clock.now_ns() >= deadline_ns:
                logger.warning("stopping although requests are unanswered: kproc.drain.timeout.ms is over")
                break
            self._run_briefly()
        is_clean = self._failure is None
        # A role whose thread does not end is in an unknown state, so no file may be marked as clean.
        is_clean = self._threads.stop() and is_clean
        self._close_roles(is_clean=is_clean)
        return 0 if self._failure is None else 1

    def _close_for_restore(self) -> None:
        """Close the roles without draining, because the restored snapshot replaces their files."""
        self._threads.stop()
        self._sockets.keep()
        self._close_roles(is_clean=False)

    def _close_roles(self, *, is_clean: bool) -> None:
        """Close the roles in the order of a stop, after all threads have ended.

        is_clean: so far nothing prevents the marker of a clean stop, which the cleaner writes last.
        """
        for agent in self._roles.in_waves(CLOSE_WAVES):
            try:
                if isinstance(agent, Cleaner):
                    agent.finish(is_clean=is_clean)
                is_clean = agent.close() is None and is_clean
            except OSError as error:
                logger.error(
                    "cannot close %s cleanly, so the next start recovers all logs: %s", agent.id, error
                )
                is_clean = False

    def release(self) -> KeptResources | None:
        """Close every descriptor, after the roles were closed or if they never ran.

        Return the resources to keep for the next run if this run ends for a restore, else None.
        """
        self._threads.abandon()
        kept = None
        if self._is_restoring:
            kept = KeptResources(self._sockets, self._signals, self._restores + 1)
        else:
            self._sockets.close()
            self._signals.close()
            remove_snapshots(self._directory.path)
        os.close(self._wake_fd)
        self._roles.release()
        self._epoll.close()
        if self._guardian is not None:
            os.close(self._guardian)
        self._directory.close()
        return kept
