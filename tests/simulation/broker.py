"""SimulatedBroker: one start of the broker until it stops, its power is lost, or the run is over.

The supervisor is the real one. Where it would sleep in its epoll, everybody else gets turns.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final

from kproc.broker.api import load_all
from kproc.broker.config import Config
from kproc.broker.supervisor import supervisor as real_supervisor
from kproc.broker.supervisor import tls_check
from kproc.broker.supervisor.supervisor import Supervisor
from tests.simulation import doubles, processes, tls_doubles
from tests.simulation.kernel import Epoll
from tests.simulation.processes import Keeper, SimulatedSignals
from tests.simulation.small_slices import JudgedSlice
from tests.simulation.world import S, Violation, World

DATA: Final = "/data"
PORT: Final = 9092
NODE: Final = "1"  # The broker's node id.
_POLLS_MAX: Final = 4000  # Of the supervisor within a tenth of a second: it spins.


class SupervisorProcess:
    """The supervisor, for the kernel: a process whose sleep is everybody else's turn."""

    pid = 1
    name = "supervisor"
    is_awake = True

    def __init__(self, world: World) -> None:
        self.world = world
        self._polls = 0
        self._since_ns = 0

    def sleep_in_poll(self, epoll: Epoll, timeout_s: float) -> list[tuple[int, int]]:
        world = self.world
        now_ns = world.now_ns()
        self._polls += 1
        if now_ns - self._since_ns > S // 10:
            self._polls, self._since_ns = 0, now_ns
        if self._polls > _POLLS_MAX:
            world.violate("the supervisor spins")
            raise Violation("nothing else would happen")
        self.is_awake = False
        world.run_until(lambda: self.is_awake, now_ns + int(timeout_s * 1e9))
        doubles.host.kernel.current = self
        self.is_awake = True
        return epoll.ready()


class SimulatedBroker:
    """One life of the broker."""

    def __init__(self, world: World, config: Config) -> None:
        self.world = world
        kernel = doubles.host.kernel
        self.process = kernel.current = SupervisorProcess(world)
        self.keeper = Keeper(world, self.process)
        processes.use(self.keeper)
        self.supervisor = Supervisor(config)
        self.signals: SimulatedSignals = self.supervisor._signals  # type: ignore[assignment]
        self.is_ready = False

    def run(self, on_ready: Callable[[], None]) -> int:
        """Until it is stopped; its exit status. PowerLost comes through."""

        def ready(_announcement: dict[str, Any]) -> None:
            self.is_ready = True
            on_ready()

        return self.supervisor.run(None, ready)

    def stop(self) -> None:
        """SIGTERM."""
        self.world.tell("SIGTERM")
        self.world.disturb()
        self.signals.send(int(signal.SIGTERM))

    def lose_power(self) -> None:
        """Everybody ends at once; what they had open is closed by nobody in order."""
        self.keeper.end_all()
        doubles.host.kernel.close_all_of(self.process)


def prepare() -> None:
    """Put the doubles in their places, once in this Python process."""
    load_all()
    doubles.install(
        {
            ("kproc.broker.supervisor.supervisor", "SystemClock"): lambda: current_world.clock,
            ("kproc.broker.supervisor.children", "fork_child"): processes.fork,
            ("kproc.broker.supervisor.children", "ChildRole"): processes.SimulatedRole,
            ("kproc.broker.supervisor.child", "Sleeper"): processes.SimulatedSleeper,
            ("kproc.broker.supervisor.child", "ThreadSyncer"): processes.SimulatedSyncer,
            ("kproc.broker.supervisor.child", "open_first_end"): processes.open_first_end,
            ("kproc.broker.supervisor.child", "open_second_end"): processes.open_second_end,
            ("kproc.broker.supervisor.child", "set_role"): lambda _name: None,
            ("kproc.broker.handler.close_logs", "ThreadPoolExecutor"): processes.SimulatedExecutor,
            ("kproc.broker.supervisor.signals", "SignalPipe"): SimulatedSignals,
            ("kproc.broker.supervisor.ready", "raise_nofile_limit"): lambda: None,
            ("kproc.broker.supervisor.tls_check", "_check_in_child"): tls_check._check_contexts,
            ("kproc.broker.processor.handoff_receiver", "descriptor_end"): lambda: 1 << 30,
            ("kproc.broker.processor.tls_connections", "TlsTransport"): tls_doubles.SimulatedTransport,
            ("kproc.broker.request.divided_request", "SliceRequest"): JudgedSlice,
        }
    )
    assert real_supervisor.Supervisor is Supervisor


current_world: World


def use_world(world: World) -> None:
    """Whose clock the supervisor reads."""
    global current_world
    current_world = world
