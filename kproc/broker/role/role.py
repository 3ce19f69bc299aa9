"""Role: the base of all five roles: the epoll, the sleep, and the tick that stores the metrics.

A role runs duty cycles: `do_work` does the work that is ready, ticks if a tick is due, and sleeps until there is more
work or a timer is due. The Processor sleeps in the middle of its cycle, the others at the end, so each has its own
`do_work`. Each `do_work` counts its cycles in `cycle_count` and keeps one rule for its sleep: a cycle that did work
sleeps for STORE_MS at most, so that the next tick stores what it has counted.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.metrics.spec import SLOT
from kproc.broker.transport.agent import REST_MS, STORE_MS, AgentId
from kproc.common.clock import NS_PER_MS, Clock
from kproc.common.containment import Containment

if TYPE_CHECKING:
    from kproc.broker.ipc.wait import Sleeper

_STORE_NS: Final = STORE_MS * NS_PER_MS
# A role calls the callbacks of `follow_time` after at most this time (ns), so that the client who moved the time is not
# kept waiting.
_FOLLOW_NS_MAX: Final = 1_000_000_000
_FOLLOW_POLL_MS: Final = 2
_HEARTBEAT: Final = SLOT["heartbeat_ns"]
_CYCLES: Final = SLOT["duty_cycles"]
_CONTAINED: Final = SLOT["contained_failures"]
_RESCUED: Final = SLOT["wakeups_rescued"]
_SLEPT: Final = SLOT["slept_ns"]


class Role:
    """Base of the five roles. Subclasses implement `do_work` and `_on_tick`."""

    # Slots, because a role has more attributes than CPython stores inline in an object without slots.
    __slots__ = (
        "_clock",
        "_doze",
        "_epoll",
        "_follow_until_ns",
        "_followers",
        "_metrics",
        "_next_store_ns",
        "_poll",
        "_values",
        "_watched_fd",
        "containment",
        "cycle_count",
        "id",
        "is_called",
        "sleep_ms_max",
    )

    def __init__(self, agent_id: AgentId, *, doze: Sleeper, metrics: MetricsRow, clock: Clock) -> None:
        self.id = agent_id
        self._doze = doze
        self._metrics = metrics
        self._values = metrics.values
        self._clock = clock
        self.containment = Containment()
        self.cycle_count = 0  # Number of duty cycles since the role's start.
        self.sleep_ms_max = STORE_MS  # Limit of the next sleep. `_tick` raises it to `_rest_ms`.
        self._next_store_ns = 0  # Time of the next tick.
        self._followers: list[Callable[[], None]] = []  # Callbacks of `follow_time`.
        self._follow_until_ns = 0
        self._watched_fd = -1
        self.is_called = False
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        # epoll(7): with EPOLLET each signal is reported once, so that nobody has to read the descriptor to
        # silence it.
        self._epoll.register(doze.fd, select.EPOLLIN | select.EPOLLET)

    def watch(self, fd: int) -> None:
        """Also wake up when `fd`, the supervisor's control socket, becomes readable. Then `is_called` becomes True."""
        self._watched_fd = fd
        self._epoll.register(fd, select.EPOLLIN)

    def poll_fd(self) -> int:
        return self._epoll.fileno()

    def _tick(self, now_ns: int) -> None:
        """Do periodic work and store the metrics. Due every STORE_MS; an idle role sleeps longer, up to `_rest_ms`."""
        self._next_store_ns = now_ns + _STORE_NS
        values = self._values
        # The supervisor reads this time and reports a role whose time does not grow as hung.
        values[_HEARTBEAT] = now_ns
        values[_CYCLES] = self.cycle_count
        values[_RESCUED] = self._doze.rescued_count
        values[_SLEPT] += self._doze.slept_ns
        self._doze.slept_ns = 0
        self.containment.run("periodic work", None, self._on_tick, now_ns)
        values[_CONTAINED] += self.containment.count
        self.containment.count = 0
        self._metrics.store()
        self.sleep_ms_max = self._rest_ms()
        if self._followers:
            self._report_followed(now_ns)

    def follow_time(self, on_done: Callable[[], None]) -> None:
        """Run the timers and a tick in the next duty cycle, because the broker's time was moved.

        `on_done` is called when the work that the timers have started is done, but after 1 s at the latest. Only a
        broker with kproc.time.movable calls this.
        """
        self._followers.append(on_done)
        self._follow_until_ns = self._clock.now_ns() + _FOLLOW_NS_MAX
        self._next_store_ns = 0
        self.sleep_ms_max = 0  # The Processor and the Acceptor sleep before their tick.

    def _report_followed(self, now_ns: int) -> None:
        if not self._has_followed() and now_ns < self._follow_until_ns:
            self._next_store_ns = 0
            self.sleep_ms_max = _FOLLOW_POLL_MS
            return
        followers, self._followers = self._followers, []
        for on_done in followers:
            on_done()

    def _has_followed(self) -> bool:
        """Return True if the work of the timers that `follow_time` has run is done. Called in ticks."""
        return True

    def _on_tick(self, now_ns: int) -> None:
        """Do periodic work. Called ten times a second, or every REST_MS when idle, before the metrics are stored."""

    def _rest_ms(self) -> int:
        """Return the longest sleep after a tick, in ms. Subclasses return less while they wait for something."""
        return REST_MS
