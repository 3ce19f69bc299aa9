"""The pipeline of processes as a discrete-event simulation.

    clients -> socket -> Processor -> request rings -> Handler -> response rings -> Processor -> socket -> clients
               (epoll)               (one per pair)   (batches)   (one per pair)

Each role is a loop: asleep until something waits for it; then it needs a core, takes all that waits, and works for

    a + b * batch + s * peers + w * (peers that it has to wake)

before the others see what it made (a Processor's answers and a client's requests leave one by one). Cores are few: a
role that was woken takes a free core after the time that waking it takes, or queues for one, first come first served;
it leaves the core when nothing is left to do, or after a slice if others queue. Batching is not put in: it comes out,
because what waits longer is taken together.

What is not in it: memory bandwidth and caches shared by many cores, NUMA, the disk, the kernel's softirq time as a
thing of its own (it is in the costs, which were measured with it), partitions that move, requests for partitions of
others.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import simpy

US: Final = 1e-6


@dataclass(frozen=True)
class Cost:
    """Costs of a role's pass: `per_pass` and `per_item`, in microseconds."""

    per_pass: float
    per_item: float


@dataclass(frozen=True)
class Costs:
    """Service times in microseconds, as measured on a machine."""

    client: Cost
    processor_in: Cost  # per request; the pass is counted once, here
    processor_out: float  # per answer
    handler: Cost
    wake: float = 2.0  # CPU of whoever wakes a sleeping role
    wake_delay: float = 10.0  # from there until the woken one runs on an idle core
    switch: float = 2.0  # CPU that changing to another process costs a core
    scan: float = 0.1  # a look at one more ring
    spread: float = 0.25  # standard deviation / mean of a service time

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Costs:
        rest = {
            key: value for key, value in values.items() if key not in ("client", "processor_in", "handler")
        }
        cost = {key: Cost(**values[key]) for key in ("client", "processor_in", "handler")}
        return cls(**cost, **rest)


@dataclass(frozen=True)
class Scene:
    """Setup of a simulation. `rate` of an open loop in requests/s; None: a closed loop with one in flight each."""

    cores: int
    processors: int = 1
    handlers: int = 1
    connections: int = 64
    rate: float | None = None
    is_client_local: bool = True  # the generator is one process on the same cores
    network_us: float = 0.0  # one way, to clients elsewhere
    seconds: float = 0.5
    warmup: float = 0.1
    slice_us: float = 3000.0
    seed: int = 1
    think_us: float = 0.0
    batch_max: int = 1 << 30  # requests that a Handler takes in a pass

    def but(self, **changes: Any) -> Scene:
        return replace(self, **changes)


@dataclass
class Outcome:
    """Result of a simulation for the time after the warm-up."""

    throughput: float
    mean_us: float
    p50_us: float
    p99_us: float
    cores_used: dict[str, float]  # by kind of role, busy time / time
    handler_batch: float
    requests: int
    in_system: float  # time average of requests under way
    bottleneck: str = ""
    lateness: dict[str, float] = field(default_factory=dict)


class Cores:
    """C cores and one queue of those who wait for one; whoever comes finds a free core, or the end of the queue."""

    def __init__(self, env: simpy.Environment, count: int) -> None:
        self._env = env
        self.free = count
        self.queue: deque[simpy.Event] = deque()

    def take(self) -> simpy.Event:
        """An event that succeeds once the caller has a core; its value tells whether it had to queue."""
        event = self._env.event()
        if self.free:
            self.free -= 1
            event.succeed(False)
        else:
            self.queue.append(event)
        return event

    def give(self) -> None:
        if self.queue:
            self.queue.popleft().succeed(True)
        else:
            self.free += 1


