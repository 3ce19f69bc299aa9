"""Purgatory: delayed operations watched by key, with a deadline each.

Single-threaded, owned by one Handler. An operation completes exactly once: by an event on a key it watches
(`check`), by its deadline (`expire`), or because its client left (`cancel`). Names and semantics are Kafka's
DelayedOperationPurgatory; the locks are gone because there is one thread.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from kproc.containment import Containment, Owner

_EXPIRED: Final = "a request that waited until its deadline"


class DelayedOperation:
    """One waiting request. Subclasses say when it is done and what to do then."""

    __slots__ = ("deadline_ns", "is_completed", "is_parked", "owner", "watched")

    def __init__(self, deadline_ns: int) -> None:
        self.deadline_ns = deadline_ns
        self.is_completed = False
        self.is_parked = False
        self.owner: Owner | None = None  # The request that waits.
        self.watched: tuple[Hashable, ...] = ()

    def try_complete(self) -> bool:
        """Complete if the condition holds now, by calling `complete()`; return whether it is completed."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """Answer. Called exactly once."""
        raise NotImplementedError

    def complete(self) -> bool:
        """Run `on_complete` unless that has happened already."""
        if self.is_completed:
            return False
        self.is_completed = True
        self.on_complete()
        return True

    def on_expire(self) -> None:
        """The deadline passed: by default the operation answers with what there is."""
        self.complete()


class Purgatory:
    """Watch lists by key plus one heap of deadlines. The caller supplies the clock."""

    def __init__(self, now_ns: Callable[[], int], containment: Containment | None = None) -> None:
        self._now_ns = now_ns
        self.containment = containment or Containment()
        self._watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._deadlines: list[tuple[int, int, DelayedOperation]] = []
        self._tiebreak = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        """Park an operation that could not complete yet."""
        operation.watched = tuple(keys)
        operation.is_parked = True
        operation.owner = operation.owner or self.containment.owner
        for key in operation.watched:
            self._watchers.setdefault(key, {})[operation] = None
        heapq.heappush(self._deadlines, (operation.deadline_ns, next(self._tiebreak), operation))
        self._count += 1

    def is_watched(self, key: Hashable) -> bool:
        return key in self._watchers

    def check(self, key: Hashable) -> None:
        """Something happened to `key`: try every operation that watches it."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return
        containment = self.containment
        before = containment.owner
        for operation in list(watchers):
            containment.owner = operation.owner
            try:
                is_done = operation.is_completed or operation.try_complete()
            except Exception as error:  # noqa: BLE001 - contained: it ends, the others are looked at
                operation.is_completed = is_done = True
                containment.caught("a request that waited for an event", error, operation.owner)
            if is_done:
                self._forget(operation)
        containment.owner = before

    def end(self, key: Hashable) -> None:
        """Complete every operation that watches `key`, whatever it waits for."""
        for operation in list(self._watchers.get(key, ())):
            operation.complete()
            self._forget(operation)

    def cancel(self, operation: DelayedOperation) -> None:
        """Drop an operation whose answer nobody wants any more."""
        operation.is_completed = True
        self._forget(operation)

    def finished(self, operation: DelayedOperation) -> None:
        """An operation completed by some other way: drop its watches."""
        self._forget(operation)

    def expire(self) -> int:
        """Complete every operation whose deadline has passed; return how many."""
        deadlines = self._deadlines
        if not deadlines:
            return 0
        now_ns = self._now_ns()
        expired = 0
        while deadlines and deadlines[0][0] <= now_ns:
            operation = heapq.heappop(deadlines)[2]
            if not operation.is_completed:
                expired += 1
                self._forget(operation)
                self.containment.run(_EXPIRED, operation.owner, operation.on_expire)
        return expired

    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of an operation that still waits."""
        while self._deadlines and self._deadlines[0][2].is_completed:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expire_all(self) -> None:
        """Complete everything now (the broker stops: waiting clients get what there is)."""
        deadlines, self._deadlines = self._deadlines, []  # An answer may let another operation park.
        for _, _, operation in sorted(deadlines, key=lambda entry: entry[:2]):
            if not operation.is_completed:
                self._forget(operation)
                self.containment.run(_EXPIRED, operation.owner, operation.on_expire)

    def _forget(self, operation: DelayedOperation) -> None:
        if not operation.is_parked:
            return
        operation.is_parked = False
        for key in operation.watched:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self._watchers[key]
        operation.watched = ()
        self._count -= 1
        # Completed entries are dropped from the heap when they reach its top. A busy consumer parks and completes
        # far more often than its deadlines pass, so the heap is rebuilt when most of it is dead.
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * self._count:
            self._deadlines = [entry for entry in self._deadlines if entry[2].is_parked]
            heapq.heapify(self._deadlines)
