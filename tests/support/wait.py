"""Waiting for a condition, with a deadline. The only place of the tests that sleeps.

No test may fail because the machine is busy. Bounds are far above what a busy machine needs, because only a failure
waits for them. A duration that the broker or a client keeps, such as a session's timeout, is made longer by
`stretched()`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Short enough to add nothing to a test's time, long enough not to take the broker's core on two cores: that much at
# first, then a twentieth of what has passed. A look at a broker's status takes 4 ms of CPU.
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX, _PAUSE_SHARE = 0.01, 0.1, 0.05
# A deadline states what an idle machine needs at most. A busy one takes many times as long. A condition that never
# holds must fail before pytest-timeout (900 s) ends the test without a word about the condition.
_BUSY_FACTOR, _EXTENDED_SECONDS_MAX = 10.0, 600.0
# Bound of one blocking operation: a response, the end of a process. Whatever takes longer hangs.
PATIENCE_SECONDS = 240.0
# A machine with more runnable processes a core than this is not waited for any longer.
_STRETCH_MAX = 8.0


def wait_until(condition: Callable[[], T], *, seconds: float = 10.0, what: str = "") -> T:
    """Return the first truthy value of `condition`; raise AssertionError with `what` when none came in time.

    `seconds` is enough on an idle machine; a busy one gets ten times as long.
    `condition` may raise AssertionError for "not yet": the last one is what the failure shows.
    """
    deadline = max(seconds, min(seconds * _BUSY_FACTOR, _EXTENDED_SECONDS_MAX))
    begin = time.monotonic()
    last: object = None
    while True:
        try:
            value = condition()
            if value:
                return value
            last = value
        except AssertionError as problem:
            last = problem
        passed = time.monotonic() - begin
        if passed >= deadline:
            raise AssertionError(f"not within {deadline:g} s: {what or condition!r}; last seen: {last!r}")
        time.sleep(min(max(_PAUSE_SECONDS, _PAUSE_SHARE * passed), _PAUSE_SECONDS_MAX))


def stretched(duration: float) -> int:
    """Return a duration as long as it must be on this machine now: times its runnable processes a core, 8 at most.

    It is for timeouts that must pass in a test, and before which somebody must have had the processor: an idle
    machine shall not wait long for them.
    """
    return round(duration * min(max(os.getloadavg()[0] / len(os.sched_getaffinity(0)), 1.0), _STRETCH_MAX))


def pause(seconds: float) -> None:
    """Let time pass where the passing itself is the test, such as load between two kills."""
    time.sleep(seconds)
