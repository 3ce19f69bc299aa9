"""Runs: the states of a share partition's offsets. Adjacent offsets with the same state are one Run.

A window of a million accepted records therefore costs as much as one record. A look-up is a binary search, and a change
costs as much as the runs that it touches. The runs are in the order of their offsets, and have no gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from kproc.broker.share.partition.messages import ShareHolder
from kproc.broker.share.state.messages import RecordState

FOREVER: Final = 1 << 63
_first_of: Final = attrgetter("first")


class Run(msgspec.Struct):
    """Consecutive offsets with one state."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    batch_size: int  # The size of the range in which the records were acquired for the first time.
    holder: ShareHolder | None = None  # The session that has acquired the records.
    deadline_ms: int = FOREVER  # Time at which the lock of acquired records ends.
    next_state: RecordState | None = None  # The new state, if its change is not persisted yet.
    # The reason why the records become dead letters: a member has rejected them, or they were delivered too often.
    is_rejected: bool = False

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.last - self.first + 1

    def is_like(self, other: Run) -> bool:
        """Return True if both runs have equal attributes, so that adjacent ones can be joined."""
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.batch_size == other.batch_size
            and self.holder == other.holder
            and self.deadline_ms == other.deadline_ms
            and self.next_state is other.next_state
            and self.is_rejected == other.is_rejected
        )


class Runs:
    """The runs of one share partition."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    @property
    def last(self) -> Run | None:
        """The run with the highest offsets, or None."""
        return self._runs[-1] if self._runs else None

    def find(self, offset: int) -> Run | None:
        """Return the run that contains an offset, or None."""
        at = bisect_right(self._runs, offset, key=_first_of) - 1
        return self._runs[at] if at >= 0 and self._runs[at].last >= offset else None

    def overlapping(self, first: int, last: int) -> list[Run]:
        """Return the runs with offsets of `first` to `last`. The first and the last run can reach beyond that range."""
        begin = max(bisect_right(self._runs, first, key=_first_of) - 1, 0)
        end = bisect_right(self._runs, last, key=_first_of)
        if begin < end and self._runs[begin].last < first:
            begin += 1
        return self._runs[begin:end]

    def cut(self, first: int, last: int, begins: Sequence[int] = ()) -> list[Run]:
        """Return runs with exactly the offsets `first` to `last`. Divides the runs at both ends if necessary.

        begins: more offsets in that range, in ascending order. A run begins at each of them.
        """
        if last < first:
            return []
        self._divide_at(first)
        self._divide_at(last + 1)
        begin = bisect_right(self._runs, first - 1, key=_first_of)
        end = bisect_right(self._runs, last, key=_first_of)
        runs = self._runs[begin:end]
        if begins:
            runs = self._runs[begin:end] = _divided(runs, begins)
        return runs

    def join(self, first: int, last: int) -> None:
        """Join adjacent runs that are alike, among the runs with `first` to `last` and one run on each side."""
        begin = max(bisect_right(self._runs, first, key=_first_of) - 2, 0)
        end = bisect_right(self._runs, last, key=_first_of) + 1
        joined: list[Run] = []
        # Each acknowledgement of single records divides runs. If equal neighbours were not joined again, memory
        # and the cost of a look-up would grow with every record of the window.
        for run in self._runs[begin:end]:
            if joined and joined[-1].is_like(run):
                joined[-1].last = run.last
            else:
                joined.append(run)
        self._runs[begin:end] = joined

    def append(self, run: Run) -> None:
        """Add a run behind the last one, or extend the last one."""
        assert not self._runs or self._runs[-1].last + 1 == run.first, (self._runs[-1], run)
        # Otherwise every fetched batch would stay a run of its own, even if all are in the same state.
        if self._runs and self._runs[-1].is_like(run):
            self._runs[-1].last = run.last
        else:
            self._runs.append(run)

    def remove_first(self, count: int) -> Sequence[Run]:
        """Remove the first `count` runs, and return them."""
        gone = self._runs[:count]
        del self._runs[:count]
        return gone

    def _divide_at(self, offset: int) -> None:
        """Divide the run that has `offset`, so that a run begins there."""
        at = bisect_right(self._runs, offset, key=_first_of) - 1
        if at < 0:
            return
        run = self._runs[at]
        if run.first < offset <= run.last:
            self._runs.insert(at + 1, replace(run, first=offset))
            run.last = offset - 1


def _divided(runs: Sequence[Run], begins: Sequence[int]) -> list[Run]:
    """Divide the runs so that a run begins at each offset of `begins`, and return them all. Shortens the given runs."""
    divided: list[Run] = []
    at = 0
    for run in runs:
        while at < len(begins) and begins[at] <= run.last:
            if begins[at] > run.first:
                rest = replace(run, first=begins[at])
                run.last = begins[at] - 1
                divided.append(run)
                run = rest
            at += 1
        divided.append(run)
    return divided
