"""StepScheduler: runs the steps of all coordinators of a Handler in rotation, one step's worth in each duty cycle.

A coordinator with 100,000 groups has steps for seconds. In rotation the requests that wait for another coordinator,
for example for the end of its resignation, need not wait for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.broker.coordinator import steps

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_log import Guard
    from kproc.broker.coordinator.rules import Coordinator


class StepScheduler:
    """The coordinators that have steps to run. The guard discards a coordinator whose step raises an exception.

    Some are released coordinators that still answer their waiting requests. A coordinator that is being loaded is not
    in this list, because its load runs its steps.
    """

    __slots__ = ("_guard", "waiting")

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.waiting: dict[Coordinator, None] = {}  # In the order in which they run.

    def add(self, coordinator: Coordinator) -> None:
        """Run the steps of a coordinator from the next `run` on, if it has any."""
        if coordinator.steps:
            self.waiting[coordinator] = None

    def run(self) -> None:
        """Run steps of the coordinators in rotation, until they have cost as much as one step."""
        cost = 0
        while self.waiting and cost < steps.STEP_COST:
            coordinator = next(iter(self.waiting))
            del self.waiting[coordinator]
            cost += self._run_step(coordinator)

    def _run_step(self, coordinator: Coordinator) -> int:
        cost = 0

        def run() -> None:
            nonlocal cost
            cost = coordinator.steps.run()

        # The guard returns False after an exception: the coordinator was discarded, so its other steps are
        # not run.
        if self._guard.run(coordinator, "a step of a coordinator", run):
            self.add(coordinator)
        return cost
