"""Utilisation: the busy share of a role between two readings of its counters, and the number of roles that work needs.

By the utilisation law, X requests a second that cost a role D seconds each keep X * D roles busy. The sum of the busy
shares of all roles of one kind is therefore the work to do, whatever the number of roles. With a wanted utilisation U,
this work needs busy / U roles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

UTILISATION_WANTED: Final = 0.70
"""At 70 % an M/M/1 queue holds 2.3 requests on average, at 90 % nine. So 70 % leaves capacity for bursts."""


def busy_between(then: Mapping[str, int], now: Mapping[str, int]) -> float | None:
    """Return the share of time, 0 to 1, that a role did not sleep between two readings of its metrics.

    Return None if it has stored no heartbeat since the first reading.
    """
    passed = now["heartbeat_ns"] - then["heartbeat_ns"]
    if passed <= 0:
        return None
    return min(1.0, max(0.0, 1 - (now["slept_ns"] - then["slept_ns"]) / passed))


def work_of(busy: float, on_cpu: float | None) -> float:
    """Return the busy share without the time spent waiting for a core, because a further role would wait, too.

    `on_cpu` is the share of time on a CPU; None if it is unknown, then all of `busy` counts. At least half of `busy`
    counts, because a role that waits for the disk is not on a CPU either.
    """
    return busy if on_cpu is None else min(busy, max(on_cpu, 0.5 * busy))


def roles_wanted(work: float, target: float) -> int:
    """Return how many roles do this much work at the utilisation `target`, at least 1."""
    return max(1, math.ceil(work / target - 1e-9))
