"""Steps: pieces of work that run in order, and that one of them can replace."""

from __future__ import annotations

from collections.abc import Iterator

from kproc.broker.coordinator.steps import STEP_COST, Steps


def test_steps_run_in_order_and_are_ended_from_within() -> None:
    steps, done = Steps(), []

    def work(name: str, parts: int, cost: int) -> Iterator[int]:
        for at in range(parts):
            done.append(f"{name}{at}")
            yield cost

    def ended(name: str) -> Iterator[int]:
        done.append(name)
        steps.replace_all(work("last", 1, 1))
        yield 1
        done.append("never")

    steps.add(work("a", 3, STEP_COST // 2))
    steps.add(work("b", 1, 1))
    assert (steps.run(), done) == (2 * (STEP_COST // 2), ["a0", "a1"])
    assert (steps.run(), done[2:], bool(steps)) == (STEP_COST // 2 + 1, ["a2", "b0"], False)
    steps.add(ended("c"))
    steps.run()
    assert (done[4:], bool(steps)) == (["c", "last0"], False)