class Role:
    """One process: sleeps until told, works in passes. `work` is one pass: yields times to be spent on the core."""

    def __init__(
        self, scene: Simulation, kind: str, work: Callable[[], Generator[float, None, None]]
    ) -> None:
        self._scene = scene
        self.kind = kind
        self._work = work
        self._bell: simpy.Event | None = None
        self.has_work: Callable[[], bool] = lambda: False
        self.busy_us = 0.0
        self.owed_us = 0.0  # CPU spent on waking others since the last pause
        scene.env.process(self._run())

    def wake(self, waker: Role | None) -> None:
        """Tell that there is work; costs the waker something only if this one sleeps."""
        if self._bell is not None:
            bell, self._bell = self._bell, None
            if waker is not None:
                waker.owed_us += self._scene.costs.wake
            bell.succeed()

    def _run(self) -> Generator[simpy.Event, Any, None]:
        scene, env, costs = self._scene, self._scene.env, self._scene.costs
        cores = scene.cores
        while True:
            if not self.has_work():
                self._bell = env.event()
                yield self._bell
                had_to_queue = yield cores.take()
                # A core that was idle wakes up first; a busy one changes to another process, which is its own time.
                if had_to_queue:
                    yield from self._spend(costs.switch)
                else:
                    yield env.timeout(costs.wake_delay * US)
            else:
                yield cores.take()
                yield from self._spend(costs.switch)
            on_since = env.now
            while self.has_work():
                for cost in self._work():
                    yield from self._spend(cost)
                if self.owed_us:
                    yield from self._spend(0.0)
                if cores.queue and (env.now - on_since) >= scene.scene.slice_us * US:
                    break
            cores.give()

    def _spend(self, cost_us: float) -> Generator[simpy.Event, Any, None]:
        cost_us += self.owed_us
        self.owed_us = 0.0
        if not cost_us:
            return
        self.busy_us += cost_us
        yield self._scene.env.timeout(cost_us * US)


