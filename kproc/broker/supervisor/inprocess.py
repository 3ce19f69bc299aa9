"""BrokerProcess: the thread and inline transports, which run all roles in one process, in threads or in turn.

Links are deques of the same records (transport/thread.py). Sockets travel over the same socket pairs. No role is
restarted: a role that fails ends the broker, because the others share its memory.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import select
import signal
import socket
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Any, Final

from kproc.broker.acceptor.acceptor import Acceptor
from kproc.broker.cleaner.cleaner import Cleaner
from kproc.broker.cluster.role_counts import IO_THREADS, NETWORK_THREADS
from kproc.broker.config import Config, ConfigError
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.controller.controller import Controller
from kproc.broker.controller.operations import Operations
from kproc.broker.handler.handler import Handler
from kproc.broker.handler.syncer import InlineSyncer, Syncer, ThreadSyncer
from kproc.broker.ipc.arena import Arena, ArenaReader
from kproc.broker.ipc.fdpass import make_socket_pair
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.wait import Sleeper, Waker, make_eventfd
from kproc.broker.metrics.slab import SLAB_BYTES, MetricsRow, Slab
from kproc.broker.observe.status import Status
from kproc.broker.processor.processor import Processor
from kproc.broker.request.routing import ProduceRouter
from kproc.broker.role.asks import LOG_LEVELS, Gathering, OnReply, Reply
from kproc.broker.role.listeners import (
    open_control_listener,
    open_listeners,
    open_metrics_listener,
    start_listening,
)
from kproc.broker.role.partition_table import TABLE_BYTES, PartitionTable
from kproc.broker.role.plan import Plan
from kproc.broker.role.roles import (
    CLEANER,
    CONTROL_ACCEPTOR,
    CONTROL_PROCESSOR,
    CONTROLLER,
    acceptor_id,
    handler_id,
    is_control,
    processor_id,
    slab_row,
)
from kproc.broker.supervisor import broker, ready, signals
from kproc.broker.supervisor.data_directory import DataDirectory
from kproc.broker.supervisor.logs import set_levels
from kproc.broker.supervisor.regions import ARENA_WARM_BYTES
from kproc.broker.supervisor.role_messages import handle_processor_request
from kproc.broker.supervisor.service_manager import ServiceManager
from kproc.broker.supervisor.supervisor_operations import joined_clients, was_killed
from kproc.broker.supervisor.tls_check import check_listeners
from kproc.broker.transport.agent import Agent, AgentId, Link, Wakeable
from kproc.broker.transport.thread import AgentThread, Pipe, PipeReceiver, PipeSender
from kproc.common.clock import SystemClock

logger = logging.getLogger(__name__)

_INTERNAL_BYTES: Final = 256 * 1024
_NO_PROCESSES: Final = (
    "the number of roles changes at the next start only: roles that share a process cannot be added or ended "
    "(kproc.transport=process can)"
)
_TURN_MS: Final = 100
_READY_TIMEOUT_NS: Final = 30_000_000_000


class BrokerProcess:
    """All roles of one broker in one process, in threads or inline; turn_based.py adds two more kinds."""

    ends_at_hangup = True

    def __init__(self, config: Config, directory: DataDirectory, manager: ServiceManager) -> None:
        self._manager = manager
        self._config = config
        self._directory = directory
        self._is_inline = config.kproc_transport == "inline"
        self._listeners = open_listeners(config)
        self._control = open_control_listener(config)
        self._metrics = open_metrics_listener(config)
        self._plan = Plan(
            config=config,
            clock=SystemClock(),
            endpoints=[endpoint for endpoint, _ in self._listeners],
            cluster_id=directory.cluster_id,
            control=self._control[0] if self._control is not None else None,
            metrics=self._metrics[0] if self._metrics is not None else None,
        )
        self._slab_region = Region.create(RegionKind.SLAB, SLAB_BYTES, 0, is_sparse=True)
        self._table_region = Region.create(RegionKind.TABLE, TABLE_BYTES, 0, is_sparse=True)
        self._slab = Slab(self._slab_region.words, is_new=True)
        self._table = PartitionTable(self._table_region.words)
        self._dozes: dict[AgentId, Sleeper] = {}
        self._wakers: dict[AgentId, Wakeable] = {}
        self._arenas: dict[AgentId, Arena] = {}
        self._threads: list[AgentThread] = []
        self._failure: BaseException | None = None
        self._settings = DynamicSettings()
        self._processors: list[Processor] = []
        self._acceptors: list[Acceptor] = []
        self._signals = signals.SignalPipe()
        self._guardian = signals.watch_process(config.kproc_exit_with_pid)
        self._epoll = select.epoll()
        for fd in (self._signals.fd, self._guardian):
            if fd is not None:
                self._epoll.register(fd, select.EPOLLIN)
        self._build()

    # -- building ----------------------------------------------------------------------------------------------

    def _build(self) -> None:
        plan, config = self._plan, self._config
        status = Status(plan, self._slab)
        self._controller: Controller = broker.make_controller(
            plan,
            **self._create_wakeup(CONTROLLER),
            operations=Operations(plan, status, self._handle_request),
            on_settings=self._send_settings,
            handler_count=None,
            is_restart=False,
        )
        status.image = lambda: self._controller.image
        problem = check_listeners(config, self._settings, config.listeners, in_child=False)
        if problem is not None:
            raise ConfigError(problem)
        # Remove the marker of a clean stop only now. A start that failed earlier has changed no log, so it must leave
        # the marker to the next start.
        self._plan = plan = dataclasses.replace(plan, was_clean=self._directory.remove_clean_marker())
        handler_count = self._settings.integer(IO_THREADS, config.num_io_threads)
        processor_count = self._settings.integer(NETWORK_THREADS, config.num_network_threads)
        self._status = status
        if self._metrics is not None:
            broker.answer_scrapes(plan, self._controller, status, self._table, self._metrics[1])
        self._cleaner: Cleaner = broker.make_cleaner(plan, **self._create_wakeup(CLEANER), table=self._table)
        self._handlers: list[Handler] = [
            broker.make_handler(
                plan,
                index,
                **self._create_wakeup(handler_id(index)),
                table=self._table,
                syncer=self._syncer(handler_id(index)),
                is_restart=False,
            )
            for index in range(handler_count)
        ]
        for index in range(processor_count):
            router = ProduceRouter() if handler_count > 1 else None
            self._processors.append(self._make_processor(processor_id(index), router))
        self._acceptors = [
            broker.make_acceptor(plan, index, **self._create_wakeup(acceptor_id(index)), listening=sock)
            for index, (_, sock) in enumerate(self._listeners)
        ]
        self._connect_all()
        self._control_plane = self._build_control_plane()
        self._send_settings(self._settings)
        self.agents: list[Agent] = [
            self._controller,
            self._cleaner,
            *self._handlers,
            *self._processors,
            *self._acceptors,
            *self._control_plane,
        ]
        status.processes = self._describe()

    def _make_processor(self, agent: AgentId, router: ProduceRouter | None) -> Processor:
        arena = Arena.create(
            2 * self._config.socket_request_max_bytes, agent.index, warm_bytes=ARENA_WARM_BYTES
        )
        self._arenas[agent] = arena
        return broker.make_processor(
            self._plan,
            agent.index,
            **self._create_wakeup(agent),
            arena=arena,
            router=router,
            make=self._processor_kind(),
        )

    def _build_control_plane(self) -> list[Processor | Acceptor]:
        """Create the control listener's own Processor and Acceptor, if there is a control listener."""
        if self._control is None:
            return []
        processor = self._make_processor(CONTROL_PROCESSOR, None)
        acceptor = broker.make_acceptor(
            self._plan,
            CONTROL_ACCEPTOR.index,
            **self._create_wakeup(CONTROL_ACCEPTOR),
            listening=self._control[1],
        )
        self._connect(processor, self._controller, _INTERNAL_BYTES, self._arenas[CONTROL_PROCESSOR])
        self._connect_handoff(acceptor, processor)
        return [processor, acceptor]

    def _create_wakeup(self, agent: AgentId) -> dict[str, Any]:
        """Create an agent's Sleeper and metrics row, and return them as keyword arguments for its builder."""
        words, word = self._slab.words, self._slab.row_word(slab_row(agent))
        doze = self._dozes[agent] = Sleeper(words, word, make_eventfd(), is_edge_triggered=True)
        self._wakers[agent] = self._waker(agent, Waker(words, word, doze.fd))
        return {"doze": doze, "metrics": MetricsRow(self._slab, slab_row(agent), os.getpid())}

    def _waker(self, agent: AgentId, by_eventfd: Waker) -> Wakeable:
        """Return the object that wakes this agent after records were published to it."""
        return by_eventfd

    def _processor_kind(self) -> Callable[..., Processor]:
        return Processor

    def _syncer(self, agent: AgentId) -> Syncer:
        if self._is_inline:
            return InlineSyncer()
        doze_fd = self._dozes[agent].fd
        return ThreadSyncer(f"{agent}-sync", lambda: os.eventfd_write(doze_fd, 1))

    def _connect_all(self) -> None:
        ring_bytes = self._config.kproc_ring_bytes
        for index, handler in enumerate(self._handlers):
            self._connect(self._controller, handler, _INTERNAL_BYTES)
            self._connect(self._cleaner, handler, _INTERNAL_BYTES)
            for processor in self._processors:
                self._connect(processor, handler, ring_bytes, self._arenas[processor.id])
            for other in self._handlers[index + 1 :]:
                self._connect(handler, other, _INTERNAL_BYTES)
        self._connect(self._controller, self._cleaner, _INTERNAL_BYTES)
        for acceptor in self._acceptors:
            for processor in self._processors:
                self._connect_handoff(acceptor, processor)

    def _connect_handoff(self, acceptor: Acceptor, processor: Processor) -> None:
        ours, theirs = make_socket_pair()
        acceptor.attach_handoff(processor.id, ours)
        processor.attach_handoff(acceptor.id, theirs)

    def _connect(self, one: Agent, other: Agent, capacity: int, arena: Arena | None = None) -> None:
        """Connect two agents by two pipes of `capacity` bytes. `other` can read `arena`, which `one` owns."""
        there, back = Pipe(capacity), Pipe(capacity)
        reader = ArenaReader(arena.region) if arena is not None else None
        other.attach(
            Link(
                one.id,
                sender=PipeSender(back),
                receiver=PipeReceiver(there),
                waker=self._wakers[one.id],
                arena=reader,
            )
        )
        one.attach(
            Link(
                other.id, sender=PipeSender(there), receiver=PipeReceiver(back), waker=self._wakers[other.id]
            )
        )

    def _describe(self) -> list[dict[str, Any]]:
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

    # -- between the roles -------------------------------------------------------------------------------------

    def _post(self, agent: Agent, action: Callable[[], None]) -> None:
        """Run `action` in the agent's thread between two duty cycles. Without such a thread, call it at once."""
        for thread in self._threads:
            if thread.agent is agent:
                thread.post(action)
                return
        action()

    def _send_settings(self, settings: DynamicSettings) -> None:
        """Send changed settings to Acceptors and Processors, which have no image. The controller calls this."""
        self._settings = settings
        agents: tuple[Acceptor | Processor, ...] = (*self._acceptors, *self._processors)
        for agent in agents:
            self._post(agent, partial(agent.apply_settings, settings))

    def _handle_request(self, what: str, body: dict[str, Any], on_reply: OnReply) -> None:
        """Handle the controller's requests that a supervisor would handle (supervisor_operations.py)."""
        if what == LOG_LEVELS:
            set_levels(body["levels"])
            on_reply({})
            return
        if what not in ("clients", "kill_client"):
            counts = {"processors": len(self._processors), "handlers": len(self._handlers)}
            on_reply({"error": _NO_PROCESSES, "counts": counts})
            return

        def on_all(replies: dict[Hashable, Reply]) -> None:
            on_reply(joined_clients(replies) if what == "clients" else was_killed(replies))

        processors = [each for each in self.agents if isinstance(each, Processor)]
        gathering = Gathering(len(processors), on_all)
        for processor in processors:
            taker = gathering.taker(processor.id)
            self._post(processor, partial(self._run_processor_request, processor, what, body, taker))

    def _run_processor_request(
        self, processor: Processor, what: str, body: dict[str, Any], taker: OnReply
    ) -> None:
        reply = handle_processor_request(processor, what, body)
        self._post(self._controller, lambda: taker(reply))

    # -- running -----------------------------------------------------------------------------------------------

    def run(self, ready_file: Path | None, on_ready: Callable[[dict[str, Any]], None]) -> int:
        self._start()
        problem = self._check_ready()
        if problem is not None:
            logger.error("the broker started but does not answer: %s", problem)
            self._manager.failed(problem)
            return 1
        control = [self._control[1]] if self._control is not None else []
        start_listening([*(sock for _, sock in self._listeners), *control], self._config)
        self._status.phase = "running"
        announcement = ready.describe(self._plan, self._describe())
        if ready_file is not None:
            ready.write(ready_file, announcement)
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
        self._threads = [AgentThread(agent, self._on_error) for agent in self.agents]
        for thread in self._threads:
            thread.start()

    def _check_ready(self) -> str | None:
        """Send a client's requests before clients can connect, and run the roles meanwhile.

        Returns the problem with the responses, or None.
        """
        ours, theirs = socket.socketpair()
        processor = self._processors[0]
        self._post(processor, partial(processor.adopt_probe, theirs))
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
            timeout_s = 0.0 if self._step() else self._pause_s()
        before_ns = self._plan.clock.now_ns()
        events = self._epoll.poll(self._manager.timeout_ms(int(timeout_s * 1000)) / 1000)
        self._manager.feed(self._silent)
        # With the inline transport all roles sleep together here.
        if self._is_inline:
            slept_ns = self._plan.clock.now_ns() - before_ns
            for doze in self._dozes.values():
                doze.slept_ns += slept_ns
        signs = [fd for fd, _ in events if self._is_to_stop(fd)]
        return self._failure is None and not signs

    def _silent(self, limit_ns: int) -> str | None:
        """Return a role without a duty cycle for that long, or None.

        The cleaner does not count, for the reason in HeartbeatMonitor.silent.
        """
        now_ns = self._plan.clock.now_ns()
        for agent in self.agents:
            beat_ns = self._slab.read_one(slab_row(agent.id), "heartbeat_ns")
            if agent is not self._cleaner and beat_ns and now_ns - beat_ns >= limit_ns:
                return str(agent.id)
        return None

    def _is_to_stop(self, fd: int) -> bool:
        """Handle a readable descriptor of the main thread. Return True if the broker must stop."""
        if fd == self._signals.fd:
            number = self._signals.read()
            if number == signal.SIGHUP and not self.ends_at_hangup:
                logger.warning("SIGHUP: this transport reads its settings at the start only")
            elif number is not None:
                logger.info("stopping: signal=%s", signal.Signals(number).name)
                return True
        elif fd == self._guardian:
            logger.info("stopping: process %d has ended", self._config.kproc_exit_with_pid)
            return True
        return False

    def _run_briefly(self) -> None:
        """Run the roles for at most 5 ms while the main thread waits for something."""
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
        # Wake the main thread, which sleeps in epoll.
        os.kill(os.getpid(), signal.SIGTERM)

    # -- stopping ----------------------------------------------------------------------------------------------

    def _stop(self) -> int:
        """Drain within kproc.drain.timeout.ms, then close the roles in order. Return the exit status."""
        self._status.phase = "stopping"
        self._manager.stopping("stopping")
        deadline_ns = self._plan.clock.now_ns() + self._config.kproc_drain_timeout_ms * 1_000_000
        draining: list[Agent] = [
            *self._acceptors,
            *self._control_plane,
            *self._processors,
            *self._handlers,
        ]
        for agent in draining:
            self._post(agent, agent.drain)
        while not all(agent.is_drained() for agent in draining) and self._failure is None:
            if self._plan.clock.now_ns() >= deadline_ns:
                logger.warning("stopping without having answered everything: kproc.drain.timeout.ms is over")
                break
            self._run_briefly()
        is_clean = self._failure is None
        for thread in self._threads:
            is_clean = thread.stop(5.0) and is_clean
        self._stop_turns()
        closing: list[Agent] = [*draining, self._controller]
        for agent in closing:
            try:
                is_clean = agent.close() is None and is_clean
            except OSError as error:
                logger.error("closing %s: %s", agent.id, error)
                is_clean = False
        self._cleaner.finish(is_clean=is_clean)
        self._cleaner.close()
        return 0 if self._failure is None else 1

    def _stop_turns(self) -> None:
        """Stop running the roles, because they are closed next. turn_based.py overrides this."""

    def release(self) -> None:
        """Close every descriptor. The roles are closed already, or never ran."""
        for thread in self._threads:
            thread.stop(1.0)
        for _, sock in self._listeners:
            sock.close()
        if self._control is not None:
            self._control[1].close()
        for doze in self._dozes.values():
            os.close(doze.fd)
        for arena in self._arenas.values():
            arena.close()
        self._slab_region.close()
        self._table_region.close()
        self._signals.close()
        self._epoll.close()
        if self._guardian is not None:
            os.close(self._guardian)
