"""StepScheduler: the steps of several coordinators in rotation, and a step that raises."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from kproc.broker.coordinator.coordinator_log import Guard
from kproc.broker.coordinator.step_scheduler import StepScheduler
from kproc.broker.coordinator.steps import STEP_COST, Steps
from kproc.common.containment import Containment


class Stepping(SimpleNamespace):
    """A coordinator that has nothing but steps."""

    __hash__ = object.__hash__


def coordinator(ran: list[str], name: str, *costs: int) -> Any:
    def work() -> Iterator[int]:
        for cost in costs:
            ran.append(name)
            yield cost

    made = Stepping(steps=Steps())
    made.steps.add(work())
    return made


def scheduler(discarded: list[Any]) -> StepScheduler:
    return StepScheduler(Guard(Containment(), discarded.append))


def test_large_steps_of_two_coordinators_alternate() -> None:
    ran: list[str] = []
    steps = scheduler([])
    for name in "ab":
        steps.add(coordinator(ran, name, STEP_COST, STEP_COST))
    for _ in range(4):
        steps.run()
    assert ran == ["a", "b", "a", "b"]
    for _ in range(2):
        steps.run()
    assert not steps.waiting


def test_cheap_steps_of_two_coordinators_share_a_run() -> None:
    ran: list[str] = []
    steps = scheduler([])
    for name in "ab":
        steps.add(coordinator(ran, name, 1))
    steps.run()
    assert ran == ["a", "b"]


def test_coordinator_without_steps_does_not_wait() -> None:
    steps = scheduler([])
    steps.add(Stepping(steps=Steps()))
    assert not steps.waiting


def test_coordinator_whose_step_raises_is_discarded() -> None:
    discarded: list[Any] = []
    steps = scheduler(discarded)
    broken = Stepping(steps=Steps())
    broken.steps.add(1 // 0 for _ in "x")
    steps.add(broken)
    steps.run()
    assert discarded == [broken]
    assert not steps.waiting