class Simulation:
    """One scene with its roles; `run()` once."""

    def __init__(self, scene: Scene, costs: Costs) -> None:
        self.scene = scene
        self.costs = costs
        self.env = simpy.Environment()
        self.cores = Cores(self.env, scene.cores)
        self._random = random.Random(scene.seed)
        self._sums = [0, 0.0]  # handler passes, requests in them
        self.samples: list[float] = []
        self.under_way = 0
        self._area = 0.0
        self._area_since = 0.0
        self._begun: dict[int, float] = {}
        p, h = scene.processors, scene.handlers
        self.sockets: list[deque[int]] = [deque() for _ in range(p)]
        self.requests = [[deque[int]() for _ in range(p)] for _ in range(h)]  # [handler][processor]
        self.answers = [[deque[int]() for _ in range(h)] for _ in range(p)]  # [processor][handler]
        self.arrived: deque[int] = deque()
        self.client: Role | None = None
        self.processors = [Role(self, "processor", self._processor(i)) for i in range(p)]
        self.handlers = [Role(self, "handler", self._handler(j)) for j in range(h)]
        for i, role in enumerate(self.processors):
            role.has_work = self._has_processor_work(i)
        for j, role in enumerate(self.handlers):
            role.has_work = self._has_handler_work(j)
        if scene.is_client_local and scene.rate is None:
            self.client = Role(self, "client", self._client)
            self.client.has_work = lambda: bool(self.arrived)

    def _has_processor_work(self, i: int) -> Callable[[], bool]:
        socket, rings = self.sockets[i], self.answers[i]
        return lambda: bool(socket) or any(rings)

    def _has_handler_work(self, j: int) -> Callable[[], bool]:
        rings = self.requests[j]
        return lambda: any(rings)

    # -- who serves whom

    def _home(self, connection: int) -> int:
        return connection % self.scene.processors

    def _owner(self, connection: int) -> int:
        # A partition for each Handler; not in step with the Processors, or pairs would never mix.
        return (connection // self.scene.processors) % self.scene.handlers

    # -- work of the roles, in microseconds

    def _drawn(self, mean_us: float) -> float:
        """A service time: lognormal, or as it is without spread."""
        if not self.costs.spread or mean_us <= 0:
            return mean_us
        return mean_us * self._factor()

    def _factor(self) -> float:
        variance = self.costs.spread**2
        sigma2 = math.log(1 + variance)
        return self._random.lognormvariate(-sigma2 / 2, math.sqrt(sigma2))  # its mean is 1

    def _client(self) -> Generator[float, None, None]:
        cost, arrived = self.costs.client, self.arrived
        yield self._drawn(cost.per_pass)
        for _ in range(len(arrived)):
            connection = arrived.popleft()
            self._finish(connection)
            yield self._drawn(cost.per_item)
            self._send(connection)

    def _processor(self, i: int) -> Callable[[], Generator[float, None, None]]:
        costs = self.costs
        looks = costs.scan * self.scene.handlers

        def work() -> Generator[float, None, None]:
            me, socket, rings = self.processors[i], self.sockets[i], self.answers[i]
            yield self._drawn(costs.processor_in.per_pass) + looks
            for ring in rings:
                for _ in range(len(ring)):
                    yield self._drawn(costs.processor_out)
                    self._answer(ring.popleft())
            taken = [socket.popleft() for _ in range(len(socket))]
            if not taken:
                return
            yield self._drawn(costs.processor_in.per_item * len(taken))
            told = set()
            for connection in taken:
                owner = self._owner(connection)
                self.requests[owner][i].append(connection)
                told.add(owner)
            for owner in told:
                self.handlers[owner].wake(me)

        return work

    def _handler(self, j: int) -> Callable[[], Generator[float, None, None]]:
        costs = self.costs
        looks = costs.scan * self.scene.processors

        def work() -> Generator[float, None, None]:
            me, rings = self.handlers[j], self.requests[j]
            taken: list[tuple[int, int]] = []
            for i, ring in enumerate(rings):
                room = self.scene.batch_max - len(taken)
                taken += [(i, ring.popleft()) for _ in range(min(len(ring), room))]
            self._sums[0] += 1
            self._sums[1] += len(taken)
            yield self._drawn(costs.handler.per_pass + costs.handler.per_item * len(taken)) + looks
            told = set()
            for i, connection in taken:
                self.answers[i][j].append(connection)
                told.add(i)
            for i in told:
                self.processors[i].wake(me)

        return work

    # -- requests

    def _count(self, by: int) -> None:
        self._area += self.under_way * (self.env.now - self._area_since)
        self._area_since = self.env.now
        self.under_way += by

    def _send(self, connection: int) -> None:
        self._begun[connection] = self.env.now
        self._count(1)
        if self.scene.network_us:
            self._later(self.scene.network_us, lambda: self._land(connection))
        else:
            self._land(connection)

    def _land(self, connection: int) -> None:
        home = self._home(connection)
        self.sockets[home].append(connection)
        self.processors[home].wake(None)

    def _later(self, delay_us: float, what: Callable[[], None]) -> None:
        self.env.timeout(delay_us * US).callbacks.append(lambda _event: what())

    def _answer(self, connection: int) -> None:
        if self.client is not None:
            self.arrived.append(connection)
            self.client.wake(None)  # A send() that wakes costs what was measured as the send.
        else:
            self._later(self.scene.network_us, lambda: self._answered(connection))

    def _answered(self, connection: int) -> None:
        """A client elsewhere, which costs nothing here, has its answer; in a closed loop it asks again."""
        self._finish(connection)
        if self.scene.rate is None:
            self._later(self.scene.think_us, lambda: self._send(connection))

    def _finish(self, connection: int) -> None:
        self._count(-1)
        self.samples.append(self.env.now - self._begun.pop(connection))

    def _open_loop(self) -> Generator[simpy.Event, Any, None]:
        rate, number = self.scene.rate, 0
        assert rate is not None
        while True:
            yield self.env.timeout(self._random.expovariate(rate))
            number += 1
            self._send(number)

    # -- all of it

    def run(self) -> Outcome:
        """Warm up, forget, measure."""
        scene, env = self.scene, self.env
        if scene.rate is not None:
            env.process(self._open_loop())
        elif self.client is not None:
            self._count(0)
            for connection in range(scene.connections):
                self._send(connection)
        else:
            for connection in range(scene.connections):
                # Spread over a moment: clients elsewhere do not begin in step.
                self._later(self._random.random() * 200, lambda c=connection: self._send(c))
        env.run(until=scene.warmup)
        roles = [*self.processors, *self.handlers, *([self.client] if self.client else [])]
        for role in roles:
            role.busy_us = 0.0
        self.samples.clear()
        self._sums[:] = [0, 0.0]
        self._area, self._area_since = 0.0, env.now
        env.run(until=scene.warmup + scene.seconds)
        self._count(0)
        return self._outcome(roles)

    def _outcome(self, roles: list[Role]) -> Outcome:
        seconds = self.scene.seconds
        ordered = sorted(self.samples)
        used: dict[str, float] = {}
        for role in roles:
            used[role.kind] = used.get(role.kind, 0.0) + role.busy_us * US / seconds
        busiest = max(roles, key=lambda role: role.busy_us)
        share = busiest.busy_us * US / seconds
        if sum(used.values()) >= 0.95 * self.scene.cores:
            word = f"CPUs (all {self.scene.cores})"
        else:
            word = f"{busiest.kind} {100 * min(1.0, share):.0f} %"
        return Outcome(
            throughput=len(ordered) / seconds,
            mean_us=1e6 * sum(ordered) / max(1, len(ordered)),
            p50_us=1e6 * ordered[len(ordered) // 2] if ordered else 0.0,
            p99_us=1e6 * ordered[int(0.99 * len(ordered))] if ordered else 0.0,
            cores_used=used,
            handler_batch=self._sums[1] / max(1, self._sums[0]),
            requests=len(ordered),
            in_system=self._area / seconds,
            bottleneck=word,
        )


def simulate(scene: Scene, costs: Costs) -> Outcome:
    """One run."""
    return Simulation(scene, costs).run()
