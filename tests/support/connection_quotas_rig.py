"""ConnectionQuotas on a manual clock."""

from __future__ import annotations

from msgspec.structs import replace

from kproc.broker.acceptor.connection_counts import ConnectionCounts
from kproc.broker.acceptor.connection_limits import ConnectionLimits
from kproc.broker.acceptor.connection_quotas import ConnectionQuotas
from kproc.broker.role.handoff import pack_address
from kproc.common.clock import ManualClock

S = 1_000_000_000
EXTERNAL, ADMIN, REPLICATION = range(3)
ONE, TWO, THREE = (pack_address(f"192.168.1.{n}") for n in (1, 2, 3))


class Rig:
    """The Acceptors of three listeners, which know the same counts and hear of each other's events."""

    def __init__(self, **limits: object) -> None:
        self.clock = ManualClock()
        self.counts = ConnectionCounts()
        self.limits = replace(ConnectionLimits(protected=frozenset({REPLICATION})), **limits)
        self.quotas = [
            ConnectionQuotas(
                listener,
                counts=self.counts,
                limits=self.limits,
                now_ns=self.clock.now_ns(),
                samples=2,
                elsewhere=lambda listener=listener: self.events_but_of(listener),
            )
            for listener in range(3)
        ]

    def events_but_of(self, listener: int) -> int:
        quotas = getattr(self, "quotas", [])
        return sum(each.broker_events for each in quotas if each.listener != listener)

    def apply(self, *listeners: int, **limits: object) -> None:
        for listener in listeners or (EXTERNAL, ADMIN, REPLICATION):
            quotas = self.quotas[listener]
            quotas.apply(replace(quotas.limits, **limits))

    def enter(self, listener: int, address: bytes = ONE) -> int | None:
        """One connection: what `admit_address` said, or None if it must wait."""
        now_ns = self.clock.now_ns()
        if not self.quotas[listener].admit(now_ns):
            return None
        return self.quotas[listener].admit_address(address, now_ns)

    def leave(self, listener: int, address: bytes = ONE) -> None:
        self.quotas[listener].release(address)

    def evictions(self, listener: int = EXTERNAL) -> int:
        """Return the number of evictions that an excess of 200 ms leads to."""
        asked = self.quotas[listener].evictions(self.clock.now_ns())
        self.clock.advance_ms(200)
        return asked + self.quotas[listener].evictions(self.clock.now_ns())

    def run(self, seconds: float, offered: dict[tuple[int, bytes], float]) -> dict[tuple[int, bytes], int]:
        """Offer connections at a rate per (listener, address); how many were taken. Waiting ones queue up."""
        taken = dict.fromkeys(offered, 0)
        owed = dict.fromkeys(offered, 0.0)
        step_ns = S // 1000
        for _ in range(int(seconds * 1000)):
            self.clock.advance_ns(step_ns)
            for key, rate in offered.items():
                owed[key] += rate / 1000
                while owed[key] >= 1:
                    answer = self.enter(*key)
                    if answer is None:
                        break
                    owed[key] -= 1
                    taken[key] += answer == 0
        return taken
