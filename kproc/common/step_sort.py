"""Sort many items in small steps, so that a role can do other work between them: one `next` sorts at most 200 items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Number of items that one call of sorted() gets. It is small, because a call cannot be paused for other work.
_RUN: Final = 200


def sort_by_steps(items: Iterable[T | None], key: Callable[[T], Any]) -> Iterator[T | None]:
    """Read `items` and yield None for each. Then yield the items that are not None, sorted by `key`.

    Runs of 200 items are sorted while the items are read. The sorted runs are merged while the result is read.
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
