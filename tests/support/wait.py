"""Waiting for a condition, with a deadline. The only place of the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Short enough to add nothing to a test's time, long enough not to take the broker's core on two cores.
_PAUSE_SECONDS = 0.01


def wait_until(condition: Callable[[], T], *, seconds: float = 10.0, what: str = "") -> T:
    """The first truthy value of `condition`; AssertionError with `what` when none came in time.

    `condition` may raise AssertionError for "not yet": the last one is what the failure shows.
    """
    deadline = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            value = condition()
            if value:
                return value
            last = value
        except AssertionError as problem:
            last = problem
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or condition!r}; last seen: {last!r}")
        time.sleep(_PAUSE_SECONDS)


def pause(seconds: float) -> None:
    """Let time pass where the passing itself is the test, such as load between two kills."""
    time.sleep(seconds)
