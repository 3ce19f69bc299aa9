"""Computations that the broker divides into parts (coordinator/steps.py), run at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kproc.broker.coordinator.steps import Computation

P = ParamSpec("P")
T = TypeVar("T")


def undivided(compute: Callable[P, Computation[T]]) -> Callable[P, T]:
    """Return a function that runs all parts of a computation and returns its result."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        parts = compute(*args, **kwargs)
        while True:
            try:
                assert next(parts) >= 0
            except StopIteration as end:
                result: T = end.value
                return result

    return run
