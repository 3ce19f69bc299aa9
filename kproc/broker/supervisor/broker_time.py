"""Move the broker's time for tests (kproc.Broker.time).

Called by the supervisor, or by the InProcessBroker if all roles share one process.

The offset from the host's clock is one shared word, so that every role sees a change at once (common/movable_clock.py).
The caller then sends FOLLOW_TIME to every role, because most of them sleep until a timer that is now due. The client
gets the reply when each role has run its timers and the cleaner, as the last role, has checked retention and
compaction.
"""

from __future__ import annotations

from typing import Any, Final

from kproc.common.clock import NS_PER_MS
from kproc.common.movable_clock import MovableClock

_OFF: Final = (
    "the time of this broker cannot be moved: start a broker for tests, and no other one, with "
    "kproc.time.movable=true"
)

WARNING: Final = (
    "the broker's time can be moved (kproc.time.movable=true): every client of this host that may alter the cluster "
    "can let records, sessions and tokens expire, so this broker must serve tests only"
)


def move(clock: MovableClock | None, action: str, ms: int) -> str | None:
    """Carry out an action of own_operations.MoveTime on the clock. Return an error message, or None if it succeeded."""
    if clock is None:
        return _OFF
    if action == "freeze":
        clock.freeze()
    elif action == "unfreeze":
        clock.unfreeze()
    elif action == "advance":
        try:
            clock.advance(ms * NS_PER_MS)
        except ValueError as error:
            return f"cannot advance by {ms} ms: {error}"
    return None


def describe(clock: MovableClock) -> dict[str, Any]:
    """Return the result for the client: the broker's time, its lead over the host's clock, and if it is frozen."""
    return {
        "now_ms": clock.wall_ms(),
        "lead_ms": clock.lead_ns // NS_PER_MS,
        "is_frozen": clock.is_frozen,
    }
