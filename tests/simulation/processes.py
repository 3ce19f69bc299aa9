"""Processes: the roles' lives as actors, what a fork makes of them, how they sleep, sync and die.

A role's process is the real ChildRole with its real control socket; only its loop is turned inside out, one `turn` for
each duty cycle. `fork` stands in the place of `fork_child`, `SimulatedSleeper` of the Sleeper, `SimulatedSyncer` of the
sync thread.
"""

from __future__ import annotations

import errno
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kproc.broker.handler.handler import Handler
from kproc.broker.handler.syncer import Outcome, sync_one
from kproc.broker.ipc import link as real_link
from kproc.broker.ipc.wait import Sleeper
from kproc.broker.processor.processor import Processor
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from kproc.broker.storage.log import Log, SyncPoint
from kproc.broker.supervisor.child import ChildRole
from kproc.broker.transport.agent import AgentId, beat_ms
from kproc.broker.transport.process import Child, ControlSocket
from kproc.common.errors import FatalError, KafkaError
from tests.simulation import doubles, tls_doubles
from tests.simulation.kernel import Epoll, Flag, error
from tests.simulation.world import MS, Actor, World
from tests.support.due_time import check_due_time

_NEWS_MS: Final = 2
_TURNS_MAX: Final = 64
_FOREVER_NS: Final = 1 << 60
_CLEAN_MARKER: Final = f"/data/{CLEAN_SHUTDOWN_FILE}"


class Gate:
    """One direction of a link as its receiver sees it: while it is closed, nothing has arrived yet."""

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver
        self._is_open = True
        self.release = receiver.release
        self.finish = receiver.finish

    # Methods that stay the same: inboxes keep them.
    def poll(self, limit: int) -> Any:
        """What has arrived."""
        return self._receiver.poll(limit) if self._is_open else ()

    def is_empty(self) -> bool:
        """Return True if nothing has arrived."""
        return not self._is_open or self._receiver.is_empty()

    def open(self) -> None:
        """What has arrived is seen."""
        self._is_open = True

    def shut(self) -> None:
        """Nothing arrives until it is opened."""
        self._is_open = False


class SimulatedRole(ChildRole):
    """A role's process without its loop."""

    _turns = 0
    _linking: AgentId | None = None
    process: Process

    def __init__(self, agent_id: AgentId, plan: BrokerPlan, control: ControlSocket, *, is_restart: bool) -> None:
        if plan.movable is not None:
            # A fork copies all of the clock but its word.
            plan = replace(plan, movable=copy(plan.movable))
        super().__init__(agent_id, plan, control, is_restart=is_restart)
        self.gates: dict[AgentId, Gate] = {}

    def run(self) -> Any:
        """The process runs it."""
        return self

    def turn(self) -> bool:
        """What one pass of `run` does; False when it is over."""
        agent = self._agent
        if agent is None:
            message = self._control.receive()
            if message is None:
                self.process.sleep(_FOREVER_NS)
                return True
            self._handle_message(*message)
            if self._agent is not None:
                self._agent.watch(self._control.fd)
            return self._is_running
        messages, control = self._messages, self._control
        assert messages is not None
        owes_news = not self._is_ready or messages.owes_news or control.has_unsent
        handler = agent if isinstance(agent, Handler) else None
        if handler is not None:
            check_due_time(handler)  # A message of the supervisor has changed it.
        agent.do_work(_NEWS_MS if owes_news else beat_ms(self._plan.config.kproc_hung_ms))
        if handler is not None:
            check_due_time(handler)
        self._turns += 1
        if agent.is_called or self._turns >= _TURNS_MAX or self._sees_control():
            agent.is_called = False
            self._turns = 0
            self._handle_messages()
        if owes_news:
            self._report()
            messages.report()
            self._flush()
        return self._is_running

    def _sees_control(self) -> bool:
        """A role that was asleep would have been told of it by the sleep that is ending now."""
        return self.process.was_asleep and bool(doubles.host.kernel.file(self._control.fd).events() & 1)

    def _attach_link(self, message: dict[str, Any], fd: int) -> None:
        self._linking = AgentId(*message["peer"])
        super()._attach_link(message, fd)

    def _detach(self, message: dict[str, Any]) -> None:
        gate = self.gates.pop(AgentId(*message["peer"]), None)
        if gate is not None:
            gate.open()  # It was reaped: nothing of it is under way any more.
        super()._detach(message)


def _gated(opened: tuple[Any, Any]) -> tuple[Any, Any]:
    process: Process = doubles.host.kernel.current
    role = process.role
    assert role._linking is not None
    producer, consumer = opened
    gate = role.gates[role._linking] = Gate(consumer)
    return producer, gate


def open_first_end(region: Any) -> tuple[Any, Any]:
    """As ipc/link.py, behind a gate."""
    return _gated(real_link.open_first_end(region))


def open_second_end(region: Any) -> tuple[Any, Any]:
    """As ipc/link.py, behind a gate."""
    return _gated(real_link.open_second_end(region))


