"""Sort many items without a long step: one `next` of the result never compares more than a few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Items that are sorted at once. They must be few, because a sort cannot be paused.
_RUN: Final = 200


def sort_by_steps(items: Iterable[T | None], key: Callable[[T], Any]) -> Iterator[T | None]:
    """Yield None for each item while all of them are read, then yield those that are not None in order.

    Each run of items is sorted when it is full. The sorted runs are merged when the items are wanted.
    """
    runs: list[list[T]] = [[]]
    for item in items:
        if item is not None:
            runs[-1].append(item)
            if len(runs[-1]) == _RUN:
                runs[-1].sort(key=key)
                runs.append([])
        yield None
    runs[-1].sort(key=key)
    yield from merge(*runs, key=key)
