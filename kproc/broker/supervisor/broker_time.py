"""Move the broker's time for tests (kproc.Broker.time). Called by the supervisor, or by the one process of a broker.

Time is one shared word, so that every role reads the moved time in the same moment (common/movable_clock.py). The
caller then sends FOLLOW_TIME to every role, because most of them sleep until a timer that is now due. The reply to the
client comes when each role has run its timers, and when the cleaner, which comes last, has checked retention and
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
    """Move time by one of the actions of own_operations.MoveTime. Return an error message, or None."""
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
    """Return the result for the client: the broker's date, its lead over the host's clock, and whether it is frozen."""
    return {
        "now_ms": clock.wall_ms(),
        "lead_ms": clock.lead_ns // NS_PER_MS,
        "is_frozen": clock.is_frozen,
    }
