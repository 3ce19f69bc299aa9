"""Clocks: monotonic time and the date. Everything in kproc gets its clock as an argument, so that tests control time.

`now_ns` is for durations and deadlines. It is monotonic and comparable between the processes of one host, because
CLOCK_MONOTONIC belongs to the kernel. `wall_ms` is for timestamps on the wire and on disk, in Kafka's milliseconds. No
other code in kproc may read the time; a test checks that.
"""

from __future__ import annotations

import time
from typing import Protocol

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """Source of time for roles, logs and timers."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds. Only differences have a meaning."""
        ...

    def host_ns(self) -> int:
        """Return the host's monotonic nanoseconds, which `kproc.Broker.time` does not move (movable_clock.py)."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 (UTC). They can jump in both directions when the host's clock is set."""
        ...


class SystemClock:
    """The kernel's clocks. They have no state, so one instance suffices for a process."""

    __slots__ = ()

    # Bind the builtin itself, because hot paths call this, and a Python frame around it would cost 50 ns.
    now_ns = host_ns = staticmethod(time.monotonic_ns)

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 (UTC)."""
        return time.time_ns() // NS_PER_MS


class ManualClock:
    """A clock for tests. Monotonic time and date advance together, and only by the test's calls."""

    __slots__ = ("_wall_offset_ns", "present_ns")

    def __init__(self, *, now_ns: int = NS_PER_S, wall_ms: int = 1_700_000_000_000) -> None:
        self.present_ns = now_ns
        self._wall_offset_ns = wall_ms * NS_PER_MS - now_ns

    def now_ns(self) -> int:
        """Return the test's monotonic time."""
        return self.present_ns

    def host_ns(self) -> int:
        """Return the test's monotonic time."""
        return self.present_ns

    def wall_ms(self) -> int:
        """Return the test's date."""
        return (self.present_ns + self._wall_offset_ns) // NS_PER_MS

    def advance_ns(self, duration_ns: int) -> None:
        """Advance monotonic time and date.

        Raises an error for a negative duration: a monotonic clock never runs backwards.
        """
        assert duration_ns >= 0, duration_ns
        self.present_ns += duration_ns

    def advance_ms(self, duration_ms: int) -> None:
        """Advance monotonic time and date by whole milliseconds."""
        self.advance_ns(duration_ms * NS_PER_MS)

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the date, forwards or backwards, as an operator or NTP can. `now_ns` is unaffected."""
        self._wall_offset_ns = wall_ms * NS_PER_MS - self.present_ns
