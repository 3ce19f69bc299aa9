"""The shortest form of a sequence that still shows a difference."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

from tests.differential.runner import FAST, SLOW, Pace, run
from tests.differential.steps import Found, Step
from tests.differential.upkeep import Upkeep

_SECONDS = 30.0

Path = tuple[Any, ...]


def shrink(upkeep: Upkeep, steps: list[Step], found: Found) -> tuple[list[Step], Found]:
    """Fewer requests, then fewer items in each; what it began with when the short form shows nothing in a slow run."""
    return _Shrinking(upkeep, steps, found).go()


class _Shrinking:
    def __init__(self, upkeep: Upkeep, steps: list[Step], found: Found) -> None:
        self._upkeep = upkeep
        self._whole = steps[: found.at + 1], found
        self._steps, self._found = self._whole
        self._end = time.monotonic() + _SECONDS

    def go(self) -> tuple[list[Step], Found]:
        self._drop_requests()
        self._drop_items()
        self._end = time.monotonic() + _SECONDS
        found = self._shows(self._steps, SLOW)
        return (self._steps, found) if found is not None else self._whole

    def _shows(self, steps: list[Step], pace: Pace = FAST) -> Found | None:
        if time.monotonic() > self._end:
            return None
        return next(
            (each for each in run(self._upkeep, steps, pace) if each.cause == self._found.cause), None
        )

    def _keep_if_shown(self, steps: list[Step]) -> bool:
        found = self._shows(steps)
        if found is not None:
            self._steps, self._found = steps, found
        return found is not None

    def _drop_requests(self) -> None:
        chunk = len(self._steps) // 2 or 1
        while chunk:
            at = len(self._steps) - chunk
            while at >= 0 and len(self._steps) > 1:
                self._keep_if_shown(self._steps[:at] + self._steps[at + chunk :])
                at = min(at, len(self._steps)) - chunk
            chunk //= 2

    def _drop_items(self) -> None:
        for at in reversed(range(len(self._steps))):
            while any(self._keep_if_shown(less) for less in self._with_less(at)):
                pass

    def _with_less(self, at: int) -> Iterator[list[Step]]:
        body = self._steps[at].body
        for path, number in _items(body):
            step = dataclasses.replace(self._steps[at], body=_without(body, path, number))
            yield [*self._steps[:at], step, *self._steps[at + 1 :]]


def _items(value: Any, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """Every item of every list, but the last one of each."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _items(each, (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _items(each, (*path, number))
        if len(value) > 1:
            yield from ((path, number) for number in reversed(range(len(value))))


def _without(value: Any, path: Path, number: int) -> Any:
    if not path:
        return value[:number] + value[number + 1 :]
    inner = _without(value[path[0]], path[1:], number)
    if isinstance(value, dict):
        return type(value)({**value, path[0]: inner})
    return [inner if at == path[0] else each for at, each in enumerate(value)]
