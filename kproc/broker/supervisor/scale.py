"""Scaler: brings Processors, Handlers and listeners to the numbers of the settings, while clients work.

The Scaler decides when a change begins and which numbers it must reach, and replies to the requests that wait for its
end. scale_steps.py has the steps. There is one change at a time. Settings that arrive meanwhile are compared when it
has ended. A change that ends without reaching the wanted state counts as failed, so that it is not retried in a loop.

Sets of Processors: `num.network.threads` is the size of one set for all listeners. A listener with
`listener.name.<x>.num.network.threads` has a set of its own. When a listener gets its own set, its connections stay
where they are. When it loses that set, they migrate to the common one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kproc.broker.config import EndPoint
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.supervisor.children import Children
from kproc.broker.supervisor.listener_set import ListenerSet
from kproc.broker.supervisor.scale_steps import Condition, ScaleSteps, Steps, TargetState
from kproc.common.clock import NS_PER_MS

# Most steps of a change in one turn of the supervisor's loop. A correct change waits for something before that, and a
# faulty one must not block the supervisor.
_STEPS_PER_TURN: Final = 64


class Scaler:
    """Carries out one change at a time. One per supervisor, which calls `advance` at every turn of its loop."""

    def __init__(self, children: Children, listeners: ListenerSet) -> None:
        self._children = children
        self._table = children.table
        self._config = children.plan.config
        self._clock = children.plan.clock
        self._listeners = listeners
        self.changes = ScaleSteps(children, listeners)
        self._requested: TargetState | None = None
        self._current: TargetState | None = None  # The state that the present change is to reach.
        self._has_new_target = False  # True if the settings have changed since the present change began.
        # The wanted state that the last change failed to reach. It is not retried until the settings require another
        # state.
        self._failed_target: TargetState | None = None
        self._steps: Steps | None = None
        self._condition: Condition = lambda: True
        self._waiters: list[tuple[int, int, Callable[[dict[str, Any]], None]]] = []
        self._reported_problem: str | None = None

    @property
    def is_busy(self) -> bool:
        """True while a change is in progress or due, so that `advance` must be called often."""
        return self._steps is not None or self._target() is not None

    def skip_listeners(self, skipped: Mapping[EndPoint, str]) -> None:
        """Skip listeners that could not be opened at the start. `skipped` has the reasons, which `problem` reports."""
        self.changes.skipped.update(skipped)

    @property
    def problem(self) -> str | None:
        """The reasons why the state that the settings require was not reached, or None.

        They are those of each skipped listener, and the errors of the last change if it failed.
        """
        problems = []
        if self._requested is not None:
            skipped = self.changes.skipped
            problems = [skipped[each] for each in self._requested.listeners.values() if each in skipped]
        if self._has_failed:
            problems += self.changes.errors
        return "; ".join(problems) or None

    @property
    def _has_failed(self) -> bool:
        return self._failed_target is not None

    def set_target(self, settings: DynamicSettings) -> None:
        """Set the wanted state. The change begins at the next `advance`."""
        before, self._requested = self._requested, TargetState.of(self._config, settings)
        if before is not None and before.listeners != self._requested.listeners:
            self.changes.skipped.clear()
        if before != self._requested:
            self._has_new_target = True
            self._failed_target = None

    def respond_when_settled(self, on_reply: Callable[[dict[str, Any]], None]) -> None:
        """Call `on_reply` when no change is in progress or due.

        The reply has the changes since this call, the time since it in ms, the counts of roles, and any error, which is
        retriable.
        """
        self._waiters.append((len(self.changes.done), self._clock.now_ns(), on_reply))

    def advance(self, *, may_begin: bool = True) -> None:
        """Continue the present change while its conditions are true, by at most _STEPS_PER_TURN steps.

        With `may_begin` false, start no new change.
        """
        for _ in range(_STEPS_PER_TURN):
            if self._steps is None and not (may_begin and self._start_change()):
                break
            if not self.changes.should_continue(self._condition):
                break
            self._step()
        if self.problem != self._reported_problem:
            self._reported_problem = self.problem
            self._children.on_change()

    def _start_change(self) -> bool:
        """Begin the next change. If there is none, call the waiters of `respond_when_settled` and return False."""
        target = self._target()
        if target is None:
            self._respond_to_waiters()
            return False
        self.changes.errors = []
        self._current, self._has_new_target = target, False
        self._steps = self.changes.change(target)
        self._condition = lambda: True
        return True

    def _step(self) -> None:
        assert self._steps is not None
        try:
            # A change is a generator that yields the condition it waits for. So its code reads from top to bottom, and
            # the supervisor's loop never blocks.
            self._condition = next(self._steps)
        except StopIteration:
            self._steps = None
            self._finish_change()

    def _finish_change(self) -> None:
        """Finish a change of counts or listeners. If it failed, remember its target: it is not retried in a loop.

        If the settings have changed meanwhile, remember nothing: the next change has a new target.
        """
        tried, self._current = self._current, None
        assert tried is not None
        if self._has_new_target:
            return
        if not self.changes.errors and not self._is_reached(tried):
            self.changes.fail("the change did not reach its target, although no step failed")
        if self.changes.errors:
            self._failed_target = tried

    def _respond_to_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        counts = {"processors": len(self._table.processors("")), "handlers": len(self._table.handlers())}
        now_ns = self._clock.now_ns()
        for start, asked_ns, on_reply in waiters:
            took_ms = (now_ns - asked_ns) // NS_PER_MS
            reply: dict[str, Any] = {
                "counts": counts,
                "steps": self.changes.done[start:],
                "took_ms": took_ms,
            }
            if self._has_failed:
                # The causes are states of the host, such as a lack of memory. The controller has validated the counts.
                reply = {**reply, "error": "; ".join(self.changes.errors), "is_retriable": True}
            on_reply(reply)
        if waiters:
            self.changes.done.clear()

    def _target(self) -> TargetState | None:
        """Return the wanted state, or None if it has been reached or the change to it has failed."""
        wanted = self._requested
        if wanted is None or self._has_failed or self._is_reached(wanted):
            return None
        return wanted

    def _is_reached(self, wanted: TargetState) -> bool:
        names = set(self.changes.reachable(wanted))
        return (
            len(self._table.handlers()) == wanted.handlers
            and self._table.pools() == wanted.pools
            and (not names or set(self._listeners.names().values()) == names)
        )