class Process(Actor):
    """One child of the supervisor."""

    role: SimulatedRole

    def __init__(self, world: World, agent: AgentId, pid: int, keeper: Keeper) -> None:
        super().__init__(world, str(agent))
        self.agent = agent
        self.pid = pid
        self.keeper = keeper
        self.status = 0
        self.ended = Flag()
        self.was_asleep = False
        self.last_slice_turn = -1  # When it handled a slice of a divided request.
        self._has_work: Callable[[], bool] | None = None
        self._sleeper: SimulatedSleeper | None = None

    # -- sleeping ----------------------------------------------------------------------------------------------

    def doze(self, sleeper: SimulatedSleeper, timeout_s: float, has_work: Callable[[], bool]) -> None:
        """It lies down until somebody wakes it."""
        self.sleep(int(timeout_s * 1e9))
        self._sleeper, self._has_work = sleeper, has_work

    def sleep_in_poll(self, _epoll: Epoll, timeout_s: float) -> list[Any]:
        """An epoll that found nothing; what comes is found by the next poll."""
        self.sleep(int(timeout_s * 1e9))
        return []

    # -- living ------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        doubles.host.kernel.current = self
        self.was_asleep = self.sleeps_until_ns > 0
        if self._sleeper is not None:
            self._get_up()
        self.is_awake = True
        self.sleeps_until_ns = 0
        try:
            if not self.role.turn():
                self.end(0)
        except (FatalError, KafkaError, OSError) as problem:
            self._surprise(problem, is_excused=self.keeper.may_fail(self.agent))
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is what we are looking for
            self._surprise(problem, is_excused=False)
        finally:
            doubles.host.kernel.current = self.keeper.supervisor

    def _get_up(self) -> None:
        assert self._has_work is not None
        if not self.is_awake and self._has_work():
            self.world.violate(f"{self.name} slept on although it had work: a wake-up was lost")
        sleeper, self._sleeper, self._has_work = self._sleeper, None, None
        if sleeper is not None:
            sleeper.cancel()

    def _surprise(self, problem: Exception, *, is_excused: bool) -> None:
        self.world.tell("ended", self.name, repr(problem))
        if not is_excused:
            where = traceback.extract_tb(problem.__traceback__)[-1]
            self.world.violate(
                f"{self.agent.role} ended by {type(problem).__name__}: {problem} ({where.filename}:{where.lineno})"
            )
            if self.world.story is not None:
                self.world.story += traceback.format_exc().splitlines()
        self.end(70)

    def end(self, status: int) -> None:
        """It is over: descriptors go, the supervisor may reap it."""
        if not self.is_alive:
            return
        self.status = status
        if status:
            self.world.disturb()
        self.world.remove(self)
        doubles.host.kernel.close_all_of(self)
        self.keeper.gone(self)
        self.ended.set()


class SimulatedChild(Child):
    """A Child as the supervisor holds it."""

    def __init__(self, process: Process, control: ControlSocket, pidfd: int) -> None:
        super().__init__(process.agent, process.pid, pidfd, control)
        self.process = process

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        self.process.world.tell("kill", self.process.name, signal_number)
        self.process.end(-int(signal_number))

    def reap(self) -> int:
        assert not self.process.is_alive
        doubles.host.kernel.close(self.pidfd)
        self.control.close()
        return self.process.status


class Keeper:
    """Knows every process of one broker: what the doubles of fork, syncer and sleeper act on."""

    def __init__(self, world: World, supervisor: Any) -> None:
        self.world = world
        self.supervisor = supervisor
        self.processes: dict[AgentId, Process] = {}
        self.may_fail: Callable[[AgentId], bool] = lambda _agent: False
        self.sync_ns: Callable[[], int] = lambda: 100_000
        self.forks_fail = 0
        self._pids = 100

    def fork(self, agent: AgentId, main: Callable[[Any], Any], *, keep: Iterable[int]) -> SimulatedChild:
        """In the place of fork_child: a new actor."""
        del keep
        if self.forks_fail > 0:
            self.forks_fail -= 1
            raise error(errno.EAGAIN, "fork")
        if agent.role in ("handler", "cleaner") and doubles.host.disk.may_have(_CLEAN_MARKER):
            self.world.violate(
                f"{agent} starts, and the marker of a clean stop is on the disk or may come back"
            )
        kernel = doubles.host.kernel
        self._pids += 1
        process = Process(self.world, agent, self._pids, self)
        ours, theirs = doubles.SocketModule().socketpair(kind=5)
        kernel._files[theirs.fileno()] = (kernel.file(theirs.fileno()), process)
        pidfd = kernel.install(process.ended)
        kernel.current = process
        role = main(ControlSocket(theirs))  # type: ignore[arg-type]
        kernel.file(theirs.fileno()).watchers[process] = theirs.fileno()  # type: ignore[index]
        kernel.current = self.supervisor
        process.role = role
        role.process = process
        self.processes[agent] = process
        self.world.add(process)
        self.world.tell("fork", agent)
        return SimulatedChild(process, ControlSocket(ours), pidfd)  # type: ignore[arg-type]

    def gone(self, process: Process) -> None:
        if self.processes.get(process.agent) is process:
            del self.processes[process.agent]

    def end_all(self) -> None:
        """The power is gone."""
        for process in list(self.processes.values()):
            process.end(-9)


