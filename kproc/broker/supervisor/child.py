"""ChildRole: the life of a forked child. It receives regions and sockets, builds its role, runs, drains and closes it.

supervisor -> child                                  child -> supervisor
slab, table, eventfd, arena, listening  (one fd)     ready     the role is built and attached
                                                     failed    the role cannot be built: the reason
start        build the role                          settings  the dynamic settings (controller only)
peer_eventfd, peer_arena, link (one fd)              ask       a request of the controller
handoff, migration, probe (fd)                       closed    files are closed, `is_clean` says how
go           all peers of the start are attached
detach       a peer was reaped; with `is_final` it has no successor
processes    the list of processes (controller only)
answer       the reply to a request of the controller
close        close files and exit
The other messages to a running role are the same on all transports: role_messages.py.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import socket
from collections.abc import Callable
from typing import Any, Final

from kproc.broker.acceptor.acceptor import Acceptor
from kproc.broker.cleaner.cleaner import Cleaner
from kproc.broker.controller.controller import Controller
from kproc.broker.handler.handler import Handler
from kproc.broker.handler.syncer import Syncer, ThreadSyncer
from kproc.broker.ipc.arena import Arena, ArenaReader
from kproc.broker.ipc.link import open_first_end, open_second_end
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.wait import Sleeper, Waker
from kproc.broker.metrics.slab import MetricsRow, Slab
from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.processor import Processor
from kproc.broker.role.control_requests import ControlRequests, OnReply
from kproc.broker.role.partition_table import PartitionTable
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import HANDLER, slab_row
from kproc.broker.storage.fs import StorageFailure
from kproc.broker.supervisor import stacks
from kproc.broker.supervisor.broker import RoleParts, SupervisorCalls, build_role
from kproc.broker.supervisor.logs import set_role
from kproc.broker.supervisor.role_messages import RoleMessages
from kproc.broker.transport.agent import Agent, AgentId, Link, beat_ms
from kproc.broker.transport.process import ControlSocket
from kproc.common.clock import NS_PER_MS, Clock, SystemClock
from kproc.common.errors import Corrupt, FatalError

logger = logging.getLogger(__name__)

# Thresholds of Python's cyclic garbage collector, above its defaults: reference counts free the objects of a request,
# and the collector only has to find rare cycles. All other clients of a role wait during a collection, which takes
# about 0.3 us an object. The young generation has 10,000 objects, so a collection of the middle one visits at most
# 40,000 (12 ms). Full collections stay rare.
_GC_THRESHOLD: Final = (10_000, 2, 5_000)
# A longer collection (ns) is counted. Collections of the young generations are shorter on a busy machine, too.
_LONG_GC_NS: Final = 50 * NS_PER_MS
_LONG_GC: Final = SLOT["long_garbage_collections"]
# Longest sleep of the role in ms while the supervisor waits for its report, such as "ready" or "drained".
_NEWS_MS: Final = 2
_TURNS_MAX: Final = 64


class ChildRole:
    """Runs one role in a forked child. The child creates its only instance after the fork."""

    def __init__(
        self, agent_id: AgentId, plan: BrokerPlan, control: ControlSocket, *, is_restart: bool
    ) -> None:
        self._id = agent_id
        self._plan = plan
        self._control = control
        self._is_restart = is_restart
        self._fds: dict[str, int] = {}
        self._eventfds: dict[AgentId, int] = {}
        self._arenas: dict[AgentId, ArenaReader] = {}
        self._slab: Slab | None = None
        self._agent: Agent | None = None
        self._messages: RoleMessages | None = None
        self._requests = ControlRequests()
        self._is_running = True
        self._is_ready = False
        self._can_be_ready = False
        # Functions for the supervisor's messages: `_fd_handlers` for those that carry a descriptor, `_handlers` for the
        # others.
        self._fd_handlers: dict[str, Callable[[dict[str, Any], int], None]] = {
            "slab": self._attach_slab,
            **dict.fromkeys(("table", "eventfd", "arena", "listening"), self._keep_fd),
            "peer_eventfd": self._keep_peer_eventfd,
            "peer_arena": self._attach_peer_arena,
            "link": self._attach_link,
            "handoff": self._attach_handoff,
            "migration": self._attach_migration,
            "probe": self._adopt_probe,
        }
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "start": self._start,
            "detach": self._detach,
            "go": self._set_linked,
            "processes": self._update_processes,
            "answer": self._on_response,
            "close": self._close,
        }

    def run(self) -> int:
        """Run the role until the supervisor sends `close` or dies. Return the exit status."""
        set_role(str(self._id))
        stacks.install()
        gc.set_threshold(*_GC_THRESHOLD)
        gc.enable()
        # Building the role needs descriptors from the supervisor, so handle its messages until "start" has built the
        # role.
        while self._agent is None:
            if not self._is_running:
                return 1
            message = self._control.receive()
            if message is not None:
                self._handle_message(*message)
            else:
                _wait_readable(self._control.sock)
        agent, messages, control = self._agent, self._messages, self._control
        assert messages is not None
        agent.watch(control.fd)
        rest_ms = beat_ms(self._plan.config.kproc_hung_ms)
        turns = 0
        while self._is_running:
            owes_news = not self._is_ready or messages.owes_news or control.has_unsent
            agent.do_work(_NEWS_MS if owes_news else rest_ms)
            turns += 1
            # Reading the control socket costs a system call. A role that sleeps learns from its epoll that the socket
            # is readable. A role too busy to sleep reads the socket every _TURNS_MAX duty cycles.
            if agent.is_called or turns >= _TURNS_MAX:
                agent.is_called = False
                turns = 0
                self._handle_messages()
            if owes_news:
                self._report()
                messages.report()
                self._flush()
        return 0

    def _handle_messages(self) -> None:
        while self._is_running:
            try:
                message = self._control.receive()
            except EOFError:
                # The supervisor has died. Usually PR_SET_PDEATHSIG kills this process before it reads the end of the
                # socket.
                logger.warning("the supervisor has ended: this process ends, too")
                self._is_running = False
                return
            if message is None:
                return
            self._handle_message(*message)

    def _report(self) -> None:
        agent = self._agent
        assert agent is not None
        # A Handler is not ready without its image of the metadata, because it answers every request from the image.
        if (
            self._can_be_ready
            and not self._is_ready
            and (not isinstance(agent, Handler) or agent.has_image())
        ):
            self._is_ready = True
            self._send({"do": "ready"})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(message)
        except (BrokenPipeError, ConnectionResetError):
            logger.debug("cannot send to the supervisor: its process has ended, so this one ends next")

    def _flush(self) -> None:
        try:
            self._control.flush()
        except (BrokenPipeError, ConnectionResetError):
            logger.debug("cannot send to the supervisor: its process has ended, so this one ends next")

    def _send_request(self, what: str, body: dict[str, Any], on_reply: OnReply) -> None:
        self._requests.send_request("supervisor", self._send, what, body, on_reply)

    def _handle_message(self, message: dict[str, Any], fd: int | None) -> None:
        if fd is not None:
            self._fd_handlers[message["do"]](message, fd)
        elif self._messages is None or not self._messages.handle(message):
            self._handlers[message["do"]](message)

    # -- messages from the supervisor --------------------------------------------------------------------------

    def _attach_slab(self, _message: dict[str, Any], fd: int) -> None:
        region = Region.attach(fd, kind=RegionKind.SLAB)
        self._slab = Slab(region.words, is_new=False)
        # Close the descriptor, because the mapping stays valid without it and descriptors are limited.
        region.close_fd()

    def _keep_fd(self, message: dict[str, Any], fd: int) -> None:
        self._fds[message["do"]] = fd

    def _start(self, message: dict[str, Any]) -> None:
        try:
            self._agent = build_role(self._id, self._plan, self._make_parts(message))
        except (FatalError, Corrupt, StorageFailure) as error:
            # The host lacks a resource, or files are damaged. Report the reason, which tells an operator more than a
            # traceback.
            self._send({"do": "failed", "reason": str(error)})
            # Send the message now, because the process ends next and would lose a queued one.
            self._flush()
            self._is_running = False
            return
        self._messages = RoleMessages(self._agent, self._send)

    def _keep_peer_eventfd(self, message: dict[str, Any], fd: int) -> None:
        peer = AgentId(*message["peer"])
        if peer in self._eventfds:
            # A restarted peer uses the same eventfd as its predecessor, and our wakers already have a descriptor of it.
            os.close(fd)
        else:
            self._eventfds[peer] = fd

    def _attach_peer_arena(self, message: dict[str, Any], fd: int) -> None:
        self._arenas[AgentId(*message["peer"])] = ArenaReader.attach(fd, generation=message["generation"])

    def _attach_link(self, message: dict[str, Any], fd: int) -> None:
        peer = AgentId(*message["peer"])
        region = Region.attach(fd, kind=RegionKind.LINK, generation=message["generation"])
        producer, consumer = open_first_end(region) if message["is_first"] else open_second_end(region)
        region.close_fd()
        assert self._slab is not None
        assert self._agent is not None
        waker = Waker(self._slab.words, self._slab.row_word(slab_row(peer)), self._eventfds[peer])
        link = Link(
            peer,
            sender=producer,
            receiver=consumer,
            waker=waker,
            generation=message["generation"],
            arena=self._arenas.get(peer),
        )
        self._agent.attach(link)

    def _attach_handoff(self, message: dict[str, Any], fd: int) -> None:
        assert isinstance(self._agent, (Acceptor, Processor))
        self._agent.attach_handoff(AgentId(*message["peer"]), socket.socket(fileno=fd))

    def _attach_migration(self, message: dict[str, Any], fd: int) -> None:
        assert isinstance(self._agent, Processor)
        self._agent.attach_migration(AgentId(*message["peer"]), socket.socket(fileno=fd))

    def _adopt_probe(self, _message: dict[str, Any], fd: int) -> None:
        assert isinstance(self._agent, Processor)
        self._agent.adopt_probe(socket.socket(fileno=fd))

    def _detach(self, message: dict[str, Any]) -> None:
        peer = AgentId(*message["peer"])
        assert self._agent is not None
        assert self._messages is not None
        if message["is_final"] and isinstance(self._agent, Processor):
            # A new Handler whose start failed never got `leave`, so this Processor has not heard `handler_leaving` yet.
            self._agent.handler_leaving(peer)
        # Detach before closing the arena below, because requests from the peer may be views of its arena.
        self._agent.detach(peer)
        self._messages.discard_peer(peer)
        arena = self._arenas.pop(peer, None)
        if arena is not None:
            arena.close()
        if message["is_final"] and peer in self._eventfds:  # No successor will use this eventfd.
            os.close(self._eventfds.pop(peer))

    def _set_linked(self, _message: dict[str, Any]) -> None:
        self._can_be_ready = True
        if isinstance(self._agent, (Handler, Controller)):
            self._agent.set_linked()

    def _update_processes(self, message: dict[str, Any]) -> None:
        if isinstance(self._agent, Controller):
            self._agent.status.update(message)

    def _on_response(self, message: dict[str, Any]) -> None:
        self._requests.handle_answer(message)

    def _close(self, message: dict[str, Any]) -> None:
        assert self._agent is not None
        try:
            if isinstance(self._agent, Cleaner):
                self._agent.finish(is_clean=message["is_clean"])
            unknown = self._agent.close()
            is_clean = unknown is None
            if unknown is not None:
                logger.info(
                    "not a clean stop: the log of %s is offline or was not opened, so the next start recovers all logs",
                    unknown,
                )
        except OSError as error:
            logger.error("cannot close cleanly, so the next start recovers all logs: %s", error)
            is_clean = False
        self._is_running = False
        self._send({"do": "closed", "is_clean": is_clean})

    # -- building ----------------------------------------------------------------------------------------------

    def _make_parts(self, message: dict[str, Any]) -> RoleParts:
        """Return the parts of this role, made of the descriptors that the supervisor has sent."""
        assert self._slab is not None
        row = slab_row(self._id)
        metrics = MetricsRow(self._slab, row, os.getpid())
        gc.callbacks.append(count_long_collections(metrics.values, SystemClock()))
        doze = Sleeper(self._slab.words, self._slab.row_word(row), self._fds["eventfd"])
        syncer: Syncer | None = None
        if self._id.role == HANDLER:
            # After an fdatasync the sync thread writes to the eventfd by which other roles wake the Handler, because
            # the Handler may sleep in epoll.
            syncer = ThreadSyncer(f"{self._id}-sync", lambda: os.eventfd_write(doze.fd, 1))
        return RoleParts(
            doze=doze,
            metrics=metrics,
            is_restart=self._is_restart,
            table=self._attach_table(),
            listening=socket.socket(fileno=self._fds["listening"]) if "listening" in self._fds else None,
            arena=self._attach_arena(message),
            syncer=syncer,
            supervisor=SupervisorCalls(
                send_request=self._send_request,
                send_settings=lambda settings: self._send(settings.as_message()),
                handler_count=message.get("handler_count"),
            ),
        )

    def _attach_table(self) -> PartitionTable | None:
        if "table" not in self._fds:
            return None
        region = Region.attach(self._fds["table"], kind=RegionKind.TABLE)
        table = PartitionTable(region.words)
        region.close_fd()
        return table

    def _attach_arena(self, message: dict[str, Any]) -> Arena | None:
        if "arena" not in self._fds:
            return None
        region = Region.attach(self._fds["arena"], kind=RegionKind.ARENA)
        return Arena(region, min(message["arena_warm_bytes"], region.payload_bytes))


def count_long_collections(values: list[int], clock: Clock) -> Callable[[str, dict[str, int]], None]:
    """Return a callback for `gc.callbacks` that counts long garbage collections in a role's metrics."""
    began_ns = 0

    def on_collection(phase: str, _info: dict[str, int]) -> None:
        nonlocal began_ns
        if phase == "start":
            began_ns = clock.now_ns()
        elif clock.now_ns() - began_ns > _LONG_GC_NS:
            values[_LONG_GC] += 1

    return on_collection


def _wait_readable(sock: socket.socket) -> None:
    """Sleep until the control socket is readable. Its `receive` never blocks, because it uses MSG_DONTWAIT."""
    select.select([sock], [], [])
