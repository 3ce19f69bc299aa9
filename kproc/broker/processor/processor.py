"""Processor: owns client connections, reads their requests, passes these to Handlers, and sends the answers.

It is made of parts, which share ProcessorState:

    ConnectionTable      registers and closes connections, decides what each waits for    connection_table.py
    RequestReader        sockets -> bytes in a request ring or in the arena               request_reader.py
    RequestForwarder     whole frames -> the rings of Handlers                            request_forwarder.py
    ResponseWriter       response rings -> sockets                                        response_writer.py
    HandoffReceiver      registers the sockets that Acceptors hand over                   handoff_receiver.py
    HandlerSet           the Handlers that have a link                                    handler_set.py
    HandlerAssignment    which connection has which Handler as its home                   handler_assignment.py
    ConnectionMigration  gives connections to other Processors                            migration.py
    ConnectionAdoption   adopts the connections that other Processors give                adoption.py

A duty cycle (Processor.do_work) has these steps:

    answers     Send the answers in the Handlers' rings, by one `send` per connection.
    relieve     Continue connections that wait for something that no descriptor reports (ProcessorState.is_pressed).
    wait        Sleep until a socket is ready or a Handler has answered. If Handlers have answered and nothing else has
                happened, send their answers and sleep again: the request of a lone client then costs one cycle.
    read        Receive from the ready sockets straight into the request rings.
    publish     Make the requests visible to the Handlers, once per ring, and wake those that sleep.
    tick        If it is due, store the metrics and do periodic work.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.adoption import ConnectionAdoption
from kproc.broker.processor.block_waits import BlockWaits
from kproc.broker.processor.connection_counters import ClientCounters, ProbeCounters
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.frame_memory import FrameMemories
from kproc.broker.processor.handler_assignment import HandlerAssignment
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.handoff_receiver import HandoffReceiver
from kproc.broker.processor.lent_blocks import LentBlocks
from kproc.broker.processor.memory_budget import MemoryBudget
from kproc.broker.processor.metered import MeteredConnections
from kproc.broker.processor.migration import ConnectionMigration
from kproc.broker.processor.pending_login import DEFAULT_LIMITS, LoginLimits
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.request_forwarder import RequestForwarder
from kproc.broker.processor.request_reader import RequestReader
from kproc.broker.processor.response_writer import ResponseWriter
from kproc.broker.processor.slow_frames import SlowFrameReaper
from kproc.broker.processor.socket_watch import EpollWatch
from kproc.broker.processor.timed_requests import TimedRequests
from kproc.broker.processor.tls_listeners import TlsListeners
from kproc.broker.processor.transport_layer import PlaintextTransport
from kproc.broker.processor.unsent_answers import UnsentAnswers
from kproc.broker.role.handoff import NO_ADDRESS
from kproc.broker.role.role import Role
from kproc.broker.transport.agent import STORE_MS, AgentId, BlockOwner, Link
from kproc.broker.transport.envelope import FLAG_PROBE
from kproc.common.clock import NS_PER_MS, Clock

if TYPE_CHECKING:
    from kproc.broker.ipc.wait import Sleeper
    from kproc.broker.request.routing import ProduceRouter

# A stalled Processor checks for room at this interval. Answers wake it earlier, but a Handler that parks a request
# makes room without an answer.
_STALL_POLL_MS: Final = 2
_NO_EVENTS: Final[list[tuple[int, int]]] = []
# The work of a cycle for a lone client: an answer and a request. After more work the next cycle looks for answers
# before it polls. After a lone request it would find none, because the Handler has only just been woken.
_LONE_WORK: Final = 2
# Memory for large frames of clients that have not logged in: at least this size, and room for this many longest frames.
_LOGIN_BYTES_MIN: Final = 16 << 20
_LOGINS_MIN: Final = 4
_COUNTED_MAX: Final = 1000  # Limit of counted records of a ring, because they are counted ten times a second.


class Processor(Role):
    """Reads the requests of client connections, forwards them to Handlers and sends the answers.

    One instance runs in one role.
    """

    __slots__ = (
        "_assignment", "_block_waits", "_blocks", "_budget", "_counters", "_doze_fd", "_has_answers",
        "_idle_ns_max", "_next_second_ns", "_now_ns", "_only_woken", "_probe_counters", "_read_ready", "_reporter",
        "_send_answers", "_slow_frames", "_state", "_unsent", "handlers", "handoffs", "migration", "reader", "table",
        "timed", "tls_listeners", "writer",
    )  # fmt: skip

    def __init__(
        self,
        agent_id: AgentId,
        *,
        doze: Sleeper,
        metrics: MetricsRow,
        clock: Clock,
        arena: BlockOwner,
        request_bytes_max: int,
        idle_ms_max: int,
        receive_ms_max: int = 0,
        logins: LoginLimits = DEFAULT_LIMITS,
        router: ProduceRouter | None = None,
        queued_bytes_max: int = -1,
        queued_requests_max: int = -1,
        processors_in_all: Callable[[DynamicSettings], int] = lambda settings: 1,
        tls_listeners: TlsListeners | None = None,
        moved: Clock | None = None,
    ) -> None:
        """Create the Processor's components.

        The limits of queued requests are the broker's, divided by `processors_in_all`; -1: no limit.

        A request must arrive within `receive_ms_max`; 0: without a limit. moved: the broker's clock, for the ends of
        sessions and throttles; `clock` is the host's.
        """
        super().__init__(agent_id, doze=doze, metrics=metrics, clock=clock)
        self._doze_fd = doze.fd
        self._state = state = ProcessorState(metrics.values, clock.now_ns(), self.containment)
        state.moved_ns = (moved or clock).now_ns
        self._counters = ClientCounters(metrics, agent_id.index, state.make_due)
        self._probe_counters, self._reporter = ProbeCounters(metrics), self._counters.reporter
        self.timed = timed = TimedRequests(metrics.slab.timings(agent_id.index), clock)
        self.handlers = handlers = HandlerSet(router)
        self._blocks = blocks = LentBlocks(arena)
        memories = FrameMemories(arena, max(_LOGIN_BYTES_MIN, _LOGINS_MIN * logins.bytes_max))
        self._budget = budget = MemoryBudget(
            handlers,
            arena,
            bytes_max=queued_bytes_max,
            requests_max=queued_requests_max,
            processors_in_all=processors_in_all,
        )
        self.table = table = ConnectionTable(
            agent_id, state, watch=EpollWatch(self._epoll), handlers=handlers, budget=budget, clock=clock
        )
        table.logins = logins
        adoption = ConnectionAdoption(table, handlers, state, counters=self._counters, memory=memories.arena)
        self.migration = migration = ConnectionMigration(
            table, handlers, state, adoption=adoption, timed=timed, clock=clock
        )
        self._assignment = HandlerAssignment(table, handlers, blocks=blocks, migration=migration, timed=timed)
        self._slow_frames = SlowFrameReaper(
            table, state, budget=budget, receive_ns_max=receive_ms_max * NS_PER_MS
        )
        self.reader = self._make_reader(memories, request_bytes_max)
        self._block_waits = BlockWaits(
            table, state, memories=memories, budget=budget, reaper=self._slow_frames
        )
        self.writer = ResponseWriter(table, handlers, state, blocks=blocks, timed=timed, migration=migration)
        self.writer.metered = MeteredConnections(table.by_id, handlers, clock.now_ns)
        # Methods that every pass calls, looked up once.
        self._now_ns = clock.now_ns
        self._read_ready, self._has_answers = self.reader.read_ready, handlers.has_answers
        self._send_answers, self._only_woken = self.writer.send_answers, [(doze.fd, select.EPOLLIN)]
        self._unsent = UnsentAnswers(table, state, blocks)
        self._idle_ns_max = idle_ms_max * NS_PER_MS if idle_ms_max >= 0 else 0
        self.handoffs = HandoffReceiver(
            table,
            state,
            epoll=self._epoll,
            counters=self._counters,
            clock=clock,
            tls_listeners=tls_listeners,
        )
        self._next_second_ns = 0
        self.tls_listeners = tls_listeners

    def _make_reader(self, memories: FrameMemories, request_bytes_max: int) -> RequestReader:
        forwarder = RequestForwarder(
            self.table,
            self.handlers,
            self._state,
            budget=self._budget,
            blocks=self._blocks,
            timed=self.timed,
            memories=memories,
            request_bytes_max=request_bytes_max,
        )
        return RequestReader(
            self.table,
            self.handlers,
            self._state,
            forwarder=forwarder,
            budget=self._budget,
            request_bytes_max=request_bytes_max,
        )

    # -- wiring ------------------------------------------------------------------------------------------------

    def attach(self, link: Link) -> None:
        """Use the link of a Handler that has started."""
        self._assignment.attach(link)

    def detach(self, peer: AgentId) -> None:
        """Release all that belongs to a Handler or Processor that has ended.

        Connections whose migration an ended Processor did not acknowledge stay here.
        """
        if not self.migration.detach(peer):
            self._assignment.detach(peer)

    def handler_leaving(self, peer: AgentId) -> None:
        """Move connections away from a Handler that will end, each once it has no request in work."""
        self._assignment.drain(peer)

    def uses(self, peer: AgentId) -> bool:
        """Return True if a Handler has requests, connections or blocks of this Processor, or may still get some."""
        return self._assignment.uses(peer)

    def attach_migration(self, peer: AgentId, sock: socket.socket) -> None:
        """Use the socket pair with another Processor, which has started."""
        self.migration.attach(peer, sock)

    def attach_handoff(self, peer: AgentId, sock: socket.socket) -> None:
        """Receive sockets from an Acceptor that has started."""
        self.handoffs.attach(peer, sock)

    def apply_settings(self, settings: DynamicSettings) -> None:
        """Use changed dynamic settings: limits of memory, and TLS settings of the listeners."""
        self._budget.apply_settings(settings)
        if self.tls_listeners is not None:
            self.tls_listeners.apply_settings(settings)

    def adopt_probe(self, sock: socket.socket) -> None:
        """Register the connection of the broker's own readiness probe. It has no listener and no quota."""
        transport, flags = PlaintextTransport(sock), FLAG_PROBE
        self.table.open(transport, self._probe_counters, listener=0, flags=flags, address=NO_ADDRESS, port=0)

    def next_deadline_ms(self) -> int:
        if self.table.has_throttled:
            return min(self._pressed_ms(), self.table.throttled_ms())
        return self._pressed_ms() if self._state.is_pressed else 500

    # -- the duty cycle ----------------------------------------------------------------------------------------

    def do_work(self, timeout_ms: int) -> int:
        """Run one duty cycle, in the steps that the module's docstring lists. Return the amount of work done.

        The steps are inline, because a method for each would cost every request a call.
        """
        self.cycle_count += 1
        state, handlers = self._state, self.handlers
        # Answers.
        work = 0
        if handlers.may_have_answers or not timeout_ms:
            handlers.may_have_answers = False
            work = self._send_answers()
            if work:
                self.sleep_ms_max = STORE_MS
        if timeout_ms > self.sleep_ms_max:
            timeout_ms = self.sleep_ms_max
        if state.is_pressed:
            work += self._relieve()
            timeout_ms = min(timeout_ms, self.next_deadline_ms())
        # Wait, even after work: if a socket is ready this does not sleep, and it saves a separate poll.
        events = (
            self._doze.wait(self._poll, timeout_ms / 1000, self._has_answers) if timeout_ms else self._poll(0)
        )
        if not events and handlers.may_have_answers:
            # A Handler answered meanwhile, so the wait neither slept nor polled. With a lone client nothing else can
            # have happened, so a cycle without work skips the poll.
            events = self._poll(0) if work else self._only_woken
        state.now_ns = now_ns = self._now_ns()
        if events == self._only_woken and timeout_ms >= STORE_MS and now_ns < state.due_ns:
            # The eventfd ended the sleep, and no socket is ready. Send the answers and wait again, until the tick at
            # most, so that a lone client's request costs one cycle instead of two.
            handlers.may_have_answers = False
            work += self._send_answers()
            events = _NO_EVENTS
            if now_ns < state.due_ns and not (state.is_pressed or handlers.unpublished):
                events = self._doze.wait(self._poll, (state.due_ns - now_ns) / 1e9, self._has_answers)
                state.now_ns = now_ns = self._now_ns()
        # Read.
        if events:
            others = self._read_ready(events)
            work += len(events)
            if others:
                work += self._on_events(others) - len(others)
        # Publish.
        if handlers.unpublished:
            handlers.publish()
        # Tick.
        if now_ns >= state.due_ns:
            self._on_due(work)
        elif work:
            self.sleep_ms_max = STORE_MS  # Wake up for the next tick, which stores the new counts.
            if work > _LONE_WORK:
                handlers.may_have_answers = True
        return work

    def _on_events(self, events: list[tuple[int, int]]) -> int:
        """Send, read or close for each event of the poll.

        Connections that are only readable are handled before, by `read_ready`. Return the amount of work.
        """
        work = 0
        others: list[int] = []
        for fd, mask in events:
            connection = self.table.by_fd.get(fd)
            if connection is None:
                if fd == self._doze_fd:
                    self.handlers.may_have_answers = True
                else:
                    others.append(fd)
                continue
            work += 1
            try:
                if mask & select.EPOLLOUT:
                    self.writer.send_rest(connection)
                elif mask & select.EPOLLIN:
                    self.reader.read(connection)
                else:
                    self.table.hung_up(connection)
            except Exception as error:  # noqa: BLE001 - contained: only this connection is closed
                self.table.close_failed(connection, error)
        # Handle these last, because they close connections and open others with the same descriptor numbers. A later
        # event of this poll would reach the wrong connection.
        for fd in others:
            work += self._on_other_event(fd)
        return work

    def _on_other_event(self, fd: int) -> int:
        """Read from an Acceptor or another Processor, or note that the descriptor given to `watch` is readable.

        Return the amount of work.
        """
        if fd in self.handoffs.by_fd:
            return self.handoffs.receive(fd)
        if self.migration.on_readable(fd):
            return 1
        if fd == self._watched_fd:
            self.is_called = True
        return 0

    def _relieve(self) -> int:
        """Continue connections that wait for something that no descriptor reports (ProcessorState.is_pressed).

        Return the amount of work of migrations and TLS. Other work is not counted.
        """
        work = 0
        table, migration = self.table, self.migration
        if table.stalled:
            self.reader.retry_stalled()
        if table.awaiting_block:
            self._block_waits.retry()
        table.resume_short_of_memory()
        if table.has_throttled:
            table.resume_throttled()
        is_moving = migration.is_active
        if is_moving:
            work += migration.work()
        tls = self.handoffs.tls
        if tls is not None:
            work += tls.work(self.reader.read)
        if self.handlers.unpublished:
            self.handlers.publish()
        self._state.is_pressed = bool(
            is_moving
            or table.stalled
            or table.awaiting_block
            or table.short_of_memory
            or table.has_throttled
            or (tls is not None and tls.is_busy)
        )
        # If this cycle does not sleep, it must look for answers itself, because Handlers do not signal a Processor that
        # is awake.
        self._has_answers()
        return work

    def _pressed_ms(self) -> int:
        """Return how long to sleep, in ms, while ProcessorState.is_pressed.

        This is the shortest poll interval of what connections wait for. The end of a throttle does not count here.
        """
        waits_for_room = self.table.stalled or self.table.short_of_memory or self.is_moving
        wait_ms = _STALL_POLL_MS if waits_for_room else STORE_MS if self.table.awaiting_block else 500
        tls = self.handoffs.tls
        return wait_ms if tls is None else min(wait_ms, tls.wait_ms())

    def close(self) -> None:
        for connection in list(self.table.by_fd.values()):
            self.table.close(connection, "the broker stops")
        self.migration.close()
        self.handoffs.close()
        self.writer.files.close()
        self._epoll.close()

    def use_listeners(self, names: list[str]) -> None:
        """Set the names of the open listeners, by index, after listeners were added or removed."""
        if self.tls_listeners is not None:
            self.tls_listeners.use_names(names)

    def renew_certificates(self) -> list[str]:
        """Read keys and certificates again, for new connections. Return the problems."""
        tls = self.handoffs.tls
        return [] if tls is None else tls.renew()

    # -- leaving, stopping, operators' requests ------------------------------------------------------------------

    def begin_leave(self, targets: list[AgentId]) -> None:
        """Give every connection to these Processors, and accept no new one. `is_drained` reports the end."""
        self.migration.migrate_all(targets)

    def move_connections(self, count: int, target: AgentId) -> int:
        """Give `count` connections to another Processor; return how many will go."""
        return self.migration.rebalance(count, target)

    @property
    def is_moving(self) -> bool:
        """Return True while a connection migrates to or from another Processor."""
        return self.migration.is_active

    def drain(self) -> None:
        """Read no more requests, cancel migrations, and answer the requests that were read."""
        self._state.is_stopping = True
        self.migration.cancel_all()
        self.table.pause_all()

    def is_drained(self) -> bool:
        """Return True if the Processor can be closed without loss.

        When the broker stops, every request that was read is answered. When only this Processor leaves, no connection
        and no lent block is left, and the Acceptors have all reports.
        """
        if self._state.is_leaving and not self._state.is_stopping:
            has_waiting = self.table.by_fd or self.is_moving or self._blocks.by_request
            return not has_waiting and not self._reporter.has_unsent
        if not self._state.is_stopping or self.is_moving:
            return False
        return not self.table.has_whole_request() and not self.table.has_unanswered()

    def close_listener(self, listener: int) -> int:
        """Close every connection of a removed listener. Return their number."""
        return self.table.close_listener(listener)

    def open_listener(self, listener: int) -> None:
        """Let another listener use the index of a removed one."""
        self.table.open_listener(listener)

    def describe_connections(self) -> list[dict[str, Any]]:
        """Return a description of each connection, for `kproc clients`."""
        return self.table.describe()

    def kill_connection(self, name: str) -> bool:
        """Close the connection with the id that `describe_connections` shows. Return False if it is not here."""
        return self.table.kill(name)

    # -- periodic work -----------------------------------------------------------------------------------------

    def _on_due(self, work: int) -> None:
        """End a pass in which reports, times of requests or the tick are due."""
        if self.timed.leaving:
            self.timed.finish(self.table.by_id)
        if self._reporter.has_unsent:
            self._reporter.flush()
        if self._state.now_ns >= self._next_store_ns:
            self._tick(self._state.now_ns)
        elif work:
            self.sleep_ms_max = STORE_MS
        is_late = self.timed.leaving or self._reporter.has_unsent
        self._state.due_ns = 0 if is_late else self._next_store_ns

    def follow_time(self, on_done: Callable[[], None]) -> None:
        super().follow_time(on_done)
        self._state.make_due()

    def _rest_ms(self) -> int:
        return STORE_MS if self._reporter.has_unsent else super()._rest_ms()

    def _on_tick(self, now_ns: int) -> None:
        """Store the counts of connections and rings, and end SASL sessions that have expired.

        Once a second, do the slower checks.
        """
        self.writer.metered.send_times()
        counts = self._values
        counts[SLOT["connections"]] = len(self.table.by_fd)
        senders = self.handlers.senders()
        counts[SLOT["ring_capacity_bytes"]] = sum(sender.capacity for sender in senders)
        counts[SLOT["ring_fill_bytes"]] = sum(sender.capacity - sender.free_bytes() for sender in senders)
        counts[SLOT["ring_records"]] = sum(sender.waiting(_COUNTED_MAX) for sender in senders)
        self._counters.listeners.store()
        self.table.expire_sessions()
        if now_ns >= self._next_second_ns:
            self._next_second_ns = now_ns + 1_000_000_000
            self._state.refusals.report_suppressed(now_ns)
            counts[SLOT["requests_inflight"]] = sum(c.inflight for c in self.table.by_fd.values())
            self.writer.files.drop_unlinked()
            self._assignment.replace_dead_homes()
            self._slow_frames.work()
            self._blocks.recall()
            self._unsent.work()
            tls = self.handoffs.tls
            if tls is not None:
                tls.every_second()
            if self.table.logging_in:
                self.table.expire_logins(now_ns)
            if self._idle_ns_max:
                self.table.expire_idle(now_ns - self._idle_ns_max)