keeper: Keeper


def use(new: Keeper) -> None:
    """From now on forks are this one's."""
    global keeper
    keeper = new


def fork(agent: AgentId, main: Callable[[Any], Any], *, keep: Iterable[int]) -> SimulatedChild:
    """In the place of transport/process.py's fork_child."""
    return keeper.fork(agent, main, keep=keep)


class SimulatedSleeper(Sleeper):
    """Lies down by telling its process so; the wait returns at once, with nothing."""

    __slots__ = ()

    def wait(
        self,
        poll: Callable[[float], list[Any]],
        timeout_s: float,
        has_work: Callable[[], bool],
        since_ns: int = 0,
    ) -> list[Any]:
        del since_ns
        self.prepare()
        if has_work():
            self.cancel()
            return []
        events = poll(0)
        if events or timeout_s <= 0:
            self.cancel()
            return events
        process: Process = doubles.host.kernel.current
        process.doze(self, timeout_s, has_work)
        return []


class SimulatedSyncer:
    """The sync threads: the points of a round are synced side by side, each begins and ends at a time of its own."""

    def __init__(self, _name: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._keeper = keeper
        self._process: Process = doubles.host.kernel.current
        self._rounds: list[list[tuple[Log, SyncPoint]]] = []
        self._done: list[Outcome] = []
        self._waiting: list[tuple[Log, SyncPoint]] = []  # Of the round in work.
        self._running: list[tuple[Outcome, list[Any]]] = []

    def submit(self, points: Sequence[tuple[Log, SyncPoint]]) -> None:
        self._rounds.append(list(points))
        if not self._waiting and not self._running:
            self._begin_round()

    def collect(self) -> list[Outcome]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        while self._waiting or self._running:
            for point in list(self._waiting):
                self._begin(point)
            for running in list(self._running):
                self._end(running)

    @staticmethod
    def _later(action: Callable[[], None]) -> None:
        keeper.world.after(keeper.sync_ns(), action)

    def _begin_round(self) -> None:
        self._waiting = self._rounds.pop(0)
        for point in self._waiting:
            self._later(partial(self._begin, point))

    def _begin(self, point: tuple[Log, SyncPoint]) -> None:
        host = doubles.host
        if not self._process.is_alive or point not in self._waiting:
            return
        self._waiting.remove(point)
        before, host.kernel.current = host.kernel.current, self._process
        host.begun = begun = []
        try:
            outcome = sync_one(*point)
        finally:
            host.begun = None
            host.kernel.current = before
        running = (outcome, begun)
        self._running.append(running)
        self._later(partial(self._end, running))

    def _end(self, running: tuple[Outcome, list[Any]]) -> None:
        if running not in self._running or self._keeper is not keeper:
            return
        self._running.remove(running)
        disk = doubles.host.disk
        is_written = self._process.is_alive or keeper.world.chance(0.5)
        for each in running[1]:
            (disk.end_sync if is_written else disk.end_unseen)(each)
        if not self._process.is_alive:
            return
        self._done.append(running[0])
        if not self._waiting and not self._running:
            self._wake()
            if self._rounds:
                self._begin_round()


class SimulatedExecutor:
    """A pool of threads whose work is done by whoever asks for the results."""

    def __init__(self, _threads: int) -> None:
        """Needs none."""

    def __enter__(self) -> SimulatedExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs."""

    def map(self, call: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        return [call(*each) for each in zip(*arguments, strict=True)]


class SimulatedSignals:
    """The supervisor's signal pipe."""

    def __init__(self) -> None:
        self.flag = Flag()
        self.fd = doubles.host.kernel.install(self.flag)
        self._pending: list[int] = []

    def send(self, number: int) -> None:
        self._pending.append(number)
        self.flag.set()

    def read(self) -> int | None:
        self.flag.is_set = False
        return self._pending.pop(0) if self._pending else None

    def close(self) -> None:
        doubles.host.kernel.close(self.fd)


def handshakes_of(process: Process) -> dict[str, int]:
    """What a Processor's process has of TLS handshakes; nothing for other roles."""
    agent = process.role._agent
    return tls_doubles.handshakes_of(agent) if isinstance(agent, Processor) else {}


PAUSE_MS: Final = (1, 5, 20, 100, 700, 3000)


def pause(process: Process, duration_ms: int) -> None:
    """As SIGSTOP, and SIGCONT later."""
    process.world.tell("pause", process.name, f"{duration_ms} ms")
    process.paused_until_ns = process.world.now_ns() + duration_ms * MS
