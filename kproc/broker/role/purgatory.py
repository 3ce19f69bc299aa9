"""Purgatory: delayed operations watched by key, with a deadline each.

Single-threaded, owned by one Handler. An operation completes exactly once: by an event on a key it watches
(`check`), by its deadline (`expire`), or because its client left (`cancel`). Names and semantics are Kafka's
DelayedOperationPurgatory; the locks are gone because there is one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from kproc.broker.role.due_time import DueTime
from kproc.common.containment import Containment, Owner
from kproc.common.deadlines import Deadlines

_EXPIRED: Final = "a request that waited until its deadline"
_WOKEN: Final = "a request that waited for an event"


class DelayedOperation:
    """One waiting request. Subclasses define when it is complete and how it is answered."""

    __slots__ = ("deadline_ns", "is_completed", "is_parked", "is_slow", "owner", "watched")

    def __init__(self, deadline_ns: int) -> None:
        self.deadline_ns = deadline_ns
        self.is_completed = False
        self.is_parked = False
        # True if `try_complete` or `on_expire` takes longer than 1 ms. The purgatory calls one of these per duty cycle.
        self.is_slow = False
        self.owner: Owner | None = None  # The waiting request.
        self.watched: tuple[Hashable, ...] = ()

    def try_complete(self) -> bool:
        """Complete if the condition holds now, by calling `complete()`; return whether it is completed."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """Answer the request. Called exactly once."""
        raise NotImplementedError

    def complete(self) -> bool:
        """Run `on_complete` unless it has run already. Return True if this call has run it."""
        # An event and the deadline can come in the same duty cycle, and a client must get one response only.
        if self.is_completed:
            return False
        self.is_completed = True
        self.on_complete()
        return True

    def on_expire(self) -> None:
        """Handle the deadline. By default, complete the operation with the results that are available."""
        self.complete()


class DelayedCall(DelayedOperation):
    """A call of `work` at the deadline. It comes earlier if all operations are completed, as when the Handler stops.

    is_slow: `work` takes longer than 1 ms.
    """

    __slots__ = ("_work",)

    def __init__(self, due_ns: int, work: Callable[[], object], *, is_slow: bool = False) -> None:
        super().__init__(due_ns)
        self.is_slow = is_slow
        self._work = work

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        self._work()


class Purgatory:
    """Watch lists by key, and the deadlines of all parked operations. The caller supplies the clock.

    `due` is the DueTime of the Handler: it gets the deadlines. `due.press` is called when an operation may complete.
    """

    def __init__(
        self,
        now_ns: Callable[[], int],
        containment: Containment | None = None,
        due: DueTime | None = None,
    ) -> None:
        self._now_ns = now_ns
        self._due = due or DueTime()
        self.containment = containment or Containment()
        self.watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        # In ns. The Handler calls `expire` when the earliest deadline has passed. An event brings the deadline of a
        # slow operation forward to its own time.
        self.deadlines: Deadlines[DelayedOperation] = Deadlines()
        self.watch_count = 0  # The keys that all operations watch.

    def __len__(self) -> int:
        return len(self.deadlines)

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        """Park an operation that could not complete yet."""
        operation.watched = tuple(keys)
        self.watch_count += len(operation.watched)
        operation.is_parked = True
        operation.owner = operation.owner or self.containment.owner
        for key in operation.watched:
            self.watchers.setdefault(key, {})[operation] = None
        self.deadlines.bring_forward(operation, operation.deadline_ns)
        self._due.bring_forward(operation.deadline_ns)

    def defer(self, work: Callable[[], object]) -> None:
        """Run work of more than 1 ms in a later duty cycle, in which no other slow operation runs."""
        self.watch(DelayedCall(self._now_ns(), work, is_slow=True), ())

    def call_at(
        self,
        due_ns: int,
        work: Callable[[], object],
        *,
        is_slow: bool = False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Call `work` at `due_ns` (monotonic, ns).

        `expire_all`, for example after a change of ACLs, does not make the call earlier, unless `is_over` returns True
        then.

        is_slow: as in DelayedCall.
        """

        def on_complete() -> None:
            if self._now_ns() < due_ns and not is_over():
                self.call_at(due_ns, work, is_slow=is_slow, is_over=is_over)
            else:
                work()

        self.watch(DelayedCall(due_ns, on_complete, is_slow=is_slow), ())

    def is_watched(self, key: Hashable) -> bool:
        return key in self.watchers

    def check(self, key: Hashable) -> None:
        """Try to complete every operation that watches `key`, because an event on `key` has happened.

        Slow operations are tried later: `expire` runs one of them per duty cycle.
        """
        watchers = self.watchers.get(key)
        if watchers is None:
            return
        self._due.press()
        containment = self.containment
        before = containment.owner
        # A copy, because an operation that completes is removed from `watchers` during the loop.
        for operation in list(watchers):
            if operation.is_slow:
                self.deadlines.bring_forward(operation, self._now_ns())
                continue
            containment.owner = operation.owner
            try:
                is_done = operation.is_completed or operation.try_complete()
            except Exception as error:  # noqa: BLE001 - ends this operation only
                operation.is_completed = is_done = True
                containment.caught(_WOKEN, error, operation.owner)
            if is_done:
                self._remove(operation)
        containment.owner = before

    def complete_all(self, key: Hashable) -> None:
        """Complete every operation that watches `key`, without checking its condition."""
        for operation in list(self.watchers.get(key, ())):
            operation.complete()
            self._remove(operation)

    def cancel(self, operation: DelayedOperation) -> None:
        """Discard an operation, because its client has disconnected."""
        operation.is_completed = True
        self._remove(operation)

    def finished(self, operation: DelayedOperation) -> None:
        """Remove the watches of an operation that was completed in another way."""
        self._remove(operation)

    def expire(self) -> int:
        """Complete the operations whose deadline has passed, but run at most one slow one. Return how many completed.

        A slow operation also runs here after an event, because `check` only brings its deadline forward.
        """
        now_ns = self._now_ns()
        count = 0
        has_slow = False
        for operation in self.deadlines.pop_due(now_ns):
            if operation.is_slow and has_slow:
                # Leave a second slow operation to a later duty cycle, in the order of the deadlines.
                self.deadlines.bring_forward(operation, min(operation.deadline_ns, now_ns))
            elif operation.is_slow and now_ns < operation.deadline_ns:
                has_slow = True
                count += self._try_again(operation)
            else:
                has_slow = has_slow or operation.is_slow
                count += self._expire(operation)
        return count

    def _try_again(self, operation: DelayedOperation) -> bool:
        """Try to complete a slow operation after an event. Return True if it is completed."""
        if (
            self.containment.run(_WOKEN, operation.owner, operation.try_complete)
            and not operation.is_completed
        ):
            # `pop_due` has removed the operation's deadline. Without a new one it would never expire.
            self.deadlines.bring_forward(operation, operation.deadline_ns)
            return False
        operation.is_completed = True
        self._remove(operation)
        return True

    def expire_all(self) -> None:
        """Complete all operations now, because the broker stops or because ACLs have changed.

        Waiting clients get the results so far.
        """
        # `pop_all` returns a list, because answering one operation may park another.
        for operation in self.deadlines.pop_all():
            self._expire(operation)

    def _expire(self, operation: DelayedOperation) -> bool:
        self._remove(operation)
        # Another operation's response has completed this one, after the deadlines that are due were listed.
        if operation.is_completed:
            return False
        self.containment.run(_EXPIRED, operation.owner, operation.on_expire)
        return True

    def _remove(self, operation: DelayedOperation) -> None:
        if not operation.is_parked:
            return
        operation.is_parked = False
        self.watch_count -= len(operation.watched)
        for key in operation.watched:
            watchers = self.watchers.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self.watchers[key]
        operation.watched = ()
        self.deadlines.discard(operation)
