"""World: the scheduler. Whose turn it is, what time it is, what happens to whom: all by one generator of numbers.

Everything that acts is an Actor: a role's process, the supervisor, a client. An actor that has something to do is
awake; one that sleeps says until when. A turn is one duty cycle. Time moves a little with each turn, and jumps when
everybody sleeps.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from kproc.common.clock import ManualClock
from kproc.common.movable_clock import MovableClock

MS: Final = 1_000_000
S: Final = 1_000_000_000
FOREVER_NS: Final = 1 << 60
_TURN_NS: Final = (5_000, 20_000, 60_000, 120_000, 400_000)
_RUNNING_MAX: Final = 3000  # Turns of one actor without a pause for breath: it spins.


class PowerLost(BaseException):
    """The host is gone. Unwinds the supervisor."""


class Violation(Exception):
    """Something that must never happen."""


class Actor:
    """Something that gets turns."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self.is_awake = True
        self.sleeps_until_ns = 0
        self.paused_until_ns = 0
        self.turns = 0
        self.restless = 0  # Turns since it last slept.

    def turn(self) -> None:
        raise NotImplementedError

    def wake(self) -> None:
        """Something came for it (the interface of a descriptor's watcher)."""
        self.is_awake = True

    def forget(self, _file: object) -> None:
        """What it watched is closed (the interface of a descriptor's watcher)."""

    def sleep(self, duration_ns: int) -> None:
        self.is_awake = False
        self.restless = 0
        self.sleeps_until_ns = self.world.clock.present_ns + duration_ns


class World:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.movable: MovableClock | None = None  # The broker's clock, if time can be moved.
        self._lead_ns = 0
        self.actors: list[Actor] = []
        self.violations: list[str] = []
        self.stops_at_violation = False  # Else a run goes on, so that its story shows what follows.
        self.story: list[str] | None = None  # What happened, if somebody wants to read it.
        self.steps = 0
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.is_powered = True
        self.sasl_port = 0  # Where clients have to log in; 0: nowhere.
        self.tls_port = 0  # Where they speak TLS.
        self.life = 0  # How often the broker was started.
        self.disturbed_ns = -FOREVER_NS  # When the broker or a role ended, or a fetched file was gone, last.
        self.certificates: set[bytes] = set()  # Those of which one is to be shown in the end.
        self.counts: Counter[str] = Counter()  # What happened, for people.

    # -- telling -----------------------------------------------------------------------------------------------

    def tell(self, what: str, *more: Any) -> None:
        """A line of the trace; formatted only if somebody reads it."""
        if self.story is not None:
            line = f"{self.clock.now_ns() / S - 1:10.6f} {what} {' '.join(map(str, more))}"
            self.story.append(line)

    def violate(self, what: str) -> None:
        """Note it; the run goes on to its end only as far as it can."""
        self.tell("VIOLATION", what)
        self.violations.append(what)
        if len(self.violations) > 20:
            raise Violation("too many to go on")

    # -- time --------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return self.clock.present_ns

    def broker_ns(self) -> int:
        """Return the broker's monotonic time. A new start of the broker does not take a lead back here."""
        if self.movable is not None:
            self._lead_ns = max(self._lead_ns, self.movable.lead_ns)
        return self.clock.present_ns + self._lead_ns

    def date_ms(self) -> int:
        """Return the broker's date."""
        return self.clock.wall_ms() + (self.broker_ns() - self.clock.present_ns) // MS

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._timers, (self.clock.present_ns + delay_ns, next(self._numbers), action))

    def disturb(self) -> None:
        """Something has ended that had promises to keep: for a while they are kept by nobody."""
        self.disturbed_ns = self.clock.present_ns

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # -- turns -------------------------------------------------------------------------------------------------

    def run_until(self, is_so: Callable[[], bool], deadline_ns: int) -> None:
        """Give turns until it is so (then with luck soon), or the time has come. What timers do may raise."""
        rng, clock, timers = self.rng, self.clock, self._timers
        while True:
            now_ns = clock.present_ns
            while timers and timers[0][0] <= now_ns:
                heapq.heappop(timers)[2]()
            ready = [
                actor
                for actor in self.actors
                if actor.paused_until_ns <= now_ns and (actor.is_awake or actor.sleeps_until_ns <= now_ns)
            ]
            if is_so() and (not ready or rng.random() < 0.3):
                return
            if now_ns >= deadline_ns:
                return
            if not ready:
                self._jump(now_ns, deadline_ns)
                continue
            actor = ready[int(rng.random() * len(ready))]
            actor.turns += 1
            actor.restless += 1
            self.steps += 1
            if actor.restless > _RUNNING_MAX:
                self.violate(f"{actor.name} spins: {_RUNNING_MAX} turns and it never slept")
                raise Violation("nothing else would happen")
            actor.turn()
            if self.violations and self.stops_at_violation:
                raise Violation("one is enough")
            clock.present_ns += _TURN_NS[int(rng.random() * 5)]

    def _jump(self, now_ns: int, deadline_ns: int) -> None:
        """Everybody sleeps: go on when the first one wakes."""
        until = deadline_ns
        if self._timers:
            until = min(until, self._timers[0][0])
        for actor in self.actors:
            at = now_ns if actor.is_awake else actor.sleeps_until_ns
            until = min(until, max(at, actor.paused_until_ns))
        self.clock.present_ns = max(until, now_ns + 1)

    def add(self, actor: Actor) -> None:
        self.actors.append(actor)

    def remove(self, actor: Actor) -> None:
        actor.is_alive = False
        if actor in self.actors:
            self.actors.remove(actor)
