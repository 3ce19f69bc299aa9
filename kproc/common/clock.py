"""The two clocks, injected everywhere so that tests own time.

`now_ns` measures: monotonic, and comparable between the processes of one host, because CLOCK_MONOTONIC is
the kernel's. `wall_ms` dates what the wire and the disk store, in Kafka's milliseconds. Nothing else in kproc
may read the time.
"""

from __future__ import annotations

import time
from typing import Protocol

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """What a role, a log or a purgatory may know about time."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds; only differences mean anything."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970 (UTC), which may jump when the host's clock is set."""
        ...


class SystemClock:
    """The kernel's clocks; stateless, so one instance may be shared by everything in a process."""

    __slots__ = ()

    # The builtins themselves, not wrappers: this is called on hot paths and a Python frame costs 50 ns.
    now_ns = staticmethod(time.monotonic_ns)

    def wall_ms(self) -> int:
        """Milliseconds since 1970 (UTC)."""
        return time.time_ns() // NS_PER_MS


class ManualClock:
    """A clock that moves only when a test says so; both hands move together."""

    __slots__ = ("_wall_offset_ns", "present_ns")

    def __init__(self, *, now_ns: int = NS_PER_S, wall_ms: int = 1_700_000_000_000) -> None:
        self.present_ns = now_ns
        self._wall_offset_ns = wall_ms * NS_PER_MS - now_ns

    def now_ns(self) -> int:
        """The time that the test has reached."""
        return self.present_ns

    def wall_ms(self) -> int:
        """The date that the test has reached."""
        return (self.present_ns + self._wall_offset_ns) // NS_PER_MS

    def advance_ns(self, duration_ns: int) -> None:
        """Let time pass; it never runs backwards, as on the real monotonic clock."""
        assert duration_ns >= 0, duration_ns
        self.present_ns += duration_ns

    def advance_ms(self, duration_ms: int) -> None:
        """Let whole milliseconds pass."""
        self.advance_ns(duration_ms * NS_PER_MS)

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the date, forwards or backwards, as an operator or NTP can; `now_ns` does not notice."""
        self._wall_offset_ns = wall_ms * NS_PER_MS - self.present_ns
