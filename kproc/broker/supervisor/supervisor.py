"""Supervisor: starts the roles in order, watches them, restarts those that die, and stops them all.

It has only one thread, because a fork copies only the calling thread, and locks of other threads would stay locked. It
owns the resources that must survive any role: listening sockets, the slab, the partition table, arenas, eventfds, and
the data directory's lock. It never blocks on a child and survives the death of any child (children.py). The settings in
force determine how many roles there are, and scale.py changes that number. The order of a stop is in shutdown.py.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import select
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final, TypeVar

from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.role.control_requests import OnReply, answer
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import (
    CONTROLLER,
)
from kproc.broker.supervisor import preload, ready, signals, tls_check
from kproc.broker.supervisor.certificate_renewal import CertificateRenewal
from kproc.broker.supervisor.children import Children
from kproc.broker.supervisor.data_directory import DataDirectory
from kproc.broker.supervisor.heartbeat_monitor import HeartbeatMonitor
from kproc.broker.supervisor.listener_set import ListenerSet
from kproc.broker.supervisor.listening import ListeningSockets
from kproc.broker.supervisor.reload import Reloader, Reread
from kproc.broker.supervisor.restore_loop import KeptResources
from kproc.broker.supervisor.roles_table import ManagedRole
from kproc.broker.supervisor.scale import Scaler
from kproc.broker.supervisor.scale_steps import TargetState
from kproc.broker.supervisor.service_manager import ServiceManager
from kproc.broker.supervisor.shutdown import Shutdown
from kproc.broker.supervisor.snapshots import Snapshots, remove_snapshots
from kproc.broker.supervisor.status_window import StatusWindow, describe_from_outside
from kproc.broker.supervisor.supervisor_operations import SupervisorOperations
from kproc.broker.supervisor.topology import initial_roles
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import NS_PER_MS, SystemClock
from kproc.common.errors import FatalError
from kproc.wire import codec
from kproc.wire.header import ApiKey

logger = logging.getLogger(__name__)

_READY_TIMEOUT_NS: Final = 30_000_000_000
_BUSY_MS: Final = 20
_WRONG_SETTINGS: Final = 2  # The exit status for an invalid command line or configuration.
T = TypeVar("T")


class Supervisor:
    """The supervisor of one broker. `run` starts the roles and returns when they have ended."""

    def __init__(
        self,
        config: Config,
        manager: ServiceManager | None = None,
        reread: Reread | None = None,
        kept: KeptResources | None = None,
    ) -> None:
        """Acquire the resources. `kept` are those of the former run if this run restores a snapshot, else None."""
        self._clock = SystemClock()
        self._manager = manager or ServiceManager(None)
        # Raise the limit on descriptors before the first fork, because every role inherits it.
        ready.raise_nofile_limit()
        preload.load(config)
        checked = tls_check.check_before_start(config)
        self._config = config
        self._directory = DataDirectory(config)
        resources = kept if kept is not None else self._first_resources()
        self._sockets, self._signals, self._restores = resources
        self._is_restoring = False
        self._guardian = signals.watch_process(config.kproc_exit_with_pid)
        self._window = StatusWindow(self._describe)
        self._epoll = self._watch_descriptors()
        plan = self._sockets.make_plan(self._clock, self._directory.cluster_id)
        self._children = self._make_children(plan)
        self._table = self._children.table
        self._renewal = CertificateRenewal(config, self._children, checked, on_change=self._send_processes)
        self._listeners = ListenerSet(self._children, self._sockets.by_acceptor)
        self._scaler = Scaler(self._children, self._listeners)
        snapshots = Snapshots(self._directory.path, self._children.pause_writers, self._restore)
        self._operations = SupervisorOperations(self._children, self._scaler, snapshots)
        self._heartbeats = HeartbeatMonitor(self._children, on_change=self._send_processes)
        self._started_ns = self._clock.now_ns()
        self._is_init = os.getpid() == 1
        self._reloader = self._make_reloader(plan, reread)
        self._has_settings = False
        self._owes_processes = False
        self._has_started = False
        self._must_stop = self._is_reloading = False
        self._failure: str | None = None
        self._status = 0  # The exit status of the process.

    def _first_resources(self) -> KeptResources:
        """Acquire what a run keeps for the next one, and remove snapshots that an earlier process has left.

        If a listener's address cannot be used, close the data directory and raise.
        """
        try:
            sockets = ListeningSockets(self._config)
        except BaseException:
            self._directory.close()
            raise
        remove_snapshots(self._directory.path)
        return KeptResources(sockets, signals.SignalPipe(), restores=0)

    def _watch_descriptors(self) -> select.epoll:
        epoll = select.epoll()
        for fd in (self._signals.fd, self._guardian, self._window.fileno()):
            if fd is not None:
                epoll.register(fd, select.EPOLLIN)
        return epoll

    def _make_reloader(self, plan: BrokerPlan, reread: Reread | None) -> Reloader:
        return Reloader(
            self._config,
            plan.fs,
            reread=reread,
            ask=self._send_controller_request,
            in_force=lambda: self._children.settings,
            wall_ms=self._clock.wall_ms,
        )

    def _make_children(self, plan: BrokerPlan) -> Children:
        return Children(
            plan,
            lock_fd=self._directory.lock_fd,
            listening=self._sockets.by_acceptor,
            metrics_listening=self._sockets.metrics,
            epoll=self._epoll,
            on_message=self._handle_message,
            on_failure=self._fail,
            on_change=self._send_processes,
        )

    @property
    def _plan(self) -> BrokerPlan:
        return self._children.plan

    def _describe(self) -> dict[str, Any]:
        """Return the status for the status window."""
        regions, message = self._children.regions, self._processes_message()
        return describe_from_outside(self._plan, regions, self._started_ns, message)

    # -- run ---------------------------------------------------------------------------------------------------

    def run(self, ready_file: Path | None, on_ready: Callable[[dict[str, Any]], None]) -> int:
        # Disable the garbage collector in the supervisor: a collection would write into memory pages that it shares
        # with the forked roles, and so copy them.
        gc.disable()
        deadline_ns = self._clock.now_ns() + _READY_TIMEOUT_NS
        # Start the controller first, because only it reads the metadata, which can have settings for the numbers of
        # roles.
        self._children.start(self._table.add(CONTROLLER), is_restart=False)
        # While the controller starts, load the schema that the first request needs, so that the Handlers inherit it.
        codec.prepare(ApiKey.METADATA, ready.METADATA_VERSION)
        self._turn_until(lambda: self._has_settings, deadline_ns)
        self._reloader.remove_former_settings()
        self._turn_until(lambda: not self._reloader.is_busy, deadline_ns)
        if not self._must_stop:
            self._start_rest(deadline_ns)
        self._turn_until(lambda: all(role.is_ready for role in self._table), deadline_ns)
        if not self._must_stop:
            self._probe(deadline_ns)
        if not self._must_stop:
            self._announce(ready_file, on_ready)
        self._has_started = self._children.has_started = True
        self._send_processes()
        while not self._must_stop:
            self._turn()
        return self._stop() if not self._is_restoring else 0

    def _restore(self) -> None:
        """End this run. `release` then kills the roles, because the next run replaces their files by the snapshot."""
        self._is_restoring = self._must_stop = self._children.is_stopping = True

    def _start_rest(self, deadline_ns: int) -> None:
        """Start all other roles than the controller, as many as the settings require, in the order of start_order."""
        wanted = TargetState.of(self._config, self._children.settings)
        try:
            steps = self._listeners.replace_before_start(tuple(wanted.listeners.values()))
            shut = self._finish(steps, deadline_ns)
            if shut is None:
                return
            if self._renewal.checked is None:
                settings = self._children.settings
                used = [each for each in wanted.listeners.values() if each not in shut]
                checked = tls_check.check_listeners(self._config, settings, used, in_child=True)
                self._renewal.checked = checked
                if checked.problem is not None:
                    self._fail(checked.problem, status=_WRONG_SETTINGS)
                    return
            # Remove the marker of a clean stop last: if the start fails before, no log has changed, and the next start
            # can still trust the marker.
            was_clean = self._directory.remove_clean_marker()
        except FatalError as error:
            self._fail(str(error))
            return
        self._children.plan = dataclasses.replace(self._plan, was_clean=was_clean)
        self._scaler.skip_listeners(shut)
        self._children.handler_count = wanted.handlers
        for agent, pool in initial_roles(wanted.pools, wanted.handlers, self._sockets.by_acceptor):
            self._table.add(agent, pool=pool)
        for role in self._table:
            if role.agent != CONTROLLER:
                self._children.start(role, is_restart=False)
        # Link the roles after all have been forked, because a link needs both of its processes.
        for role in self._table:
            self._children.introduce(role)
        self._scaler.changes.assign_acceptors()

    def _finish(self, steps: Generator[Callable[[], bool], None, T], deadline_ns: int) -> T | None:
        """Run the loop until `steps` have finished. Return their result, or None if the broker must stop before."""
        while True:
            try:
                condition = next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            self._turn_until(condition, deadline_ns)
            if self._must_stop:
                steps.close()
                return None

    def _turn_until(self, is_so: Callable[[], bool], deadline_ns: int) -> None:
        """Run the loop until `is_so()` is True or the broker must stop. At the deadline make the start fail."""
        while not self._must_stop and not is_so():
            if self._clock.now_ns() > deadline_ns:
                waiting = [str(role.agent) for role in self._table if not role.is_ready]
                self._fail(f"not ready after {_READY_TIMEOUT_NS // 10**9} s: {', '.join(waiting)}")
            self._turn()

    def _probe(self, deadline_ns: int) -> None:
        """Check that the broker answers requests, before clients can connect."""
        probe = ready.Probe(self._children.probe(self._table.processors()[0]))
        self._epoll.register(probe.fileno(), select.EPOLLIN)
        try:
            self._turn_until(probe.is_done, deadline_ns)
        finally:
            self._epoll.unregister(probe.fileno())
            probe.close()
        if probe.problem is not None:
            self._fail(f"the broker started but does not answer: {probe.problem}")

    def _announce(self, ready_file: Path | None, on_ready: Callable[[dict[str, Any]], None]) -> None:
        """Listen for clients, write the ready file, and announce the broker to its user and to systemd."""
        try:
            self._sockets.start()
        except FatalError as error:
            self._fail(str(error))
            return
        announcement = ready.describe(self._plan, self._table.rows(), self._restores)
        if ready_file is not None:
            try:
                ready.write(ready_file, announcement)
            except OSError as error:
                self._fail(f"--ready-file {ready_file}: {error.strerror}")
                return
        if not self._restores:
            on_ready(announcement)
        self._manager.ready(f"serving at {announcement['bootstrap']}")
        logger.info("ready: listeners=%s", ", ".join(e.bound for e in self._plan.endpoints))

    def _fail(self, reason: str, status: int = 1) -> None:
        """Log a fatal error and let the loop stop the broker. The first failure's reason and exit status count."""
        logger.error("%s", reason)
        self._failure, self._status = self._failure or reason, self._status or status
        if not self._has_started:
            self._manager.failed(reason)
        self._must_stop = self._children.is_stopping = True

    def _turn(self, timeout_ms: int = 1000) -> None:
        """Run one turn of the loop: wait for events, handle them, and do all work that is due."""
        if self._has_started and (self._scaler.is_busy or self._operations.is_busy):
            # Poll often: conditions of a scaling or rebalance, such as stored metrics, change in shared memory without
            # an event.
            timeout_ms = min(timeout_ms, _BUSY_MS)
        restart_ns = self._children.next_restart_ns()
        if restart_ns is not None:
            timeout_ms = max(0, min(timeout_ms, (restart_ns - self._clock.now_ns()) // NS_PER_MS + 1))
        for fd, _ in self._epoll.poll(self._manager.timeout_ms(timeout_ms) / 1000):
            self._handle_event(fd)
        self._children.restart_due()
        self._children.requests.expire(self._clock.now_ns())
        self._heartbeats.check()
        self._manager.feed(self._heartbeats.silent)
        if self._is_init:
            signals.reap_orphans({role.child.pid for role in self._table if role.child is not None})
        if self._owes_processes:
            self._send_processes()
        if self._is_reloading and not self._reloader.is_busy:
            self._is_reloading = False
            self._manager.reloaded(self._reloader.problem or self._renewal.problem)
            self._send_processes()
        if self._has_started and not self._must_stop:
            # Start no change of the counts while a rebalance migrates connections, because the change could remove
            # their target Processor.
            self._scaler.advance(may_begin=not self._operations.is_busy)
            self._operations.advance()

    def _handle_event(self, fd: int) -> None:
        """Handle a readable descriptor: a signal, the status window, a child, or the end of kproc.exit.with.pid."""
        if fd == self._signals.fd:
            self._handle_signal(self._signals.read())
        elif fd == self._guardian:
            logger.info(
                "stopping: process %d (kproc.exit.with.pid) has ended", self._config.kproc_exit_with_pid
            )
            self._epoll.unregister(fd)
            self._must_stop = self._children.is_stopping = True
        elif fd == self._window.fileno():
            self._window.respond()
        else:
            self._children.on_event(fd)

    def _handle_signal(self, number: int | None) -> None:
        if number == signal.SIGHUP and self._reloader.can_reload:
            # Reopen the log file first, so that the lines about the reload are in the new file.
            self._operations.reopen_log()
            if self._has_started and not self._must_stop:
                self._manager.reloading()
                self._is_reloading = True
                self._reloader.reload()
                self._renewal.renew()
            return
        if number is not None:
            logger.info("stopping: signal=%s", signal.Signals(number).name)
            self._is_restoring = False
            self._must_stop = self._children.is_stopping = True

    def _send_controller_request(self, what: str, body: dict[str, Any], on_reply: OnReply) -> None:
        controller = self._table.get(CONTROLLER)
        assert controller is not None
        self._children.send_request(controller, what, body, on_reply)

    # -- messages from children --------------------------------------------------------------------------------

    def _handle_message(self, role: ManagedRole, message: dict[str, Any]) -> None:
        what = message["do"]
        if what == "ready":
            role.is_ready = True
            self._send_processes()
        elif what == "failed":
            role.failure = message["reason"]
        elif what == "drained":
            role.is_drained = True
        elif what == "unused":
            handler = self._table.get(AgentId(*message["peer"]))
            # The Handler may already be closed, because the time limit of its drain has passed.
            if handler is not None:
                handler.users.discard(role.agent)
        elif what == "answer":
            self._children.requests.handle_answer(message)
        elif what == "settings":
            self._apply_settings(DynamicSettings.of_message(message))
        elif what == "ask":
            self._handle_request(role, message)
        else:
            assert what == "closed", message
            role.is_closed = True
            role.closed_cleanly = message["is_clean"]

    def _handle_request(self, role: ManagedRole, message: dict[str, Any]) -> None:
        asker, token = role.child, message["token"]

        def on_reply(reply: dict[str, Any]) -> None:
            # Do not send the reply to a restarted controller: its tokens start again, so the reply would match another
            # request.
            if role.child is asker:
                self._children.send(role, answer(token, reply))

        self._operations.handle(message["what"], message["body"], on_reply)

    def _apply_settings(self, settings: DynamicSettings) -> None:
        """Put the dynamic settings into force. The controller sends them at each of its starts and after a change."""
        is_first = not self._has_settings
        self._has_settings = True
        is_same = settings == self._children.settings
        # Send unchanged settings, too, because key stores that they name may have been replaced.
        self._children.send_settings(settings)
        if self._has_started:
            self._renewal.recheck()
        if is_first or not is_same:
            self._scaler.set_target(settings)

    @property
    def _phase(self) -> str:
        if self._must_stop:
            return "stopping"
        return "running" if self._has_started else "starting"

    def _processes_message(self) -> dict[str, Any]:
        endpoints = self._plan.endpoints
        return {
            "do": "processes",
            "processes": self._table.rows(),
            "listeners": {
                each.name: {"bound": each.bound, "advertised": each.advertised}
                for each in endpoints
                if each.name
            },
            "listener_names": [each.name for each in endpoints],
            "problem": "; ".join(filter(None, (self._scaler.problem, self._children.problem))) or None,
            "phase": self._phase,
            "certificates": self._renewal.certificates,
            "last_reload": self._reloader.describe(self._renewal.problem),
        }

    def _send_processes(self) -> None:
        """Send the controller the list of all processes, which it shows in the status and in the metrics."""
        role = self._table.get(CONTROLLER)
        # If the controller's control socket is full, send the list later instead of queueing one for every change. A
        # stopped controller then gets only the latest list when it continues.
        self._owes_processes = role is None or role.is_backed_up
        if role is not None and not role.is_backed_up:
            self._children.send(role, self._processes_message())

    # -- stopping ----------------------------------------------------------------------------------------------

    def _stop(self) -> int:
        """Drain, close and reap all roles in the order of a stop; return the exit status."""
        self._children.is_stopping = True
        self._manager.stopping(f"stopping: {self._failure}" if self._failure else "stopping")
        self._send_processes()
        self._sockets.close_acceptors()
        shutdown = Shutdown(self._children, self._clock, self._turn)
        shutdown.run(self._config.kproc_drain_timeout_ms * NS_PER_MS, is_clean=self._failure is None)
        return self._status

    def release(self) -> KeptResources | None:
        """Kill the remaining children and close every descriptor and region, even after an exception.

        Return the resources to keep for the next run if this run ends for a restore, else None.
        """
        self._must_stop = True
        self._children.close()
        self._window.close()
        kept = None
        if self._is_restoring:
            self._sockets.keep()
            kept = KeptResources(self._sockets, self._signals, self._restores + 1)
        else:
            self._sockets.close()
            self._signals.close()
            remove_snapshots(self._directory.path)
        self._epoll.close()
        if self._guardian is not None:
            os.close(self._guardian)
        self._directory.close()
        return kept
