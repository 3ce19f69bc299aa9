"""ConnectionQuotas: decides whether a connection is accepted now, later or never. Kafka's class of that name, sans-IO.

One instance per Acceptor, so per listener. It decides in Kafka's order (KIP-402, KIP-612):

1. `admit`, before the accept: the rate and the count of broker and listener. They refuse nobody: the Acceptor waits,
   and the client stays in the kernel's backlog, where it also survives the death of this process.
2. `admit_address`, once the client's address is known: the rate of the address (the socket is kept open for a while,
   then closed, and its event is removed from every rate), then the count of the address (the socket is closed at once).

A protected listener (inter-broker, control) skips the broker-wide limits; when it pushes the broker above
`max.connections`, `evictions` tells the Acceptors of the other listeners how many of theirs to close. They all compute
the same shares because they all know the same counts.

A broker-wide rate spans the Acceptors: each publishes how many events it recorded (`broker_events`) and adds what the
others published since its last look. No lock is needed, and no Acceptor waits for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kproc.broker.acceptor.connection_counts import OWN, ConnectionCounts
from kproc.broker.acceptor.connection_limits import UNLIMITED, ConnectionLimits
from kproc.broker.acceptor.rate import PacedRate, WindowedRate

TOO_MANY: Final = -1
# An eviction that a Processor has not carried out within this time is requested again.
_EVICTION_NS: Final = 1_000_000_000
# While a connection migrates, its new Processor can report it before the old one reports its end, so that it counts
# twice. Evictions begin only if an excess lasts this long.
_SETTLED_NS: Final = 200_000_000
# A Processor that has not sent its first report within this time hangs. The Acceptor then accepts connections without
# it.
_REPORT_NS: Final = 3_000_000_000


class ConnectionQuotas:
    """The limits of one listener on connections and their rates. Its Acceptor asks it before and after each accept."""

    def __init__(
        self,
        listener: int,
        *,
        counts: ConnectionCounts,
        limits: ConnectionLimits,
        now_ns: int,
        samples: int = 11,
        sample_ns: int = 1_000_000_000,
        elsewhere: Callable[[], int] = lambda: 0,
    ) -> None:
        self.limits = limits
        self.counts = counts
        self.listener = listener
        self._samples = samples
        self._sample_ns = sample_ns
        self._elsewhere = elsewhere
        self._heard_elsewhere = elsewhere()
        self._broker_rate = PacedRate(samples, sample_ns, now_ns)
        self._listener_rate = PacedRate(samples, sample_ns, now_ns)
        self._address_rates: dict[bytes, tuple[WindowedRate, int]] = {}
        self._window_ns = samples * sample_ns
        self._next_sweep_ns = now_ns + self._window_ns
        self._has_ticket = False
        self._ready_ns = 0
        self._wait_ns = 0
        self._evict_down_to = 0
        self._evict_again_ns = 0
        self._excess_since_ns = 0
        self._excess_least = 0
        self._incomplete_since_ns = 0
        self.broker_events = 0
        # Kafka's connection-accept-throttle-time and ip-connection-accept-throttle-time, as sums and counts.
        self.throttled_count = 0
        self.throttled_ns = 0
        self.address_throttled_count = 0
        self.address_throttled_ns = 0

    @property
    def is_protected(self) -> bool:
        return self.listener in self.limits.protected

    def apply(self, limits: ConnectionLimits) -> None:
        """Set new limits. They hold from the next connection on. A wait that has begun is not shortened."""
        if self.limits.broker_rate >= UNLIMITED:
            # Ignore the events that other Acceptors recorded while no broker-wide rate was set.
            self._heard_elsewhere = self._elsewhere()
        self.limits = limits

    # -- before accept -----------------------------------------------------------------------------------------

    def admit(self, now_ns: int) -> bool:
        """Return True if the connection at the head of the backlog may be accepted now.

        The first call for a connection records its event in the rates. The event stays recorded until `admit_address`
        or `cancel_admission` is called for it, so that a blocked Acceptor can call this repeatedly.
        """
        if not self._has_ticket:
            self._has_ticket = True
            self._wait_ns = self._record(now_ns)
            self._ready_ns = now_ns + self._wait_ns
        return now_ns >= self._ready_ns and self._has_slot(now_ns)

    def cancel_admission(self, now_ns: int) -> None:
        """Remove the event that `admit` has recorded, because accept() found no connection after all."""
        if self._has_ticket:
            self._has_ticket = False
            self._uncount(now_ns)

    @property
    def ready_ns(self) -> int:
        """Return the time (ns) from which the rates allow the next connection, or 0 if `admit` has recorded no event.

        The limits of open connections may still forbid it.
        """
        return self._ready_ns if self._has_ticket else 0

    def _has_slot(self, now_ns: int) -> bool:
        """Return True if the counts of broker and listener allow one more connection.

        If counts are limited, return False for up to 3 s after a start of this Acceptor or of a Processor: until the
        first report of each Processor, the counts are too low.
        """
        limits, counts = self.limits, self.counts
        if not limits.has_counts:
            return True
        # After a start of this Acceptor or of a Processor, the counts are too low until the first report has come.
        if counts.is_complete:
            self._incomplete_since_ns = 0
        else:
            self._incomplete_since_ns = self._incomplete_since_ns or now_ns
            if now_ns - self._incomplete_since_ns < _REPORT_NS:
                return False
        if counts.of_listener(self.listener) >= limits.listener_max:
            return False
        return self.is_protected or counts.total < limits.broker_max

    def _record(self, now_ns: int) -> int:
        """Record one connection in the rates; return how long it must wait for them, in ns.

        The wait is at most one sample (quota.window.size.seconds), so that a broker with a low limit does not look
        dead.
        """
        limits, wait_ns = self.limits, 0
        self._listener_rate.record(1, now_ns)
        if limits.listener_rate < UNLIMITED:
            wait_ns = self._listener_rate.grant(limits.listener_rate, now_ns, self._sample_ns)
        if not self.is_protected:
            if limits.broker_rate < UNLIMITED:
                self._hear_elsewhere(now_ns)
            self._broker_rate.record(1, now_ns)
            self.broker_events += 1
            if limits.broker_rate < UNLIMITED:
                # Space the connections by this listener's part of the broker's rate. Otherwise all listeners together
                # would accept several times the limit.
                own, all_of_them = self.listener_rate(now_ns), self.broker_rate(now_ns)
                share = min(own / all_of_them, 1.0) if all_of_them > 0 and own > 0 else 1.0
                broker_wait_ns = self._broker_rate.grant(
                    limits.broker_rate, now_ns, self._sample_ns, share=share
                )
                wait_ns = max(wait_ns, broker_wait_ns)
        return wait_ns

    def _hear_elsewhere(self, now_ns: int) -> None:
        events = self._elsewhere()
        if events != self._heard_elsewhere:
            self._broker_rate.record(events - self._heard_elsewhere, now_ns)
            self._heard_elsewhere = events

    def _uncount(self, now_ns: int) -> None:
        self._listener_rate.uncount(now_ns)
        if not self.is_protected:
            self._broker_rate.uncount(now_ns)
            self.broker_events -= 1

    # -- after accept ------------------------------------------------------------------------------------------

    def admit_address(self, address: bytes, now_ns: int) -> int:
        """Decide about an accepted connection by its address.

        Return 0 if it may stay (it is counted), TOO_MANY to close it now, or the number of ns after which to close it.
        """
        self._has_ticket = False
        if self._wait_ns:
            self.throttled_count += 1
            self.throttled_ns += self._wait_ns
        throttle_ns = self._record_address(address, now_ns)
        if throttle_ns:
            self._uncount(now_ns)
            self.address_throttled_count += 1
            self.address_throttled_ns += throttle_ns
            return throttle_ns
        if self.counts.of_address(address) >= self.limits.max_of(address):
            return TOO_MANY
        self.counts.add(OWN, address, self.listener, 1)
        return 0

    def release(self, address: bytes) -> None:
        """Uncount a connection that `admit_address` counted. It was closed, or a Processor counts it from now on."""
        self.counts.add(OWN, address, self.listener, -1)

    def _record_address(self, address: bytes, now_ns: int) -> int:
        limit = self.limits.rate_of(address)
        if limit >= UNLIMITED:
            return 0
        if now_ns >= self._next_sweep_ns:
            self._sweep(now_ns)
        rate = self._rate_of(address, now_ns)
        rate.record(1, now_ns)
        throttle_ns = min(rate.throttle_ns(limit, now_ns), self._sample_ns)
        # A refused connection does not count, as in Kafka. Otherwise a client that retries in a loop would never be
        # admitted.
        if throttle_ns:
            rate.record(-1, now_ns)
        return throttle_ns

    def _rate_of(self, address: bytes, now_ns: int) -> WindowedRate:
        known = self._address_rates.get(address)
        rate = known[0] if known is not None else WindowedRate(self._samples, self._sample_ns, now_ns)
        self._address_rates[address] = (rate, now_ns)
        return rate

    def _sweep(self, now_ns: int) -> None:
        """Discard the rates of addresses without an event for a whole window, because a new rate would be equal.

        Kafka keeps them for an hour. With IPv6, a client has enough addresses to fill the memory in that time.
        """
        self._next_sweep_ns = now_ns + self._window_ns
        used = self._address_rates.items()
        self._address_rates = {
            address: (rate, used_ns)
            for address, (rate, used_ns) in used
            if now_ns - used_ns < self._window_ns
        }

    # -- when there are too many -------------------------------------------------------------------------------

    @property
    def has_excess(self) -> bool:
        """Return True if the broker has more connections than max.connections.

        `evictions` acts only if this lasts 200 ms, because a migrating connection counts twice for a moment.
        """
        return self._excess_since_ns > 0

    def evictions(self, now_ns: int) -> int:
        """Return how many of this listener's connections must be closed now to bring the broker back to its limit.

        Return 0 until the excess has lasted for 200 ms, and while an earlier eviction is not finished.
        """
        counts = self.counts
        excess = counts.total - self.limits.broker_max
        if excess <= 0 or self.is_protected:
            self._excess_since_ns = 0
            return 0
        if not self._excess_since_ns:
            self._excess_since_ns, self._excess_least = now_ns, excess
        # A migrating connection counts twice for a moment. Evict only the smallest excess since the excess began, which
        # includes no such connection.
        excess = self._excess_least = min(excess, self._excess_least)
        if now_ns - self._excess_since_ns < _SETTLED_NS:
            return 0
        own = counts.of_listener(self.listener)
        if now_ns < self._evict_again_ns and own > self._evict_down_to:
            return 0  # The last eviction is not finished yet.
        share = self._share_of(excess)
        if share:
            self._excess_since_ns = 0
            self._evict_down_to = own - share
            self._evict_again_ns = now_ns + _EVICTION_NS
        return share

    def _share_of(self, excess: int) -> int:
        """Return how many of `excess` connections this listener must close.

        The unprotected listener with most connections closes first. Every Acceptor computes the same order.
        """
        for listener, count in sorted(self.counts.listeners(), key=lambda each: (-each[1], each[0])):
            if listener in self.limits.protected:
                continue
            if listener == self.listener:
                return min(excess, count)
            excess -= min(excess, count)
        return 0

    # -- for metrics and tests ---------------------------------------------------------------------------------

    def broker_rate(self, now_ns: int) -> float:
        """Return Kafka's broker-connection-accept-rate."""
        return self._broker_rate.per_second(now_ns)

    def listener_rate(self, now_ns: int) -> float:
        """Return the listener's connections per second (Kafka's connection-accept-rate)."""
        return self._listener_rate.per_second(now_ns)

    def address_rate(self, address: bytes, now_ns: int) -> float:
        """Return an address's connections per second (Kafka's connection-accept-rate); 0 for one without a limit."""
        known = self._address_rates.get(address)
        return known[0].per_second(now_ns) if known is not None else 0.0
