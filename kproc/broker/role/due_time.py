"""DueTime: the one value by which a Handler skips its timers and rare states in most duty cycles."""

from __future__ import annotations


class DueTime:
    """The time from which on a duty cycle must look at timers and rare states. All parts of a Handler share one.

    Requests that repeat the last one of their connection change no timer, so a duty cycle with such requests alone ends
    after one comparison with `ns`. All other requests and events call `press` or `bring_forward`.
    """

    __slots__ = ("ns",)

    def __init__(self) -> None:
        self.ns = 0  # Monotonic time. 0: look in this duty cycle.

    def press(self) -> None:
        """Have this duty cycle, or else the next one, look at timers and rare states, because they may have changed."""
        self.ns = 0

    def bring_forward(self, at_ns: int) -> None:
        """Have a duty cycle at `at_ns` look at the timers."""
        if at_ns < self.ns:
            self.ns = at_ns
