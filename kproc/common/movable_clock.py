"""MovableClock: the time of a broker for tests, which `kproc.Broker.time` advances and freezes.

The lead is the broker's time minus the host's. One word of shared memory has it, so that all processes that are forked
after the clock's creation see a change in the same moment. Only the process that created the clock writes the word. A
broker without `kproc.time.movable` has no such clock and no such word.
"""

from __future__ import annotations

import mmap
from typing import Final

from kproc.common.clock import NS_PER_MS, Clock

LEAD_NS_MAX: Final = 100 * 366 * 86_400 * 1_000_000_000
"""Largest lead over the host's clock: 100 years, so that all times in ns fit into 64 bits."""


class MovableClock:
    """The host's clocks plus a lead, or a frozen time. Time never runs backwards in one process.

    The state is one word of shared memory: `value << 1 | is_frozen`. The value is the lead in ns, or the frozen time.
    It is one word, because a reader must never combine an old value with a new `is_frozen`.
    """

    __slots__ = ("_last_ns", "_wall_offset_ns", "_words", "host_ns")

    def __init__(self, host: Clock) -> None:
        self.host_ns = host.now_ns
        # The anonymous mapping is shared with processes that are forked later (MAP_SHARED, mmap(2)).
        self._words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
        self._wall_offset_ns = host.wall_ms() * NS_PER_MS - host.now_ns()
        self._last_ns = 0

    def now_ns(self) -> int:
        """Return the broker's monotonic time in ns: the host's plus the lead, or the frozen time."""
        word = self._words[0]
        now_ns = word >> 1 if word & 1 else self.host_ns() + (word >> 1)
        # `freeze` and `unfreeze` compute the word from the host's clock and write it a moment later. A reader in
        # between can have returned a later time, and time must not run backwards.
        if now_ns < self._last_ns:
            return self._last_ns
        self._last_ns = now_ns
        return now_ns

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 (UTC). Changes of the host's date after the start have no effect."""
        return (self.now_ns() + self._wall_offset_ns) // NS_PER_MS

    @property
    def is_frozen(self) -> bool:
        """True while time stands still."""
        return bool(self._words[0] & 1)

    @property
    def lead_ns(self) -> int:
        """The broker's time minus the host's. Negative if time has been frozen for longer than it was advanced."""
        word = self._words[0]
        # While time runs, the word is the lead. A difference of two clock readings would differ from it.
        return (word >> 1) - self.host_ns() if word & 1 else word >> 1

    # -- by the process that created the clock -----------------------------------------------------------------

    def advance(self, duration_ns: int) -> None:
        """Advance time at once, also while it is frozen. Raises ValueError for a duration that is out of range."""
        if duration_ns < 0:
            raise ValueError("the duration is negative, but time never runs backwards")
        if self.lead_ns + duration_ns > LEAD_NS_MAX:
            raise ValueError("time cannot be more than 100 years ahead of the host's clock")
        self._words[0] += duration_ns << 1

    def freeze(self) -> None:
        """Let time stand still."""
        if not self.is_frozen:
            self._words[0] = self.now_ns() << 1 | 1

    def unfreeze(self) -> None:
        """Let time continue from the frozen time."""
        word = self._words[0]
        if word & 1:
            self._words[0] = (word >> 1) - self.host_ns() << 1


class MovedDate:
    """A clock with the host's `now_ns` and the date of a MovableClock.

    For roles whose rules depend on dates alone, such as retention. Their own timers continue while time is frozen.
    """

    __slots__ = ("host_ns", "now_ns", "wall_ms")

    def __init__(self, clock: MovableClock) -> None:
        self.now_ns = self.host_ns = clock.host_ns
        self.wall_ms = clock.wall_ms
