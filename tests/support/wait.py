"""Waiting for a condition, with a deadline. The only place of the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Short enough to add nothing to a test's time, long enough not to take the broker's core on two cores: that much at
# first, then a twentieth of what has passed. A look at a broker's status takes 4 ms of CPU.
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX, _PAUSE_SHARE = 0.01, 0.1, 0.05
# A deadline states what an idle machine needs at most. A busy one takes several times as long. A condition that never
# holds must fail before pytest-timeout ends the test without a word about the condition.
_BUSY_FACTOR, _EXTENDED_SECONDS_MAX = 5.0, 200.0


def wait_until(condition: Callable[[], T], *, seconds: float = 10.0, what: str = "") -> T:
    """Return the first truthy value of `condition`; raise AssertionError with `what` when none came in time.

    `seconds` is enough on an idle machine; a busy one gets five times as long.
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


def pause(seconds: float) -> None:
    """Let time pass where the passing itself is the test, such as load between two kills."""
    time.sleep(seconds)
