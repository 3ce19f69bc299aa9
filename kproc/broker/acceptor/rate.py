"""Rates over a sliding window of samples, as Kafka's quotas measure them (its Rate over a SampledStat).

The window is `count` samples of `length_ns` each. Events are added to the newest sample; a sample older than the window
is dropped. The elapsed time counts as at least count - 1 full samples, so that one event does not look like a high
rate. With Kafka's 11 samples of 1 s a limit therefore lets 10 s worth of events through at once and then keeps to the
rate. Sans-IO: every method is told the time.
"""

from __future__ import annotations

from kproc.common.clock import NS_PER_MS, NS_PER_S


class WindowedRate:
    """Events per second over a window of several samples of equal length, like the Rate of Kafka."""

    __slots__ = ("_at", "_lasts", "_length_ns", "_starts", "_sums")

    def __init__(self, count: int, length_ns: int, now_ns: int) -> None:
        assert count >= 1, count
        assert length_ns >= 1, length_ns
        self._length_ns = length_ns
        self._starts = [now_ns] * count
        self._lasts = [now_ns] * count
        self._sums = [0.0] * count
        self._at = 0

    def record(self, amount: float, now_ns: int) -> None:
        """Add events. A negative amount removes events that were recorded and did not happen."""
        at = self._at
        if now_ns - self._starts[at] >= self._length_ns:
            # Reuse the oldest sample. Like Kafka's SampledStat, a sample begins with its first event and not at a fixed
            # time.
            at = self._at = (at + 1) % len(self._sums)
            self._starts[at] = now_ns
            self._sums[at] = 0.0
        self._sums[at] += amount
        self._lasts[at] = now_ns

    def per_second(self, now_ns: int) -> float:
        """Return the rate over the window that ends now."""
        window_ns = self.window_ns(now_ns)  # First, because it drops old samples.
        return sum(self._sums) * NS_PER_S / window_ns

    def window_ns(self, now_ns: int) -> int:
        """Return the time over which the rate is computed, in ns. Drop samples that are too old."""
        length_ns, count = self._length_ns, len(self._sums)
        for at, last_ns in enumerate(self._lasts):
            if now_ns - last_ns >= count * length_ns:
                self._sums[at] = 0.0
                self._starts[at] = self._lasts[at] = now_ns
        elapsed_ns = now_ns - min(self._starts)
        # As in Kafka's Rate.windowSize, samples that do not exist yet count as full ones. Otherwise the first event of
        # a new sensor would be a very high rate.
        missing = count - 1 - elapsed_ns // length_ns
        return max(elapsed_ns + max(missing, 0) * length_ns, NS_PER_MS)

    def throttle_ns(self, limit: float, now_ns: int) -> int:
        """Return the ns until the rate is back at `limit` without further events; 0 if it is not above the limit.

        With a limit of 0 the rate never comes back. The result is then the whole window, which callers cap.
        """
        window_ns = self.window_ns(now_ns)
        excess = sum(self._sums) * NS_PER_S / window_ns - limit
        if excess <= 0:
            return 0
        return round(excess / limit * window_ns) if limit > 0 else len(self._sums) * self._length_ns


class PacedRate(WindowedRate):
    """A windowed rate for callers that wait instead of being refused.

    Kafka's window alone admits a burst whenever an earlier burst leaves the window. Until then each event waits for the
    longest time allowed. So steady pressure gets one burst per window. This class spaces the events evenly from the
    first wait on until the pressure is over. It never admits more events than Kafka.
    """

    __slots__ = ("_granted_before_ns", "_granted_ns", "_pressed_until_ns")

    def __init__(self, count: int, length_ns: int, now_ns: int) -> None:
        super().__init__(count, length_ns, now_ns)
        self._granted_ns = self._granted_before_ns = now_ns
        self._pressed_until_ns = 0

    def grant(self, limit: float, now_ns: int, wait_max_ns: int, *, share: float = 1.0) -> int:
        """Return how long the event that was just recorded must wait, in ns, at most `wait_max_ns`.

        `share` is this caller's part of the rate, from 0 to 1, if others record events, too.
        """
        wait_ns = self.throttle_ns(limit, now_ns)
        due_ns = now_ns
        if wait_ns or now_ns < self._pressed_until_ns:
            spacing_ns = round(NS_PER_S / (limit * share)) if limit > 0 else wait_max_ns
            # A caller that was late because the host was busy may catch up on one sample's worth.
            due_ns = max(self._granted_ns + spacing_ns, now_ns - self._length_ns)
            wait_ns = min(max(wait_ns, due_ns - now_ns), wait_max_ns)
        if wait_ns:
            self._pressed_until_ns = now_ns + wait_ns + len(self._sums) * self._length_ns
        self._granted_before_ns = self._granted_ns
        self._granted_ns = max(due_ns, now_ns + wait_ns) if wait_ns else due_ns
        return wait_ns

    def uncount(self, now_ns: int) -> None:
        """Undo the last grant, because its event did not happen."""
        self.record(-1, now_ns)
        self._granted_ns = self._granted_before_ns
