"""Children: the supervisor's roles as processes. It forks, links, watches (by pidfd) and restarts them.

Children knows the resources that a role needs at its start, and which roles are linked. supervisor.py and scale.py
decide how many roles there are. Children never blocks on a child and survives the death of any child at any moment.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.role.control_requests import ControlRequests, OnReply
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import ACCEPTOR, CONTROLLER, HANDLER, PROCESSOR
from kproc.broker.supervisor.child import ChildRole
from kproc.broker.supervisor.regions import Regions
from kproc.broker.supervisor.roles_table import ManagedRole, RolesTable
from kproc.broker.supervisor.topology import WRITERS
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.process import Child, fork_child
from kproc.common.errors import FatalError

logger = logging.getLogger(__name__)

# A role that dies within this time after its start probably failed by itself. A kill from outside usually comes later.
_QUICK_DEATH_NS: Final = 2_000_000_000
_BACKOFF_NS: Final = 50_000_000
_BACKOFF_NS_MAX: Final = 5_000_000_000
_DOWN_BACKOFF_NS_MAX: Final = 60_000_000_000
# Errors of a send to a child that has died. Its pidfd becomes readable, too, and that event plans a successor. So these
# errors need no action.
_ENDED: Final = (BrokenPipeError, ConnectionResetError)

OnMessage = Callable[[ManagedRole, dict[str, Any]], None]


class Children:
    """All child processes of one broker. Only the supervisor's thread uses it."""

    def __init__(
        self,
        plan: BrokerPlan,
        *,
        lock_fd: int,
        listening: Mapping[AgentId, socket.socket],
        metrics_listening: socket.socket | None = None,
        epoll: select.epoll,
        on_message: OnMessage,
        on_failure: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.table = RolesTable()
        self.regions = Regions(plan.config)
        self.requests = ControlRequests()
        self.settings = DynamicSettings()
        # The number of Handlers that own partitions, sent to the controller at each of its starts. None: the controller
        # computes it from the settings.
        self.handler_count: int | None = None
        self.is_stopping = False
        # True once clients may connect. From then on no role's death ends the broker.
        self.has_started = False
        self._clock = plan.clock
        self._lock_fd = lock_fd
        self._listening = listening
        self._metrics_listening = metrics_listening
        self._epoll = epoll
        self._by_fd: dict[int, ManagedRole] = {}
        self._on_message = on_message
        self._on_failure = on_failure
        self.on_change = on_change

    # -- starting ----------------------------------------------------------------------------------------------

    def start(self, role: ManagedRole, *, is_restart: bool) -> None:
        """Fork one role and send it its own descriptors and settings. `introduce` links it with its peers.

        is_restart: the broker runs already, so the role was added by a scale-up or an earlier process of it has died.
        Raises OSError or FatalError if the host lacks a resource.
        """
        agent, plan = role.agent, self.plan
        role.reset(self._clock.now_ns())
        # Freeze the heap before the fork: a garbage collection in the child would otherwise copy shared pages, and
        # finalisers of inherited objects would close descriptor numbers that mean something else in the child.
        gc.freeze()
        # An flock belongs to the open file, which every role that writes files inherits. While one such role lives, no
        # other broker can lock the data directory, even after the supervisor was killed.
        role.child = child = fork_child(
            agent,
            lambda control: ChildRole(agent, plan, control, is_restart=is_restart).run(),
            keep=[self._lock_fd] if agent.role in WRITERS else [],
        )
        for fd in child.watched_fds:
            self._by_fd[fd] = role
            self._epoll.register(fd, select.EPOLLIN)
        listening = self._listening[agent].fileno() if agent.role == ACCEPTOR else -1
        if agent == CONTROLLER and self._metrics_listening is not None:
            listening = self._metrics_listening.fileno()
        start: dict[str, object] = {"handler_count": self.handler_count} if agent == CONTROLLER else {}
        try:
            self.regions.send_own_regions(child, listening=listening, start=start)
            # Acceptors and Processors have no image of the metadata to read dynamic settings from, so send them the
            # settings.
            if agent.role in (ACCEPTOR, PROCESSOR):
                child.send(self.settings.as_message())
            if role.serving:
                child.send(role.serving_message())
        except _ENDED:
            logger.debug("cannot send to %s: its process has ended and will be reaped next", agent)

    def introduce(self, role: ManagedRole) -> None:
        """Link a role with every running peer, then send it `go`. Both roles get their link with a new generation."""
        for other in self.table:
            if role.child is None:
                return
            if other is role or other.child is None or other.agent in role.peers:
                continue
            try:
                is_linked = self._connect(role, other)
            except _ENDED:
                # One of the two roles has died. Its exit event comes next: `_on_exit` sends `detach` to the other role,
                # and the successor gets a new link.
                is_linked = True
            if is_linked:
                role.peers.add(other.agent)
                other.peers.add(role.agent)
        self.send(role, {"do": "go"})
        self.on_change()

    def _connect(self, one: ManagedRole, other: ManagedRole) -> bool:
        assert one.child is not None
        assert other.child is not None
        if _is_parting(one, other) or _is_parting(other, one):
            return False
        if one.agent in other.targets or other.agent in one.targets:
            # One of the two is a leaving Processor, which migrates its connections to the other one. The other one died
            # and was restarted, so connect the two again.
            self.connect_migration(one, other)
            return False
        return self.regions.connect(one.child, other.child)

    def connect_migration(self, one: ManagedRole, other: ManagedRole) -> None:
        """Connect two Processors, so that connections can migrate between them.

        Do nothing if they are connected already. The two have one socket pair for as long as both live. If the pair
        were replaced while a connection travels over it, both would own the connection: at the end of a pair the source
        keeps a connection that is in flight, and the target keeps every connection that it has received.
        """
        if one.child is None or other.child is None or other.agent in one.migrations:
            return
        one.migrations.add(other.agent)
        other.migrations.add(one.agent)
        try:
            self.regions.connect_migration(one.child, other.child)
        except _ENDED:
            logger.debug(
                "cannot connect %s with %s: one of the two processes has ended", one.agent, other.agent
            )

    def restart_due(self) -> None:
        """Restart the roles whose back-off is over, and send messages that did not fit into a child's socket before."""
        for role in self.table:
            if role.child is not None:
                self.flush(role)
            elif role.restart_at_ns and self._clock.now_ns() >= role.restart_at_ns and not self.is_stopping:
                self._restart(role)

    def next_restart_ns(self) -> int | None:
        """Return the time of the next restart (monotonic ns), or None if no role waits for one or the broker stops."""
        if self.is_stopping:
            return None
        return min((role.restart_at_ns for role in self.table if role.restart_at_ns), default=None)

    def _restart(self, role: ManagedRole) -> None:
        role.restarts += 1
        logger.info("restarting %s: restarts=%d", role.agent, role.restarts)
        try:
            self.start(role, is_restart=True)
            # Send a new controller the list of processes before its first link, because requests for the status can
            # arrive over that link.
            self.on_change()
            self.introduce(role)
        except (OSError, FatalError) as error:
            # The host is short of processes, memory or descriptors. The other roles go on. Retry later, as for a role
            # that died soon after its start. If the child was forked already, kill it, and `_on_exit` plans the retry.
            logger.error("%s cannot be started now, trying again later: %s", role.agent, error)
            if role.child is not None:
                role.child.kill()
            else:
                self._plan_restart(role, 0)
                self.on_change()

    # -- talking -----------------------------------------------------------------------------------------------

    def send(self, role: ManagedRole, message: dict[str, Any]) -> None:
        """Send a message to a role. Discard it if the role has ended."""
        if role.child is not None:
            try:
                role.child.send(message)
            except _ENDED:
                logger.debug("cannot send to %s: its process has ended and will be reaped next", role.agent)

    def probe(self, role: ManagedRole) -> socket.socket:
        """Open the broker's own connection to a Processor and return our end.

        If the Processor has ended, the other end is closed.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            if role.child is not None:
                try:
                    role.child.send({"do": "probe"}, theirs.fileno())
                except _ENDED:
                    logger.debug(
                        "cannot send to %s: its process has ended and will be reaped next", role.agent
                    )
        return ours

    def flush(self, role: ManagedRole) -> None:
        """Send queued messages that did not fit into the child's socket before."""
        if role.child is not None:
            try:
                role.child.control.flush()
            except _ENDED:
                logger.debug("cannot send to %s: its process has ended and will be reaped next", role.agent)

    def send_request(
        self,
        role: ManagedRole,
        what: str,
        body: dict[str, Any],
        on_reply: OnReply,
        *,
        timeout_ns: int | None = None,
    ) -> None:
        """Send the request `what` to a role and call `on_reply` with its reply.

        The reply is {"lost": True} if the role is not running, ends before it replies, or exceeds `timeout_ns`.
        """
        until_ns = None if timeout_ns is None else self._clock.now_ns() + timeout_ns
        self.requests.send_request(
            role.agent, lambda message: self.send(role, message), what, body, on_reply, until_ns=until_ns
        )
        if role.child is None:
            self.requests.fail(role.agent)

    def send_settings(self, settings: DynamicSettings) -> None:
        """Send the settings to every running Acceptor and Processor, and keep them for those that start later."""
        self.settings = settings
        for role in self.table.of(ACCEPTOR, PROCESSOR):
            self.send(role, settings.as_message())

    # -- hearing -----------------------------------------------------------------------------------------------

    def on_event(self, fd: int) -> None:
        """Read the messages of a child, or reap it if its pidfd is readable.

        Ignore a descriptor of a child that was reaped.
        """
        role = self._by_fd.get(fd)
        if role is None:
            # An earlier event of the same poll has reaped this child and removed its descriptors.
            return
        child = role.child
        assert child is not None
        if fd == child.control.fd:
            try:
                while role.child is child and (message := child.receive()) is not None:
                    self._on_message(role, message)
            except EOFError:
                # The child has closed its socket. Its pidfd reports the exit.
                self._epoll.unregister(fd)
                del self._by_fd[fd]
        else:
            self._on_exit(role, child)

    def _on_exit(self, role: ManagedRole, child: Child) -> None:
        """Reap a child that has ended, tell its peers, and plan its successor."""
        # The child's last messages are still in the socket: replies, and `closed` with the flag for a clean close.
        self._drain_control(role, child)
        for fd in child.watched_fds:
            if self._by_fd.pop(fd, None) is not None:
                self._epoll.unregister(fd)
        status = child.reap()
        role.child = None
        self.requests.fail(role.agent)
        # A stop closes the roles in waves. Do not tell the roles of later waves to detach from a closed role: they
        # close soon, too, and a ring that nobody reads does no harm.
        if role.is_closed and self.is_stopping:
            return
        # A leaving role was scaled away, and a role on trial has failed to start. Neither gets a successor, whether it
        # ended cleanly, crashed or was killed.
        is_final = role.is_leaving or role.is_trial
        lived_ns = self._clock.now_ns() - role.started_ns
        end = role.failure or describe_exit(status)
        # At the broker's start a role that ends before it was ready would probably end again, for example because the
        # metadata log is damaged or the host lacks memory. So the start of the broker fails at once.
        is_first = not (role.is_ready or role.restarts or self.has_started)
        if not role.is_closed and not (is_first and role.failure):
            logger.error("%s (pid %d) ended: %s", role.agent, child.pid, end)
        self._detach(role, is_final=is_final)
        if self.is_stopping:
            return
        if is_final:
            self.table.remove(role.agent)
        elif is_first:
            self._on_failure(f"{role.agent} could not start: {end}")
            return
        else:
            self._plan_restart(role, lived_ns)
        self.on_change()

    def discard(self, role: ManagedRole) -> None:
        """Remove a role that has no child now, so that it is never started again."""
        assert role.child is None, role.agent
        self._detach(role, is_final=True)
        self.table.remove(role.agent)
        self.on_change()

    def _detach(self, role: ManagedRole, *, is_final: bool) -> None:
        """Tell the peers of a reaped role to detach their links.

        Only after this message may a peer reuse memory that the dead role could read.

        With `is_final` the role gets no successor. Every role then gets the message, because a role that has already
        detached the link would otherwise wait for the successor.
        """
        for other in self.table:
            other.users.discard(role.agent)
            other.migrations.discard(role.agent)
            if is_final or role.agent in other.peers:
                other.peers.discard(role.agent)
                self.send(other, {"do": "detach", "peer": role.agent, "is_final": is_final})
        self.regions.release(role.agent, is_final=is_final)

    def _plan_restart(self, role: ManagedRole, lived_ns: int) -> None:
        """Decide when the successor starts: at once, or after growing pauses if this role keeps dying quickly.

        Too many quick deaths end a broker that was never ready. A broker that was ready goes on without the role,
        because the other roles still serve clients and the cause may go away.
        """
        role.quick_deaths = role.quick_deaths + 1 if lived_ns < _QUICK_DEATH_NS else 0
        if role.is_failing and not self.has_started:
            self._on_failure(f"{role.failing}: giving up")
            return
        # Restart at once after the first quick death, because it may have been a kill from outside.
        longest_ns = _DOWN_BACKOFF_NS_MAX if role.is_failing else _BACKOFF_NS_MAX
        delay_ns = min(longest_ns, _BACKOFF_NS << min(role.quick_deaths, 16)) if role.quick_deaths > 1 else 0
        role.restart_at_ns = self._clock.now_ns() + delay_ns
        if role.is_failing:
            logger.error(
                "%s; the supervisor starts it again in %d s", role.failing, delay_ns // 1_000_000_000
            )

    @property
    def problem(self) -> str | None:
        """The roles that do not run and died too often right after their start, as text for the status, or None."""
        return (
            "; ".join(role.failing for role in self.table if role.is_failing and role.child is None) or None
        )

    def _drain_control(self, role: ManagedRole, child: Child) -> None:
        """Read and handle the messages that a child sent before it ended."""
        try:
            while (message := child.receive()) is not None:
                self._on_message(role, message)
        # The kernel keeps a dead process's messages until they are read. EOFError follows the last one.
        except EOFError:
            return

    # -- the end -----------------------------------------------------------------------------------------------

    def kill_all(self) -> None:
        """Kill the children that did not end in time: they are stopped by SIGSTOP, loop, or wait for a disk."""
        for role in self.table:
            if role.child is not None:
                logger.warning("%s did not end in time: killing it", role.agent)
        self._kill_all()

    def _kill_all(self) -> None:
        self.is_stopping = True
        for role in self.table:
            if role.child is not None:
                role.child.kill()
        # Kill all children before reaping the first, so that they end in parallel. A restore of a snapshot waits for
        # this.
        for role in self.table:
            if role.child is not None:
                role.child.reap()
                role.child = None

    @contextlib.contextmanager
    def pause_writers(self) -> Iterator[None]:
        """Pause the roles that write files until the context ends.

        A paused role writes nothing, so the files are in a state that a kill of these roles could leave. Roles that
        another program has stopped (SIGSTOP) stay stopped.
        """
        writers = [role.child for role in self.table.of(*WRITERS) if role.child is not None]
        paused = [child for child in writers if not child.is_paused]
        try:
            for child in paused:
                child.kill(signal.SIGSTOP)
            for child in paused:
                child.wait_paused()
            yield
        finally:
            for child in paused:
                child.kill(signal.SIGCONT)

    def close(self) -> None:
        """Kill every child and release every region.

        Children are left only if the start has failed. They got no message to end, so log no line about their late end.
        """
        self._kill_all()
        self.regions.close()


def _is_parting(handler: ManagedRole, processor: ManagedRole) -> bool:
    """Return True if `handler` is a leaving Handler and `processor` a Processor, which then get no link.

    A restarted Processor must not become a new user of a Handler that is being removed.
    """
    return handler.is_leaving and handler.agent.role == HANDLER and processor.agent.role == PROCESSOR


def describe_exit(status: int) -> str:
    """Format a child's exit status for the log. A negative status is the number of the signal that killed it."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
