"""How busy a role was between two looks at its counters, and how many roles that work needs.

The utilisation law: with X requests a second that cost a role D seconds each, X * D roles are busy. So the busy roles
of one kind, whatever their number, are the work there is; that work at a wanted utilisation U needs busy / U roles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

UTILISATION_WANTED: Final = 0.70
"""At 70 % an M/M/1 queue holds 2.3 requests, at 90 % nine: the room that bursts need."""


def busy_between(then: Mapping[str, int], now: Mapping[str, int]) -> float | None:
    """The share of its time that a role did not sleep; None if it has not beaten since."""
    passed = now["heartbeat_ns"] - then["heartbeat_ns"]
    if passed <= 0:
        return None
    return min(1.0, max(0.0, 1 - (now["slept_ns"] - then["slept_ns"]) / passed))


def work_of(busy: float, on_cpu: float | None) -> float:
    """Busy roles, without what another process would not take over: time spent waiting for a core.

    At least half counts: a role that waits for the disk is not on a CPU either.
    """
    return busy if on_cpu is None else min(busy, max(on_cpu, 0.5 * busy))


def roles_wanted(work: float, target: float) -> int:
    """How many roles do so much work at this utilisation."""
    return max(1, math.ceil(work / target - 1e-9))
